"""The threads and connections of a store in one process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import StorageError
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.presence import Presence
from holdfast.stores.common.worker_thread import PendingCall, WorkerThread, settle_calls
from holdfast.stores.sqlite import connection
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.sqlite_errors import (
    decode_any_text,
    is_decoding_error,
    make_storage_error,
    retry_while_busy,
)
from holdfast.stores.sqlite.transaction import TransactionWriter, WriteTask

# A database that is opened read-only may have to be read so often until nobody changed it meanwhile.
_MOST_READS = 20

Query = Callable[[sqlite3.Connection], Any]


class FileJob(NamedTuple):
    """A call that works on the files beside the database; an error message says what it was ``doing``."""

    doing: str
    call: Callable[[], Any]


class Session:
    """One thread that writes, one that reads, and one for other files.

    None of them refers to the store object, so that a store which nobody uses any more can be collected.
    """

    def __init__(
        self,
        location: DatabaseLocation,
        namespace: str,
        big_blob: int,
        large_values: Path,
    ) -> None:
        path = location.path
        self._forks = connection.forks
        self.blob_files = BlobFiles(large_values, namespace)
        self.location = location
        self.reader = DatabaseConnection(location, reads_only=True)
        write_connection = DatabaseConnection(location, reads_only=False)
        self.writer = TransactionWriter(location, write_connection, namespace, big_blob)
        self.presence = Presence(path.with_name(path.name + "-owners"))
        self._joining: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self.files: WorkerThread[FileJob] = WorkerThread(
            "holdfast-sqlite-files", self._do_jobs, self.presence.leave
        )
        self.reads: WorkerThread[Query] = WorkerThread("holdfast-sqlite-reads", self._read, self.reader.close)
        self.writes: WorkerThread[WriteTask] = WorkerThread(
            "holdfast-sqlite-writes", self.writer.work, write_connection.close, self.writer.work_at_once
        )

    def is_of_this_process(self) -> bool:
        """Return True if the threads run in this process: after a fork the child has none of them."""
        return self._forks == connection.forks

    async def join(self) -> None:
        """Let other processes see that this one lives; many runs that begin at once share one request."""
        loop = asyncio.get_running_loop()
        joining = self._joining.get(loop)
        if joining is None:
            joining = self._joining[loop] = asyncio.ensure_future(self._join())
            joining.add_done_callback(self._forget_joining)
        try:
            await asyncio.shield(joining)
        except StorageError as error:  # each caller gets an error of its own
            raise make_storage_error(error, self.location.path, "joining", 0) from error.__cause__

    def _forget_joining(self, joining: asyncio.Future[None]) -> None:
        del self._joining[joining.get_loop()]
        if not joining.cancelled():
            joining.exception()  # asyncio warns of an error that nobody looked at; callers may be cancelled

    async def _join(self) -> None:
        await self.reads.call(lambda _: None)  # so that nothing is put beside a file that is no store
        await self.files.call(FileJob("joining those who use", self.presence.join))

    def _read(self, calls: list[PendingCall[Query]]) -> None:
        for call in calls:
            try:
                with self.reader.gate:
                    call.result = self._run_query(call.task)
            except Exception as error:
                call.error = make_storage_error(
                    error, self.location.path, "reading", self.location.busy_seconds
                )
            settle_calls([call])

    def _run_query(self, query: Query) -> Any:
        for _ in range(_MOST_READS if self.location.read_only else 0):
            try:
                result = self._query_once(query)
            except Exception:
                if self.reader.is_current():
                    raise
                continue  # another process writes, and this one holds no lock that would keep it from it
            if self.reader.is_current():
                return result
        return self._query_once(query)

    def _query_once(self, query: Query) -> Any:
        opened = self.reader.open()
        try:
            return retry_while_busy(lambda: query(opened), self.location.busy_seconds)
        except sqlite3.OperationalError as error:
            if not is_decoding_error(error):
                raise
        opened.text_factory = decode_any_text  # then the query itself finds the damage
        try:
            return retry_while_busy(lambda: query(opened), self.location.busy_seconds)
        finally:
            opened.text_factory = str  # or each text of each later query would be decoded in Python

    def _do_jobs(self, calls: list[PendingCall[FileJob]]) -> None:
        for call in calls:
            try:
                call.result = call.task.call()
            except Exception as error:
                call.error = make_storage_error(error, self.location.path, call.task.doing, 0)
            settle_calls([call])

    async def close(self) -> None:
        """End the threads: the writer after the reader, so that it leaves one file behind.

        The thread for files ends last; then other processes see that this one left.
        """
        for worker in (self.reads, self.writes, self.files):
            await worker.close()

    def stop(self) -> None:
        """Let the threads end by themselves."""
        if self.is_of_this_process():
            for worker in (self.reads, self.writes, self.files):
                worker.stop()
