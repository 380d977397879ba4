"""Teams of agents: put together by ``AgentWorkflow.create()``, run by the ordinary engine."""
