"""The demo's worker with a bug: the model calls of its agent are not recorded."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.agents import AgentReply, AgentRequest, Calls
from holdfast.demo import triage_agent, worker

make_agent = triage_agent.make_agent


class _ForgetfulCalls:
    def __init__(self, calls: Calls) -> None:
        self.tool, self.delta = calls.tool, calls.delta

    async def model(self, request: Any, call: Callable[[], Awaitable[Any]], **_: Any) -> Any:
        return await call()


class _ForgetfulAgent:
    name = "forgetful"

    def __init__(self, *arguments: Any) -> None:
        self._agent = make_agent(*arguments)

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        return await self._agent.run(request, _ForgetfulCalls(calls))  # type: ignore[arg-type]


if __name__ == "__main__":
    triage_agent.make_agent = _ForgetfulAgent  # type: ignore[assignment]
    sys.exit(worker.main(sys.argv[1:]))
