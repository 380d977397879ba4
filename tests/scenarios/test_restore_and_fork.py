"""Going back in place, and new runs that begin where another stood."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from holdfast import (
    CheckpointInfo,
    CheckpointNotFound,
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    ExecutorShared,
    InvalidArgument,
    RequestInfoEvent,
    Run,
    RunEnded,
    RunExists,
    RunStatus,
    StateKey,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    handler,
    open_storage,
)
from tests.support.executors import Ask
from tests.support.parts import Commit, Letter, MemoryStore

LIMIT = StateKey("limit", int, scope_name="Settings")


class Count(Executor):
    """Counts in a field and in shared state until it reaches the limit there."""

    checkpointed = ("turns",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns = 0

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, tuple[int, int, list[int]]]) -> None:
        self.turns += 1
        await ctx.append_state("seen", number, scope_name="S")
        if number >= await ctx.read_state(LIMIT, 5):
            await ctx.yield_output((number, self.turns, await ctx.read_state("seen", scope_name="S")))
        else:
            await ctx.send_message(number + 1)


@pytest.fixture(params=["memory", "sqlite", "file"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStorage]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/r.db", "file": f"file:///{tmp_path}/r"}
    async with open_storage(urls[request.param]) as opened:
        yield opened


def counting(executor: type[Executor] | Executor = Count) -> Workflow:
    return WorkflowBuilder(name="Count").set_start_executor(executor).add_edge(executor, executor).build()


def asking() -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).build()


async def outputs_of(run: Run) -> list[object]:
    return (await run.wait_for_completion()).outputs


WHOLE = [(5, 5, [1, 2, 3, 4, 5])]


async def test_restore_in_place_of_a_run_that_is_over(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    assert await outputs_of(run) == WHOLE
    made = list(run.checkpoints)
    for checkpoint in (made[0], made[3], made[4], made[-1].checkpoint_id):
        await run.restore_checkpoint(checkpoint)
        assert await outputs_of(run) == WHOLE
        assert run.status is RunStatus.COMPLETED
    listed = await storage.list_checkpoints(run_id=run.run_id)
    assert {c.checkpoint_id for c in made} <= {c.checkpoint_id for c in listed}
    restored = [c for c in listed if c.cause == "restore"]
    assert [c.parent_id for c in restored] == [m.checkpoint_id for m in (made[0], made[3], made[4], made[-1])]
    assert (await storage.verify()).ok


async def test_checkpoints_that_were_seen_stay_in_order_after_a_restore(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    await outputs_of(run)
    for place in (3, 0, -1):
        before = run.checkpoints
        await run.restore_checkpoint(before[place])
        await outputs_of(run)
        assert run.checkpoints[: len(before)] == before
        assert run.checkpoints == await storage.list_checkpoints(run_id=run.run_id)
        assert run.latest_checkpoint == run.checkpoints[-1] == await storage.get_latest(run_id=run.run_id)
    all_of_them = run.checkpoints
    resumed = await counting().resume(all_of_them[6], storage=storage)
    await outputs_of(resumed)
    await resumed.restore_checkpoint(all_of_them[2])  # one that this object has not seen
    await outputs_of(resumed)
    there = await storage.list_checkpoints(run_id=run.run_id)
    assert resumed.checkpoints == [all_of_them[2], all_of_them[6], *there[len(all_of_them) :]]


async def test_events_after_a_restore_are_those_from_there_on(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    await run.wait_for_completion()
    await run.restore_checkpoint(run.checkpoints[5])  # the end of superstep 3
    events = [event async for event in run.watch_stream()]
    assert [e.superstep for e in events if isinstance(e, SuperStepStartedEvent)] == [4, 5]
    assert [e.data for e in events if isinstance(e, WorkflowOutputEvent)] == WHOLE


async def test_restore_of_a_run_that_moves(storage: CheckpointStorage) -> None:
    entered, hold = asyncio.Event(), [True]

    class Slow(Count):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int, tuple[int, int, list[int]]]) -> None:
            if number == 4 and hold[0]:
                entered.set()
                await asyncio.sleep(3600)
            await super().count(number, ctx)

    run = await counting(Slow).start(1, storage=storage)
    await entered.wait()
    hold[0] = False
    await run.restore_checkpoint(run.checkpoints[2])
    assert await outputs_of(run) == WHOLE


async def test_a_run_goes_on_when_asked_to_go_where_it_never_was(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    with pytest.raises(CheckpointNotFound):
        await run.restore_checkpoint("0" * 64)
    assert await outputs_of(run) == WHOLE


async def test_restore_with_an_instance(storage: CheckpointStorage) -> None:
    run = await counting(Count("count")).start(1, storage=storage)
    assert await outputs_of(run) == WHOLE
    await run.restore_checkpoint(run.checkpoints[4])
    assert await outputs_of(run) == WHOLE


async def test_restore_to_a_question_asks_again(storage: CheckpointStorage) -> None:
    run = await asking().start("Deploy?", storage=storage)
    await run.wait_for_completion()
    waiting = run.latest_checkpoint
    assert waiting is not None
    await run.send_response("Ask.1.1", "yes")
    assert await outputs_of(run) == ["Deploy? yes"]
    await run.restore_checkpoint(waiting)
    events = [event async for event in run.watch_stream()]
    assert [e.request_id for e in events if isinstance(e, RequestInfoEvent)] == ["Ask.1.1"]
    assert run.status is RunStatus.WAITING
    await run.send_response("Ask.1.1", "no")
    assert await outputs_of(run) == ["Deploy? no"]


async def test_what_cannot_be_restored_changes_nothing(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    other = await counting().start(1, storage=storage)
    await run.wait_for_completion()
    await other.wait_for_completion()
    before = await storage.list_checkpoints()
    with pytest.raises(
        InvalidArgument, match=r"belongs to run .*; begin a new run there with 'workflow.fork"
    ):
        await run.restore_checkpoint(other.checkpoints[0])
    with pytest.raises(CheckpointNotFound):
        await run.restore_checkpoint("0" * 64)
    with pytest.raises(InvalidArgument, match="has no storage"):
        await (await counting().start(1)).restore_checkpoint(run.checkpoints[0])
    assert await storage.list_checkpoints() == before
    assert run.status is RunStatus.COMPLETED


async def test_fork_from_every_checkpoint(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    await run.wait_for_completion()
    for checkpoint in run.checkpoints:
        fork = await counting().fork(checkpoint, storage=storage)
        assert fork.run_id != run.run_id
        assert await outputs_of(fork) == WHOLE
        first = fork.checkpoints[0]
        assert (first.cause, first.parent_id, first.seq) == ("fork", checkpoint.checkpoint_id, 1)
        assert (first.superstep, first.phase) == (checkpoint.superstep, checkpoint.phase)
    assert (await storage.verify()).ok
    assert await storage.list_checkpoints(run_id=run.run_id) == run.checkpoints


async def test_fork_with_edits(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    await run.wait_for_completion()
    middle = run.checkpoints[4]  # the start of superstep 3
    fork = await counting().fork(
        middle, edits={LIMIT: 3, ("S", "seen"): [70], "note": "other"}, run_id="other", storage=storage
    )
    assert await outputs_of(fork) == [(3, 3, [70, 3])]
    assert [c.cause for c in fork.checkpoints[:2]] == ["fork", "edit"]
    edited = await storage.load(fork.checkpoints[1].checkpoint_id)
    assert edited.shared_state["note"] == "other"
    assert (await storage.load(middle.checkpoint_id)).scopes["S"]["seen"] == [1, 2]
    again = await counting().resume(run_id="other", storage=storage)
    assert await outputs_of(again) == [(3, 3, [70, 3])]
    back = await counting().resume(fork.checkpoints[1], storage=storage)
    assert await outputs_of(back) == [(3, 3, [70, 3])]
    with pytest.raises(RunExists):
        await counting().fork(middle, run_id="other", storage=storage)
    assert (await storage.verify()).ok


async def test_fork_of_a_fork_and_of_a_question(storage: CheckpointStorage) -> None:
    run = await asking().start("Deploy?", storage=storage)
    await run.wait_for_completion()
    assert run.latest_checkpoint is not None
    fork = await asking().fork(run.latest_checkpoint, storage=storage)
    assert (await fork.wait_for_completion()).status is RunStatus.WAITING
    assert fork.latest_checkpoint is not None
    second = await asking().fork(fork.latest_checkpoint, storage=storage)
    for answered, answer in ((run, "yes"), (fork, "no"), (second, "later")):
        await answered.wait_for_completion()
        await answered.send_response("Ask.1.1", answer)
        assert await outputs_of(answered) == [f"Deploy? {answer}"]
    assert (await storage.verify()).ok


async def test_edits_that_name_nothing(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    await run.wait_for_completion()
    for key in (3, ("a", "b", "c"), ("", "b"), None):
        with pytest.raises(InvalidArgument, match="names no state"):
            await counting().fork(run.checkpoints[0], edits={key: 1}, storage=storage)
    assert [r.run_id for r in await storage.list_runs()] == [run.run_id]


async def test_big_values_are_shared_by_forks(tmp_path: Path) -> None:
    class Hold(Executor):
        @handler
        async def hold(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            if number == 0:
                await ctx.set_shared_state("big", "".join(map(str, range(100_000))))
            if number < 3:
                await ctx.send_message(number + 1)
            else:
                await ctx.yield_output(len(await ctx.get_shared_state("big")))

    def build() -> Workflow:
        return WorkflowBuilder(name="Hold").set_start_executor(Hold).add_edge(Hold, Hold).build()

    async with open_storage(f"sqlite:///{tmp_path}/r.db") as storage:
        run = await build().start(0, storage=storage)
        await run.wait_for_completion()
        fork = await build().fork(run.checkpoints[3], storage=storage)
        assert await outputs_of(fork) == await outputs_of(run)
        assert sum(c.new_bytes for c in fork.checkpoints) < 10_000


class Gated(MemoryStore):
    """A store whose commits wait at a gate, before and after they happen."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        self.waiting.set()
        await self.gate.wait()
        return waiting


