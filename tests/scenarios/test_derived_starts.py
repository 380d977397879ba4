"""Starts that follow an end at once: no record is stored for them, and everything else is as if one were."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import (
    Cause,
    Checkpoint,
    CheckpointInfo,
    CheckpointNotFound,
    CheckpointSavedEvent,
    ExecutorFailed,
    InvalidArgument,
    Phase,
    Retention,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from holdfast.checkpoint.store import Depth, Record
from holdfast.ids import RunId
from tests.support.durable import Place, head_of, outputs_of
from tests.support.parts import end_id, is_start_id, start_id
from tests.support.retained import assert_sound, counted, counting, listed

STEPS = 4


async def made(place: Place, retention: Retention | None = None) -> list[CheckpointInfo]:
    """A run that is over: a start, then four ends with the starts of the next supersteps between them."""
    await counting(retention).run(STEPS, run_id="r", storage=place.storage)
    return list(await listed(place.storage, "r"))


async def records(place: Place) -> list[Record]:
    return list(await place.storage.store.records(RunId("r"), 1, 99, Depth.ALL))


def held(checkpoint: Checkpoint) -> tuple[object, ...]:
    """What a run holds at a checkpoint."""
    scopes = {name: dict(view) for name, view in checkpoint.scopes.items()}
    messages = [(one.target_id, one.data) for one in checkpoint.messages]
    return scopes, dict(checkpoint.executor_states), messages


async def seqs(place: Place) -> list[int]:
    """The checkpoints that a new process lists; all is sound there."""
    storage = await place.reopened()
    await assert_sound(storage)
    return [one.seq for one in await listed(storage, "r")]


async def test_an_end_and_its_start_are_one_record(place: Place) -> None:
    found = await made(place)
    assert [(one.seq, one.phase, one.superstep) for one in found[:4]] == [
        (1, Phase.START, 1),
        (2, Phase.END, 1),
        (3, Phase.START, 2),
        (4, Phase.END, 2),
    ]
    assert [record.seq for record in await records(place)] == [1, 2, 4, 6, 8]
    for end, start in zip(found[1:-1:2], found[2:-1:2], strict=True):
        assert start.checkpoint_id == start_id(end.checkpoint_id) != end.checkpoint_id
        assert end.checkpoint_id == end_id(start.checkpoint_id)
        assert start.parent_id == end.checkpoint_id
        assert start.timestamp == end.timestamp + timedelta(microseconds=1)
        assert (start.message_count, start.request_count) == (end.message_count, end.request_count)
        assert (start.status, start.run_id, start.new_bytes) == (end.status, end.run_id, 0)
    assert [is_start_id(one.checkpoint_id) for one in found] == [False, False] + [True, False] * 3


async def test_ids_are_the_same_wherever_they_are_told(place: Place) -> None:
    run = await counting().start(STEPS, run_id="r", storage=place.storage)
    events = [event async for event in run.watch_stream()]
    told = [event.checkpoint.checkpoint_id for event in events if isinstance(event, CheckpointSavedEvent)]
    storage = await place.reopened()
    assert [one.checkpoint_id for one in run.checkpoints] == told
    assert [one.checkpoint_id for one in await listed(storage, "r")] == told
    assert [(await storage.load(one)).seq for one in told] == list(range(1, 9))
    assert [one.checkpoint_id for one in await storage.list_checkpoints(after=told[3], limit=2)] == told[4:6]


async def test_a_start_holds_what_its_end_holds(place: Place) -> None:
    found = await made(place)
    end, start = [await place.storage.load(one) for one in found[3:5]]
    assert held(start) == held(end)
    assert (await place.storage.get_latest(run_id="r")) == found[-1]


@pytest.mark.parametrize("seq", [4, 5])
async def test_each_has_tags_of_its_own(place: Place, seq: int) -> None:
    found = await made(place)
    mine, other = found[seq - 1], found[8 - seq]
    odd = ["gold", "start:gold", "end:", "removed:start", "removed:end"]
    await place.storage.tag(mine, *odd)
    await place.storage.tag(other, "silver")
    storage = await place.reopened()
    assert (await storage.load(mine)).tags == tuple(odd)
    assert (await storage.load(other)).tags == ("silver",)
    await storage.untag(other)
    await storage.untag(mine, "gold", "silver")
    assert (await storage.load(mine)).tags == tuple(odd[1:])
    assert (await storage.load(other)).tags == ()
    await storage.untag(mine)
    assert {record.tags for record in await records(place)} == {()}
    assert await seqs(place) == list(range(1, 9))


async def test_a_start_is_removed_and_its_end_stays(place: Place) -> None:
    found = await made(place)
    await place.storage.tag(found[4], "gold")
    await place.storage.delete(found[4])
    with pytest.raises(CheckpointNotFound):
        await place.storage.load(found[4])
    with pytest.raises(CheckpointNotFound):
        await place.storage.tag(found[4], "gold")
    assert await seqs(place) == [1, 2, 3, 4, 6, 7, 8]
    await place.storage.delete(found[3])
    assert await seqs(place) == [1, 2, 3, 6, 7, 8]
    assert [record.seq for record in await records(place)] == [1, 2, 6, 8]


async def test_an_end_is_removed_and_its_start_stays(place: Place) -> None:
    found = await made(place)
    before = await place.storage.load(found[4])
    await place.storage.delete(found[3])
    with pytest.raises(CheckpointNotFound):
        await place.storage.load(found[3])
    assert await seqs(place) == [1, 2, 3, 5, 6, 7, 8]
    after = await place.storage.load(found[4])
    assert (held(after), after.seq) == (held(before), 5)
    assert await outputs_of(counting().fork(found[4], run_id="f", storage=place.storage)) == counted(STEPS)
    await place.storage.delete(found[2])
    await place.storage.delete(found[4])
    assert await seqs(place) == [1, 2, 6, 7, 8]
    assert [record.seq for record in await records(place)] == [1, 2, 6, 8]


def tripping(fails: bool) -> Workflow:
    """A workflow whose second superstep may fail."""

    @executor(id="step")
    async def step(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number == 2 and fails:
            raise ValueError("not now")
        await (ctx.send_message(number + 1) if number < 4 else ctx.yield_output(number))

    return WorkflowBuilder(name="Trips").set_start_executor(step).add_edge(step, step).build()


async def test_the_start_on_which_a_run_stands_stays_without_its_end(place: Place) -> None:
    with pytest.raises(ExecutorFailed):
        await tripping(True).run(1, run_id="r", storage=place.storage)
    _, end, start = await listed(place.storage, "r")
    assert (
        (await head_of(place.storage, "r")).checkpoint_id
        == start.checkpoint_id
        == start_id(end.checkpoint_id)
    )
    with pytest.raises(InvalidArgument, match="stands on checkpoint"):
        await place.storage.delete(start)
    await place.storage.delete(end)
    assert await seqs(place) == [1, 3]
    assert await outputs_of(tripping(False).resume(run_id="r", storage=place.storage)) == [4]
    assert await seqs(place) == [1, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("seq", [3, 4, 5])
async def test_a_run_goes_back_to_either(place: Place, seq: int) -> None:
    found = await made(place)
    assert await outputs_of(counting().resume(found[seq - 1], storage=place.storage)) == counted(STEPS)
    storage = await place.reopened()
    again = (await listed(storage, "r"))[8]
    assert (again.cause, again.parent_id) == (Cause.RESTORE, found[seq - 1].checkpoint_id)
    assert await outputs_of(counting().fork(found[seq - 1], run_id="f", storage=storage)) == counted(STEPS)
    await assert_sound(storage)


async def test_a_tag_keeps_one_of_both(place: Place) -> None:
    found = await made(place)
    await place.storage.tag(found[2], "start")
    await place.storage.tag(found[5], "end")
    report = await place.storage.prune(Retention.latest_only())
    assert report.checkpoints == 5
    assert await seqs(place) == [3, 6, 8]
    assert (await place.storage.prune(Retention.latest_only())).checkpoints == 0
    await place.storage.untag(found[2])
    assert (await place.storage.prune(Retention.latest_only())).checkpoints == 1
    assert await seqs(place) == [6, 8]
    assert [record.seq for record in await records(place)] == [6, 8]


async def test_what_is_kept_may_begin_with_a_start(place: Place) -> None:
    policy = Retention.keep_last(1)
    with pytest.raises(ExecutorFailed):
        await tripping(True).run(1, run_id="r", storage=place.storage)
    _, end, start = await listed(place.storage, "r")
    assert (await place.storage.prune(policy)).checkpoints == 2
    assert await seqs(place) == [3]
    assert [one.seq for one in await records(place)] == [2]
    with pytest.raises(CheckpointNotFound):
        await place.storage.load(end)
    assert (await place.storage.load(start)).message_count == 1
    assert await outputs_of(tripping(False).resume(run_id="r", storage=place.storage)) == [4]
    assert (await place.storage.prune(policy)).checkpoints == 4
    assert await seqs(place) == [7, 8]


async def test_both_go_to_another_storage(place: Place, tmp_path: Path) -> None:
    found = await made(place)
    await place.storage.tag(found[2], "start")
    await place.storage.delete(found[3])
    await place.storage.delete(found[6])
    before = [(one.checkpoint_id, one.tags) for one in await listed(place.storage, "r")]
    await place.storage.export_run("r", tmp_path / "run")
    async with SqliteCheckpointStorage(tmp_path / "other.db") as other:
        await other.import_run(tmp_path / "run")
        assert [(one.checkpoint_id, one.tags) for one in await listed(other, "r")] == before
        await assert_sound(other)


async def test_both_are_counted(place: Place) -> None:
    found = await made(place)
    assert (await place.storage.statistics()).total.checkpoints == len(found) == 8
    assert (await place.storage.verify()).checkpoints == 8
    assert place.storage.counters.checkpoints == 8
    await place.storage.delete(found[3])
    assert (await place.storage.statistics()).total.checkpoints == 7
    assert (await place.storage.verify()).checkpoints == 7
