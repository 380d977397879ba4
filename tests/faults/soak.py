"""Runs superstep after superstep with retention, while others prune and remove: nothing of the process or store grows.

    python -m tests.faults.soak --store sqlite --supersteps 200000
    python -m tests.faults.soak --store file --supersteps 20000 --keyed

After each of eight rounds the process lets go of what it can, and memory, handles, threads, files and the size of the
store are taken. The first half of the rounds is for caches to fill; the last round has no more than that.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
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
from tests.stores.keyed_world import KEYS, MAKERS

ROUNDS = 8
WRITERS = 4
LONGEST = 2_000
"""The supersteps of one run."""
_LEAKED: list[Any] = []


class Wear(NamedTuple):
    """What a process and its store take."""

    blocks: int
    """Blocks of memory that Python has allocated."""
    handles: int
    threads: int
    files: int
    store_bytes: int

    def since(self, before: "Wear") -> "Wear":
        """Return what came after an earlier look, of a store that was empty then.

        What others hold in the process does not count: a tenth of many handles would hide a leak.
        """
        return Wear(*(now - was for now, was in zip(self, before, strict=True)))


ALLOWED = Wear(30_000, 3, 8, 6, 2 << 20)
"""What may come on top, besides a tenth: a store of files has up to eight threads that commit."""


class Count(Executor):
    """Sends itself a number that falls, and keeps a window of texts."""

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.queue_state_update(f"key {left % 10}", f"text {left} " * 20)
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output("done")


def make_workflow(storage: CheckpointStorage) -> Workflow:
    return (
        WorkflowBuilder(name="Soak", max_iterations=LONGEST + 10)
        .set_start_executor(Count)
        .add_edge(Count, Count)
        .with_checkpointing(storage)
        .build()
    )


async def soak(kind: str, folder: Path, supersteps: int, keyed: bool, bug: str = "") -> list[Wear]:
    """Return what was taken after each round."""
    taken: list[Wear] = []
    before = await asyncio.to_thread(_take, folder)
    storage = MAKERS[kind](folder, KEYS if keyed else None)
    storage.retention = None if bug == "nothing goes" else Retention.keep_last(3)
    async with storage:
        each = max(supersteps // ROUNDS // WRITERS, 1)
        for number in range(ROUNDS):
            done = asyncio.Event()
            beside = asyncio.create_task(_prune(storage, done))
            await asyncio.gather(*(_write(storage, f"{number}-{one}", each, bug) for one in range(WRITERS)))
            done.set()
            await beside
            taken.append((await asyncio.to_thread(_take, folder)).since(before))
    return taken


async def _write(storage: CheckpointStorage, name: str, supersteps: int, bug: str) -> None:
    """Make runs one after the other, and remove each when the next one is there."""
    number, before = 0, ""
    while supersteps > 0:
        run_id = f"{name}-{number}"
        result = await make_workflow(storage).run(min(supersteps, LONGEST), run_id=run_id)
        assert result.outputs == ["done"]
        if bug == "handles":
            _LEAKED.append(os.fdopen(os.open(os.devnull, os.O_RDONLY)))
        if bug == "memory":
            _LEAKED.append([str(one) for one in range(20_000)])
        if before and bug != "nothing goes":
            await storage.delete_run(before)
        before, number, supersteps = run_id, number + 1, supersteps - LONGEST
    if bug != "nothing goes":
        await storage.delete_run(before)


async def _prune(storage: CheckpointStorage, done: asyncio.Event) -> None:
    while not done.is_set():
        await storage.prune()
        await asyncio.sleep(0.05)
    await storage.prune()


def _take(folder: Path) -> Wear:
    gc.collect()
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Wear(
        sys.getallocatedblocks(),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(files),
        sum(path.stat().st_size for path in files),
    )


def find_growth(taken: Sequence[Wear]) -> list[str]:
    """Return what the last round has more of than those of the first half."""
    half, last = taken[: len(taken) // 2], taken[-1]
    bounds = [
        int(1.1 * max(values)) + more for values, more in zip(zip(*half, strict=True), ALLOWED, strict=True)
    ]
    return [
        f"{name}: {now:,} in the end, {[getattr(one, name) for one in taken]} over the rounds"
        for name, now, bound in zip(Wear._fields, last, bounds, strict=True)
        if now > bound
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing grew."""
    parser = argparse.ArgumentParser(description="Run superstep after superstep, and look what grows.")
    parser.add_argument("--store", choices=MAKERS, default="sqlite")
    parser.add_argument("--supersteps", type=int, default=200_000)
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument("--planted", choices=["", "handles", "memory", "nothing goes"], default="")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        taken = asyncio.run(soak(given.store, Path(folder), given.supersteps, given.keyed, given.planted))
    grown = find_growth(taken)
    for one in grown:
        print(f"WRONG: {one}")
    print(f"{given.store}: {given.supersteps} supersteps, in the end {taken[-1]}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
