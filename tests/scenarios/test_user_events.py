"""Events of users: durable ones come with their turn, provisional ones at once."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    Executor,
    RequestInfoExecutor,
    RetryPolicy,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.runs import cause_of_failure, events_of, events_until_failure, names
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


@dataclass
class Progress(WorkflowEvent):
    percent: int = 0


@dataclass(slots=True)
class Token(WorkflowEvent):
    text: str = ""


def alone(work: Any) -> Workflow:
    return WorkflowBuilder(name="Alone").set_start_executor(work).build()


def percents(events: list[WorkflowEvent], *, provisional: bool = False) -> list[int]:
    return [
        event.percent for event in events if isinstance(event, Progress) and event.provisional is provisional
    ]


def durable(events: list[WorkflowEvent]) -> list[WorkflowEvent]:
    return [event for event in events if not event.provisional]


async def test_durable_events_come_with_their_turn_in_order() -> None:
    @executor
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.add_event(Progress(percent=1))
        await ctx.yield_output("first")
        await ctx.add_event(Token(text="between"))
        await ctx.add_event(Progress(percent=2))
        return text

    events = await events_of(alone(work), "x")
    assert names(events)[3:-2] == [
        "1 ExecutorInvoked work",
        "1 Progress",
        "1 Token",
        "1 Progress",
        "1 ExecutorCompleted work",
        "1 WorkflowOutput work first",
        "1 WorkflowOutput work x",
        "1 SuperStepCompleted",
    ]
    assert percents(events) == [1, 2]


async def test_events_are_stamped_like_all_others() -> None:
    @executor
    async def count(number: int, ctx: WorkflowContext[int]) -> int | None:
        await ctx.add_event(Progress(percent=number))
        await ctx.add_event(Progress(percent=number, provisional=True))
        return number - 1 if number else None

    workflow = WorkflowBuilder().set_start_executor(count).add_edge(count, count).build()
    events = await events_of(workflow, 2)
    mine = [event for event in events if isinstance(event, Progress)]
    assert [(event.percent, event.superstep, event.provisional) for event in mine] == [
        (percent, 3 - percent, provisional) for percent in (2, 1, 0) for provisional in (True, False)
    ]
    assert {event.run_id for event in mine} == {events[0].run_id}
    assert [event.timestamp for event in events] == sorted(event.timestamp for event in events)


def test_order_of_durable_events_does_not_depend_on_who_is_faster() -> None:
    @executor
    async def start(number: int) -> int:
        return number

    class Work(Executor):
        def __init__(self, id: str, pauses: int) -> None:
            super().__init__(id)
            self.pauses = pauses

        @handler
        async def work(self, number: int, ctx: WorkflowContext) -> None:
            for part in range(2):
                for _ in range(self.pauses):
                    await asyncio.sleep(0)
                await ctx.add_event(Progress(percent=10 * self.pauses + part))
                await ctx.add_event(Progress(percent=10 * self.pauses + part, provisional=True))

    workers = [Work.bind(id=f"w{pauses}", pauses=pauses) for pauses in (5, 1, 3)]
    workflow = WorkflowBuilder().set_start_executor(start).add_fan_out_edges(start, workers).build()
    orders = set()
    for seed in range(30):
        events = run_seeded(lambda: events_of(workflow, 1), seed)
        assert percents(events) == [50, 51, 10, 11, 30, 31]
        ends = [f"2 ExecutorCompleted {worker.id}" for worker in workers]
        told = [name for name in names(durable(events)) if name in (*ends, "2 Progress")]
        assert told == [name for end in ends for name in ("2 Progress", "2 Progress", end)]
        shown = percents(events, provisional=True)
        assert sorted(shown) == [10, 11, 30, 31, 50, 51]
        orders.add(tuple(shown))
    assert len(orders) > 1, "provisional ones come as they happen"


async def test_provisional_events_come_at_once() -> None:
    go_on = asyncio.Event()

    @executor
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.add_event(Progress(percent=99))
        for token in text:
            await ctx.add_event(Token(text=token, provisional=True))
        await go_on.wait()
        return text

    seen: list[str] = []
    events = []
    async for event in alone(work).run_stream("abc"):
        events.append(event)
        if isinstance(event, Token):
            seen.append(event.text)
            assert percents(events) == []
            if seen == ["a", "b", "c"]:
                go_on.set()
    assert seen == ["a", "b", "c"]
    assert percents(events) == [99]


async def test_provisional_events_reach_watchers_too() -> None:
    go_on = asyncio.Event()

    @executor
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.add_event(Token(text="now", provisional=True))
        await go_on.wait()
        return text

    run = await alone(work).start("x")
    async for event in run.watch_stream():
        if isinstance(event, Token):
            go_on.set()
    assert go_on.is_set()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [({"percent": 1}, "dict"), ("50 %", "str"), (None, "NoneType"), (Progress, "type"), (object(), "object")],
)
async def test_something_else_than_an_event_is_refused(wrong: Any, name: str) -> None:
    @executor
    async def work(text: str, ctx: WorkflowContext) -> None:
        await ctx.add_event(wrong)

    cause = await cause_of_failure(alone(work), "x", WrongType)
    assert str(cause) == f"executor 'work' added a {name} as an event; derive your event from WorkflowEvent"
    assert isinstance(cause, TypeError)


async def test_events_of_failed_attempts_are_discarded() -> None:
    @executor(retry=RetryPolicy(attempts=3, backoff=0))
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.add_event(Progress(percent=ctx.attempt))
        await ctx.add_event(Progress(percent=ctx.attempt, provisional=True))
        if ctx.attempt < 3:
            raise ValueError("no")
        return text

    events = await events_of(alone(work), "x")
    assert percents(events) == [3]
    assert percents(events, provisional=True) == [1, 2, 3]


async def test_events_of_the_last_attempt_are_shown_before_its_failure() -> None:
    @executor(retry=RetryPolicy(attempts=2, backoff=0))
    async def work(text: str, ctx: WorkflowContext) -> None:
        await ctx.add_event(Progress(percent=ctx.attempt))
        raise ValueError("no")

    events, _ = await events_until_failure(alone(work), "x")
    assert percents(events) == [2]
    assert names(events)[-4:] == [
        "1 Progress",
        "1 ExecutorFailed work",
        "1 WorkflowStatus failed",
        "1 WorkflowError",
    ]


async def test_events_of_a_cancelled_turn_are_discarded() -> None:
    waiting = asyncio.Event()

    @executor
    async def work(text: str, ctx: WorkflowContext) -> None:
        await ctx.add_event(Progress(percent=1))
        await ctx.add_event(Progress(percent=2, provisional=True))
        waiting.set()
        await asyncio.Event().wait()

    run = await alone(work).start("x")
    await waiting.wait()
    await run.cancel()
    events = [event async for event in run.watch_stream()]
    assert percents(events) == []
    assert percents(events, provisional=True) == [2]


async def test_events_of_response_handlers() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=int)
            await ctx.add_event(Progress(percent=1))

        @response_handler
        async def answered(self, text: str, number: int, ctx: WorkflowContext) -> None:
            await ctx.add_event(Progress(percent=number))

    run = await alone(Ask).start("How many?")
    first = [event async for event in run.watch_stream()]
    assert percents(first) == [1]
    await run.send_response(run.pending_requests[0].request_id, 42)
    assert percents([event async for event in run.watch_stream()]) == [42]


async def test_events_of_nested_executors() -> None:
    @executor
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.add_event(Progress(percent=7))
        await ctx.add_event(Progress(percent=8, provisional=True))
        return text

    ask = RequestInfoExecutor(id="ask", response_type=bool)
    inner = WorkflowBuilder(name="Inner").set_start_executor(work).build()
    nest = WorkflowExecutor(inner, id="nest")
    run = await WorkflowBuilder().set_start_executor(nest).add_edge(nest, ask).build().start("x")
    events = [event async for event in run.watch_stream()]
    assert percents(events) == [7]
    assert percents(events, provisional=True) == [8]
    assert names(events)[-1].endswith("waiting")
