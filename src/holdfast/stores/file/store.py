"""The file store: a directory that a person can read."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.maintenance.vacuum import VacuumReport
from holdfast.checkpoint.progress import Progress, run_with_progress
from holdfast.checkpoint.store import (
    Blob,
    ClaimRequest,
    Commit,
    Damage,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    MarkedBlobs,
    Mended,
    Note,
    Record,
    Rehearsal,
    Removal,
    RunQuery,
    SealedForms,
    StoreInfo,
)
from holdfast.checkpoint.threads import Threads, upkeep_threads
from holdfast.errors import StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.disk import explain_os_error
from holdfast.stores.common.head_check import TagChange
from holdfast.stores.common.presence import Presence
from holdfast.stores.common.rehearsal import make_rehearsal
from holdfast.stores.file.commit_threads import CommitThreads
from holdfast.stores.file.directory import Directory
from holdfast.stores.file.run_file import PendingCommit

_T = TypeVar("_T")
_threads = Threads("holdfast-file-upkeep", 16)
"""Do all but commits."""


class FileStore:
    """A store in a directory: a file of JSON lines for each run, a file for each blob; ``store.json`` explains it.

    Any number of processes may use the same directory. A commit is a line that is appended and synced while the lock of
    the run is held, which the system drops when a process dies. Commits of different runs share syncs of the disk.

    >>> import asyncio, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     asyncio.run(FileStore(directory).head(RunId("r1"))) is None
    True
    """

    in_any_task = True
    """As the port says of stores that have it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        namespace: str = "",
        *,
        read_only: bool = False,
        keyed: bool = False,
    ) -> None:
        self.path = Path(path).absolute()
        self.namespace = namespace
        self._read_only, self._keyed = read_only, keyed
        self._directory = Directory(self.path, namespace, read_only, keyed)
        self._commits: CommitThreads | None = None
        self._process = os.getpid()
        self._closed = False
        self._finalizer: weakref.finalize[..., FileStore] | None = None

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r}, namespace={self.namespace!r})"

    @property
    def fsyncs(self) -> int:
        """The number of syncs of files and folders so far."""
        return self._directory.disk.fsyncs

    async def open(self) -> StoreInfo:
        return await self._do("open it", lambda: self._directory.open())

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._check_open()
        if self._commits is None:
            # Without this object: the threads must not keep a store that was dropped.
            self._commits = CommitThreads(DirectoryCommits(self._directory))
            weakref.finalize(self, self._commits.stop).atexit = False
        letters: Sequence[Letter] = await self._commits.commit(commit)
        return letters

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        await self._do(f"add blobs to run {family!r}", lambda: self._directory.add_blobs(family, blobs))

    async def head(self, run_id: RunId) -> Head | None:
        return await self._do(f"read the head of run {run_id!r}", lambda: self._directory.run(run_id).head())

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await self._do("list its runs", lambda: self._directory.runs(query))

    async def count_runs(self, query: RunQuery) -> int:
        return await self._do("count its runs", lambda: self._directory.count_runs(query))

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await self._do("claim runs", lambda: self._directory.claim(request))

    async def damaged(self) -> Sequence[Damage]:
        return await self._do("list its runs", lambda: self._directory.damaged())

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        return await self._do("inspect it", lambda: self._directory.inspect(run_id))

    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        return await self._do("repair it", lambda: self._directory.mend(run_id, forms))

    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        folder = await self._do("copy what is to be repaired", lambda: self._directory.copy(run_id))
        copy = FileStore(folder, self.namespace, keyed=self._keyed)
        try:
            yield make_rehearsal(copy, self, str(folder), str(self.path))
        finally:
            await copy.close()
            await upkeep_threads.call(partial(self._directory.disk.remove, folder))

    async def replace(self, commit: Commit) -> None:
        await self._do(f"repair run {commit.head.run_id!r}", lambda: self._directory.replace(commit))

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return await self._do(f"find checkpoint {checkpoint_id}", lambda: self._directory.find(checkpoint_id))

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await self._do(
            f"read the checkpoints of run {run_id!r}",
            lambda: self._directory.run(run_id).records(first, last, depth),
        )

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return await self._do(
            f"read blobs of run {family!r}", lambda: self._directory.blobs.read(family, digests)
        )

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        change = TagChange(tags, drop, by)
        return await self._do(
            f"tag a checkpoint of run {run_id!r}", lambda: self._directory.tag(run_id, seq, change)
        )

    async def remove(self, removal: Removal) -> bool:
        return await self._do(
            f"remove checkpoints of run {removal.run_id!r}", lambda: self._directory.remove(removal)
        )

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        return await self._do(
            f"remove run {run_id!r}", lambda: self._directory.remove_run(run_id, expected, known)
        )

    async def mark(self, family: RunId) -> MarkedBlobs:
        return await self._do(f"mark blobs of run {family!r}", lambda: self._directory.blobs.mark(family))

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return await self._do(
            f"remove blobs of run {family!r}", lambda: self._directory.blobs.discard(family, mark, digests)
        )

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return await self._do(
            f"read the journal of run {run_id!r}", lambda: self._directory.run(run_id).notes()
        )

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return await self._do(
            f"read the events of run {run_id!r}", lambda: self._directory.run(run_id).events(first, limit)
        )

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        return await self._do(
            f"leave letters for run {run_id!r}", lambda: self._directory.leave(run_id, letters, most)
        )

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await self._do(
            f"read the inbox of run {run_id!r}", lambda: self._directory.run(run_id).inbox()
        )

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        return await self._do(
            f"read the inbox of run {run_id!r}", lambda: self._directory.run(run_id).taken(keys)
        )

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        return await self._do(
            f"use up keys of letters of run {run_id!r}", lambda: self._directory.use_up(run_id, keys)
        )

    async def vacuum(self, progress: Progress | None = None) -> VacuumReport:
        """Remove what nobody needs: temporary files, blobs without a run, and lines that no longer count."""

        def work(report: Callable[[int, int], None]) -> VacuumReport:
            return self._work("vacuum it", lambda: self._directory.vacuum(report))

        self._check_open()
        return await run_with_progress(work, progress)

    async def key_box(self) -> str:
        return await self._do("read its keys", lambda: self._directory.key_box())

    async def set_key_box(self, box: str, expected: str) -> bool:
        return await self._do("write its keys", lambda: self._directory.set_key_box(box, expected))

    async def join(self) -> None:
        await self._do("let others see this process", lambda: self._directory.presence.join())
        if self._finalizer is None:
            self._finalizer = weakref.finalize(self, _leave, self._directory.presence, os.getpid())
            self._finalizer.atexit = False  # then the presence sees to it itself

    async def living(self, processes: Collection[str]) -> Set[str]:
        return await self._do("tell which processes live", lambda: self._directory.living(processes))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._process == os.getpid():
            if self._commits is not None:
                await self._commits.close()
            self._directory.close()
            await upkeep_threads.call(self._leave_presence)

    def _leave_presence(self) -> None:
        try:
            self._directory.presence.leave()
        except OSError as error:
            raise _failure(self.path, "leave it", error) from error

    async def _do(self, doing: str, work: Callable[[], _T]) -> _T:
        """Work in a thread. A caller that is cancelled leaves it: what has begun goes on to its end."""
        self._check_open()
        return await _threads.call(partial(self._work, doing, work))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"file store {self.path} is closed; open another one on the same directory")
        if self._process != os.getpid():  # a fork takes neither threads nor the state of locks along
            self._directory = Directory(self.path, self.namespace, self._read_only, self._keyed)
            self._commits = None
            self._finalizer = None
            self._process = os.getpid()

    def _work(self, doing: str, work: Callable[[], _T]) -> _T:
        try:
            self._directory.open()
            return work()
        except OSError as error:
            raise _failure(self.path, doing, error) from error


