"""When supersteps are made durable: at once, behind the running one, or when the run comes to rest."""

import asyncio
import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    Phase,
    RequestInfoEvent,
    RunStatus,
    RunTaken,
    StorageError,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Failing, Gate, Place, Wrapped, info_of_run, wrapped
from tests.support.going_on import matches_the_store, picture
from tests.support.inside import events_in, runner_of
from tests.support.modules import recorder
from tests.support.parts import Commit, Durability, EventLog, Letter, RunId, Snapshot
from tests.support.runs import events_and_error as told
from tests.support.runs import soon

MODES: list[Durability] = ["sync", "async", "exit"]
BEHIND: list[Durability] = ["async", "exit"]


@dataclass
class ToldAtLeisure(WorkflowEvent):
    text: str = ""


@dataclass
class TypedAtLeisure(WorkflowEvent):
    provisional: bool = True


class Count(Executor):
    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.seen += 1
        await ctx.append_state("log", left, scope_name="S")
        await ctx.queue_state_update("big", f"{left} " * 4_000, scope_name="S")
        await ctx.add_event(TypedAtLeisure())
        await ctx.add_event(ToldAtLeisure(f"{left}"))
        await asyncio.sleep(0)
        await ctx.yield_output(left)
        if left:
            await ctx.send_message(left - 1)


def counting(durability: Durability, supersteps: int = 100) -> Workflow:
    builder = WorkflowBuilder(name="Counting", max_iterations=supersteps)
    return builder.set_start_executor(Count).add_edge(Count, Count).with_durability(durability).build()


# -- the setting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["eventually", "SYNC", "", None, 1])
def test_other_modes_are_refused(bad: Any) -> None:
    with pytest.raises(GraphError, match=r"'sync' .* 'async' .* 'exit'"):
        WorkflowBuilder().with_durability(bad)


@pytest.mark.parametrize("durability", MODES)
async def test_without_storage_it_means_nothing(durability: Durability) -> None:
    result = await counting(durability).run(3)
    assert result.outputs == [3, 2, 1, 0]


