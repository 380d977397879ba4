"""Watching a run: as many as like, whenever they like, as slowly as they like; the run takes no notice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    MissedEvents,
    RequestInfoEvent,
    RequestInfoExecutor,
    Run,
    RunStatus,
    RunStream,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.runs import counting, names, pauses, soon, taken
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

EVENTS_PER_SUPERSTEP = 4


def asking() -> Workflow:
    ask = RequestInfoExecutor(id="ask", response_type=bool)
    return WorkflowBuilder(name="Asking").set_start_executor(ask).build()


class AskTwice(Executor):
    """Asks, and asks again when it is answered."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=bool)

    @response_handler
    async def answered(self, text: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        if text.endswith("?"):
            await ctx.request_info("Sure", response_type=bool)
        else:
            await ctx.yield_output(f"{text}: {yes}")


def asking_twice() -> Workflow:
    return WorkflowBuilder(name="AskingTwice").set_start_executor(AskTwice).build()


class Gate(Executor):
    """Waits until it is let through."""

    transient = ("passing",)

    def __init__(self, passing: asyncio.Event, id: str = "gate") -> None:
        super().__init__(id)
        self.passing = passing

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[None, str]) -> str:
        await self.passing.wait()
        return text


def gated(passing: asyncio.Event) -> Workflow:
    return WorkflowBuilder(name="Gated").set_start_executor(Gate.bind(passing)).build()


# -- several, late, slow ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10])
async def test_watchers_from_different_moments_see_the_same(count: int) -> None:
    run = await counting().start(30)
    watchers = []
    for _ in range(count):
        watchers.append(asyncio.create_task(taken(run)))
        await pauses(5)
    await soon(run.wait_for_completion())
    late = await soon(taken(run))
    assert len(late) == 2 + 31 * EVENTS_PER_SUPERSTEP + 2
    for watcher in watchers:
        assert await soon(watcher) == late


async def test_watchers_of_different_speeds_see_the_same() -> None:
    async def watch(run: Run, pause: int) -> list[WorkflowEvent]:
        events = []
        async for event in run.watch_stream():
            events.append(event)
            await pauses(pause)
        return events

    run = await counting().start(30)
    watchers = [asyncio.create_task(watch(run, pause)) for pause in (0, 1, 7)]
    slow, faster, fast = [await soon(watcher) for watcher in reversed(watchers)]
    assert slow == faster == fast
    assert names(fast)[-1] == "31 WorkflowCompleted"


async def test_slow_watcher_does_not_slow_the_run_or_others() -> None:
    run = await counting().start(50)
    stalled = run.watch_stream()
    first = await anext(stalled)
    assert await soon(taken(run)) == [first, *[event async for event in stalled]]


async def test_events_come_while_the_run_goes_on() -> None:
    passing = asyncio.Event()
    run = await gated(passing).start("x")
    seen = []
    async for event in run.watch_stream():
        seen.append(event)
        if len(seen) == 4:
            assert run.status is RunStatus.RUNNING
            passing.set()
    assert names(seen)[3:] == [
        "1 ExecutorInvoked gate",
        "1 ExecutorCompleted gate",
        "1 WorkflowOutput gate x",
        "1 SuperStepCompleted",
        "1 WorkflowStatus completed",
        "1 WorkflowCompleted x",
    ]


async def test_same_run_may_be_watched_again_and_again() -> None:
    run = await counting().start(3)
    first = await soon(taken(run))
    assert await soon(taken(run)) == first == await soon(taken(run))


