"""An agent of no library: it does its calls through the port itself, tools side by side in any order."""

import asyncio
import os
from typing import Any

from holdfast.agents import AgentHistory, AgentReply, AgentRequest, AgentUsage, Calls
from holdfast.errors import RecordedError
from tests.agents.world import WantedTool, World


class DirectAgent:
    name = "direct"

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        messages: list[Any] = [{"user": request.prompt}]
        answered = 0
        while True:

            async def ask(answered: int = answered) -> Any:
                step = self._world.ask(answered)
                return {"tools": [list(tool) for tool in step.tools], "text": step.text}

            response = await calls.model({"messages": messages}, ask)
            answered += 1
            messages.append(response)
            if not response["tools"]:
                history = AgentHistory("direct", "1", messages)
                return AgentReply(response["text"], None, history, AgentUsage(calls=answered))
            wanted = [WantedTool(*tool) for tool in response["tools"]]
            # Each process begins them in another order: only their ids tell them apart.
            order = wanted[::-1] if os.getpid() % 2 else wanted
            done = await asyncio.gather(*(self._tool(tool, calls) for tool in order))
            messages.append(dict(sorted(done)))

    async def _tool(self, tool: WantedTool, calls: Calls) -> tuple[str, str]:
        async def call(arguments: Any) -> str:
            result: str = await getattr(self._world, tool.name)(**arguments)
            return result

        try:
            return tool.call_id, await calls.tool(tool.call_id, tool.name, tool.arguments, call)
        except (ValueError, RecordedError) as error:
            return tool.call_id, f"error: {error}"


def make_agent(world: World) -> DirectAgent:
    return DirectAgent(world)


def comparable(messages: list[Any]) -> list[Any]:
    return messages