async def going_back(store: Gated) -> tuple[Run, CheckpointInfo, asyncio.Future[None]]:
    """Let a run that was answered go back to its question; its commit has happened and waits at the gate."""
    run = await asking().start("Deploy?", storage=CheckpointStorage(store))
    await run.wait_for_completion()
    waiting = run.checkpoints[-1]
    await run.respond({"Ask.1.1": "yes"})
    await run.wait_for_completion()
    store.gate.clear()
    store.waiting.clear()
    going = asyncio.ensure_future(run.restore_checkpoint(waiting))
    await store.waiting.wait()
    return run, waiting, going


async def test_a_stubborn_handler_does_not_end_the_run_that_went_back() -> None:
    storage = CheckpointStorage(MemoryStore())
    entered, let_go, calls = asyncio.Event(), asyncio.Event(), [0]

    class Stubborn(Executor):
        @handler
        async def go(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            calls[0] += 1
            if calls[0] == 1:
                entered.set()
                while not let_go.is_set():
                    try:
                        await let_go.wait()
                    except asyncio.CancelledError:
                        pass
            await ctx.yield_output(number)

    run = await WorkflowBuilder(name="W").set_start_executor(Stubborn).build().start(7, storage=storage)
    await entered.wait()
    await run.restore_checkpoint(run.checkpoints[0], grace=0)
    let_go.set()
    assert await outputs_of(run) == [7]
    for _ in range(10):
        await asyncio.sleep(0)
    assert run.status is RunStatus.COMPLETED
    assert (await storage.list_runs())[0].status is RunStatus.COMPLETED


async def test_a_run_that_goes_back_takes_no_answers_meanwhile() -> None:
    store = Gated()
    run, waiting, going = await going_back(store)
    with pytest.raises(RunEnded, match="going back"):
        await run.respond({"Ask.1.1": "no"})
    with pytest.raises(InvalidArgument, match="going back to a checkpoint already"):
        await run.restore_checkpoint(waiting)
    store.gate.set()
    await going
    await run.wait_for_completion()
    await run.respond({"Ask.1.1": "later"})
    assert await outputs_of(run) == ["Deploy? later"]


async def test_an_end_that_was_committed_stays_though_the_run_is_cancelled() -> None:
    store = Gated()
    storage = CheckpointStorage(store)
    run = await counting().start(5, storage=storage)  # one superstep
    store.gate.clear()
    store.waiting.clear()
    await store.waiting.wait()  # the end is in the store, but the run does not know it yet
    cancelling = asyncio.ensure_future(run.cancel(grace=0))
    await asyncio.sleep(0)
    store.gate.set()
    await cancelling
    assert run.status is RunStatus.COMPLETED
    assert (await storage.list_runs())[0].status is RunStatus.COMPLETED


async def test_saved_events_are_told_also_by_a_run_that_waits_at_once() -> None:
    storage = CheckpointStorage(MemoryStore())
    run = await asking().start("?", storage=storage)
    await run.wait_for_completion()
    waiting = run.checkpoints[-1]
    await run.respond({"Ask.1.1": "yes"})
    await run.wait_for_completion()
    await run.restore_checkpoint(waiting)
    events = [event async for event in run.watch_stream()]
    saved = [event.checkpoint for event in events if isinstance(event, CheckpointSavedEvent)]
    assert [checkpoint.cause for checkpoint in saved] == ["restore"]


async def test_two_who_attach_at_once_have_one_run() -> None:
    store = Gated()
    storage = CheckpointStorage(store)
    runs = await asyncio.gather(
        *(asking().start("?", run_id="x", storage=storage, if_exists="attach") for _ in range(3))
    )
    assert {run.run_id for run in runs} == {"x"}
    assert len(set(map(id, runs))) == 1, "in one process there is one object that drives a run"
    assert len(await storage.list_runs()) == 1


async def test_an_instance_that_works_is_not_reset_by_a_resume() -> None:
    storage = CheckpointStorage(MemoryStore())
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Hold(Count):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int, tuple[int, int, list[int]]]) -> None:
            if number == 3 and not go_on.is_set():
                entered.set()
                await go_on.wait()
            await super().count(number, ctx)

    workflow = counting(Hold("count"))
    run = await workflow.start(1, storage=storage)
    await entered.wait()
    with pytest.raises(ExecutorShared):
        await workflow.resume(run_id=run.run_id, storage=storage, take_over=True)
    go_on.set()
    assert await outputs_of(run) == WHOLE


