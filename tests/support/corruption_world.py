"""A storage with runs of many kinds, to be damaged, and all that a reader can see in it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast import (
    CheckpointStorage,
    Executor,
    HoldfastError,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from holdfast.checkpoint.write import bundles
from tests.support.parts import FileStore, Note, RunQuery, SqliteStore, unbundled
from tests.support.retained import content
from tests.support.small_limits import small_limits

BIG = 9_000
"""From so many bytes on a blob of the SQLite store is a file."""


def opened(kind: str, folder: Path) -> CheckpointStorage:
    """The storage in a folder."""
    if kind == "sqlite":
        return CheckpointStorage(SqliteStore(folder / "runs.db", big_blob=BIG))
    return CheckpointStorage(FileStore(folder / "runs"))


class Grow(Executor):
    """Leaves a list that grows, small values, and blobs of both sizes."""

    checkpointed = ("turns",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns = 0

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        self.turns += 1
        await ctx.append_state("lines", f"line {left} " * 10, scope_name="S")
        await ctx.queue_state_update("blob", content(left, 2_000), scope_name="S")
        if left % 3 == 0:
            await ctx.queue_state_update("big", content(left, BIG + 1_000), scope_name="S")
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(self.turns)


class Ask(Executor):
    """Waits for two answers."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("asked", text, scope_name="Q")
        await ctx.request_info(f"{text}?", response_type=str, request_id="one")
        await ctx.request_info(f"{text}??", response_type=str, request_id="two")

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{question} {answer}")


class Spread(Executor):
    """Lets many work at once."""

    @handler
    async def spread(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


class Note40(Executor):
    """Journals much, then fails."""

    def __init__(self, id: str | None = None, many: int = 2, fails: bool = False) -> None:
        super().__init__(id)
        self.many, self.fails = many, fails

    @handler
    async def work(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        for number in range(self.many):
            await ctx.once(f"n{number}", lambda number=number: content(number, 300 + 40 * number))
        if self.fails:
            raise RuntimeError("as planned")
        await ctx.yield_output(text)


def growing(name: str = "Grow", retention: Retention | None = None) -> Workflow:
    """Counts down."""
    grow = Grow.bind(id="grow")
    builder = WorkflowBuilder(name=name, max_iterations=100).set_start_executor(grow).add_edge(grow, grow)
    return (builder if retention is None else builder.with_retention(retention)).build()


def asking() -> Workflow:
    """Waits."""
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).build()


def failing() -> Workflow:
    """Fails in a superstep of which much is journaled."""
    first, second = Note40.bind(id="first", many=3), Note40.bind(id="second", many=40, fails=True)
    return (
        WorkflowBuilder(name="Fail")
        .set_start_executor(Spread)
        .add_fan_out_edges(Spread, [first, second])
        .build()
    )


@asynccontextmanager
async def limits() -> AsyncIterator[None]:
    """So that all of it comes about in small runs."""
    with small_limits(inline=600, keyframe=900, largest_part=1_500, compress=1024):
        yield


async def fill(storage: CheckpointStorage) -> None:
    """All the runs."""
    async with limits():
        await growing().run(7, run_id="grown", storage=storage)
        made = await storage.list_checkpoints(run_id="grown")
        await (await growing().resume(made[4], storage=storage)).wait_for_completion()  # another branch
        fork = await growing().fork(made[8], edits={("S", "blob"): b"edited"}, run_id="Fork", storage=storage)
        await fork.wait_for_completion()
        await growing("Lean", Retention.latest_only()).run(6, run_id="lean", storage=storage)
        await growing("Last", Retention.keep_last(2)).run(6, run_id="last", storage=storage)
        await _pruned(storage)
        await asking().run("pay", run_id="waiting", storage=storage)
        await storage.respond("waiting", {"one": "yes", "two": "no " * 400})
        await asking().run("go", run_id="asks", storage=storage)
        await storage.respond("asks", {"one": "taken"})
        await (await asking().resume(run_id="asks", storage=storage)).wait_for_completion()
        await storage.respond("asks", {"two": "waits"})
        with suppress(HoldfastError):
            await failing().run("x", run_id="failed", storage=storage)
        with suppress(HoldfastError), patch.multiple(bundles, _MOST=0, _LARGEST=1_000):
            await failing().run("x", run_id="bundled", storage=storage)
    for run_id in ("grown", "last"):
        listed = await storage.list_checkpoints(run_id=run_id)
        await storage.tag(listed[1], "gold", "before the flood")


async def _pruned(storage: CheckpointStorage) -> None:
    """A run that lost its middle, but for one that has a tag."""
    await growing("Pruned").run(8, run_id="pruned", storage=storage)
    listed = await storage.list_checkpoints(run_id="pruned")
    await storage.tag(listed[3], "kept")
    await storage.prune(Retention.keep_last(2), run_id="pruned")


@dataclass
class Seen:
    """All that a reader sees of one run."""

    head: str
    listed: list[str] = field(default_factory=list)
    checkpoints: dict[str, str] = field(default_factory=dict)
    """What each holds, by id."""
    seqs: dict[str, int] = field(default_factory=dict)
    notes: str = ""
    letters: str = ""


async def look(storage: CheckpointStorage) -> dict[str, Seen]:
    """All that a reader sees; raises where something cannot be read."""
    return {
        head.run_id: await _look_at(storage, head.run_id) for head in await storage.store.runs(RunQuery())
    }


async def _look_at(storage: CheckpointStorage, run_id: str) -> Seen:
    seen = Seen(await head_of(storage, run_id))
    for made in await storage.list_checkpoints(run_id=run_id):
        seen.listed.append(made.checkpoint_id)
        seen.seqs[made.checkpoint_id] = made.seq
        seen.checkpoints[made.checkpoint_id] = await loaded(storage, made.checkpoint_id)
    seen.notes, seen.letters = await journal_of(storage, run_id), await inbox_of(storage, run_id)
    return seen


async def head_of(storage: CheckpointStorage, run_id: str) -> str:
    """Where a run stands."""
    return repr(await storage.catalog.head(run_id))


async def loaded(storage: CheckpointStorage, checkpoint_id: str) -> str:
    """All that a checkpoint holds, and what is known of it."""
    made = await storage.load(checkpoint_id)
    parts: dict[str, Any] = {
        name: repr(getattr(made, name))
        for name in (
            "run_id",
            "seq",
            "superstep",
            "phase",
            "cause",
            "parent_id",
            "timestamp",
            "status",
            "new_bytes",
        )
    }
    for name in ("tags", "scopes", "executor_states", "messages", "requests", "outputs"):
        parts[name] = repr(getattr(made, name, None))
    return json.dumps(parts, sort_keys=True)


async def journal_of(storage: CheckpointStorage, run_id: str) -> str:
    """The notes of a run, as they were made."""
    head = await storage.catalog.head(run_id)
    notes: list[Note] = list(await storage.store.notes(head.run_id))
    return repr((await unbundled(notes, storage.catalog.blobs(head.family))).notes)


async def inbox_of(storage: CheckpointStorage, run_id: str) -> str:
    """The letters that wait for a run."""
    return repr(list(await storage.store.inbox((await storage.catalog.head(run_id)).run_id)))
