"""Retention: which checkpoints of a run are kept, who says so, and what becomes of the others."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    CheckpointInfo,
    CheckpointNotFound,
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    Retention,
    RunNotFound,
    RunStatus,
    RunTaken,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import ON_DISK, Place, outputs_of, watched
from tests.support.inside import seen_by
from tests.support.parts import Environment, RunConfig
from tests.support.retained import (
    BIG,
    BLOB,
    Clock,
    assert_sound,
    blob_sizes,
    counted,
    counting,
    listed,
    stored_bytes,
    stored_seqs,
)
from tests.support.runs import soon
from tests.support.small_limits import small_limits

LATEST, FULL = Retention.latest_only(), Retention.full_history()
DAY = timedelta(days=1)


@pytest.fixture
def storage(place: Place) -> CheckpointStorage:
    return place.storage


async def run_of(
    storage: CheckpointStorage, steps: int = 6, run_id: str = "r", workflow: Workflow | None = None
) -> list[CheckpointInfo]:
    """A run that counted down; gives the checkpoints that it was told of."""
    run = await (workflow or counting()).start(steps, run_id=run_id, storage=storage)
    told = [event.checkpoint for event in await watched(run) if isinstance(event, CheckpointSavedEvent)]
    assert run.result().outputs == counted(steps)
    return told


async def is_gone(storage: CheckpointStorage, checkpoint: CheckpointInfo) -> None:
    """Nothing can be done with a checkpoint any more."""
    there = {one.checkpoint_id for one in await storage.list_checkpoints()}
    assert checkpoint.checkpoint_id not in there
    for doing in (
        storage.load(checkpoint),
        counting().resume(checkpoint, storage=storage),
        counting().fork(checkpoint, storage=storage),
        storage.tag(checkpoint, "late"),
        storage.delete(checkpoint),
    ):
        with pytest.raises(CheckpointNotFound, match=checkpoint.checkpoint_id):
            await doing


def supersteps(checkpoints: list[Any]) -> list[int]:
    return sorted({checkpoint.superstep for checkpoint in checkpoints})


# -- policies --------------------------------------------------------------------------------------

POLICIES = [
    (FULL, [1, 2, 3, 4, 5, 6]),
    (LATEST, [6]),
    (Retention.keep_last(1), [6]),
    (Retention.keep_last(3), [4, 5, 6]),
    (Retention.keep_last(99), [1, 2, 3, 4, 5, 6]),
    (Retention.keep_for(timedelta(0)), [6]),
    (Retention.keep_for(DAY), [1, 2, 3, 4, 5, 6]),
]
# All of them in memory; on disk those of which something goes and something stays.
EVERYWHERE = [("memory", *one) for one in POLICIES] + [(kind, *POLICIES[3]) for kind in ON_DISK]


@pytest.mark.parametrize(("place", "policy", "kept"), EVERYWHERE, indirect=["place"], ids=repr)
async def test_a_storage_says_what_is_kept(
    storage: CheckpointStorage, policy: Retention, kept: list[int]
) -> None:
    storage.retention = policy
    made = await run_of(storage)
    there = await listed(storage, "r")
    assert supersteps(there) == kept
    assert there[-1].checkpoint_id == made[-1].checkpoint_id
    if policy == LATEST:
        assert len(there) == 1
    for checkpoint in made:
        if checkpoint.checkpoint_id not in {one.checkpoint_id for one in there}:
            await is_gone(storage, checkpoint)
    await storage.prune()
    assert supersteps(await listed(storage, "r")) == kept
    assert await stored_seqs(storage, "r") == [checkpoint.seq for checkpoint in there]
    await assert_sound(storage)


@pytest.mark.parametrize(("place", "policy", "kept"), EVERYWHERE, indirect=["place"], ids=repr)
async def test_prune_keeps_what_it_is_told_to(
    storage: CheckpointStorage, policy: Retention, kept: list[int]
) -> None:
    await run_of(storage)
    await run_of(storage, 3, "other")
    before = await listed(storage, "r")
    size = await stored_bytes(storage)
    foreseen = await storage.prune(policy, dry_run=True, run_id="r")
    assert foreseen.dry_run
    assert await listed(storage, "r") == before
    assert await stored_bytes(storage) == size
    told: list[tuple[int, int]] = []
    report = await storage.prune(policy, run_id="r", progress=lambda *numbers: told.append(numbers))
    assert told == [(1, 1)]
    assert (report.runs, report.checkpoints, report.blobs, report.bytes) == (
        *(foreseen.runs, foreseen.checkpoints, foreseen.blobs, foreseen.bytes),
    )
    assert not report.dry_run
    after = await listed(storage, "r")
    assert supersteps(after) == kept
    assert report.checkpoints == len(before) - len(after)
    assert await stored_bytes(storage) == size - report.bytes
    again = await storage.prune(policy, run_id="r")
    assert (again.checkpoints, again.blobs, again.bytes) == (0, 0, 0)
    assert supersteps(await listed(storage, "other")) == [1, 2, 3]
    await assert_sound(storage)


async def test_the_builder_wins_over_the_storage(storage: CheckpointStorage) -> None:
    storage.retention = LATEST
    await run_of(storage, workflow=counting(FULL), run_id="full")
    assert supersteps(await listed(storage, "full")) == [1, 2, 3, 4, 5, 6]
    storage.retention = FULL
    await run_of(storage, workflow=counting(LATEST), run_id="latest")
    assert len(await listed(storage, "latest")) == 1
    storage.retention = None
    await run_of(storage, workflow=counting(Retention.keep_last(2)), run_id="two")
    assert supersteps(await listed(storage, "two")) == [5, 6]
    report = await storage.prune()
    assert report.runs == 3
    assert report.checkpoints > 12
    assert supersteps(await listed(storage, "full")) == [1, 2, 3, 4, 5, 6]
    await assert_sound(storage)


async def test_a_run_keeps_its_retention_in_another_process(place: Place) -> None:
    place.storage.retention = Retention.keep_last(2)
    await run_of(place.storage)
    storage = await place.reopened()
    assert storage.retention is None
    assert supersteps(await listed(storage, "r")) == [5, 6]


async def test_whoever_resumes_a_run_may_say_something_else(place: Place) -> None:
    stumbling = Stumble()
    run = await stumbling.build().start(6, run_id="r", storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    storage = await place.reopened()
    assert len(await listed(storage, "r")) > 1
    stumbling.well = True
    run = await stumbling.build(LATEST).resume(run_id="r", storage=storage)
    await soon(run.wait_for_completion())
    assert len(await listed(storage, "r")) == 1
    await assert_sound(storage)


def test_what_is_no_retention_is_refused() -> None:
    with pytest.raises(WrongType, match="say which one"):
        Retention(4)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="give a Retention"):
        WorkflowBuilder(name="W").with_retention("latest_only")  # type: ignore[arg-type]


# -- logical at once, physical soon ----------------------------------------------------------------


async def test_what_is_not_kept_is_gone_before_it_is_removed(storage: CheckpointStorage) -> None:
    storage.retention = LATEST
    made = await run_of(storage)
    assert len(await listed(storage, "r")) == 1
    assert len(await stored_seqs(storage, "r")) == len(made)  # too little for a keyframe
    for checkpoint in made[:-1]:
        await is_gone(storage, checkpoint)
    blobs = await blob_sizes(storage, "r")
    report = await storage.prune()
    assert report.checkpoints == len(made) - 1
    assert await stored_seqs(storage, "r") == [made[-1].seq]
    assert len(await blob_sizes(storage, "r")) == len(blobs) - report.blobs == 2


async def test_what_is_not_kept_is_removed_behind_keyframes(storage: CheckpointStorage) -> None:
    with small_limits(inline=4096, keyframe=2000):
        run = await counting(LATEST).start(30, run_id="r", storage=storage)
        most_records, most_blobs = 0, 0
        async for _ in run.watch_stream():
            most_records = max(most_records, len(await stored_seqs(storage, "r")))
            most_blobs = max(most_blobs, len(await blob_sizes(storage, "r")))
        assert (await run.wait_for_completion()).outputs == counted(30)
    assert [made.seq for made in run.checkpoints] == [60]
    assert most_records < 40
    assert most_blobs < 24
    await assert_sound(storage)


async def test_a_listing_ends_where_the_run_stands_while_it_moves(storage: CheckpointStorage) -> None:
    run = await counting(LATEST).start(8, run_id="r", storage=storage)
    async for _ in run.watch_stream():
        there = await listed(storage, "r")
        assert len(there) == 1
    assert (await run.wait_for_completion()).status is RunStatus.COMPLETED


async def test_prune_may_run_beside_a_run(storage: CheckpointStorage) -> None:
    run = await counting().start(16, run_id="r", storage=storage)
    removed = 0
    async for _ in run.watch_stream():
        removed += (await storage.prune(Retention.keep_last(2))).checkpoints
    assert (await run.wait_for_completion()).outputs == counted(16)
    assert removed > 8
    assert len(await listed(storage, "r")) == 32 - removed
    await assert_sound(storage)


# -- tags ------------------------------------------------------------------------------------------


async def test_tags_keep_a_checkpoint(place: Place) -> None:
    storage = place.storage
    made = await run_of(storage)
    kept = made[4]
    await storage.tag(kept, "before-deploy", "b")
    await storage.tag(kept.checkpoint_id, "b", "c")
    await storage.prune(LATEST)
    storage = await place.reopened()
    there = await listed(storage, "r")
    assert [one.seq for one in there] == [kept.seq, made[-1].seq]
    assert there[0].tags == ("before-deploy", "b", "c")
    assert (await storage.load(kept)).tags == ("before-deploy", "b", "c")
    await assert_sound(storage)
    assert await outputs_of(counting().fork(kept, storage=storage)) == counted(6)
    await storage.untag(kept, "b")
    assert (await storage.load(kept)).tags == ("before-deploy", "c")
    await storage.untag(kept)
    await storage.prune(LATEST, run_id="r")
    await is_gone(storage, kept)
    await assert_sound(storage)


async def test_a_tagged_checkpoint_stays_while_its_run_goes_on(place: Place) -> None:
    storage = place.storage
    stumbling = Stumble()
    with small_limits(inline=4096, keyframe=1000):
        run = await stumbling.build(LATEST).start(20, run_id="r", storage=storage)
        with pytest.raises(ExecutorFailed):
            await soon(run.wait_for_completion())
        (kept,) = await listed(storage, "r")
        await storage.tag(kept, "kept")
        stumbling.well = True
        await soon((await stumbling.build(LATEST).resume(run_id="r", storage=storage)).wait_for_completion())
        await storage.prune()
        assert [one.seq for one in await listed(storage, "r")] == [kept.seq, kept.seq + 15]
        await assert_sound(storage)
        fed = list(range(20, 0, -1))
        assert await outputs_of(stumbling.build().resume(kept, storage=await place.reopened())) == [fed]
    await assert_sound(place.storage)


@pytest.mark.parametrize("tag", ["", " ", "x" * 201, 3])
async def test_odd_tags_are_refused(storage: CheckpointStorage, tag: Any) -> None:
    made = await run_of(storage, 2)
    with pytest.raises(InvalidArgument, match="tag"):
        await storage.tag(made[0], tag)


async def test_what_is_not_there_cannot_be_tagged(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFound):
        await storage.tag("0" * 64, "a")


# -- branches and forks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "stays"), [(FULL, True), (Retention.keep_last(9), False), (Retention.keep_for(DAY), True)]
)
async def test_branches_beside_the_way_of_the_run(
    storage: CheckpointStorage, policy: Retention, stays: bool
) -> None:
    made = await run_of(storage, workflow=counting(policy))
    back = made[4]
    abandoned = [checkpoint for checkpoint in made if checkpoint.seq > back.seq]
    run = await counting(policy).resume(back, storage=storage)
    assert (await soon(run.wait_for_completion())).outputs == counted(6)
    assert len(abandoned) > 4
    for checkpoint in abandoned:
        if stays:
            assert (await storage.load(checkpoint)).checkpoint_id == checkpoint.checkpoint_id
        else:
            await is_gone(storage, checkpoint)
    await storage.prune()
    there = {one.seq for one in await listed(storage, "r")}
    assert {one.seq for one in abandoned} <= there if stays else not {one.seq for one in abandoned} & there
    assert await stored_seqs(storage, "r") == sorted(there)
    await assert_sound(storage)


@pytest.mark.parametrize("size", [BLOB, BIG])
async def test_a_fork_keeps_its_values_when_its_origin_goes(place: Place, size: int) -> None:
    storage = place.storage
    made = await run_of(storage, 4, workflow=counting(size=size))
    run = await counting(size=size).fork(made[4], storage=storage)
    forked = run.run_id
    assert (await soon(run.wait_for_completion())).outputs == counted(4)
    first = (await listed(storage, forked))[0]
    await storage.prune(LATEST, run_id="r")
    await assert_sound(storage)
    await storage.delete_run("r")
    with pytest.raises(RunNotFound):
        await storage.catalog.head("r")
    storage = await place.reopened()
    await assert_sound(storage)
    assert await outputs_of(counting(size=size).resume(first, storage=storage)) == counted(4)
    await storage.delete_run(forked)
    assert await blob_sizes(storage, "r") == []


@pytest.mark.parametrize("size", [BLOB, BIG])
async def test_a_run_keeps_its_values_when_its_forks_go(place: Place, size: int) -> None:
    storage = place.storage
    made = await run_of(storage, 4, workflow=counting(size=size))
    before = await blob_sizes(storage, "r")
    forks = [await counting(size=size).fork(made[4], storage=storage) for _ in range(2)]
    for run in forks:
        await soon(run.wait_for_completion())
    await storage.prune(LATEST, run_id=forks[0].run_id)
    await storage.delete_run(forks[0].run_id)
    await storage.delete_run(forks[1].run_id)
    assert await blob_sizes(storage, "r") == before
    await assert_sound(await place.reopened())
    assert await outputs_of(counting(size=size).resume(made[2], storage=place.storage)) == counted(4)


async def test_a_pruned_fork_without_its_origin_goes_on(place: Place) -> None:
    made = await run_of(place.storage, 5)
    run = await counting(LATEST).fork(made[3], storage=place.storage)
    await soon(run.wait_for_completion())
    await place.storage.delete_run("r")
    await place.storage.prune()
    storage = await place.reopened()
    assert len(await listed(storage, run.run_id)) == 1
    await assert_sound(storage)


# -- removing by hand ------------------------------------------------------------------------------


async def test_what_follows_a_deleted_checkpoint_stays(place: Place) -> None:
    storage = place.storage
    made = await run_of(storage)
    for checkpoint in (made[3], made[6], made[0]):
        await storage.delete(checkpoint)
        await is_gone(storage, checkpoint)
        await assert_sound(storage)
    storage = await place.reopened()
    rest = [checkpoint for checkpoint in made if checkpoint not in (made[3], made[6], made[0])]
    assert [one.seq for one in await listed(storage, "r")] == [one.seq for one in rest]
    for checkpoint in rest[:5]:
        assert await outputs_of(counting().resume(checkpoint, storage=storage)) == counted(6)
    await assert_sound(storage)


async def test_the_checkpoint_on_which_a_run_stands_cannot_be_deleted(storage: CheckpointStorage) -> None:
    made = await run_of(storage)
    with pytest.raises(InvalidArgument, match=r"stands on checkpoint.*delete_run"):
        await storage.delete(made[-1])
    assert (await storage.load(made[-1])).outputs == counted(6)


async def test_a_deleted_run_leaves_nothing(place: Place) -> None:
    storage = place.storage
    made = await run_of(storage)
    await run_of(storage, 2, "other")
    await storage.tag(made[0], "kept")
    await storage.delete_run("r")
    storage = await place.reopened()
    assert [run.run_id for run in await storage.list_runs()] == ["other"]
    for checkpoint in (made[0], made[-1]):
        await is_gone(storage, checkpoint)
    with pytest.raises(RunNotFound):
        await storage.delete_run("r")
    assert (await blob_sizes(storage, "r"), await stored_seqs(storage, "r")) == ([], [])
    await run_of(storage, 3)
    assert [one.tags for one in await listed(storage, "r")] == [()] * 6
    await assert_sound(storage)


async def test_a_run_that_is_driven_cannot_be_deleted(storage: CheckpointStorage) -> None:
    waits = Waits()
    run = await waits.build().start(1, run_id="r", storage=storage)
    await soon(waits.reached.wait())
    with pytest.raises(RunTaken, match="r is driven; cancel it first"):
        await storage.delete_run("r")
    waits.opened.set()
    await soon(run.wait_for_completion())
    await storage.delete_run("r")
    assert await storage.list_runs() == []


# -- going on under latest_only --------------------------------------------------------------------


class Waits:
    """A workflow whose only turn waits."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def build(self) -> Workflow:
        @executor(id="wait")
        async def wait(number: int) -> int:
            self.reached.set()
            await self.opened.wait()
            return number

        return WorkflowBuilder(name="Waits").set_start_executor(wait).build()