async def test_who_cancels_a_run_that_goes_back_cancels_it_there() -> None:
    store = Gated()
    run, _, going = await going_back(store)
    cancelling = asyncio.ensure_future(run.cancel())
    result = asyncio.ensure_future(run.wait_for_completion())
    await asyncio.sleep(0)
    assert not cancelling.done()
    assert not result.done()
    store.gate.set()
    await going
    await cancelling
    assert (await result).status in (RunStatus.WAITING, RunStatus.CANCELLED)
    assert run.status is RunStatus.CANCELLED
    assert (await CheckpointStorage(store).list_runs())[0].status is RunStatus.CANCELLED


class GoBack(Executor):
    """Takes its own run back to where it began."""

    runs: ClassVar[dict[str, Run]] = {}

    @handler
    async def back(self, number: int, ctx: WorkflowContext[None, str]) -> None:
        run = self.runs[ctx.run_id]
        with pytest.raises(InvalidArgument, match=r"^a handler of run mine is to take that run back"):
            await run.restore_checkpoint(run.checkpoints[0])
        await ctx.yield_output("went on")


@pytest.mark.parametrize("turns", [1, 2])
async def test_a_handler_cannot_take_its_own_run_back(turns: int) -> None:
    storage = open_storage("memory:")
    first = GoBack.bind(id="first")
    builder = WorkflowBuilder(name="Back").set_start_executor(Count)
    builder.add_fan_out_edges(Count, [first, GoBack.bind(id="second")][:turns])
    run = await builder.build().start(1, run_id="mine", storage=storage)
    GoBack.runs["mine"] = run
    result = await run.wait_for_completion()
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["went on"] * turns)
