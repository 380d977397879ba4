"""The file store: a directory that a person can read."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Damage,
    Depth,
    Expected,
    Head,
    Left,
    Letter,
    Marked,
    Mended,
    Note,
    Record,
    Rehearsal,
    Removal,
    RunQuery,
    StoreInfo,
)
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.disk import explain_os_error
from holdfast.stores.common.presence import Presence
from holdfast.stores.common.rehearsal import make_rehearsal
from holdfast.stores.file.folders import Folders

_T = TypeVar("_T")
# They wait for the disk nearly all the time.
_THREADS = 8


class FileStore:
    """A store in a directory: a JSON file for each commit, a file for each blob; ``store.json`` explains the rest.

    Any number of processes may use the same directory. A commit is a hard link to a name that only one writer can
    get; where the file system has no hard links, a locked rename takes its place. Locks only keep what is removed apart
    from what is being written.

    >>> import asyncio, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     asyncio.run(FileStore(directory).head(RunId("r1"))) is None
    True
    """

    in_any_task = True
    """As the port says of stores that have it."""

    def __init__(self, path: str | os.PathLike[str], namespace: str = "") -> None:
        self.path = Path(path).absolute()
        self.namespace = namespace
        self._folders = Folders(self.path, namespace)
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._closed = False
        self._finalizer: weakref.finalize[..., FileStore] | None = None

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r}, namespace={self.namespace!r})"

    @property
    def fsyncs(self) -> int:
        """How many files and folders were synced so far."""
        return self._folders.disk.fsyncs

    async def open(self) -> StoreInfo:
        return await self._do("open it", lambda: self._folders.open())

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await self._do(f"commit to run {commit.head.run_id!r}", lambda: self._folders.commit(commit))

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        await self._do(f"add blobs to run {family!r}", lambda: self._folders.add_blobs(family, blobs))

    async def head(self, run_id: RunId) -> Head | None:
        return await self._do(f"read the head of run {run_id!r}", lambda: self._folders.run(run_id).head())

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await self._do("list its runs", lambda: self._folders.runs(query))

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return await self._do(
            "find the runs that are due", lambda: self._folders.due(workflow_name, time, limit)
        )

    async def damaged(self) -> Sequence[Damage]:
        return await self._do("list its runs", lambda: self._folders.damaged())

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        return await self._do("inspect it", lambda: self._folders.inspect(run_id))

    async def mend(self, run_id: RunId | None) -> Sequence[Mended]:
        return await self._do("repair it", lambda: self._folders.mend(run_id))

    @asynccontextmanager
    async def rehearsal(self) -> AsyncIterator[Rehearsal]:
        folder = await self._do("copy what is to be repaired", lambda: self._folders.copied())
        copy = FileStore(folder, self.namespace)
        try:
            yield make_rehearsal(copy, self, str(folder), str(self.path))
        finally:
            await copy.close()
            await upkeep_threads.call(partial(self._folders.disk.remove, folder))

    async def replace(self, commit: Commit) -> None:
        await self._do(f"repair run {commit.head.run_id!r}", lambda: self._folders.replace(commit))

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return await self._do(f"find checkpoint {checkpoint_id}", lambda: self._folders.find(checkpoint_id))

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await self._do(
            f"read the checkpoints of run {run_id!r}",
            lambda: self._folders.run(run_id).records(first, last, depth),
        )

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return await self._do(
            f"read blobs of run {family!r}", lambda: self._folders.blobs.read(family, digests)
        )

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None
    ) -> bool:
        return await self._do(
            f"tag a checkpoint of run {run_id!r}", lambda: self._folders.tag(run_id, seq, tags, drop)
        )

    async def remove(self, removal: Removal) -> bool:
        return await self._do(
            f"remove checkpoints of run {removal.run_id!r}", lambda: self._folders.remove(removal)
        )

    async def remove_run(self, run_id: RunId, expected: Expected) -> None:
        await self._do(f"remove run {run_id!r}", lambda: self._folders.remove_run(run_id, expected))

    async def mark(self, family: RunId) -> Marked:
        return await self._do(f"mark blobs of run {family!r}", lambda: self._folders.blobs.mark(family))

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return await self._do(
            f"remove blobs of run {family!r}", lambda: self._folders.blobs.discard(family, mark, digests)
        )

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return await self._do(
            f"read the journal of run {run_id!r}", lambda: self._folders.run(run_id).notes()
        )

    async def leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> Left:
        return await self._do(
            f"leave letters for run {run_id!r}", lambda: self._folders.leave(run_id, since, letters)
        )

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await self._do(f"read the inbox of run {run_id!r}", lambda: self._folders.run(run_id).inbox())

    async def join(self) -> None:
        await self._do("let others see this process", lambda: self._folders.presence.join())
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, _leave, self._folders.presence, os.getpid())
            self._finalizer.atexit = False  # then the presence sees to it itself

    async def lives(self, process: str) -> bool:
        return await self._do(
            f"tell whether {process!r} lives", lambda: self._folders.presence.lives(process)
        )

    async def close(self) -> None:
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._threads is not None and self._process == os.getpid():
            await upkeep_threads.call(partial(self._end, self._threads))

    def _end(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown()
        try:
            self._folders.presence.leave()
        except OSError as error:
            raise StorageError(
                f"file store {self.path}: cannot leave it: {explain_os_error(error)}"
            ) from error

    async def _do(self, doing: str, work: Callable[[], _T]) -> _T:
        """Work in a thread. A caller that is cancelled leaves it: what has begun goes on to its end."""
        if self._closed:
            raise StorageError(f"file store {self.path} is closed; open another one on the same directory")
        if self._process != os.getpid():  # a fork takes neither threads nor the state of locks along
            self._folders, self._threads = Folders(self.path, self.namespace), None
            self._finalizer = None
            self._process = os.getpid()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-file")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, doing, work)

    def _work(self, doing: str, work: Callable[[], _T]) -> _T:
        try:
            self._folders.open()
            return work()
        except OSError as error:
            raise StorageError(
                f"file store {self.path}: cannot {doing}: {explain_os_error(error)}"
            ) from error


def _leave(presence: Presence, process: int) -> None:
    """A store was dropped without being closed: in a thread, for whoever was interrupted may hold what this needs."""
    if process == os.getpid():
        threading.Thread(target=presence.leave, daemon=True).start()
