"""Runs to be pruned, and what must be true of a storage after any of it."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import (
    Checkpoint,
    CheckpointStorage,
    Executor,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from tests.support.parts import Depth, RunId, read_records

BLOB, BIG = 6_000, 300_000
"""Sizes of values that are blobs, and of values that have a file of their own beside a SQLite database."""


def content(step: int, size: int) -> bytes:
    """What a step writes: it cannot be compressed, and no two are alike."""
    return random.Random(step * 1_000_003 + size).randbytes(size)


class Count(Executor):
    """Counts down; leaves a list that grows, a blob that changes, and one that stays."""

    checkpointed = ("turns",)

    def __init__(self, id: str | None = None, size: int = BLOB) -> None:
        super().__init__(id)
        self.turns, self.size = 0, size

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.turns += 1
        await ctx.append_state("seen", left, scope_name="S")
        await ctx.queue_state_update("newest", content(left, self.size), scope_name="S")
        if self.turns == 1:
            await ctx.queue_state_update("first", content(-left, self.size), scope_name="S")
        if left > 1:
            await ctx.send_message(left - 1)
            return
        first = await ctx.read_state("first", scope_name="S")
        seen = await ctx.read_state("seen", scope_name="S")
        await ctx.yield_output([seen, self.turns, first == content(-seen[0], self.size)])


def counting(retention: Retention | None = None, size: int = BLOB, name: str = "Count") -> Workflow:
    """The workflow that counts down."""
    count = Count.bind(id="count", size=size)
    builder = (
        WorkflowBuilder(name=name, max_iterations=20_000).set_start_executor(count).add_edge(count, count)
    )
    return (builder if retention is None else builder.with_retention(retention)).build()


def counted(steps: int) -> list[Any]:
    """The outputs of a run that counted down from ``steps``."""
    return [[list(range(steps, 0, -1)), steps, True]]


async def listed(storage: CheckpointStorage, run_id: str) -> list[Checkpoint]:
    """The checkpoints of a run."""
    return await storage.list_checkpoints(run_id=run_id)


async def stored_seqs(storage: CheckpointStorage, run_id: str) -> list[int]:
    """The seqs of the checkpoints that are physically there: of records, and of starts that are derived from them."""
    found = await read_records(storage.store, RunId(run_id), 1, 1 << 60, Depth.HEADERS)
    return [record.seq for record in found]


async def blob_sizes(storage: CheckpointStorage, family: str) -> list[int]:
    """The sizes of the blobs that are physically there."""
    return sorted((await storage.store.mark(RunId(family))).sizes.values())


async def stored_bytes(storage: CheckpointStorage) -> int:
    """The bytes of all records and blobs, as stored."""
    total = 0
    families = set()
    for run in await storage.list_runs(limit=None):
        head = await storage.catalog.head(run.run_id)
        families.add(head.family)
        for record in await storage.store.records(head.run_id, 1, head.seq, Depth.ALL):
            parts = [record.header, record.changes, record.values]
            if record.keyframe is not None:
                parts += [record.keyframe.changes, record.keyframe.values]
            total += sum(map(len, parts))
    for family in families:
        total += sum(await blob_sizes(storage, family))
    return total


async def assert_sound(storage: CheckpointStorage) -> None:
    """Whatever is listed can be loaded, everything stored is right, and trees can be drawn."""
    for checkpoint in await storage.list_checkpoints():
        loaded = await storage.load(checkpoint)
        assert loaded.checkpoint_id == checkpoint.checkpoint_id
        assert checkpoint.summary().checkpoint_id == checkpoint.checkpoint_id
    assert not storage.catalog.left_out.runs
    report = await storage.verify()
    assert report.ok, report.problems
    for run in await storage.list_runs(limit=None):
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        assert latest.checkpoint_id in {one.checkpoint_id for one in await listed(storage, run.run_id)}
        assert f"#{latest.seq}" in await storage.draw_tree(run.run_id) or await storage.draw_tree(run.run_id)


class Clock:
    """A clock that stands until it is put on."""

    def __init__(self, ago: timedelta = timedelta(0)) -> None:
        self.time = datetime.now(UTC) - ago

    def __call__(self) -> datetime:
        self.time += timedelta(milliseconds=1)
        return self.time
