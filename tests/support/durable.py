"""Storages to run workflows on, stores that misbehave on purpose, and functions that run in a process of their own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Run,
    RunInfo,
    SqliteCheckpointStorage,
    StorageError,
    Store,
    WorkflowEvent,
)
from tests.support.parts import Commit, Head, Letter, RunId
from tests.support.runs import soon

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["memory", "sqlite", "file"]
ON_DISK = ["sqlite", "file"]


def storage_at(kind: str, folder: Path) -> CheckpointStorage:
    """The storage of this kind in a folder; opened again it holds what was there."""
    if kind == "sqlite":
        return SqliteCheckpointStorage(folder / "runs.db")
    assert kind == "file"
    return FileCheckpointStorage(folder / "runs")


class Place:
    """Where runs are stored: ``reopened`` gives what a new process would see there."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.storage = self._opened()

    def _opened(self) -> CheckpointStorage:
        return InMemoryCheckpointStorage() if self.kind == "memory" else storage_at(self.kind, self.folder)

    async def reopened(self) -> CheckpointStorage:
        """Close the storage and open it again; of one in memory only the store remains."""
        if self.kind == "memory":
            self.storage = CheckpointStorage(self.storage.store)
        else:
            await self.storage.close()
            self.storage = self._opened()
        return self.storage


# -- looking ---------------------------------------------------------------------------------------


async def info_of_run(storage: CheckpointStorage, run_id: str) -> RunInfo:
    """The run as the storage lists it."""
    (found,) = [run for run in await storage.list_runs(limit=None) if run.run_id == run_id]
    return found


async def head_of(storage: CheckpointStorage, run_id: str) -> Head:
    """Where the run stands, all of it."""
    head = await storage.store.head(RunId(run_id))
    assert head is not None
    return head


async def everything(storage: CheckpointStorage, run_id: str) -> tuple[Any, ...]:
    """All that writing could change: the head, the checkpoints and what was counted as written."""
    counters = storage.counters
    checkpoints = [c.checkpoint_id for c in await storage.list_checkpoints(run_id=run_id)]
    written = (counters.commits, counters.checkpoints, counters.new_bytes, counters.blobs_written)
    return await head_of(storage, run_id), checkpoints, written


async def watched(run: Run) -> list[WorkflowEvent]:
    """The events of a run until it waits or is over."""

    async def watch() -> list[WorkflowEvent]:
        return [event async for event in run.watch_stream()]

    return await soon(watch())


async def outputs_of(resuming: Awaitable[Run]) -> list[Any]:
    """What comes of a run that was started or resumed."""
    return (await soon((await resuming).wait_for_completion())).outputs


# -- stores that misbehave -------------------------------------------------------------------------


class Wrapped:
    """A store that does something of its own when something is committed."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await self.inner.commit(commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Failing(Wrapped):
    """Its nth commit fails: before it happened, or after (then nobody can know)."""

    def __init__(self, inner: Store, nth: int, happens: bool = False, times: int = 1) -> None:
        super().__init__(inner)
        self.failing = range(nth, nth + times)
        self.happens = happens
        self.commits = 0

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.commits += 1
        if self.commits not in self.failing:
            return await self.inner.commit(commit)
        if self.happens:
            await self.inner.commit(commit)
        raise StorageError(f"the disk failed at commit {self.commits}")


class Slow(Wrapped):
    """Awaits before and after each commit."""

    def __init__(self, inner: Store, before: int = 2, after: int = 2) -> None:
        super().__init__(inner)
        self.before, self.after = before, after

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for _ in range(self.before):
            await asyncio.sleep(0)
        waiting = await self.inner.commit(commit)
        for _ in range(self.after):
            await asyncio.sleep(0)
        return waiting


class SlowHere(Slow):
    """The same in the task of whoever commits."""

    in_any_task = True


class Gate(Wrapped):
    """Holds its nth commit until it is opened."""

    def __init__(self, inner: Store, nth: int) -> None:
        super().__init__(inner)
        self.nth = nth
        self.commits = 0
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.commits += 1
        if self.commits == self.nth:
            self.reached.set()
            await self.opened.wait()
        return await self.inner.commit(commit)


def wrapped(storage: CheckpointStorage, wrap: Callable[[Store], Any]) -> CheckpointStorage:
    """Another storage on the same store, with something around it."""
    return CheckpointStorage(wrap(storage.store))


# -- processes of their own ------------------------------------------------------------------------


def child(
    function: Callable[..., object], *args: object, tracer: list[str] | None = None
) -> "subprocess.Popen[str]":
    """Start a function of a test module in a process of its own; its arguments are plain data."""
    module = function.__module__
    code = f"from {module} import {function.__name__}; {function.__name__}(*{args!r})"
    command = [*(tracer or []), sys.executable, "-W", "error", "-c", code]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def in_child(function: Callable[..., object], *args: object, tracer: list[str] | None = None) -> str:
    """What a function prints in a process of its own that ends well."""
    process = child(function, *args, tracer=tracer)
    try:
        out, errors = process.communicate(timeout=120)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, errors
    return out


def killed_by_itself(function: Callable[..., object], *args: object) -> str:
    """What a function prints in a process that ends without any cleaning up."""
    process = child(function, *args)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == -9, f"{process.returncode}: {errors}"
    return out


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), 9)


def die_at_report(number: int) -> Callable[[int, int], None]:
    """Return a callback for progress that kills this process at a report."""
    seen = 0

    def report(done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            die()

    return report


def die_after_link() -> None:
    """Let this process be killed as soon as a file has got a name."""
    link = os.link

    def dying_link(source: Any, target: Any, **options: Any) -> None:
        link(source, target, **options)
        die()

    os.link = dying_link  # type: ignore[assignment]


def run_alone(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in this process, which has no event loop."""
    return asyncio.run(main)


def files_with(text: str, folder: Path) -> list[Path]:
    """Return the files below a folder, of which there are several, that have a text in them."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 1, files
    return [file for file in files if text.encode() in file.read_bytes()]
