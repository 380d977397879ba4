"""Checkpoints that a run left behind when it went back say so, and by which checkpoint."""

from pathlib import Path

from holdfast import (
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    Run,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from tests.support.durable import Place, info_of_run
from tests.support.parts import info_from_dict


class Count(Executor):
    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, str]) -> None:
        await (ctx.send_message(left - 1) if left else ctx.yield_output("done"))


def counting(storage: CheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(name="Count").set_start_executor(Count).add_edge(Count, Count)
    return builder.with_checkpointing(storage).build()


async def left_behind(storage: CheckpointStorage, limit: int | None = None) -> dict[int, int]:
    """The seqs of checkpoints that were left behind, with those of the ones by which; page by page."""
    found = await storage.list_checkpoints(run_id="r", limit=limit)
    while limit is not None and (
        page := await storage.list_checkpoints(run_id="r", limit=limit, after=found[-1])
    ):
        found += page
    seqs = {one.checkpoint_id: one.seq for one in found}
    for one in found:
        assert (await storage.load(one)).superseded_by == one.superseded_by == one.info.superseded_by
        assert (await storage.load(one, values=False)).superseded_by == one.superseded_by
        assert (
            info_from_dict(one.to_dict()).superseded_by == one.to_dict()["superseded_by"] == one.superseded_by
        )
    return {one.seq: seqs[one.superseded_by] for one in found if one.superseded_by is not None}


async def go_back(storage: CheckpointStorage, seq: int) -> Run:
    (target,) = [one for one in await storage.list_checkpoints(run_id="r") if one.seq == seq]
    run = await counting(storage).resume(target)
    await run.wait_for_completion()
    return run


async def test_checkpoints_that_a_restore_left_behind(place: Place, tmp_path: Path) -> None:
    storage = place.storage
    await counting(storage).run(3, run_id="r")  # 1 to 8
    assert await left_behind(storage) == {}
    assert (await info_of_run(storage, "r")).restored_at is None
    await go_back(storage, 4)  # 9 to 13
    assert await left_behind(storage) == dict.fromkeys(range(5, 9), 9)
    assert (await info_of_run(storage, "r")).restored_at == 9
    again = (await go_back(storage, 6)).checkpoints[-1].seq
    await place.reopened()
    storage = place.storage
    second = (await info_of_run(storage, "r")).restored_at
    assert second == 14
    expected = {**dict.fromkeys((7, 8), 14), **dict.fromkeys(range(9, 14), 14)}
    assert await left_behind(storage) == expected
    assert await left_behind(storage, limit=3) == expected
    assert (await info_of_run(storage, "r")).seq == again
    tree = (await storage.draw_tree("r")).splitlines()
    assert [line.partition("superseded by ")[2] for line in tree if "superseded" in line] == ["14", "14"]

    await storage.export_run("r", tmp_path / "r.holdfast")
    other = InMemoryCheckpointStorage()
    await other.import_run(tmp_path / "r.holdfast")
    assert await left_behind(other) == expected


async def test_checkpoints_that_were_removed_hide_nothing_wrong(place: Place) -> None:
    storage = place.storage
    await counting(storage).run(3, run_id="r")
    await go_back(storage, 4)
    by_seq = {one.seq: one for one in await storage.list_checkpoints(run_id="r")}
    for seq in (2, 6, 11):
        await storage.delete(by_seq[seq])
    assert await left_behind(storage) == dict.fromkeys((5, 7, 8), 9)
    await storage.delete(
        by_seq[4]
    )  # to which it went back: which ones were left behind is not known any more
    assert await left_behind(storage) == {}


async def test_a_fork_leaves_nothing_behind(place: Place) -> None:
    storage = place.storage
    await counting(storage).run(3, run_id="r")
    fork = await counting(storage).fork((await storage.list_checkpoints(run_id="r"))[3])
    await fork.wait_for_completion()
    assert await left_behind(storage) == {}
    assert (await info_of_run(storage, fork.run_id)).restored_at is None
