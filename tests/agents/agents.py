"""Agents of no library for tests: they follow a script, and do each call through the port."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast import CheckpointStorage, Workflow, WorkflowBuilder
from holdfast.agents import (
    AgentExecutor,
    AgentHistory,
    AgentReply,
    AgentRequest,
    AgentSettings,
    AgentUsage,
    Calls,
)
from holdfast.errors import RecordedError

Script = Sequence[Any]
"""For each round a text, which ends it, or a list of ``(call id, tool, arguments)``."""


class ScriptedAgent:
    """Says what its script has for each round; tools are methods or functions by name."""

    def __init__(self, script: Script, tools: dict[str, Callable[..., Any]] | None = None) -> None:
        self.name = "scripted"
        self.script = script
        self.tools = tools or {}
        self.asked: list[Any] = []
        """What the model was asked, each time that it was."""
        self.requests: list[AgentRequest] = []

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        self.requests.append(request)
        earlier = request.history.messages if request.history is not None else []
        messages: list[Any] = [*earlier, {"user": request.prompt}]
        rounds = 0
        while True:
            response = await calls.model(
                {"messages": messages},
                partial(self._ask, messages, rounds),
                usage=lambda _: AgentUsage(10, 2, 1),
            )
            rounds += 1
            messages.append({"model": response})
            if isinstance(response, str):
                usage = AgentUsage(10 * rounds, 2 * rounds, rounds)
                return AgentReply(response, None, AgentHistory("scripted", "1", messages), usage)
            done = await asyncio.gather(*(self._tool(wanted, calls) for wanted in response))
            messages.append({"tools": done})

    async def _ask(self, messages: list[Any], rounds: int) -> Any:
        self.asked.append(list(messages))
        said = self.script[rounds]
        if isinstance(said, Exception):
            raise said
        return said(messages) if callable(said) else said

    async def _tool(self, wanted: Any, calls: Calls) -> Any:
        call_id, name, arguments = wanted

        async def call(given: Any) -> Any:
            return await self.tools[name](**given)

        try:
            return await calls.tool(call_id, name, arguments, call)
        except (ValueError, RecordedError) as error:
            return f"error: {error}"


def workflow_of(
    agent: Any, storage: CheckpointStorage | None = None, output_type: Any = str, **settings: Any
) -> Workflow:
    executor = AgentExecutor(agent, id="agent", output_type=output_type, settings=AgentSettings(**settings))
    builder = WorkflowBuilder(name="Agents").set_start_executor(executor)
    return (builder.with_checkpointing(storage) if storage is not None else builder).build()