class Stumble:
    """A workflow in which one of two turns fails in the middle of the run until it is well; the other is counted."""

    def __init__(self) -> None:
        self.well = False
        self.turns: list[int] = []

    def build(self, retention: Retention | None = None) -> Workflow:
        @executor(id="feed")
        async def feed(left: int, ctx: WorkflowContext[int]) -> int:
            await ctx.append_state("fed", left, scope_name="S")
            return left

        @executor(id="steady")
        async def steady(left: int, ctx: WorkflowContext[int]) -> int:
            self.turns.append(left)
            await ctx.queue_state_update("big", bytes([left]) * BLOB, scope_name="S")
            return left

        @executor(id="shaky")
        async def shaky(left: int) -> int:
            if left == 3 and not self.well:
                raise ConnectionError("not well")
            return left

        @executor(id="join")
        async def join(both: list[int], ctx: WorkflowContext[int, Any]) -> None:
            if both[0] > 1:
                await ctx.send_message(both[0] - 1)
            else:
                await ctx.yield_output(await ctx.read_state("fed", scope_name="S"))

        builder = (
            WorkflowBuilder(name="Stumble", max_iterations=99)
            .set_start_executor(feed)
            .add_fan_out_edges(feed, [steady, shaky])
            .add_fan_in_edges([steady, shaky], join)
            .add_edge(join, feed)
        )
        return (builder if retention is None else builder.with_retention(retention)).build()


