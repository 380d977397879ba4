"""Handlers that sleep: for days, across restarts, in virtual time."""

import asyncio
import contextlib
import datetime
import gc
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    ExecutorInvokedEvent,
    ExecutorTimeout,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    Retention,
    RetryPolicy,
    Run,
    RunResult,
    RunStatus,
    RunTaken,
    Store,
    TurnOver,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowStatusEvent,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import VirtualTime
from tests.support.durable import Place, Wrapped, head_of, info_of_run, wrapped
from tests.support.inside import task_of
from tests.support.journals import noted
from tests.support.parts import Commit, Head, Letter, RunId
from tests.support.runs import cause_of_failure, names, soon

HOUR = 3_600
ran: list[str] = []
"""What handlers did, in order."""


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def workflow_of(start: Any, name: str = "Flow", **options: Any) -> Workflow:
    return WorkflowBuilder(name=name, **options).set_start_executor(start).build()


@executor
async def remind(text: str, ctx: WorkflowContext[None, str]) -> str:
    ran.append(f"before {text}")
    await ctx.sleep(timedelta(days=30))
    ran.append(f"after {text}")
    return f"{text}!"


async def asleep(
    workflow: Workflow, time: VirtualTime, storage: CheckpointStorage, message: Any = "x"
) -> Run:
    """A run that sleeps."""
    run = await workflow.start(message, run_id="r", storage=storage)
    await soon(time.timer())
    assert (run.status, run.pending_requests) == (RunStatus.WAITING, [])
    return run


async def at_rest(run: Run) -> None:
    """Wait until nothing drives the run."""
    await soon(asyncio.wait([task_of(run)]))


async def end_of(run: Run) -> RunResult:
    return await soon(run.wait_for_completion())


# -- one sleep -------------------------------------------------------------------------------------


async def test_a_run_sleeps_and_is_woken_on_time(place: Place, time: VirtualTime) -> None:
    wakes = time.now() + timedelta(days=30)
    run = await asleep(workflow_of(remind), time, place.storage)
    info = await info_of_run(place.storage, "r")
    assert (info.status, info.wake_at, run.wake_at) == (RunStatus.WAITING, wakes, wakes)
    assert not info.interrupted
    assert (await head_of(place.storage, "r")).owner == ""
    waiting = asyncio.ensure_future(run.wait_for_completion())
    await time.advance(days=29.999)
    assert (run.status, ran) == (RunStatus.WAITING, ["before x"])
    assert not waiting.done()
    await time.advance(days=0.001)
    result = await soon(waiting)
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["x!"])
    assert ran == ["before x", "before x", "after x"]
    assert run.wake_at is None
    assert (await info_of_run(place.storage, "r")).wake_at is None
    assert time.next_timer() is None


async def test_another_process_goes_on_after_the_time(place: Place, time: VirtualTime) -> None:
    await (await asleep(workflow_of(remind), time, place.storage)).close()
    await time.advance(days=31)
    storage = await place.reopened()
    result = await end_of(await workflow_of(remind).resume(run_id="r", storage=storage))
    assert (result.outputs, ran[-2:]) == (["x!"], ["before x", "after x"])


async def test_a_run_that_is_resumed_early_sleeps_on(place: Place, time: VirtualTime) -> None:
    first = await asleep(workflow_of(remind), time, place.storage)
    wakes = first.wake_at
    await first.close()
    storage = await place.reopened()
    for _ in range(2):
        await time.advance(days=1)
        ran.clear()
        run = await workflow_of(remind).resume(run_id="r", storage=storage)
        await soon(time.timer())
        await at_rest(run)
        assert (run.status, run.wake_at, ran) == (RunStatus.WAITING, wakes, [])
        await run.close()
    run = await workflow_of(remind).resume(run_id="r", storage=storage)
    await time.advance(days=28)
    assert (await end_of(run)).outputs == ["x!"]


