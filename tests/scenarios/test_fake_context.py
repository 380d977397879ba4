"""``FakeContext``: one executor without a workflow does what it would do in a run."""

import datetime
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    Executor,
    GraphError,
    InvalidArgument,
    InvalidResponse,
    Merge,
    RequestExpired,
    RequestInfoExecutor,
    RunContextMissing,
    StateKey,
    StateNotSet,
    UnknownRequest,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import FakeContext
from tests.support.runs import soon

TOTAL = StateKey("total", int, scope_name="Sums", merge=Merge.ADD)
OWN = StateKey("own", list[int])


@dataclass
class Progress(WorkflowEvent):
    percent: int = 0


class Everything(Executor):
    """Does one thing of each kind."""

    def __init__(self, id: str | None = None, factor: int = 1) -> None:
        super().__init__(id)
        self.factor = factor
        self.seen = 0

    @handler
    async def number(self, number: int, ctx: WorkflowContext[Any, Any]) -> int:
        self.seen += 1
        await ctx.send_message(number * self.factor)
        await ctx.send_message("aside", target_id="other")
        await ctx.yield_output(number)
        await ctx.stream(number)
        await ctx.add_event(Progress(number))
        await ctx.add_event(Progress(number, provisional=True))
        await ctx.queue_state_update(TOTAL, number)
        await ctx.append_state(OWN, number)
        await ctx.clear_state("old")
        return number + 1

    @handler
    def text(self, text: str) -> str:
        return text.upper()

    @handler
    async def ask(self, question: bytes, ctx: WorkflowContext) -> None:
        await ctx.request_info(question, response_type=bool, request_id="q", expires=60)

    @response_handler
    async def answered(self, question: bytes, yes: bool, ctx: WorkflowContext[None, Any]) -> str:
        await ctx.yield_output((question, yes, ctx.source_executor_id))
        return "answered"

    @response_handler
    async def late(self, question: bytes, expired: RequestExpired, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output("late")


async def test_everything_that_a_handler_does_is_seen() -> None:
    state = {TOTAL: 40, ("Sums", "other"): "kept", OWN: [1], "old": "gone"}
    ctx = FakeContext(Everything.bind(id="all", factor=10), state=state, source="before")
    assert await soon(ctx.handle(2)) == 3
    assert (ctx.sent, ctx.sent_to("other"), ctx.sent_to("nobody")) == ([20, "aside"], ["aside"], [])
    assert (ctx.outputs, ctx.deltas) == ([2], [2])
    assert ctx.state == {("Sums", "total"): 42, ("Sums", "other"): "kept", "own": [1, 2]}
    assert ctx.written == {("Sums", "total"): 42, "own": [1, 2]}
    assert [(type(event).__name__, event.provisional) for event in ctx.added_events] == [
        ("Progress", False),
        ("Progress", True),
    ]
    assert (ctx.executor_id, ctx.source_executor_id, ctx.superstep, ctx.attempt) == ("all", "before", 1, 1)
    assert isinstance(ctx.executor, Everything)
    assert ctx.executor.seen == 1
    assert await soon(ctx.handle(3)) == 4, "a turn may have several messages"
    assert (ctx.outputs, ctx.executor.seen, ctx.written[("Sums", "total")]) == ([2, 3], 2, 45)


async def test_same_as_in_a_run() -> None:
    """What the fake shows is what the run does."""
    ctx = FakeContext(Everything)
    await soon(ctx.handle(2))
    other = RequestInfoExecutor(id="other")  # asks about all that it gets
    workflow = WorkflowBuilder(name="Real").set_start_executor(Everything).add_edge(Everything, other).build()
    run = await workflow.start(2)
    result = await soon(run.wait_for_completion())
    assert result.outputs == ctx.outputs
    assert [request.data for request in result.pending_requests] == [*ctx.sent, 3], "what it returned, too"
    shared = {
        (scope.name, key): value.load()
        for scope, keys in run.snapshot.state.items()
        if scope.owner is None
        for key, value in keys.items()
    }
    assert shared == {key: value for key, value in ctx.state.items() if isinstance(key, tuple)}


async def test_handler_may_be_called_directly() -> None:
    ctx = FakeContext(Everything)
    assert await soon(Everything(factor=3).number(5, ctx)) == 6
    assert ctx.sent == [15, "aside"]


async def test_sync_handlers_and_functions() -> None:
    @executor
    async def shout(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(text.upper())

    assert await soon(FakeContext(Everything()).handle("kelp")) == "KELP"
    ctx = FakeContext(shout)
    assert await soon(ctx.handle("kelp")) is None
    assert ctx.outputs == ["KELP"]


async def test_requests_are_answered() -> None:
    ctx = FakeContext(Everything, source="before")
    await soon(ctx.handle(b"Deploy?"))
    [request] = ctx.requests
    assert (request.request_id, request.data, request.response_type) == ("q", b"Deploy?", bool)
    with pytest.raises(InvalidResponse):
        await ctx.answer(request, "perhaps")
    with pytest.raises(UnknownRequest, match="'q'"):
        await ctx.answer("other", True)
    assert await soon(ctx.answer(request, True)) == "answered"
    assert (ctx.outputs, ctx.requests) == ([(b"Deploy?", True, None)], [])
    with pytest.raises(UnknownRequest, match="none"):
        await ctx.answer("q", True)


async def test_requests_expire() -> None:
    ctx = FakeContext(Everything)
    await soon(ctx.handle(b"Deploy?"))
    expires = ctx.requests[0].expires
    assert expires is not None
    await soon(ctx.answer("q", RequestExpired("q", expires)))
    assert ctx.outputs == ["late"]


async def test_request_without_a_response_handler_is_refused_as_in_a_run() -> None:
    @executor
    async def ask(text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=bool)

    with pytest.raises(GraphError, match="response_handler"):
        await soon(FakeContext(ask).handle("x"))


async def test_request_info_executor_passes_none_on() -> None:
    ctx = FakeContext(RequestInfoExecutor(id="ask"))
    await soon(ctx.handle("Deploy?"))
    assert await soon(ctx.answer(ctx.requests[0], None)) is None


async def test_errors_are_those_of_the_handler() -> None:
    @executor
    async def need(text: str, ctx: WorkflowContext) -> None:
        await ctx.require_state(TOTAL)

    @executor
    async def client(text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(ctx.run_context["client"])

    with pytest.raises(StateNotSet):
        await soon(FakeContext(need).handle("x"))
    with pytest.raises(RunContextMissing):
        await soon(FakeContext(client).handle("x"))
    ctx = FakeContext(client, run_context={"client": 5})
    await soon(ctx.handle("x"))
    assert ctx.outputs == [5]
    with pytest.raises(WrongType, match="takes str"):
        await soon(ctx.handle(5))


async def test_values_are_captured() -> None:
    given = {"own": [1]}

    @executor
    async def grow(rows: list, ctx: WorkflowContext[list]) -> None:
        rows.append(2)
        own = await ctx.read_state("own")
        own.append(3)
        await ctx.send_message(rows)
        rows.append(4)

    message = [1]
    ctx = FakeContext(grow, state=given)
    await soon(ctx.handle(message))
    assert (message, ctx.sent, ctx.state, given) == ([1], [[1, 2]], {"own": [1]}, {"own": [1]})


async def test_sleep_takes_no_time_and_effects_happen() -> None:
    until = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)

    @executor
    async def slow(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.sleep(86_400)
        await ctx.sleep(until=until)
        await ctx.yield_output(await ctx.once("upper", text.upper))

    ctx = FakeContext(slow)
    await soon(ctx.handle("kelp"))
    assert (ctx.slept, ctx.outputs) == ([86_400, until], ["KELP"])
    with pytest.raises(InvalidArgument, match="time span"):
        await ctx.sleep()
    with pytest.raises(WrongType):
        await ctx.sleep("long")  # type: ignore[arg-type]


async def test_state_and_attempt_of_its_own() -> None:
    @executor
    async def count(text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.set_state((await ctx.get_state() or 0) + 1)
        await ctx.yield_output((ctx.superstep, ctx.attempt, await ctx.get_state()))

    ctx = FakeContext(count, superstep=7, attempt=2)
    await soon(ctx.handle("x"))
    await soon(ctx.handle("x"))
    assert ctx.outputs == [(7, 2, 1), (7, 2, 2)]
    assert (ctx.state, ctx.written) == ({}, {}), "it is no key"
    assert FakeContext(count, superstep=7).idempotency_key == FakeContext(count, superstep=7).idempotency_key


@pytest.mark.parametrize("state", [{5: 1}, {("a", "b", "c"): 1}, {("", "key"): 1}, {TOTAL: "text"}])
def test_wrong_state_is_refused(state: Any) -> None:
    with pytest.raises((WrongType, InvalidArgument)):
        FakeContext(Everything, state=state)


def test_nested_workflow_has_no_handler() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(Everything).build()
    with pytest.raises(GraphError, match="nests a workflow"):
        FakeContext(WorkflowExecutor(inner, id="nested"))
    with pytest.raises(GraphError, match="decorate it with @executor"):
        FakeContext(len)  # type: ignore[arg-type]