class DirectoryCommits:
    """Makes commits in a directory; raises ``StorageError`` where that fails."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def make(self, commit: Commit, is_patient: bool, is_doubtful: bool) -> list[Letter]:
        """Make a commit, as ``RunFile.commit`` does."""
        try:
            self._directory.open()
            return self._directory.commit(commit, is_patient, is_doubtful)
        except OSError as error:
            raise self._failure(commit, error) from error

    def begin(self, commit: Commit) -> PendingCommit | None:
        """Write a commit without syncing it, as ``RunFile.begin_commit`` does."""
        try:
            self._directory.open()
            return self._directory.begin_commit(commit)
        except OSError as error:
            raise self._failure(commit, error) from error

    def finish(self, commit: Commit, pending: PendingCommit) -> list[Letter]:
        """Make a commit count that was synced."""
        try:
            return self._directory.finish_commit(commit, pending)
        except OSError as error:
            raise self._failure(commit, error) from error

    def _failure(self, commit: Commit, error: OSError) -> StorageError:
        return _failure(self._directory.root, f"commit to run {commit.head.run_id!r}", error)


def _failure(path: Path, doing: str, error: OSError) -> StorageError:
    return StorageError(f"file store {path}: cannot {doing}: {explain_os_error(error)}")


def _leave(presence: Presence, process: int) -> None:
    """Leave a store that was dropped unclosed; in a thread, for whoever was interrupted may hold what this needs."""
    if process == os.getpid():
        threading.Thread(target=presence.leave, daemon=True).start()
