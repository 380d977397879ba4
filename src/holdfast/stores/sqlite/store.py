"""A store in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast.checkpoint.progress import Progress, finished, watched
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
from holdfast.errors import InvalidArgument, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.sqlite import mail, reading, upkeep
from holdfast.stores.sqlite.session import Job, Session
from holdfast.stores.sqlite.writer import Mail
from holdfast.stores.sqlite.writing import add_blobs, is_big, replace_run

Result = TypeVar("Result")


class SqliteStore:
    """A store in one SQLite file, with large blobs in a folder beside it.

    Commits of many runs share a transaction and its sync; reads wait for nobody. ``busy_seconds`` is how long
    it waits for other processes, ``big_blob`` from how many bytes on a blob is a file of its own.

    >>> import asyncio, tempfile
    >>> async def look(path: str) -> None:
    ...     store = SqliteStore(path)
    ...     print(await store.head(RunId("r1")))
    ...     await store.close()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(look(folder + "/runs.db"))
    None
    """

    in_any_task = True
    """As the port says of stores that have it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        namespace: str = "",
        *,
        busy_seconds: float = 60.0,
        big_blob: int = 262_144,
    ) -> None:
        if os.fspath(path) in (":memory:", ""):
            raise InvalidArgument(
                f"SQLite path {os.fspath(path)!r}: the database is a file that other processes can open too; "
                "for checkpoints that live in memory take InMemoryCheckpointStorage()"
            )
        # Absolute: the process may change its directory before the file is opened, or opened again.
        self.path = Path(os.path.abspath(path))
        self.namespace = namespace
        self._busy_seconds = busy_seconds
        self._big_blob = big_blob
        self._large_values = self.path.with_name(self.path.name + "-blobs")
        self._session: Session | None = None
        self._finalizer: weakref.finalize[[], SqliteStore] | None = None
        self._closed = False

    @property
    def transactions(self) -> int:
        """How many transactions this process has committed: many commits share one."""
        return self._session.writer.transactions if self._session is not None else 0

    @property
    def log_room(self) -> int:
        """How many bytes this process has put at the end of the log, so that commits need not make it longer."""
        return self._session.writer.room.added if self._session is not None else 0

    async def open(self) -> StoreInfo:
        session = self._current()
        info: StoreInfo = await session.reads.call(lambda _: session.reader.info)
        return info

    def commit(self, commit: Commit) -> Coroutine[Any, Any, Sequence[Letter]]:
        session = self._session
        if commit.blobs or session is None or not session.is_of_this_process():
            return self._commit(commit)
        return session.writes.call(commit)  # most are this, and every superstep waits for it

    async def _commit(self, commit: Commit) -> Sequence[Letter]:
        session = self._current()
        with await self._bring(session, commit.head.family, commit.blobs):
            waiting: list[Letter] = await session.writes.call(commit)
        return waiting

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        session = self._current()
        with await self._bring(session, family, blobs):
            await session.writes.call(
                lambda connection: add_blobs(connection, self.namespace, family, blobs, self._big_blob)
            )

    async def _bring(
        self, session: Session, family: RunId, blobs: Sequence[Blob]
    ) -> AbstractContextManager[None]:
        """Write the blobs that are files; while the context is open no sweep removes any."""
        big = [blob for blob in blobs if is_big(blob, self._big_blob)] if blobs else []
        if not big:
            return nullcontext()
        await self.open()  # so that nothing is put beside a file that is no store
        bring = partial(session.blob_files.write_and_hold, family, big)
        held: AbstractContextManager[None] = await session.files.call(Job("writing large values of", bring))
        return held

    async def head(self, run_id: RunId) -> Head | None:
        return await self._read(lambda connection: reading.read_head(connection, self.namespace, run_id))

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await self._read(lambda connection: reading.read_runs(connection, self.namespace, query))

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return await self._read(
            lambda connection: reading.read_due(connection, self.namespace, workflow_name, time, limit)
        )

    async def damaged(self) -> Sequence[Damage]:
        return await self._read(lambda connection: reading.read_damaged(connection, self.namespace))

    # What few processes do is imported by those who do it: a process that only lists begins sooner.

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        from holdfast.stores.sqlite.inspecting import inspect

        await self.open()
        return await upkeep_threads.call(partial(inspect, self._current().place, self.namespace, run_id))

    async def mend(self, run_id: RunId | None) -> Sequence[Mended]:
        from holdfast.stores.sqlite.mending import mend

        await self.open()
        mended: Sequence[Mended] = await self._current().writes.call(
            lambda connection: mend(connection, self.namespace, run_id)
        )
        return mended

    @asynccontextmanager
    async def rehearsal(self) -> AsyncIterator[Rehearsal]:
        from tempfile import TemporaryDirectory

        from holdfast.stores.common.rehearsal import make_rehearsal
        from holdfast.stores.sqlite.backup import copy_database

        with TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / self.path.name
            await finished(partial(copy_database, self._current().place, path))
            copy = SqliteStore(path, self.namespace, big_blob=sys.maxsize)
            copy._large_values = self._large_values  # it reads them, and writes none: none is large enough
            try:
                yield make_rehearsal(copy, self, str(path), str(self.path))
            finally:
                await copy.close()

    async def replace(self, commit: Commit) -> None:
        session = self._current()
        with await self._bring(session, commit.head.family, commit.blobs):
            await session.writes.call(
                lambda connection: replace_run(connection, self.namespace, commit, self._big_blob)
            )

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return await self._read(
            lambda connection: reading.find_checkpoint(connection, self.namespace, checkpoint_id)
        )

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await self._read(
            lambda connection: reading.read_records(connection, self.namespace, run_id, first, last, depth)
        )

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        files = self._current().blob_files
        return await self._read(
            lambda connection: reading.read_blobs(connection, self.namespace, files, family, digests)
        )

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None
    ) -> bool:
        done: bool = await self._current().writes.call(
            lambda connection: upkeep.tag(connection, self.namespace, run_id, seq, tags, drop)
        )
        return done

    async def remove(self, removal: Removal) -> bool:
        session = self._current()
        head = await self.head(removal.run_id)
        with await self._bring(session, RunId("") if head is None else head.family, removal.blobs):
            done: bool = await session.writes.call(
                lambda connection: upkeep.remove(connection, self.namespace, removal, self._big_blob)
            )
        return done

    async def remove_run(self, run_id: RunId, expected: Expected) -> None:
        await self._current().writes.call(
            lambda connection: upkeep.remove_run(connection, self.namespace, run_id, expected)
        )

    async def mark(self, family: RunId) -> Marked:
        session = self._current()
        marked: Marked = await session.writes.call(
            lambda connection: upkeep.mark(connection, self.namespace, family)
        )
        beside: Mapping[Digest, int] = await session.files.call(
            Job("listing large values of", partial(session.blob_files.list_sizes, family))
        )
        return Marked(marked.mark, {**beside, **marked.sizes})

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        session = self._current()

        async def discard(files: bool) -> int:
            freed: int = await session.writes.call(
                lambda connection: upkeep.discard(connection, self.namespace, family, mark, digests, files)
            )
            return freed

        alone: AbstractContextManager[None] | None = await session.files.call(
            Job("sweeping", session.blob_files.try_sweep_lock)
        )
        if alone is None:
            return await discard(files=False)
        with alone:  # nobody is between writing a file and naming it
            freed = await discard(files=True)
            # Not by the thread for files, where someone may wait until this is over.
            of_files = await self._read(
                lambda connection: upkeep.remove_files(
                    connection, self.namespace, session.blob_files, family, digests
                )
            )
        return freed + of_files

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return await self._read(lambda connection: mail.read_notes(connection, self.namespace, run_id))

    async def leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> Left:
        left: Left = await self._current().writes.call(Mail(run_id, tuple(letters)))
        return left

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await self._read(lambda connection: mail.read_inbox(connection, self.namespace, run_id))

    async def join(self) -> None:
        session = self._current()
        if not session.presence.joined:  # each run that begins asks for it
            await session.join()

    async def lives(self, process: str) -> bool:
        await self.open()
        session = self._current()
        lives: bool = await session.files.call(
            Job("looking who uses", partial(session.presence.lives, process))
        )
        return lives

    async def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copy the store, with all its namespaces, to a new file while it is in use."""
        from holdfast.stores.sqlite.backup import back_up

        await self.open()
        target = Path(os.path.abspath(path))  # noqa: ASYNC240
        await watched(partial(back_up, self._current().place, target), progress)

    async def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        result: Result = await self._current().reads.call(query)
        return result

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if session is not None and session.is_of_this_process():
            await session.close()

    def _current(self) -> Session:
        session = self._session
        if session is None or not session.is_of_this_process():
            session = self._begin()
        return session

    def _begin(self) -> Session:
        if self._closed:
            raise StorageError(
                f"the store {str(self.path)!r} is closed; make a new SqliteStore to use it again"
            )
        if self._finalizer is not None:
            self._finalizer.detach()
        self._session = Session(
            self.path, self.namespace, self._busy_seconds, self._big_blob, self._large_values
        )
        self._finalizer = weakref.finalize(self, self._session.stop)
        return self._session
