"""Runs that keep only their latest checkpoint, and how much room their store takes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import (
    CheckpointStorage,
    Executor,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from tests.support.parts import MemoryStore
from tests.support.retained import content

LATEST = Retention.latest_only()
ALLOWED = 1 << 20
"""What a store may take besides 4 times the state of its run."""


class State(NamedTuple):
    """How big a state is: so many keys, each of so many bytes."""

    keys: int
    size: int


STATES = {
    "10 kB": State(10, 1_000),
    "200 kB": State(40, 5_000),
    "2 MB": State(400, 5_000),
    # Each value is a file that takes nearly twice its length in blocks of 4 KB.
    "2 MB in blocks": State(500, 4_100),
    "200 kB in 8": State(8, 25_000),
}


class Rewrite(Executor):
    """Fills its keys in the first superstep, then writes one of them anew in each."""

    def __init__(self, id: str | None = None, state: State = STATES["10 kB"]) -> None:
        super().__init__(id)
        self.state = state

    @handler
    async def rewrite(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        keys, size = self.state
        for key in range(keys) if await ctx.read_state("0", scope_name="S") is None else [left % keys]:
            await ctx.queue_state_update(str(key), content(left, size), scope_name="S")
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output("done")


def rewriting(state: State, retention: Retention | None = LATEST) -> Workflow:
    """The workflow that writes one key anew in each superstep."""
    rewrite = Rewrite.bind(id="rewrite", state=state)
    builder = WorkflowBuilder(name="Rewrite", max_iterations=1 << 30).set_start_executor(rewrite)
    builder.add_edge(rewrite, rewrite)
    return (builder if retention is None else builder.with_retention(retention)).build()


def last_written(state: State, left: int, steps: int) -> dict[str, bytes]:
    """What the keys hold when so many supersteps are left."""
    first = content(steps, state.size)
    found = {str(key): first for key in range(state.keys)}
    for number in range(steps - 1, left, -1):
        found[str(number % state.keys)] = content(number, state.size)
    return found


class Room(NamedTuple):
    """Bytes of files: as long as they are, and as the file system counts them."""

    apparent: int
    allocated: int

    @property
    def most(self) -> int:
        """What counts: a user sees the one with ``ls``, the other with ``du``."""
        return max(self)


def room_on_disk(folder: Path) -> Room:
    """What lies in a folder, with links and empty folders; what is removed meanwhile does not count."""
    apparent = allocated = 0
    for path in _files(folder):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        apparent += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        allocated += status.st_blocks * 512
    return Room(apparent, allocated)


def _files(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        yield from (os.path.join(where, name) for name in (*folders, *files))


def room_in_memory(store: MemoryStore) -> int:
    """The bytes of all records and blobs."""
    total = sum(map(len, store._blobs.values()))
    for record in store._records.values():
        total += len(record.header) + len(record.changes) + len(record.values)
        if record.keyframe is not None:
            total += len(record.keyframe.changes) + len(record.keyframe.values)
    return total


def room(storage: CheckpointStorage, folder: Path) -> int:
    """What a storage takes, with nothing else in its folder: by length or by blocks, whichever is more."""
    store = storage.store
    return room_in_memory(store) if isinstance(store, MemoryStore) else room_on_disk(folder).most


async def state_held(storage: CheckpointStorage) -> int:
    """The encoded bytes of what the runs of a storage hold where they stand."""
    return (await storage.statistics()).total.held_bytes