async def test_every_watcher_is_told_of_a_failure_after_the_last_event() -> None:
    passing = asyncio.Event()

    @executor
    async def fail(text: str) -> None:
        await passing.wait()
        raise ValueError("no")

    async def watch(run: Run) -> tuple[list[str], Exception | None]:
        seen: list[WorkflowEvent] = []
        try:
            async for event in run.watch_stream():
                seen.append(event)
        except ExecutorFailed as error:
            return names(seen), error
        return names(seen), None

    run = await WorkflowBuilder().set_start_executor(fail).build().start("x")
    watchers = [asyncio.create_task(watch(run)) for _ in range(2)]
    await pauses(5)
    passing.set()
    (seen, error), other = [await soon(watcher) for watcher in watchers]
    assert seen[-2:] == ["1 WorkflowStatus failed", "1 WorkflowError"]
    assert isinstance(error, ExecutorFailed)
    assert other == (seen, error)
    assert await watch(run) == (seen, error)


# -- long runs -------------------------------------------------------------------------------------


async def test_late_watcher_of_a_long_run_is_told_what_it_missed() -> None:
    supersteps = 6_000
    run = await counting().start(supersteps - 1)
    early = 0
    last = None
    async for event in run.watch_stream():
        early, last = early + 1, event
    assert early == 2 + supersteps * EVENTS_PER_SUPERSTEP + 2 > 20_000
    missed, *rest = await soon(taken(run))
    assert isinstance(missed, WorkflowWarningEvent)
    assert isinstance(missed.warning, MissedEvents)
    assert missed.provisional
    assert missed.message == (
        f"{early - len(rest):,} events are missing here: this watcher came too late or was too slow, and they are no "
        f"longer kept; watch from the start, or take events faster"
    )
    assert 10_000 <= len(rest) <= 20_000
    assert rest[-1] is last
    assert run.result().warnings == [], "it is a warning for this watcher, not one of the run"


async def test_word_of_missed_events_belongs_to_the_run() -> None:
    run = await counting().start(6_000)
    await soon(run.wait_for_completion())
    missed = await anext(run.watch_stream())
    assert isinstance(missed, WorkflowWarningEvent)
    assert missed.run_id == run.run_id


async def test_slow_watcher_of_a_long_run_misses_the_middle_and_sees_the_end() -> None:
    run = await counting().start(6_000)
    watcher = run.watch_stream()
    first = await anext(watcher)
    await soon(run.wait_for_completion())
    rest = [event async for event in watcher]
    assert names([first]) == ["0 WorkflowStarted"]
    told = [event for event in rest if isinstance(event, WorkflowWarningEvent)]
    assert len(told) == 1
    assert names(rest)[-1] == "6001 WorkflowCompleted"


async def test_events_of_a_long_run_are_let_go() -> None:
    """Whether someone watches, stopped reading, or nobody does: memory stays bounded."""
    alive = 0

    class Counted(WorkflowEvent):
        def __init__(self) -> None:
            nonlocal alive
            super().__init__()
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    most = 0

    @executor
    async def work(number: int, ctx: WorkflowContext[int]) -> int | None:
        nonlocal most
        for _ in range(1_000):
            await ctx.add_event(Counted())
        most = max(most, alive)
        return number - 1 if number else None

    workflow = WorkflowBuilder().set_start_executor(work).add_edge(work, work).build()
    run = await workflow.start(60)
    stopped_reading = run.watch_stream()
    await anext(stopped_reading)
    await soon(run.wait_for_completion())
    # What was retained, what the watcher that stopped reading took at once, and the turn that goes on.
    assert most <= 2 * 20_000 + 1_000
    await stopped_reading.aclose()


async def test_stream_misses_nothing_of_a_long_run() -> None:
    seen = 0
    async for event in counting().run_stream(6_000):
        assert not isinstance(event, WorkflowWarningEvent)
        seen += 1
    assert seen == 2 + 6_001 * EVENTS_PER_SUPERSTEP + 2


async def test_run_without_a_watcher_never_stalls() -> None:
    run = await counting().start(6_000)
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED


# -- leaving ---------------------------------------------------------------------------------------


async def watch_and_break(run: Run) -> None:
    async for event in run.watch_stream():
        if isinstance(event, SuperStepCompletedEvent):
            break


async def watch_and_close(run: Run) -> None:
    watcher = run.watch_stream()
    await anext(watcher)
    await watcher.aclose()


