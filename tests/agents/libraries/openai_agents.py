"""``openai-agents`` with its own scripted model, which streams, asks the world and is told the errors of tools."""

from typing import Any

import agents
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from holdfast.agents import openai_agents
from tests.agents.world import SCRIPT, World


def make_agent(world: World) -> openai_agents.OpenAIAgentsAgent:
    def answer(call: ModelCall) -> list[Any]:
        # Each round of the script that wants tools wants two.
        calls = sum(item.get("type") == "function_call" for item in call.input)
        step = world.ask(calls // 2)
        said = [function_call(tool.name, tool.text, call_id=tool.call_id) for tool in step.tools]
        return said or [assistant_message(step.text)]

    tools = [agents.function_tool(tool) for tool in (world.charge, world.mail, world.fail)]
    model = ScriptedModel([ModelStep.respond(answer) for _ in SCRIPT])
    agent = agents.Agent(name="payer", instructions="Pay and tell.", model=model, tools=[*tools])
    return openai_agents.wrap(agent)


def comparable(messages: list[Any]) -> list[Any]:
    return messages
