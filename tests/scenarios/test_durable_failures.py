"""Stores that fail, writers that collide, and runs that are left while they commit."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    HeadMoved,
    InMemoryCheckpointStorage,
    RequestAlreadyAnswered,
    Run,
    RunEnded,
    RunStatus,
    RunTaken,
    StorageError,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowStatusEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import (
    Failing,
    Gate,
    Place,
    Slow,
    SlowHere,
    Wrapped,
    everything,
    head_of,
    info_of_run,
    outputs_of,
    wrapped,
)
from tests.support.modules import commit_queue
from tests.support.parts import Commit, Letter, Recorder
from tests.support.runs import events_and_error as told
from tests.support.runs import names, soon
from tests.support.seeded_loop import SteppedLoop
from tests.support.thorough import MORE

ran: list[int] = []
"""The numbers that handlers were called with, in order."""


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    yield
    ran.clear()


class Count(Executor):
    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        ran.append(left)
        self.seen += 1
        await ctx.append_state("log", left, scope_name="S")
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((self.seen, await ctx.read_state("log", scope_name="S")))


def counting() -> Workflow:
    return WorkflowBuilder(name="Counting").set_start_executor(Count).add_edge(Count, Count).build()


# -- commits that fail -----------------------------------------------------------------------------
# Counting from 3 takes five commits: the input, and one for each of four supersteps.


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
async def test_failed_commit_fails_the_run_at_that_superstep(place: Place, nth: int) -> None:
    failing = wrapped(place.storage, lambda store: Failing(store, nth))
    run = await counting().start(3, run_id="mine", storage=failing)
    events, error = await told(run)
    assert isinstance(error, StorageError)
    assert str(error) == f"the disk failed at commit {nth}"
    assert run.status is RunStatus.FAILED
    with pytest.raises(StorageError):
        await run.wait_for_completion()
    # The superstep whose end could not be stored was the last thing that happened.
    superstep = nth - 1
    assert ran == [3, 2, 1, 0][:superstep]
    assert [e.superstep for e in events if isinstance(e, SuperStepStartedEvent)] == list(
        range(1, superstep + 1)
    )
    assert names(events)[-2:] == [f"{superstep} WorkflowStatus failed", f"{superstep} WorkflowError"]
    assert not [
        name for name in names(events) if "Output" in name or f"{superstep} SuperStepCompleted" in name
    ]
    listed = await info_of_run(place.storage, "mine")
    assert (listed.status, listed.reason) == (
        RunStatus.FAILED,
        f"StorageError: the disk failed at commit {nth}",
    )
    assert listed.seq == 2 * superstep - 1
    assert run.latest_checkpoint is not None
    assert run.latest_checkpoint.checkpoint_id == listed.checkpoint_id
    # It goes on as if nothing had happened since that checkpoint.
    resumed = await outputs_of(counting().resume(run_id="mine", storage=await place.reopened()))
    assert resumed == [(4, [3, 2, 1, 0])]
    assert (await place.storage.verify()).ok


async def test_failed_first_commit_leaves_no_run(place: Place) -> None:
    failing = wrapped(place.storage, lambda store: Failing(store, 1))
    with pytest.raises(StorageError, match="the disk failed at commit 1"):
        await counting().start(3, run_id="mine", storage=failing)
    assert ran == []
    assert await place.storage.list_runs() == []
    assert await outputs_of(counting().start(3, run_id="mine", storage=place.storage)) == [(4, [3, 2, 1, 0])]


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_failed_commit_is_seen_by_whoever_waits(storage: CheckpointStorage, how: str) -> None:
    failing = wrapped(storage, lambda store: Failing(store, 3))

    async def stream() -> list[WorkflowEvent]:
        return [event async for event in counting().run_stream(3, storage=failing)]

    with pytest.raises(StorageError, match="commit 3"):
        await soon(counting().run(3, storage=failing) if how == "run" else stream())
    assert ran == [3, 2]


async def test_store_that_fails_for_good_leaves_the_run_as_it_was(place: Place) -> None:
    """Then not even that it failed can be stored: the head still says that it runs."""
    failing = wrapped(place.storage, lambda store: Failing(store, 3, times=100))
    run = await counting().start(3, run_id="mine", storage=failing)
    events, error = await told(run)
    assert isinstance(error, StorageError)
    assert getattr(error, "__notes__", []) == [
        "that the run is failed could not be stored: the disk failed at commit 4"
    ]
    assert [type(event) for event in events[-2:]] == [WorkflowStatusEvent, WorkflowErrorEvent]
    listed = await info_of_run(place.storage, "mine")
    assert (listed.status, listed.seq) == (RunStatus.RUNNING, 3)
    resumed = await outputs_of(counting().resume(run_id="mine", storage=await place.reopened()))
    assert resumed == [(4, [3, 2, 1, 0])]


async def test_failed_commit_of_a_response(place: Place) -> None:
    await soon(asking().run("?", run_id="mine", storage=place.storage))
    before = await head_of(place.storage, "mine")
    failing = wrapped(place.storage, lambda store: Failing(store, 1))
    with pytest.raises(StorageError, match="commit 1"):
        await outputs_of(asking().resume(run_id="mine", storage=failing, responses={"Ask.1.1": 1}))
    assert ran == []
    there = await head_of(place.storage, "mine")
    assert there.checkpoint_id == before.checkpoint_id
    with pytest.raises(RequestAlreadyAnswered):  # the first answer is in the inbox of the run
        await asking().resume(run_id="mine", storage=place.storage, responses={"Ask.1.1": 2})
    assert await outputs_of(asking().resume(run_id="mine", storage=place.storage)) == [1]
    assert ran == [1]


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=int)

    @response_handler
    async def answered(self, text: str, number: int, ctx: WorkflowContext[None, int]) -> None:
        ran.append(number)
        await ctx.yield_output(number)


def asking() -> Workflow:
    return WorkflowBuilder(name="Asking").set_start_executor(Ask).build()


async def test_instances_are_free_after_a_failed_commit(storage: CheckpointStorage) -> None:
    one = Count("one")
    workflow = WorkflowBuilder(name="One").set_start_executor(one).add_edge(one, one).build()
    for nth in (3, 2, 1):
        failing = wrapped(storage, lambda store, nth=nth: Failing(store, nth))  # type: ignore[misc]
        with pytest.raises(StorageError):
            await soon(workflow.run(3, run_id="mine", storage=failing)) if nth == 3 else await outputs_of(
                workflow.resume(run_id="mine", storage=failing)
            )
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == [(4, [3, 2, 1, 0])]


# -- commits of which nobody knows -----------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
async def test_commit_that_did_happen_though_it_failed(place: Place, nth: int) -> None:
    """The head is read again, and the run goes on as if nothing was wrong."""
    doubtful = wrapped(place.storage, lambda store: Failing(store, nth, happens=True))
    run = await counting().start(3, run_id="mine", storage=doubtful)
    assert (await soon(run.wait_for_completion())).outputs == [(4, [3, 2, 1, 0])]
    assert ran == [3, 2, 1, 0]
    listed = await place.storage.list_checkpoints(run_id="mine")
    assert [c.seq for c in listed] == list(range(1, 9))
    assert run.checkpoints == [c.info for c in listed]
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.COMPLETED


async def test_every_commit_in_doubt(place: Place) -> None:
    doubtful = wrapped(place.storage, lambda store: Failing(store, 1, happens=True, times=100))
    assert (await soon(counting().run(3, storage=doubtful))).outputs == [(4, [3, 2, 1, 0])]
    assert (await place.storage.verify()).ok


async def test_status_in_doubt(place: Place) -> None:
    """Of a run that failed: that it did is stored, though the store says it is not."""

    @executor(id="bad")
    async def bad(number: int) -> None:
        raise ZeroDivisionError

    workflow = WorkflowBuilder(name="Bad").set_start_executor(bad).build()
    doubtful = wrapped(place.storage, lambda store: Failing(store, 2, happens=True))
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(1, run_id="mine", storage=doubtful))
    assert not hasattr(caught.value, "__notes__")
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.FAILED


async def test_commit_in_doubt_and_a_head_that_cannot_be_read(storage: CheckpointStorage) -> None:
    class Blind(Failing):
        async def head(self, run_id: Any) -> Any:
            if self.commits == 3:
                raise StorageError("cannot be read")
            return await self.inner.head(run_id)

    blind = wrapped(storage, lambda store: Blind(store, 3, happens=True))
    with pytest.raises(StorageError, match="the disk failed at commit 3"):
        await soon(counting().run(3, run_id="mine", storage=blind))
    assert ran == [3, 2]
    # It had happened: the superstep that was stored is not taken again.
    assert await outputs_of(counting().resume(run_id="mine", storage=storage)) == [(4, [3, 2, 1, 0])]
    assert ran == [3, 2, 1, 0]


async def test_planted_log_that_does_not_read_the_head_again(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.parts import RunLog

    async def give_up(self: RunLog, head: Any, error: StorageError, notes: Any) -> None:
        raise error

    monkeypatch.setattr(RunLog, "_reread", give_up)
    doubtful = wrapped(storage, lambda store: Failing(store, 3, happens=True))
    with pytest.raises(StorageError):
        await soon(counting().run(3, storage=doubtful))


# -- two writers -----------------------------------------------------------------------------------


async def test_loser_of_two_writers_fails_and_changes_nothing(place: Place) -> None:
    gate = Gate(place.storage.store, 3)
    loser = await counting().start(3, run_id="mine", storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    with pytest.raises(RunTaken, match="another run object of this process"):
        await counting().resume(run_id="mine", storage=place.storage)
    winner = await counting().resume(run_id="mine", storage=place.storage, take_over=True)
    assert (await soon(winner.wait_for_completion())).outputs == [(4, [3, 2, 1, 0])]
    before = await everything(place.storage, "mine")
    calls = list(ran)
    gate.opened.set()
    events, error = await told(loser)
    assert isinstance(error, RunTaken)
    assert isinstance(error.__cause__, HeadMoved)
    assert loser.status is RunStatus.FAILED
    assert ran == calls
    assert names(events)[-2:] == ["2 WorkflowStatus failed", "2 WorkflowError"]
    assert await everything(place.storage, "mine") == before
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.COMPLETED
    assert (await place.storage.verify()).ok


async def test_two_who_answer_at_once(place: Place) -> None:
    await soon(asking().run("?", run_id="mine", storage=place.storage))

    async def answer(number: int) -> Any:
        storage = wrapped(place.storage, Slow)
        run = await asking().resume(run_id="mine", storage=storage, responses={"Ask.1.1": number})
        return (await run.wait_for_completion()).outputs

    done = await soon(asyncio.gather(*(answer(n) for n in range(5)), return_exceptions=True))
    won = [one for one in done if isinstance(one, list)]
    assert len(won) == 1
    late = {type(one) for one in done if not isinstance(one, list)}
    assert late <= {RequestAlreadyAnswered, RunTaken, RunEnded}
    assert ran == won[0]


# -- told while it commits -------------------------------------------------------------------------


async def test_what_was_told_before_a_commit_comes_before_what_it_failed_with(place: Place) -> None:
    """A stream takes the beginning of a superstep with its end, if nothing but the commit lies between."""
    failing = wrapped(place.storage, lambda store: Failing(store, 3))
    events: list[WorkflowEvent] = []

    async def follow() -> None:
        async for event in counting().run_stream(3, run_id="mine", storage=failing):
            events.append(event)

    with pytest.raises(StorageError, match="the disk failed at commit 3"):
        await soon(follow())
    assert names(events)[-5:] == [
        "2 CheckpointSaved",
        "2 SuperStepStarted",
        "2 ExecutorInvoked Count",
        "2 WorkflowStatus failed",
        "2 WorkflowError",
    ]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_stream_is_told_of_a_superstep_when_it_waits(place: Place, waits: bool) -> None:
    """For a handler, at once; for a commit, when that is over."""
    gate = Gate(place.storage.store, 2)
    go_on = asyncio.Event()
    begun: list[int] = []

    @executor(id="only")
    async def only(number: int, ctx: WorkflowContext[None, int]) -> None:
        if waits:
            await go_on.wait()
        await ctx.yield_output(number)

    workflow = WorkflowBuilder(name="Only").set_start_executor(only).build()

    async def follow() -> None:
        async for event in workflow.run_stream(1, run_id="mine", storage=CheckpointStorage(gate)):
            if isinstance(event, SuperStepStartedEvent):
                begun.append(event.superstep)
                go_on.set()

    following = asyncio.create_task(follow())
    await soon(gate.reached.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ([1] if waits else [])
    gate.opened.set()
    await soon(following)
    assert begun == [1]


# -- cancelled while it commits --------------------------------------------------------------------


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_commit_counts_that_was_under_way_when_the_run_was_left(
    place: Place, leave: str, nth: int
) -> None:
    gate = Gate(place.storage.store, nth)
    run = await counting().start(3, run_id="mine", storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    leaving = asyncio.ensure_future(getattr(run, leave)())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not leaving.done()
    assert not run.status.ended
    gate.opened.set()
    await soon(leaving)
    expected = RunStatus.CANCELLED if leave == "cancel" else RunStatus.STOPPED
    superstep = nth - 1
    listed = await info_of_run(place.storage, "mine")
    assert run.status is listed.status
    assert listed.status in ((expected,) if nth < 5 else (expected, RunStatus.COMPLETED))
    assert run.latest_checkpoint is not None
    assert run.latest_checkpoint.checkpoint_id == listed.checkpoint_id
    assert listed.seq == min(2 * superstep + 1, 8)
    assert ran == [3, 2, 1, 0][:superstep]
    events, _ = await told(run)
    assert f"{superstep} SuperStepCompleted" in names(events)
    assert f"{superstep + 1} SuperStepStarted" not in names(events)
    resumed = await outputs_of(counting().resume(run_id="mine", storage=await place.reopened()))
    assert resumed == [(4, [3, 2, 1, 0])]
    assert ran == [3, 2, 1, 0]


async def test_start_that_is_cancelled_while_it_commits_leaves_a_run_that_says_so(place: Place) -> None:
    gate = Gate(place.storage.store, 1)
    starting = asyncio.ensure_future(counting().start(3, run_id="mine", storage=CheckpointStorage(gate)))
    await soon(gate.reached.wait())
    starting.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(starting)
    assert ran == []
    # Nobody drives it, so it must not look as if somebody did.
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.STOPPED
    assert await outputs_of(counting().resume(run_id="mine", storage=place.storage)) == [(4, [3, 2, 1, 0])]


async def test_who_cancels_a_run_can_be_cancelled_too(storage: CheckpointStorage) -> None:
    """Also while the status is being stored: a cancellation is never lost."""
    gate = Gate(storage.store, 3)
    run = await asking().start("?", run_id="mine", storage=CheckpointStorage(gate))
    await soon(run.wait_for_completion())  # two commits
    leaving = asyncio.ensure_future(run.cancel())
    await soon(gate.reached.wait())
    leaving.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert run.status is RunStatus.CANCELLED
    assert (await info_of_run(storage, "mine")).status is RunStatus.CANCELLED


# -- cancelled at every await point ----------------------------------------------------------------


class Pausing(Executor):
    """Counts down, with pauses."""

    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.seen += 1
        await asyncio.sleep(0)
        await ctx.append_state("log", left)
        await asyncio.sleep(0)
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((self.seen, await ctx.read_state("log")))


class PausingAsk(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        await asyncio.sleep(0)
        await ctx.request_info(number, response_type=int)

    @response_handler
    async def answered(self, number: int, answer: int, ctx: WorkflowContext[None, Any]) -> None:
        await asyncio.sleep(0)
        await ctx.yield_output((number, answer))


@executor(id="start")
async def start(number: int) -> int:
    return number


@executor(id="join")
async def join(parts: list) -> list:
    await asyncio.sleep(0)
    return parts


class Part(Executor):
    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> int:
        await ctx.append_state("all", str(self.id), scope_name="Shared")
        for _ in range(number):
            await asyncio.sleep(0)
        return number


def single() -> Workflow:
    return WorkflowBuilder(name="Single").set_start_executor(Pausing).add_edge(Pausing, Pausing).build()


def fanned() -> Workflow:
    parts = [Part.bind(id=name) for name in "abc"]
    return (
        WorkflowBuilder(name="Fanned")
        .set_start_executor(start)
        .add_fan_out_edges(start, parts)
        .add_fan_in_edges(parts, join)
        .build()
    )


def nested() -> Workflow:
    nest = WorkflowExecutor(single(), id="nest")
    return WorkflowBuilder(name="Nested").set_start_executor(start).add_edge(start, nest).build()


def questioned() -> Workflow:
    return WorkflowBuilder(name="Asked").set_start_executor(PausingAsk).build()


EXPECTED: dict[Callable[[], Workflow], list[Any]] = {
    single: [(3, [2, 1, 0])],
    fanned: [[2, 2, 2]],
    nested: [(3, [2, 1, 0])],
    questioned: [(2, 7)],
}


def play(main: Callable[[SteppedLoop], Coroutine[Any, Any, int]], seed: int) -> int:
    loop = SteppedLoop(seed)
    try:
        steps: int = loop.run_until_complete(main(loop))
        left = asyncio.all_tasks(loop)
    finally:
        loop.close()
    assert not loop.errors, loop.errors
    assert not left, left
    return steps


async def to_its_end(run: Run) -> Any:
    while True:
        result = await run.wait_for_completion()
        if result.status is not RunStatus.WAITING:
            return result
        try:
            await run.respond({request.request_id: 7 for request in result.pending_requests})
        except (
            RunEnded,
            RequestAlreadyAnswered,
        ):  # whoever left it was faster, or left it while it was answered
            pass


async def left_at(
    loop: SteppedLoop, make: Callable[[], Workflow], step: int | None, leave: str, wrap: Callable[[Any], Any]
) -> int:
    """Start a run and leave it before a step; then whatever the run says must be what the store says."""
    plain = InMemoryCheckpointStorage()
    run = await make().start(2, run_id="mine", storage=wrapped(plain, wrap))
    loop.steps = 0
    leaving: list[asyncio.Task[Any]] = []
    if step is not None:
        loop.planned = {step: lambda: leaving.append(loop.create_task(getattr(run, leave)()))}
    result = await to_its_end(run)
    steps = loop.steps
    if leaving:
        await leaving[0]
    head = await head_of(plain, "mine")
    assert run.status is head.status, f"the run is {run.status}, the store says {head.status}"
    assert run.latest_checkpoint is not None
    assert run.latest_checkpoint.checkpoint_id == head.checkpoint_id
    assert [c.checkpoint_id for c in run.checkpoints] == [
        c.checkpoint_id for c in await plain.list_checkpoints(run_id="mine")
    ]
    if run.status is not RunStatus.COMPLETED:
        again = await make().resume(run_id="mine", storage=plain)
        result = await to_its_end(again)
    assert result.status is RunStatus.COMPLETED
    assert result.outputs == EXPECTED[make], result.outputs
    assert (await plain.verify()).ok
    return steps


def every_point(
    make: Callable[[], Workflow], leave: str, wrap: Callable[[Any], Any], seeds: range, first: int = 0
) -> None:
    for seed in seeds:
        steps = play(lambda loop: left_at(loop, make, None, leave, wrap), seed)
        assert steps > 20
        for step in range(first, steps + 1):
            try:
                play(lambda loop: left_at(loop, make, step, leave, wrap), seed)  # noqa: B023
            except BaseException as error:
                error.add_note(f"{leave} before step {step} of {steps}, seed {seed}")
                raise


@pytest.mark.parametrize("leave", ["cancel", "close"])
@pytest.mark.parametrize("make", list(EXPECTED))
@pytest.mark.parametrize("slow", [Slow, SlowHere])
def test_left_at_every_await_point(make: Callable[[], Workflow], leave: str, slow: type[Slow]) -> None:
    every_point(make, leave, slow, range(3 * MORE))


def test_planted_commit_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where commits are made in the task of the run."""

    async def cut(commit: Any, cancelled: Any) -> Any:
        return await commit

    monkeypatch.setattr(commit_queue, "run_uncancelled", cut)
    with pytest.raises((AssertionError, HeadMoved, RunTaken)):
        every_point(single, "cancel", lambda store: SlowHere(store, 1, 3), range(3), first=4)


def test_planted_commit_that_is_cancelled_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shield the store moves on while the run does not know."""

    async def unshielded(self: commit_queue.CommitQueue, commit: Any) -> Any:
        return await commit

    monkeypatch.setattr(commit_queue.CommitQueue, "run", unshielded)
    with pytest.raises((AssertionError, HeadMoved)):
        every_point(single, "cancel", lambda store: Slow(store, 1, 3), range(3), first=4)


def test_planted_status_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rest(self: Recorder, status: RunStatus, error: BaseException | None) -> RunStatus:
        return status

    monkeypatch.setattr(Recorder, "rest", rest)
    with pytest.raises(AssertionError, match="the store says running"):
        every_point(single, "cancel", Slow, range(1), first=4)


def test_planted_store_that_forgets_a_record() -> None:
    class Forgetful(Wrapped):
        async def commit(self, commit: Commit) -> Sequence[Letter]:
            kept = tuple(record for record in commit.records if record.seq != 4)
            await asyncio.sleep(0)
            return await self.inner.commit(commit._replace(records=kept))

    with pytest.raises((AssertionError, StorageError)):
        every_point(single, "cancel", Forgetful, range(1), first=4)