# -- the same comes of it --------------------------------------------------------------------------


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.request_info(f"{number}?", response_type=int)
        await ctx.send_message(number)

    @response_handler
    async def answered(self, question: str, number: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{question} {number}")


@executor(id="left")
async def left(number: int) -> int:
    return number + 1


@executor(id="right")
async def right(number: int) -> int:
    return number * 2


@executor(id="join")
async def join(parts: list[int], ctx: WorkflowContext[int, int]) -> None:
    await ctx.yield_output(sum(parts))
    if sum(parts) < 100:
        await ctx.send_message(sum(parts))


def asking(durability: Durability) -> Workflow:
    """Two supersteps that ask, with others between them."""
    counter, ask = Count.bind(id="count"), Ask.bind(id="ask")
    builder = WorkflowBuilder(name="Asking").set_start_executor(ask).add_edge(ask, counter)
    return builder.add_edge(counter, counter).with_durability(durability).build()


def joining(durability: Durability) -> Workflow:
    """Fan-ins that fill and empty again and again, in a nested workflow."""
    inside = (
        WorkflowBuilder(name="Inside")
        .set_start_executor(left)
        .add_fan_out_edges(left, [right, left_again])
        .add_fan_in_edges([right, left_again], join)
        .build()
    )
    around = WorkflowExecutor(inside, id="inside")
    builder = WorkflowBuilder(name="Joining").set_start_executor(around).add_edge(around, Count)
    return builder.add_edge(Count, Count).with_durability(durability).build()


@executor(id="left_again")
async def left_again(number: int, ctx: WorkflowContext[int]) -> int:
    await ctx.append_state("seen", number, scope_name="Inside")
    return number


@pytest.mark.parametrize("make", [counting, asking, joining])
async def test_all_modes_come_to_the_same_end(make: Callable[[Durability], Workflow]) -> None:
    found = []
    for mode in MODES:
        storage = InMemoryCheckpointStorage()
        run = await make(mode).start(5, storage=storage)
        result = await run.wait_for_completion()
        while result.status is RunStatus.WAITING:
            await run.respond({request.request_id: 7 for request in run.pending_requests})
            result = await run.wait_for_completion()
        assert result.status is RunStatus.COMPLETED
        await matches_the_store(run, storage)
        assert (await storage.verify()).ok
        found.append((result.outputs, await picture(run.snapshot)))
    assert found[0] == found[1] == found[2]


# -- async: a slow store ---------------------------------------------------------------------------


def snapshots() -> int:
    """How many snapshots are in memory."""
    gc.collect()
    return sum(type(thing) is Snapshot for thing in gc.get_objects())


class TenTimesSlower(Wrapped):
    """Each commit takes ten times as many turns of the event loop as a superstep does."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.in_flight = self.most = 0

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        for _ in range(60):
            await asyncio.sleep(0)
        waiting = await self.inner.commit(commit)
        self.in_flight -= 1
        return waiting


async def test_memory_is_bounded_with_a_store_ten_times_slower_than_the_engine() -> None:
    """Never more than one commit in flight, one superstep held back, and a handful of snapshots alive."""
    before = snapshots()
    slow = TenTimesSlower(InMemoryCheckpointStorage().store)
    run = await counting("async", 1_000).start(300, storage=CheckpointStorage(slow))
    held: list[int] = []
    alive: list[int] = []
    ahead: list[int] = []
    log, runner = events_in(run), runner_of(run)

    async def look() -> None:
        count = 0
        while run.status is RunStatus.RUNNING:
            held.append(len(log._held_back or ()))
            ahead.append(runner.at.snapshot.superstep - run.snapshot.superstep)
            count += 1
            if count % 4_000 == 2_000:
                alive.append(snapshots() - before)
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    events, error = await told(run)
    await looking
    assert error is None
    assert slow.most == 1
    assert set(ahead) == {0, 1}  # behind by one superstep, and really so
    assert len(alive) > 2
    assert max(alive) <= 7, alive
    per_superstep = len(events) / 301
    assert 0 < max(held) <= 2 * per_superstep + 2, (max(held), per_superstep)
    assert run.result().outputs == list(range(300, -1, -1))


@pytest.mark.parametrize(("seconds", "behind"), [(0.0001, False), (0.002, True)])
async def test_commits_go_on_in_the_background_where_that_pays(
    monkeypatch: pytest.MonkeyPatch, seconds: float, behind: bool
) -> None:
    """Handing a commit over costs more than making it, unless handlers take long enough."""
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(recorder, "BACKGROUND_SECONDS", 0.0005)
    monkeypatch.setattr(recorder, "monotonic", clock.__next__)
    hold_back, held = EventLog.hold_back, list[EventLog]()

    def hold(self: EventLog) -> None:
        held.append(self)
        hold_back(self)

    monkeypatch.setattr(EventLog, "hold_back", hold)
    store = TenTimesSlower(InMemoryCheckpointStorage().store)
    run = await counting("async").start(5, storage=CheckpointStorage(store))
    assert (await soon(run.wait_for_completion())).outputs == [5, 4, 3, 2, 1, 0]
    assert bool(held) is behind


def test_one_slow_superstep_among_quick_ones_is_enough_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.0]
    monkeypatch.setattr(recorder, "BACKGROUND_SECONDS", 0.0005)
    monkeypatch.setattr(recorder, "monotonic", lambda: times[0])
    pace, found = recorder._Pace(), []
    for worked in (0.0001, 0.0015, 0.0001, 0.0001, 0.0001):
        pace.begin()
        times[0] += worked
        found.append(pace.is_slow())
    assert found == [False, True, True, False, False]


async def test_superstep_runs_while_the_one_before_is_committed_and_nobody_sees_it() -> None:
    gate = Gate(InMemoryCheckpointStorage().store, 3)
    run = await counting("async").start(3, run_id="mine", storage=CheckpointStorage(gate))
    seen: list[WorkflowEvent] = []

    async def watch() -> None:
        async for event in run.watch_stream():
            seen.append(event)

    watching = asyncio.ensure_future(watch())
    await soon(gate.reached.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    # The second superstep is being committed. The third ran, but its end has to wait.
    assert runner_of(run).superstep == 3
    assert max(event.superstep for event in seen) == 2
    assert not [e for e in seen if isinstance(e, WorkflowOutputEvent) and e.data == 2]
    assert run.result().outputs == [3]
    assert run.snapshot.superstep == 1
    assert [info.seq for info in run.checkpoints] == [1, 2, 3]
    gate.opened.set()
    await soon(watching)
    storage = InMemoryCheckpointStorage()
    sync = await counting("sync").start(3, run_id="mine", storage=storage)
    expected, _ = await told(sync)
    assert [(e.superstep, type(e)) for e in seen] == [(e.superstep, type(e)) for e in expected]


async def test_request_can_be_answered_when_it_is_durable() -> None:
    gate = Gate(InMemoryCheckpointStorage().store, 2)
    run = await asking("async").start(2, storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    assert run.pending_requests == []
    with pytest.raises(UnknownRequest):
        await run.respond({"ask.1.1": 7})
    gate.opened.set()
    async for event in run.watch_stream():
        if isinstance(event, RequestInfoEvent):
            await run.respond({event.request_id: 7})
    assert (await run.wait_for_completion()).status is RunStatus.COMPLETED


# -- async: commits that fail ----------------------------------------------------------------------


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_failed_commit_fails_the_run_at_that_superstep(
    place: Place, durability: Durability, nth: int
) -> None:
    failing = wrapped(place.storage, lambda store: Failing(store, nth))
    run = await counting(durability).start(3, run_id="mine", storage=failing)
    events, error = await told(run)
    assert isinstance(error, StorageError)
    assert str(error) == f"the disk failed at commit {nth}"
    assert run.status is RunStatus.FAILED
    # The superstep whose end could not be stored was the last thing that anyone saw.
    superstep = nth - 1
    assert [e.superstep for e in events if isinstance(e, SuperStepStartedEvent)] == [*range(1, nth)]
    assert [e.superstep for e in events if isinstance(e, SuperStepCompletedEvent)] == [*range(1, superstep)]
    assert [e.data for e in events if isinstance(e, WorkflowOutputEvent)] == [3, 2, 1, 0][: superstep - 1]
    assert {e.superstep for e in events[-2:]} == {superstep}
    assert run.snapshot.superstep == superstep - 1
    assert run.latest_checkpoint is not None
    assert (run.latest_checkpoint.superstep, run.latest_checkpoint.phase) == (superstep, Phase.START)
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.FAILED
    back = await counting(durability).resume(run_id="mine", storage=place.storage)
    assert (await soon(back.wait_for_completion())).outputs == [3, 2, 1, 0]


@pytest.mark.parametrize("durability", BEHIND)
async def test_run_that_could_not_be_stored_goes_back_in_place(durability: Durability) -> None:
    failing = Failing(InMemoryCheckpointStorage().store, 2)
    run = await counting(durability).start(3, storage=CheckpointStorage(failing))
    with pytest.raises(StorageError):
        await run.wait_for_completion()
    assert run.snapshot.superstep == 0
    assert run.latest_checkpoint is not None
    await run.restore_checkpoint(run.latest_checkpoint)
    assert (await soon(run.wait_for_completion())).outputs == [3, 2, 1, 0]


async def test_who_lost_the_run_shows_nothing_of_what_came_behind(place: Place) -> None:
    gate = Gate(place.storage.store, 3)
    loser = await counting("async").start(3, run_id="mine", storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    winner = await counting("async").resume(run_id="mine", storage=place.storage, take_over=True)
    assert (await soon(winner.wait_for_completion())).outputs == [3, 2, 1, 0]
    gate.opened.set()
    events, error = await told(loser)
    assert isinstance(error, RunTaken)
    assert loser.status is RunStatus.FAILED
    assert [e.data for e in events if isinstance(e, WorkflowOutputEvent)] == [3]
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.COMPLETED


@executor(id="fragile")
async def fragile(number: int, ctx: WorkflowContext[int]) -> int:
    if number == 0:
        raise ConnectionError("gone")
    return number - 1


async def test_commit_that_fails_counts_for_more_than_what_came_behind() -> None:
    """Without it the next superstep would not have run, so what that one failed with is nothing."""
    gate = Gate(Failing(InMemoryCheckpointStorage().store, 2), 2)
    builder = WorkflowBuilder(name="Fragile").set_start_executor(fragile).add_edge(fragile, fragile)
    workflow = builder.with_durability("async").build()
    run = await workflow.start(1, storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    gate.opened.set()
    events, error = await told(run)
    assert isinstance(error, StorageError)
    assert max(event.superstep for event in events) == 1


# -- leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_leaving_waits_for_the_commit(leave: str) -> None:
    gate = Gate(InMemoryCheckpointStorage().store, 3)
    run = await counting("async").start(50, run_id="mine", storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    leaving = asyncio.ensure_future(getattr(run, leave)())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not leaving.done()
    gate.opened.set()
    await soon(leaving)
    assert run.status.ended
    assert run.snapshot.superstep >= 2
    await matches_the_store(run, CheckpointStorage(gate.inner))


# -- exit ------------------------------------------------------------------------------------------


async def test_run_without_rest_is_committed_at_its_beginning_and_its_end(place: Place) -> None:
    """Of the values that came and went in between nothing is stored."""
    run = await counting("exit").start(6, run_id="mine", storage=place.storage)
    events, error = await told(run)
    assert error is None
    counters = place.storage.counters
    assert (counters.commits, counters.checkpoints) == (2, 2)
    assert counters.blobs_written == 1  # of seven big values that were queued under one key
    listed = await place.storage.list_checkpoints(run_id="mine")
    assert [(c.superstep, c.phase) for c in listed] == [(1, "start"), (7, "end")]
    assert [c.checkpoint_id for c in listed] == [info.checkpoint_id for info in run.checkpoints]
    saved = [e.checkpoint.seq for e in events if isinstance(e, CheckpointSavedEvent)]
    assert saved == [1, 2]
    started = [e.checkpoint for e in events if isinstance(e, SuperStepStartedEvent)]
    assert [info and info.seq for info in started] == [1, *[None] * 6]
    completed = [e.checkpoint for e in events if isinstance(e, SuperStepCompletedEvent)]
    assert [info and info.seq for info in completed] == [*[None] * 6, 2]
    assert [e.text for e in events if isinstance(e, ToldAtLeisure)] == list("6543210")
    loaded = await (await place.reopened()).load(listed[-1].checkpoint_id)
    assert list(loaded.outputs) == [6, 5, 4, 3, 2, 1, 0]
    assert loaded.scopes["S"]["log"] == [6, 5, 4, 3, 2, 1, 0]


async def test_only_the_newest_snapshot_is_kept_until_the_end() -> None:
    before = snapshots()
    run = await counting("exit", 1_000).start(900, storage=InMemoryCheckpointStorage())
    alive: list[int] = []

    async def look() -> None:
        while run.status is RunStatus.RUNNING:
            if runner_of(run).superstep > 200 * (len(alive) + 1):
                alive.append(snapshots() - before)
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    await run.wait_for_completion()
    await looking
    assert len(alive) == 4
    assert max(alive) <= 5, alive


async def test_run_can_be_listed_and_cancelled_while_it_has_committed_nothing(place: Place) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="long")
    async def long(number: int, ctx: WorkflowContext[int]) -> int:
        if number == 0:
            started.set()
            await go_on.wait()
        return number - 1

    builder = WorkflowBuilder(name="Long").set_start_executor(long).add_edge(long, long)
    run = await builder.with_durability("exit").build().start(3, run_id="mine", storage=place.storage)
    await soon(started.wait())
    info = await info_of_run(place.storage, "mine")
    assert (info.status, info.seq, info.interrupted) == (RunStatus.RUNNING, 1, False)
    await place.storage.cancel("mine")
    await soon(run.wait_for_completion())
    assert run.status is RunStatus.CANCELLED
    info = await info_of_run(place.storage, "mine")
    assert (info.status, info.seq) == (RunStatus.CANCELLED, 3)  # what was done until then is not lost
    assert (await place.storage.get_latest(run_id="mine")).superstep == 4  # type: ignore[union-attr]


async def test_effect_is_behind_a_durable_beginning_and_is_not_repeated(place: Place) -> None:
    paid: list[str] = []
    broken = True

    async def charge(key: str) -> str:
        paid.append(key)
        return "receipt"

    @executor(id="pay")
    async def pay(number: int, ctx: WorkflowContext[int, str]) -> None:
        if number:
            await ctx.send_message(number - 1)
            return
        key = ctx.idempotency_key
        before = (await info_of_run(place.storage, "mine")).seq
        receipt = await ctx.once("pay", charge, key)
        assert broken is False or (before, (await info_of_run(place.storage, "mine")).seq) == (1, 3)
        assert ctx.idempotency_key == key
        if broken:
            raise ConnectionError("after the payment")
        assert paid == [key]
        await ctx.yield_output(receipt)

    builder = WorkflowBuilder(name="Pay").set_start_executor(pay).add_edge(pay, pay)
    workflow = builder.with_durability("exit").build()
    with pytest.raises(ExecutorFailed) as failed:
        await workflow.run(4, run_id="mine", storage=place.storage)
    assert failed.value.checkpoint is not None
    assert (failed.value.checkpoint.superstep, failed.value.checkpoint.phase) == (5, Phase.START)
    broken = False
    run = await workflow.resume(run_id="mine", storage=await place.reopened())
    assert (await soon(run.wait_for_completion())).outputs == ["receipt"]


async def test_answer_to_a_question_that_is_not_durable_yet(place: Place) -> None:
    """Questions are shown at once; who answers one makes it durable."""
    run = await asking("exit").start(40, run_id="mine", storage=place.storage)
    async for event in run.watch_stream():
        if isinstance(event, RequestInfoEvent):
            await run.respond({event.request_id: 7})
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert "40? 7" in result.outputs
    assert sorted(n for n in result.outputs if n != "40? 7") == list(range(41))
    await matches_the_store(run, place.storage)
    assert await place.storage.store.inbox(RunId("mine")) == []


async def test_superstep_that_fails_keeps_those_before_it(place: Place) -> None:
    builder = WorkflowBuilder(name="Fragile").set_start_executor(fragile).add_edge(fragile, fragile)
    workflow = builder.with_durability("exit").build()
    run = await workflow.start(3, run_id="mine", storage=place.storage)
    events, error = await told(run)
    assert isinstance(error, ExecutorFailed)
    assert error.checkpoint == run.latest_checkpoint
    assert run.latest_checkpoint is not None
    assert (run.latest_checkpoint.superstep, run.latest_checkpoint.phase) == (4, Phase.START)
    assert [e.checkpoint.seq for e in events if isinstance(e, CheckpointSavedEvent)] == [1, 2, 3]
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.FAILED


async def test_failure_counts_for_more_than_that_it_could_not_be_stored() -> None:
    failing = Failing(InMemoryCheckpointStorage().store, 2)
    builder = WorkflowBuilder(name="Fragile").set_start_executor(fragile).add_edge(fragile, fragile)
    run = await builder.with_durability("exit").build().start(3, storage=CheckpointStorage(failing))
    with pytest.raises(ExecutorFailed) as failed:
        await run.wait_for_completion()
    assert "could not be stored: the disk failed at commit 2" in failed.value.__notes__[0]
    assert run.snapshot.superstep == 0


async def test_leaving_a_run_that_cannot_be_stored_says_so() -> None:
    failing = Failing(InMemoryCheckpointStorage().store, 2)
    run = await counting("exit", 10_000).start(9_000, storage=CheckpointStorage(failing))
    async for event in run.watch_stream():
        if event.superstep == 5:
            break
    await run.close()
    assert run.status is RunStatus.FAILED
    with pytest.raises(StorageError, match="the disk failed at commit 2"):
        await run.wait_for_completion()
