"""Going back in place, and new runs that begin where another stood."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import (
    CheckpointNotFound,
    CheckpointStorage,
    Executor,
    InvalidArgument,
    RequestInfoEvent,
    Run,
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
    response_handler,
)

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


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=str)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{text} {answer}")


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
