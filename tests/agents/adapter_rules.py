"""Rules that every adapter for a library of agents keeps, each given agents of that library."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ExecutorFailed,
    InMemoryCheckpointStorage,
    RunStatus,
    SqliteCheckpointStorage,
    WorkflowWarningEvent,
)
from holdfast.agents import (
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    ToolApproval,
    ToolDecision,
)
from holdfast.errors import HistoryUnreadable, UnrecordedCalls
from tests.agents.agents import workflow_of

EARLIER = (AgentMessage("system", "s"), AgentMessage("user", "a"), AgentMessage("assistant", "b"))

for_each_decision = pytest.mark.parametrize(
    ("decision", "told"),
    [
        (
            {"action": "approve", "arguments": {"amount": 5}},
            'A person changed the arguments of this call to {"amount": 5}.\ncharged 5',
        ),
        (True, "charged 50"),
        ({"action": "deny", "reason": "too much"}, "A person denied this call: too much"),
        (ToolDecision.answer("was paid"), "A person answered in place of the tool:\nwas paid"),
    ],
    ids=["edited", "approved", "denied", "answered"],
)
"""Decisions about ``charge(50)``, with the result that the model is told."""


async def charge(amount: int) -> str:
    """Charge an amount."""
    return f"charged {amount}"


class Direct:
    """Calls that record nothing; requests and results are JSON, as they must be to be recorded."""

    async def model(self, request: Any, call: Any, **_: Any) -> Any:
        json.dumps(request)
        return json.loads(json.dumps(await call()))

    async def tool(self, call_id: str, name: str, arguments: Any, call: Any, **_: Any) -> Any:
        return json.loads(json.dumps(await call(arguments)))

    async def delta(self, text: str) -> None:
        pass


async def reply_of(agent: Any, request: AgentRequest) -> AgentReply:
    """Return the reply of an agent outside of workflows."""
    reply: AgentReply = await agent.run(request, Direct())
    return reply


async def unrecorded(agent: Any, request: Any = "x") -> list[str]:
    """Return what an agent is warned of that cannot be recorded; it is warned of nothing else."""
    events = [event async for event in workflow_of(agent).run_stream(request)]
    warnings = [event.warning for event in events if isinstance(event, WorkflowWarningEvent)]
    assert all(isinstance(warning, UnrecordedCalls) for warning in warnings)
    assert all("; it may happen again after a crash" in str(warning) for warning in warnings)
    return [str(warning).partition(": ")[2].partition("; it may")[0] for warning in warnings]


Tool = Callable[[], Awaitable[str]]


async def check_failed_tool_is_tried_alone(agent_of: Callable[[Tool, Tool], Any]) -> None:
    """Of two calls side by side, the one that failed is repeated, and the other is not.

    The model of the agent asks for ``first`` and ``second``, and then replies with their results.
    """
    happened: list[str] = []

    async def first() -> str:
        """Work."""
        happened.append("first")
        return "worked"

    async def second() -> str:
        """Fail once."""
        happened.append("second")
        await asyncio.sleep(0)
        if happened.count("second") == 1:
            raise ConnectionError("gone")
        return "came back"

    workflow = workflow_of(agent_of(first, second), InMemoryCheckpointStorage())
    with pytest.raises(ExecutorFailed, match="gone"):
        await workflow.run("x", run_id="r")
    result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["worked | came back"]
    assert sorted(happened) == ["first", "second", "second"]


async def check_decision(agent: Any, folder: Path, decision: Any, told: str, **settings: Any) -> None:
    """A call of ``charge(50)`` waits for a person; the model replies with the result that it is told."""
    async with SqliteCheckpointStorage(folder / "s.db") as storage:
        workflow = workflow_of(agent, storage, tool_approval=ToolApproval(["charge"]), **settings)
        result = await workflow.run("x", run_id="r")
        assert result.status is RunStatus.WAITING
        await storage.respond("r", {result.pending_requests[0].request_id: decision})
        result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == [told]


async def check_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    fails: Any,
    recovers: Any,
    kind: type[Exception],
    retry_after: float | None,
) -> None:
    """A limit or an outage is an error of the port; an agent that replies "fine" after it is asked again."""
    with pytest.raises(kind) as raised:
        await reply_of(fails, AgentRequest("x"))
    assert getattr(raised.value, "retry_after", None) == retry_after
    monkeypatch.setattr("holdfast.agents.rate_limits._FIRST_PAUSE", 0.0)
    assert (await workflow_of(recovers).run("x")).outputs == ["fine"]


async def check_history_is_refused(agent: Any, history: AgentHistory) -> None:
    """A conversation that the library cannot read ends the turn, with advice."""
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(agent).run(AgentRequest("x", history=history))
    assert isinstance(failed.value.__cause__, HistoryUnreadable)
    assert "AgentRequest(prompt, messages=...)" in str(failed.value.__cause__)