@pytest.mark.parametrize("pruned", [False, True])
async def test_a_failed_run_goes_on_from_its_journal(place: Place, pruned: bool) -> None:
    stumbling = Stumble()
    with small_limits(keyframe=400):
        run = await stumbling.build(LATEST).start(6, run_id="r", storage=place.storage)
        with pytest.raises(ExecutorFailed):
            await soon(run.wait_for_completion())
        storage = await place.reopened()
        if pruned:
            await storage.prune()
        stumbling.well = True
        again = await stumbling.build(LATEST).resume(run_id="r", storage=storage)
        assert (await soon(again.wait_for_completion())).outputs == [[6, 5, 4, 3, 2, 1]]
    assert stumbling.turns == [6, 5, 4, 3, 2, 1]
    await assert_sound(storage)


class Ask(Executor):
    @handler
    async def ask(self, left: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(left, response_type=bytes)

    @response_handler
    async def answered(self, left: int, answer: bytes, ctx: WorkflowContext[int, Any]) -> None:
        await ctx.append_state("answers", answer, scope_name="S")
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            answers = await ctx.read_state("answers", scope_name="S")
            await ctx.yield_output([len(one) for one in answers])


def asking(retention: Retention, nested: bool) -> Workflow:
    builder = WorkflowBuilder(name="Asking", max_iterations=99).set_start_executor(Ask).add_edge(Ask, Ask)
    if not nested:
        return builder.with_retention(retention).build()
    inner = WorkflowExecutor(builder.build(), id="sub")
    return WorkflowBuilder(name="Outer").set_start_executor(inner).with_retention(retention).build()


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("policy", [LATEST, Retention.keep_last(1)])
async def test_answers_reach_a_pruned_run(place: Place, policy: Retention, nested: bool) -> None:
    with small_limits(keyframe=500):
        run = await asking(policy, nested).start(4, run_id="r", storage=place.storage)
        storage = place.storage
        for left in (4, 3, 2, 1):
            await soon(run.wait_for_completion())
            (request,) = run.pending_requests
            await storage.respond("r", {request.request_id: bytes([left]) * BLOB})
            await storage.prune()
            storage = await place.reopened()
            run = await asking(policy, nested).resume(run_id="r", storage=storage)
        assert (await soon(run.wait_for_completion())).outputs == [[BLOB] * 4]
    await storage.prune()
    assert len(await listed(storage, "r")) <= 2
    await assert_sound(storage)


async def test_attaching_to_a_run_whose_input_is_gone(place: Place) -> None:
    await run_of(place.storage, workflow=counting(LATEST))
    await place.storage.prune()
    storage = await place.reopened()
    run = await counting(LATEST).start(6, run_id="r", storage=storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == counted(6)


async def test_a_restored_run_keeps_only_where_it_stands(storage: CheckpointStorage) -> None:
    run = await counting(Retention.keep_last(3)).start(6, run_id="r", storage=storage)
    await soon(run.wait_for_completion())
    target = (await listed(storage, "r"))[0]
    await run.restore_checkpoint(target)
    assert (await soon(run.wait_for_completion())).outputs == counted(6)
    await storage.prune()
    assert supersteps(await listed(storage, "r")) == [4, 5, 6]
    await assert_sound(storage)


@pytest.mark.parametrize("size", [BLOB, BIG])
async def test_big_values_are_removed_with_what_held_them(place: Place, size: int) -> None:
    storage = place.storage
    with small_limits(inline=4096, keyframe=1500):
        await run_of(storage, 24, workflow=counting(LATEST, size))
        await storage.prune()
    assert len([one for one in await blob_sizes(storage, "r") if one >= size]) == 2
    storage = await place.reopened()
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    assert len(await latest.read_state("newest", scope_name="S")) == size
    await assert_sound(storage)


# -- time ------------------------------------------------------------------------------------------


def timed(clock: Clock, retention: Retention | None) -> Workflow:
    graph = counting().graph
    config = RunConfig(max_iterations=99, environment=Environment(now=clock), retention=retention)
    return Workflow(graph, "Count", config)


@pytest.mark.parametrize("retention", [LATEST, Retention.keep_last(2), Retention.full_history()], ids=repr)
async def test_run_shows_the_checkpoints_that_are_kept_and_holds_few_others(retention: Retention) -> None:
    storage = InMemoryCheckpointStorage()
    run = await counting(retention).start(200, run_id="r", storage=storage)
    held = 0
    async for event in run.watch_stream():
        if isinstance(event, SuperStepCompletedEvent):
            held = max(held, seen_by(run))
    assert [made.seq for made in run.checkpoints] == [made.seq for made in await listed(storage, "r")]
    assert held >= 398 if retention.keeps_all else held <= 66


async def test_old_checkpoints_are_not_kept(storage: CheckpointStorage) -> None:
    clock = Clock(ago=3 * DAY)
    run = await timed(clock, None).start(6, run_id="old", storage=storage)
    await soon(run.wait_for_completion())
    clock.time += 3 * DAY - timedelta(minutes=1)
    await run.restore_checkpoint(run.checkpoints[6])
    await soon(run.wait_for_completion())
    there = await listed(storage, "old")
    new = [one.seq for one in there if one.timestamp > clock.time - DAY]
    assert 4 < len(new) < len(there)
    report = await storage.prune(Retention.keep_for(DAY))
    assert report.checkpoints == len(there) - len(new)
    assert [one.seq for one in await listed(storage, "old")] == new
    assert (await storage.prune(Retention.keep_for(timedelta(0)))).checkpoints == len(new) - 1
    await assert_sound(storage)


async def test_checkpoints_go_when_they_are_old_enough(storage: CheckpointStorage) -> None:
    run = await timed(Clock(ago=3 * DAY), Retention.keep_for(2 * DAY)).start(6, run_id="r", storage=storage)
    await soon(run.wait_for_completion())
    assert [one.seq for one in await listed(storage, "r")] == [run.checkpoints[-1].seq]
    await is_gone(storage, run.checkpoints[0])
    run = await timed(Clock(ago=DAY), Retention.keep_for(2 * DAY)).start(6, run_id="young", storage=storage)
    await soon(run.wait_for_completion())
    assert len(await listed(storage, "young")) == len(run.checkpoints)


@pytest.mark.parametrize("wrong", ["keep_last", 5, Retention, Retention.latest_only])
async def test_what_is_no_retention_is_refused_where_it_is_given(wrong: Any) -> None:
    with pytest.raises(WrongType, match="give a Retention"):
        InMemoryCheckpointStorage(wrong)
    storage = InMemoryCheckpointStorage()
    with pytest.raises(WrongType, match="give a Retention"):
        await storage.prune(wrong)
    with pytest.raises(GraphError, match="give a Retention"):
        WorkflowBuilder(name="W").with_retention(wrong)
    with pytest.raises(WrongType, match="dry_run="):
        await storage.prune(dry_run="no")  # type: ignore[arg-type]
