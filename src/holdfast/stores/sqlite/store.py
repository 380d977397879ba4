"""A store in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.store import Commit, Damage, Depth, Head, Record, RunQuery, StoreInfo
from holdfast.errors import InvalidArgument, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.sqlite import reading
from holdfast.stores.sqlite.session import Session
from holdfast.stores.sqlite.writing import is_big

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
                f"SqliteStore({os.fspath(path)!r}): the store is a file that others can open too; "
                "for one that lives in memory take holdfast.stores.memory.MemoryStore"
            )
        # Absolute: the process may change its directory before the file is opened, or opened again.
        self.path = Path(os.path.abspath(path))
        self.namespace = namespace
        self._busy_seconds = busy_seconds
        self._big_blob = big_blob
        self._session: Session | None = None
        self._finalizer: weakref.finalize[[], SqliteStore] | None = None
        self._closed = False

    @property
    def transactions(self) -> int:
        """How many transactions this process has committed: many commits share one."""
        return self._session.writer.transactions if self._session is not None else 0

    async def open(self) -> StoreInfo:
        session = self._current()
        info: StoreInfo = await session.reads.call(lambda _: session.reader.info)
        return info

    async def commit(self, commit: Commit) -> None:
        session = self._current()
        if commit.blobs and (big := [blob for blob in commit.blobs if is_big(blob, self._big_blob)]):
            await self.open()  # so that nothing is put beside a file that is no store
            await session.files.call(partial(session.blob_files.write, commit.head.family, big))
        await session.writes.call(commit)

    async def head(self, run_id: RunId) -> Head | None:
        return await self._read(lambda connection: reading.read_head(connection, self.namespace, run_id))

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await self._read(lambda connection: reading.read_runs(connection, self.namespace, query))

    async def damaged(self) -> Sequence[Damage]:
        return await self._read(lambda connection: reading.read_damaged(connection, self.namespace))

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

    async def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        result: Result = await self._current().reads.call(query)
        return result

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if session is not None and session.pid == os.getpid():
            await session.close()

    def _current(self) -> Session:
        session = self._session
        # After a fork the child has none of the threads, so it begins anew.
        if session is None or session.pid != os.getpid():
            session = self._begin()
        return session

    def _begin(self) -> Session:
        if self._closed:
            raise StorageError(
                f"the store {str(self.path)!r} is closed; make a new SqliteStore to use it again"
            )
        if self._finalizer is not None:
            self._finalizer.detach()
        self._session = Session(self.path, self.namespace, self._busy_seconds, self._big_blob)
        self._finalizer = weakref.finalize(self, self._session.stop)
        return self._session