async def watch_and_raise(run: Run) -> None:
    async def watch() -> None:
        async for _ in run.watch_stream():
            raise KeyError

    with pytest.raises(KeyError):
        await watch()


async def watch_and_be_cancelled(run: Run) -> None:
    watcher = asyncio.create_task(taken(run))
    await pauses(2)
    watcher.cancel()
    await asyncio.wait([watcher])
    assert watcher.cancelled()


async def never_read(run: Run) -> None:
    run.watch_stream()


@pytest.mark.parametrize(
    "leave", [watch_and_break, watch_and_close, watch_and_raise, watch_and_be_cancelled, never_read]
)
async def test_leaving_watch_stream_never_stops_the_run(leave: Callable[[Run], Any]) -> None:
    passing = asyncio.Event()

    @executor
    async def start(text: str) -> str:
        return text

    workflow = (
        WorkflowBuilder().set_start_executor(start).add_edge(start, Gate.bind(passing, id="gate")).build()
    )
    run = await workflow.start("x")
    await soon(leave(run))
    await pauses(10)
    assert run.status is RunStatus.RUNNING
    passing.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x"]
    assert len(await taken(run)) == 13


async def stream_and_break(stream: RunStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def stream_and_close(stream: RunStream) -> None:
    await anext(stream)
    await stream.aclose()


async def stream_and_drop(stream: RunStream) -> None:
    async for _ in stream:
        break
    await pauses(20)


@pytest.mark.parametrize("leave", [stream_and_break, stream_and_close, stream_and_drop])
async def test_leaving_a_stream_stops_the_run_whoever_watches_beside(
    leave: Callable[[RunStream], Any],
) -> None:
    stream = gated(asyncio.Event()).run_stream("x")
    beside = asyncio.create_task(taken(stream.run))
    await soon(leave(stream))
    assert stream.run.status is RunStatus.STOPPED
    assert names(await soon(beside))[-1].endswith("WorkflowStatus stopped")


async def test_closing_a_stream_that_another_task_reads() -> None:
    stream = gated(asyncio.Event()).run_stream("x")

    async def read() -> list[WorkflowEvent]:
        events = []
        try:
            while True:
                events.append(await anext(stream))
        except StopAsyncIteration:
            return events

    reader = asyncio.create_task(read())
    await pauses(10)
    try:
        await soon(stream.aclose())
        assert stream.run.status is RunStatus.STOPPED
        assert names(await soon(reader))[-1] == "1 WorkflowStatus stopped"
    finally:
        reader.cancel()
        await asyncio.wait([reader])


async def test_watcher_beside_a_stream_does_not_hold_the_run_when_it_stops_reading() -> None:
    stream = counting().run_stream(20)
    beside = stream.run.watch_stream()
    seen = [await anext(stream)]
    await anext(beside)
    seen += [event async for event in stream]
    assert names(seen)[-1] == "21 WorkflowCompleted"
    await beside.aclose()


# -- waiting and going on --------------------------------------------------------------------------


async def test_watching_ends_when_the_run_waits() -> None:
    run = await asking().start("Deploy?")
    events = await soon(taken(run))
    assert names(events)[-3:] == [
        "1 RequestInfo ask Deploy?",
        "1 SuperStepCompleted",
        "1 WorkflowStatus waiting",
    ]
    assert run.status is RunStatus.WAITING
    assert await soon(taken(run)) == events


async def test_watching_again_after_an_answer_shows_what_came_since() -> None:
    run = await asking().start("Deploy?")
    await soon(taken(run))
    await run.send_response("ask.1.1", True)
    events = await soon(taken(run))
    assert names(events) == [
        "1 WorkflowStatus running",
        "2 SuperStepStarted",
        "2 ExecutorInvoked ask",
        "2 ExecutorCompleted ask",
        "2 WorkflowOutput ask True",
        "2 SuperStepCompleted",
        "2 WorkflowStatus completed",
        "2 WorkflowCompleted True",
    ]
    assert await soon(taken(run)) == events


@pytest.mark.parametrize("on", [RequestInfoEvent, WorkflowStatusEvent])
@pytest.mark.parametrize("stream", [False, True])
def test_answering_inside_the_loop(on: type[WorkflowEvent], stream: bool) -> None:
    """Whether the answer comes with the question or when the run already waits: the same loop goes on."""

    async def main() -> tuple[list[str], list[Any]]:
        workflow = asking_twice()
        events: AsyncIterator[WorkflowEvent]
        if stream:
            source = workflow.run_stream("Deploy?")
            run, events = source.run, aiter(source)
        else:
            run = await workflow.start("Deploy?")
            events = run.watch_stream()
        seen: list[WorkflowEvent] = []
        async for event in events:
            seen.append(event)
            if isinstance(event, on):
                for request in run.pending_requests:
                    await run.send_response(request.create_response(True))
        assert run.status is RunStatus.COMPLETED
        outputs = [event.data for event in seen if isinstance(event, WorkflowOutputEvent)]
        return names(seen), outputs

    for seed in range(20):
        seen, outputs = run_seeded(main, seed)
        assert outputs == ["Sure: True"]
        assert len([name for name in seen if "RequestInfo" in name]) == 2
        assert len([name for name in seen if "WorkflowStarted" in name]) == 1
        assert seen[-1] == "3 WorkflowCompleted Sure: True"


async def test_watcher_that_waited_through_the_question_is_not_left_hanging() -> None:
    run = await asking_twice().start("Deploy?")
    chapters = []
    while run.status in (RunStatus.RUNNING, RunStatus.WAITING):
        watchers = [asyncio.create_task(taken(run)) for _ in range(3)]
        one, *others = [await soon(watcher) for watcher in watchers]
        assert all(other == one for other in others)
        chapters.append(names(one)[-1])
        if run.status is RunStatus.WAITING:
            await run.respond({request.request_id: True for request in run.pending_requests})
    assert chapters == [
        "1 WorkflowStatus waiting",
        "2 WorkflowStatus waiting",
        "3 WorkflowCompleted Sure: True",
    ]


async def test_slow_watcher_sees_all_chapters() -> None:
    run = await asking_twice().start("Deploy?")
    slow = run.watch_stream()
    seen = [await anext(slow)]
    while run.status is not RunStatus.COMPLETED:
        await soon(run.wait_for_completion())
        if run.status is RunStatus.WAITING:
            await run.respond({request.request_id: True for request in run.pending_requests})
    seen += [event async for event in slow]
    assert [name for name in names(seen) if "Status" in name] == [
        "0 WorkflowStatus running",
        "1 WorkflowStatus waiting",
        "1 WorkflowStatus running",
        "2 WorkflowStatus waiting",
        "2 WorkflowStatus running",
        "3 WorkflowStatus completed",
    ]


async def test_stream_may_be_read_on_after_an_answer() -> None:
    stream = asking().run_stream("Deploy?")
    seen = [event async for event in stream]
    assert names(seen)[-1] == "1 WorkflowStatus waiting"
    assert stream.run.status is RunStatus.WAITING, "leaving a stream does not end a run that waits"
    await stream.run.send_response("ask.1.1", False)
    seen = [event async for event in stream]
    assert names(seen)[0] == "1 WorkflowStatus running"
    assert names(seen)[-1] == "2 WorkflowCompleted False"


async def test_stream_is_left_while_the_run_waits() -> None:
    stream = asking().run_stream("Deploy?")
    async with stream:
        async for event in stream:
            if isinstance(event, WorkflowStatusEvent) and event.status is RunStatus.WAITING:
                break
    assert stream.run.status is RunStatus.WAITING
    await stream.run.send_response("ask.1.1", True)
    assert (await soon(stream.run.wait_for_completion())).outputs == [True]