async def test_nothing_of_a_sleeping_run_stays_in_memory(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asleep(workflow_of(remind), time, storage)
    tasks = asyncio.all_tasks()
    assert tasks == {asyncio.current_task()}
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
    assert time.next_timer() is None  # nobody would be woken by it
    await time.advance(days=31)
    assert ran == ["before x"]
    assert (await info_of_run(storage, "r")).status is RunStatus.WAITING


async def test_without_storage_the_handler_waits_in_place(time: VirtualTime) -> None:
    run = await workflow_of(remind).start("x")
    await soon(time.timer())
    assert (run.status, run.wake_at) == (RunStatus.RUNNING, None)
    await time.advance(days=30)
    assert (await end_of(run)).outputs == ["x!"]
    assert ran == ["before x", "after x"]


async def test_the_clock_of_the_world_wakes_too(place: Place) -> None:
    @executor
    async def nap(seconds: float, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(seconds)
        return "awake"

    assert (await soon(workflow_of(nap).run(0.02, storage=place.storage))).outputs == ["awake"]
    assert (await soon(workflow_of(nap).run(0.02))).outputs == ["awake"]


async def test_a_stream_goes_on_through_a_sleep(time: VirtualTime, storage: CheckpointStorage) -> None:
    stream = workflow_of(remind).run_stream("x", storage=storage)

    async def take() -> list[Any]:
        return [event async for event in stream]

    taking = asyncio.ensure_future(take())
    await soon(time.timer())
    await time.advance(days=30)
    events = await soon(taking)
    statuses = [event.status for event in events if isinstance(event, WorkflowStatusEvent)]
    assert statuses == [RunStatus.RUNNING, RunStatus.WAITING, RunStatus.RUNNING, RunStatus.COMPLETED]
    assert names(events).count("1 ExecutorInvoked remind") == 2
    assert names(events).count("1 ExecutorCompleted remind") == 1
    assert names(events).count("0 WorkflowStarted") == 1
    assert sum("WorkflowOutput" in name for name in names(events)) == 1


async def test_events_are_the_same_each_time(time: VirtualTime) -> None:
    async def told() -> list[str]:
        run = await asleep(workflow_of(remind), time, InMemoryCheckpointStorage())
        await time.advance(days=30)
        await end_of(run)
        return names([event async for event in run.watch_stream()])

    assert await told() == await told()


# -- how long --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"delay": 5}, 5),
        ({"delay": 0.25}, 0.25),
        ({"delay": timedelta(hours=2)}, 7_200),
        ({"until": datetime.datetime(2026, 1, 1, 3, tzinfo=UTC)}, 10_800),
        ({"until": datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.timezone(timedelta(hours=2)))}, 3_600),
    ],
)
async def test_spans_and_times(
    given: Any, seconds: float, time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def nap(_: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(**given)
        return "awake"

    begin = time.now()
    run = await asleep(workflow_of(nap), time, storage)
    assert run.wake_at == begin + timedelta(seconds=seconds)
    await time.advance(seconds)
    assert (await end_of(run)).outputs == ["awake"]


@pytest.mark.parametrize(
    "given", [{"delay": 0}, {"delay": timedelta(0)}, {"until": datetime.datetime(2020, 1, 1, tzinfo=UTC)}]
)
@pytest.mark.parametrize("stored", [True, False])
async def test_a_time_that_is_over_is_not_waited_for(given: Any, stored: bool, time: VirtualTime) -> None:
    @executor
    async def nap(_: str, ctx: WorkflowContext[None, str]) -> str:
        ran.append("called")
        await ctx.sleep(**given)
        return "awake"

    storage = InMemoryCheckpointStorage() if stored else None
    assert (await soon(workflow_of(nap).run("x", storage=storage))).outputs == ["awake"]
    assert ran == ["called"]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({}, InvalidArgument, "sleep takes a time span, as in sleep(3600), or a time"),
        (
            {"delay": 1, "until": datetime.datetime(2027, 1, 1, tzinfo=UTC)},
            InvalidArgument,
            "sleep takes a time",
        ),
        ({"delay": -1}, InvalidArgument, "delay=-1: must not be negative"),
        ({"delay": timedelta(-1)}, InvalidArgument, "must not be negative"),
        ({"delay": float("nan")}, InvalidArgument, "delay=nan: must be some seconds"),
        ({"delay": float("inf")}, InvalidArgument, "at most a hundred years"),
        ({"delay": 10**30}, InvalidArgument, "at most a hundred years"),
        ({"delay": timedelta(days=50_000)}, InvalidArgument, "more than a hundred years"),
        ({"delay": "1h"}, WrongType, "delay='1h': must be seconds or a timedelta"),
        ({"delay": True}, WrongType, "not bool"),
        ({"until": datetime.datetime(2027, 1, 1)}, InvalidArgument, "needs a time zone"),  # noqa: DTZ001
        ({"until": datetime.datetime(9000, 1, 1, tzinfo=UTC)}, InvalidArgument, "more than a hundred years"),
        ({"until": 5}, WrongType, "until=5: must be a datetime"),
        ({"until": datetime.date(2027, 1, 1)}, WrongType, "until="),
        ({"delay": datetime.datetime(2027, 1, 1, tzinfo=UTC)}, WrongType, "sleep(until=...)"),
    ],
)
async def test_nonsense_is_refused(given: Any, kind: type[Exception], said: str) -> None:
    @executor
    async def nap(_: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(**given)
        return "awake"

    error = await cause_of_failure(workflow_of(nap), "x", kind)
    assert said in str(error)


async def test_a_sleep_in_the_handler_of_a_restored_executor_is_refused(time: VirtualTime) -> None:
    class Sleepy(Executor):
        checkpointed = ("count",)
        count = 0

        def __init__(self, id: str = "sleepy") -> None:
            super().__init__(id)
            self.count = 0

        @handler
        async def work(self, left: int, ctx: WorkflowContext[int, str]) -> None:
            await ctx.sleep(HOUR)
            if left:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output("done")

        async def on_checkpoint_restored(self, ctx: WorkflowContext) -> None:
            await ctx.sleep(1)

    storage = InMemoryCheckpointStorage()
    builder = WorkflowBuilder(name="Flow").set_start_executor(Sleepy.bind())
    workflow = builder.add_edge(Sleepy.bind(), Sleepy.bind()).build()
    run = await asleep(workflow, time, storage, 1)
    await time.advance(HOUR)
    await soon(time.timer())
    await time.advance(HOUR)
    with pytest.raises(ExecutorFailed, match="sleeps; it may only read"):
        await end_of(run)


# -- several sleeps --------------------------------------------------------------------------------


async def test_several_sleeps_of_a_handler(place: Place, time: VirtualTime) -> None:
    @executor
    async def thrice(text: str, ctx: WorkflowContext[None, str]) -> str:
        for number in range(3):
            ran.append(f"sleep {number}")
            await ctx.sleep(HOUR)
        return text

    run = await asleep(workflow_of(thrice), time, place.storage)
    for number in range(3):
        assert ran == [f"sleep {before}" for before in range(number + 1)]
        ran.clear()
        await soon(time.timer())
        assert run.wake_at == time.now() + timedelta(hours=1)
        await time.advance(HOUR)
        if number < 2:
            await soon(time.timer())
    assert (await end_of(run)).outputs == ["x"]


async def test_what_is_done_once_stays_done_through_sleeps(place: Place, time: VirtualTime) -> None:
    def count(name: str) -> int:
        ran.append(name)
        return len(ran)

    @executor
    async def pay(text: str, ctx: WorkflowContext[None, list[Any]]) -> list[Any]:
        keys = [ctx.idempotency_key]
        await ctx.once("first", ran.append, "first")
        await ctx.sleep(HOUR)
        second = await ctx.once("second", count, "second")
        await ctx.sleep(HOUR)
        keys.append(ctx.idempotency_key)
        return [second, keys[0] == keys[1], ctx.attempt]

    run = await asleep(workflow_of(pay), time, place.storage)
    await time.advance(HOUR)
    await soon(time.timer())
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == [[2, True, 1]]
    assert ran == ["first", "second"]


async def test_each_message_of_a_turn_has_its_own_sleeps(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def send(hours: int, ctx: WorkflowContext[int]) -> None:
        for number in range(3):
            await ctx.send_message(hours + number)

    @executor
    async def nap(hours: int, ctx: WorkflowContext[None, int]) -> int:
        ran.append(f"{hours}")
        await ctx.sleep(hours * HOUR)
        return hours

    workflow = WorkflowBuilder(name="Flow").set_start_executor(send).add_edge(send, nap).build()
    run = await asleep(workflow, time, storage, 1)
    slept = []
    while run.status is not RunStatus.COMPLETED:
        begin = time.now()
        assert run.wake_at is not None
        slept.append(run.wake_at - begin)
        await time.advance(run.wake_at - begin)
        if len(slept) < 3:
            await soon(time.timer())
        else:
            await end_of(run)
    # One after the other, as the turn handles them.
    assert slept == [timedelta(hours=hours) for hours in (1, 2, 3)]
    assert run.result().outputs == [1, 2, 3]


@pytest.mark.parametrize("group", [True, False])
async def test_sleeps_side_by_side_last_as_long_as_the_longest(
    group: bool, time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def both(text: str, ctx: WorkflowContext[None, str]) -> str:
        if group:
            async with asyncio.TaskGroup() as tasks:
                for hours in (1, 2):
                    tasks.create_task(ctx.sleep(hours * HOUR))
        else:
            await asyncio.gather(ctx.sleep(HOUR), ctx.sleep(2 * HOUR))
        return text

    run = await asleep(workflow_of(both), time, storage)
    await time.advance(HOUR)
    await soon(time.timer())
    assert run.wake_at == time.now() + timedelta(hours=1)
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["x"]


# -- others in the same superstep ------------------------------------------------------------------


class Part(Executor):
    checkpointed = ("seen",)

    def __init__(self, id: str, hours: float = 0) -> None:
        super().__init__(id)
        self.hours = hours
        self.seen: list[str] = []
        self.calls = 0

    @handler
    async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
        ran.append(str(self.id))
        self.calls += 1
        self.seen.append(text)
        await ctx.append_state("log", str(self.id), scope_name="Shared")
        if self.hours:
            await ctx.sleep(self.hours * HOUR)
        return f"{self.id}{len(self.seen)}{self.calls}"


@executor(id="start")
async def start(text: str) -> str:
    return text


@executor(id="join")
async def join(parts: list[str], ctx: WorkflowContext[None, list[str]]) -> None:
    await ctx.yield_output([*parts, *await ctx.read_state("log", scope_name="Shared")])


def parts(hours: dict[str, float], name: str = "Parts") -> Workflow:
    workers = [Part.bind(id=id, hours=long) for id, long in hours.items()]
    builder = WorkflowBuilder(name=name).set_start_executor(start).add_fan_out_edges(start, workers)
    return builder.add_fan_in_edges(workers, join).build()


TEN = {f"w{number}": 24.0 if number == 4 else 0.0 for number in range(10)}


async def test_the_others_of_a_superstep_are_not_run_again(place: Place, time: VirtualTime) -> None:
    run = await asleep(parts(TEN), time, place.storage)
    assert sorted(ran) == sorted(TEN)
    turns = sorted(key[1] for key in await noted(place.storage, "r") if key[0] == "turn")
    assert turns == sorted(set(TEN) - {"w4"})
    ran.clear()
    await time.advance(days=1)
    (output,) = (await end_of(run)).outputs
    assert ran == ["w4"]
    # Executors are as they were before the superstep; each changed its fields and the state once.
    assert output == [f"{id}11" for id in TEN] + list(TEN)


async def test_another_process_runs_only_the_one_that_slept(place: Place, time: VirtualTime) -> None:
    await (await asleep(parts(TEN), time, place.storage)).close()
    ran.clear()
    await time.advance(days=1)
    storage = await place.reopened()
    run = await parts(TEN).resume(run_id="r", storage=storage)
    (output,) = (await end_of(run)).outputs
    assert (ran, output) == (["w4"], [f"{id}11" for id in TEN] + list(TEN))
    invoked = [
        e.executor_id for e in [x async for x in run.watch_stream()] if isinstance(e, ExecutorInvokedEvent)
    ]
    assert invoked == ["w4", "join"]


async def test_sleepers_of_a_superstep_wake_one_by_one(time: VirtualTime, storage: CheckpointStorage) -> None:
    run = await asleep(parts({"a": 3, "b": 1, "c": 0, "d": 2}), time, storage)
    for awake in ("b", "d"):
        ran.clear()
        assert run.wake_at == time.now() + timedelta(hours=1)
        await time.advance(HOUR)
        await soon(time.timer())
        assert ran == [awake]
    ran.clear()
    await time.advance(HOUR)
    (output,) = (await end_of(run)).outputs
    assert (ran, output) == (["a"], ["a11", "b11", "c11", "d11", "a", "b", "c", "d"])


async def test_one_fails_while_another_sleeps(time: VirtualTime, storage: CheckpointStorage) -> None:
    fails = True

    @executor(id="bad")
    async def bad(text: str) -> str:
        ran.append("bad")
        if fails:
            raise ConnectionError
        return "bad"

    workers: list[Any] = [Part.bind(id="a", hours=1), bad]
    builder = WorkflowBuilder(name="Parts").set_start_executor(start).add_fan_out_edges(start, workers)
    workflow = builder.add_fan_in_edges(workers, join).build()
    begin = time.now()
    with pytest.raises(ExecutorFailed, match="bad"):
        await soon(workflow.run("x", run_id="r", storage=storage))
    assert (await info_of_run(storage, "r")).wake_at is None
    fails = False
    ran.clear()
    await time.advance(HOUR / 2)
    run = await workflow.resume(run_id="r", storage=storage)
    await soon(time.timer())
    assert (ran, run.wake_at) == (["bad"], begin + timedelta(hours=1))  # its deadline is what it was
    await time.advance(HOUR / 2)
    assert (await end_of(run)).outputs == [["a11", "bad", "a"]]
    assert ran == ["bad", "a"]


async def test_a_nested_workflow_sleeps(place: Place, time: VirtualTime) -> None:
    nested = WorkflowExecutor(parts({"a": 1, "b": 0}, "Inner"), id="inner")
    outer = WorkflowBuilder(name="Outer").set_start_executor(start).add_edge(start, nested).build()
    await (await asleep(outer, time, place.storage)).close()
    assert sorted(ran) == ["a", "b"]
    ran.clear()
    await time.advance(HOUR)
    storage = await place.reopened()
    result = await end_of(await outer.resume(run_id="r", storage=storage))
    assert ran == ["a"]
    assert result.status is RunStatus.COMPLETED


# -- handlers that do odd things -------------------------------------------------------------------


async def test_a_handler_that_swallows_everything_sleeps_all_the_same(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def stubborn(text: str, ctx: WorkflowContext[None, str]) -> str:
        try:
            await ctx.sleep(HOUR)
            ran.append("awake")
        except BaseException:
            ran.append("swallowed")
        return text

    run = await asleep(workflow_of(stubborn), time, storage)
    assert ran == ["swallowed"]
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["x"]
    assert ran == ["swallowed", "awake"]


async def test_cleaning_up_may_use_the_context_only_when_the_sleep_is_over(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def tidy(text: str, ctx: WorkflowContext[None, str]) -> None:
        try:
            await ctx.sleep(HOUR)
        finally:
            ran.append("finally")
            await ctx.yield_output("tidied")
            ran.append("yielded")

    run = await asleep(workflow_of(tidy), time, storage)
    assert ran == ["finally"]
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["tidied"]
    assert ran == ["finally", "finally", "yielded"]


async def test_what_was_sent_before_the_sleep_is_sent_once(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def chatty(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output("before")
        await ctx.append_state("log", "before", scope_name="Shared")
        await ctx.sleep(HOUR)
        await ctx.yield_output(f"after {await ctx.read_state('log', scope_name='Shared')}")

    run = await asleep(workflow_of(chatty), time, storage)
    assert run.result().outputs == []
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["before", "after ['before']"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_sleep_is_no_failed_attempt(stored: bool, time: VirtualTime) -> None:
    """A turn that failed and slept begins to count anew when it is woken; a deadline that was kept stays."""

    class Flaky(Executor):
        @handler(retry=RetryPolicy(attempts=2, backoff=0.001, jitter=0))
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            ran.append(f"attempt {ctx.attempt}")
            if ran == ["attempt 1"]:
                raise ConnectionError
            await ctx.sleep(HOUR)
            return text

    run = await workflow_of(Flaky.bind(id="flaky")).start(
        "x", storage=InMemoryCheckpointStorage() if stored else None
    )
    await soon(time.timer())
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["x"]
    assert ran == ["attempt 1", "attempt 2", *(["attempt 1"] if stored else [])]


async def test_a_turn_that_fails_after_its_sleep_does_not_sleep_again(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    class Flaky(Executor):
        @handler(retry=RetryPolicy(attempts=3, backoff=0.001, jitter=0))
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            await ctx.sleep(HOUR)
            ran.append(f"attempt {ctx.attempt}")
            if ctx.attempt < 3:
                raise ConnectionError
            return text

    run = await asleep(workflow_of(Flaky.bind(id="flaky")), time, storage)
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["x"]
    assert ran == ["attempt 1", "attempt 2", "attempt 3"]


async def test_the_timeout_of_a_handler_does_not_count_its_sleep(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    class Timed(Executor):
        @handler(timeout=20)
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            await ctx.sleep(24 * HOUR)
            if text == "slow":
                await asyncio.Event().wait()
            return text

    run = await asleep(workflow_of(Timed.bind(id="timed")), time, storage)
    await time.advance(days=1)
    assert (await end_of(run)).outputs == ["x"]


async def test_a_timeout_after_the_sleep_counts(time: VirtualTime, storage: CheckpointStorage) -> None:
    class Timed(Executor):
        @handler(timeout=0.5)
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            await ctx.sleep(HOUR)
            await asyncio.Event().wait()
            return text

    run = await asleep(workflow_of(Timed.bind(id="timed")), time, storage)
    await time.advance(HOUR)
    with pytest.raises(ExecutorFailed) as caught:
        await end_of(run)
    assert isinstance(caught.value.__cause__, ExecutorTimeout)


async def test_an_executor_instance_is_as_before_when_its_turn_is_called_again(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    part = Part(id="part", hours=1)
    builder = WorkflowBuilder(name="Flow").set_start_executor(part)
    run = await asleep(builder.build(), time, storage)
    assert part.calls == 1
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["part11"]


# -- what others do meanwhile ----------------------------------------------------------------------


async def test_a_sleeping_run_can_be_cancelled(place: Place, time: VirtualTime) -> None:
    run = await asleep(workflow_of(remind), time, place.storage)
    waiting = asyncio.ensure_future(run.wait_for_completion())
    await run.cancel()
    assert (await soon(waiting)).status is RunStatus.CANCELLED
    info = await info_of_run(place.storage, "r")
    assert (info.status, info.wake_at) == (RunStatus.CANCELLED, None)
    assert time.next_timer() is None
    await time.advance(days=40)
    assert ran == ["before x"]
    ran.clear()
    # What it had slept is not lost: resumed, it goes on as if it had slept on.
    resumed = await workflow_of(remind).resume(run_id="r", storage=place.storage)
    assert (await end_of(resumed)).outputs == ["x!"]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_sleeping_run_is_cancelled_by_storage(
    asks: bool, time: VirtualTime, storage: CheckpointStorage
) -> None:
    """Who waits learns of it when they ask, or at the latest when the sleep would have been over."""
    run = await asleep(workflow_of(remind), time, storage)
    waiting = None if asks else asyncio.ensure_future(run.wait_for_completion())
    await asyncio.sleep(0)
    info = await storage.cancel("r")
    assert (info.status, info.wake_at) == (RunStatus.CANCELLED, None)
    if waiting is None:
        assert (await end_of(run)).status is RunStatus.CANCELLED
    else:
        await time.advance(days=30)
        assert (await soon(waiting)).status is RunStatus.CANCELLED
    assert ran == ["before x"]


async def test_a_sleeping_run_that_is_closed_is_left_to_others(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asleep(workflow_of(remind), time, storage)
    waiting = asyncio.ensure_future(run.wait_for_completion())
    await asyncio.sleep(0)
    await run.close()
    assert (await soon(waiting)).status is RunStatus.WAITING
    await time.advance(days=30)
    assert (run.status, ran) == (RunStatus.WAITING, ["before x"])
    other = await workflow_of(remind).resume(run_id="r", storage=storage)
    assert (await end_of(other)).outputs == ["x!"]


async def test_being_cancelled_leaves_a_run_that_sleeps_asleep(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    running = asyncio.ensure_future(workflow_of(remind).run("x", run_id="r", storage=storage))
    await soon(time.timer())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    info = await info_of_run(storage, "r")
    assert (info.status, info.wake_at) == (RunStatus.WAITING, time.now() + timedelta(days=30))


async def test_who_waits_is_told_if_someone_else_woke_the_run(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asleep(workflow_of(remind), time, storage)
    other = CheckpointStorage(storage.store)
    waiting = asyncio.ensure_future(run.wait_for_completion())
    taker = await workflow_of(remind).resume(run_id="r", storage=other)
    await at_rest(taker)
    await time.advance(days=30)
    results = await soon(asyncio.gather(waiting, taker.wait_for_completion(), return_exceptions=True))
    done = [result for result in results if isinstance(result, RunResult)]
    assert [result.outputs for result in done] == [["x!"]]
    assert sum(isinstance(result, RunTaken) for result in results) == 1
    assert ran.count("after x") == 1


async def test_going_back_begins_a_sleep_anew(place: Place, time: VirtualTime) -> None:
    run = await asleep(workflow_of(remind), time, place.storage)
    await time.advance(days=10)
    assert run.latest_checkpoint is not None
    waiting = asyncio.ensure_future(run.wait_for_completion())
    await asyncio.sleep(0)
    await run.restore_checkpoint(run.latest_checkpoint)
    await soon(time.timer())
    assert run.wake_at == time.now() + timedelta(days=30)
    await time.advance(days=30)
    assert (await soon(waiting)).outputs == ["x!"]
    assert ran == ["before x", "before x", "before x", "after x"]


async def test_a_fork_of_a_sleeping_run_sleeps_by_itself(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asleep(workflow_of(remind), time, storage)
    await time.advance(days=10)
    assert run.latest_checkpoint is not None
    fork = await workflow_of(remind).fork(run.latest_checkpoint, run_id="f", storage=storage)
    await at_rest(fork)
    assert fork.wake_at == time.now() + timedelta(days=30)
    await time.advance(days=20)
    assert (await end_of(run)).outputs == ["x!"]
    assert fork.status is RunStatus.WAITING
    await time.advance(days=10)
    assert (await end_of(fork)).outputs == ["x!"]


class Asks(Executor):
    """Asks, and then sleeps in another superstep."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[int]) -> None:
        await ctx.request_info(text, response_type=str, request_id="q")
        await ctx.send_message(24)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[int, str]) -> None:
        ran.append(f"answered {answer}")
        await ctx.yield_output(answer)


@executor(id="nap")
async def nap(hours: int, ctx: WorkflowContext[None, str]) -> None:
    ran.append("nap")
    await ctx.sleep(hours * HOUR)
    await ctx.yield_output("awake")


def asking() -> Workflow:
    asks = Asks.bind(id="asks")
    return WorkflowBuilder(name="Asking").set_start_executor(asks).add_edge(asks, nap).build()


@pytest.mark.parametrize("by", ["run", "storage"])
async def test_an_answer_that_comes_during_a_sleep_is_taken_after_it(
    by: str, place: Place, time: VirtualTime
) -> None:
    run = await asking().start("x", run_id="r", storage=place.storage)
    result = await end_of(run)  # it waits for an answer, so nobody who follows it waits for the sleep
    assert [request.request_id for request in result.pending_requests] == ["q"]
    assert (run.status, run.wake_at) == (RunStatus.WAITING, time.now() + timedelta(days=1))
    if by == "run":
        await run.send_response("q", "yes")
    else:
        assert (await place.storage.respond("r", {"q": "yes"})).status is RunStatus.WAITING
    assert run.status is RunStatus.WAITING
    assert (await info_of_run(place.storage, "r")).wake_at == run.wake_at
    assert ran == ["nap"]
    await time.advance(days=1)
    while (result := await end_of(run)).status is not RunStatus.COMPLETED:
        pass
    assert result.outputs == ["awake", "yes"]
    assert ran == ["nap", "nap", "answered yes"]


class LateLooks(Wrapped):
    """Whoever reads a head while ``late`` is set gets it when the run has moved on."""

    late = False

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.moved = asyncio.Event()
        self.looking = asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters = await self.inner.commit(commit)
        self.moved.set()
        return letters

    async def head(self, run_id: RunId) -> Head | None:
        if self.late:
            self.late = False
            self.looking.set()
            await self.moved.wait()
        return await self.inner.head(run_id)


async def test_who_waits_is_not_told_that_someone_else_woke_the_run_when_it_woke_by_itself(
    place: Place, time: VirtualTime
) -> None:
    storage = wrapped(place.storage, LateLooks)
    store = cast(LateLooks, storage.store)
    run = await asking().start("x", run_id="r", storage=storage)
    await end_of(run)
    await run.send_response("q", "yes")
    store.moved.clear()
    store.late = True
    waiting = asyncio.ensure_future(run.wait_for_completion())
    await soon(store.looking.wait())
    await time.advance(days=1)
    await soon(waiting)
    while (await end_of(run)).status is not RunStatus.COMPLETED:
        pass


async def test_a_graph_that_changed_while_a_run_slept(time: VirtualTime, storage: CheckpointStorage) -> None:
    await (await asleep(parts({"a": 1, "b": 0}), time, storage)).close()
    ran.clear()
    changed = parts({"a": 1, "b": 0, "c": 0})
    run = await changed.resume(run_id="r", storage=storage, allow_graph_change=True)
    await soon(time.timer())
    await at_rest(run)
    assert (run.wake_at, ran) == (time.now() + timedelta(hours=1), [])
    watch = run.watch_stream()  # it tells of the checkpoint with which the run stands in the new graph
    assert "2 CheckpointSaved" in names([await anext(watch) for _ in range(3)])
    await time.advance(HOUR)
    with contextlib.suppress(ExecutorFailed):
        await end_of(run)
    assert ran == ["a"]  # what was journaled under the old graph is not run again


async def test_a_sleeping_run_moves_to_another_storage(
    place: Place, time: VirtualTime, tmp_path: Path
) -> None:
    run = await asleep(parts(TEN), time, place.storage)
    other = InMemoryCheckpointStorage()
    await place.storage.export_run("r", tmp_path / "run.export")
    info = await other.import_run(tmp_path / "run.export")
    assert (info.status, info.wake_at) == (RunStatus.WAITING, run.wake_at)
    ran.clear()
    await time.advance(days=1)
    (output,) = (await end_of(run)).outputs
    (same,) = (await end_of(await parts(TEN).resume(run_id="r", storage=other))).outputs
    assert output == same == [f"{id}11" for id in TEN] + list(TEN)
    assert ran == ["w4", "w4"]


async def test_pruning_keeps_what_a_sleeping_run_needs(place: Place, time: VirtualTime) -> None:
    run = await asleep(parts(TEN), time, place.storage)
    ran.clear()
    await place.storage.prune(Retention.keep_last(1))
    wakes = (await info_of_run(place.storage, "r")).wake_at
    assert wakes == run.wake_at == time.now() + timedelta(days=1)
    await time.advance(days=1)
    (output,) = (await end_of(run)).outputs
    assert (ran, output) == (["w4"], [f"{id}11" for id in TEN] + list(TEN))


def test_a_run_sleeps_through_the_end_of_an_event_loop(tmp_path: Path) -> None:
    """The object that came to rest in one event loop is woken in the next."""

    def twice(go_on: Callable[[Run], Any]) -> Any:
        storage = InMemoryCheckpointStorage()
        with VirtualTime() as time:

            async def begin() -> Run:
                return await asleep(workflow_of(remind), time, storage)

            async def end(run: Run) -> Any:
                ending = asyncio.ensure_future(go_on(run))
                await asyncio.sleep(0)
                await time.advance(days=30)
                return await soon(ending)

            run = asyncio.run(begin())
            return asyncio.run(end(run))

    async def watched(run: Run) -> list[str]:
        return names([event async for event in run.watch_stream()])

    assert twice(lambda run: run.wait_for_completion()).outputs == ["x!"]
    assert "WorkflowCompleted" in twice(watched)[-1]


async def test_a_clock_that_is_set_back_wakes_nobody_early(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asleep(workflow_of(remind), time, storage)
    begin = time.now()
    time._now = begin - timedelta(days=5)
    (when, number, timer) = time._timers[0]
    time._timers[0] = (time.now() + timedelta(days=1), number, timer)  # as a timer that comes early
    await time.advance(days=1)
    assert (run.status, ran, when > begin) == (RunStatus.WAITING, ["before x"], True)
    await time.advance(days=34)
    assert (await end_of(run)).outputs == ["x!"]


async def test_the_context_cannot_be_used_while_it_sleeps(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    @executor
    async def odd(text: str, ctx: WorkflowContext[None, str]) -> str:
        try:
            await ctx.sleep(HOUR)
        except BaseException:
            with pytest.raises(TurnOver, match="was used after its turn"):
                await ctx.sleep(1)
            raise
        return text

    run = await asleep(workflow_of(odd), time, storage)
    await time.advance(HOUR)
    assert (await end_of(run)).outputs == ["x"]


class HeldAtRest(Wrapped):
    """A store in which a run comes to rest when it is let to."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached, self.on = asyncio.Event(), asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.head.status is RunStatus.WAITING:
            self.reached.set()
            await soon(self.on.wait())
        return await self.inner.commit(commit)


async def test_a_run_that_is_left_while_it_falls_asleep_sleeps_on(time: VirtualTime) -> None:
    held = HeldAtRest(InMemoryCheckpointStorage().store)
    storage = CheckpointStorage(cast(Store, held))

    @executor
    async def nap(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(HOUR)
        return text

    workflow = WorkflowBuilder(name="Nap").set_start_executor(nap).build()
    run = await workflow.start("x", run_id="r", storage=storage)
    await soon(held.reached.wait())
    closing = asyncio.ensure_future(run.close(grace=1_000))
    await asyncio.sleep(0)
    held.on.set()
    await soon(closing)
    assert run.status is RunStatus.WAITING
    await time.advance(2 * HOUR)
    assert run.status is RunStatus.WAITING  # others wake it
    assert await Host(storage, workflow).wake_due() == 1
    assert (await storage.list_runs())[0].status is RunStatus.COMPLETED


def test_a_clock_needs_a_time_zone() -> None:
    with pytest.raises(InvalidArgument, match="a time needs a time zone"):
        VirtualTime(datetime.datetime(2026, 1, 1))  # noqa: DTZ001
