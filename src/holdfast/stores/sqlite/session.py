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
from holdfast.stores.sqlite import forking
from holdfast.stores.sqlite.failures import any_text, is_undecodable, patiently, storage_error
from holdfast.stores.sqlite.handle import Handle, Place
from holdfast.stores.sqlite.worker_thread import Call, Lane, settle
from holdfast.stores.sqlite.writer import Task, Writer

Query = Callable[[sqlite3.Connection], Any]


class Job(NamedTuple):
    """Something to do with the files beside the database; ``doing`` is what an error says of it."""

    doing: str
    call: Callable[[], Any]


class Session:
    """One thread that writes, one that reads, and one for other files; nothing here knows the store object."""

    def __init__(
        self, path: Path, namespace: str, busy_seconds: float, big_blob: int, large_values: Path
    ) -> None:
        self._forks = forking.forks
        self.blob_files = BlobFiles(large_values, namespace)
        self.place = place = Place(path, busy_seconds)
        self.reader = Handle(place, reads_only=True)
        write_handle = Handle(place, reads_only=False)
        self.writer = Writer(place, write_handle, namespace, big_blob)
        self.presence = Presence(path.with_name(path.name + "-owners"))
        self._joining: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self.files: Lane[Job] = Lane("holdfast-sqlite-files", self._do_jobs, self.presence.leave)
        self.reads: Lane[Query] = Lane("holdfast-sqlite-reads", self._read, self.reader.close)
        self.writes: Lane[Task] = Lane(
            "holdfast-sqlite-writes", self.writer.work, write_handle.close, self.writer.work_at_once
        )

    def is_of_this_process(self) -> bool:
        """Whether its threads are here: after a fork the child has none of them."""
        return self._forks == forking.forks

    async def join(self) -> None:
        """Let others see that this process lives; many runs that begin at once ask for it once."""
        loop = asyncio.get_running_loop()
        joining = self._joining.get(loop)
        if joining is None:
            joining = self._joining[loop] = asyncio.ensure_future(self._join())
            joining.add_done_callback(self._joining_is_over)
        try:
            await asyncio.shield(joining)
        except StorageError as error:  # each of them gets its own
            raise storage_error(error, self.place.path, "joining", 0) from error.__cause__

    def _joining_is_over(self, joining: asyncio.Future[None]) -> None:
        del self._joining[joining.get_loop()]
        if not joining.cancelled():
            joining.exception()  # of which those are told who still wait

    async def _join(self) -> None:
        await self.reads.call(lambda _: None)  # so that nothing is put beside a file that is no store
        await self.files.call(Job("joining those who use", self.presence.join))

    def _read(self, calls: list[Call[Query]]) -> None:
        for call in calls:
            try:
                with self.reader.gate:
                    call.result = self._answer(call.task)
            except Exception as error:
                call.error = storage_error(error, self.place.path, "reading", self.place.busy_seconds)
            settle([call])

    def _answer(self, query: Query) -> Any:
        connection = self.reader.connection()
        try:
            return patiently(lambda: query(connection), self.place.busy_seconds)
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
        connection.text_factory = any_text  # what it makes of the damage is told as damage
        try:
            return patiently(lambda: query(connection), self.place.busy_seconds)
        finally:
            connection.text_factory = str  # or each text of each later query would be decoded in Python

    def _do_jobs(self, calls: list[Call[Job]]) -> None:
        for call in calls:
            try:
                call.result = call.task.call()
            except Exception as error:
                call.error = storage_error(error, self.place.path, call.task.doing, 0)
            settle([call])

    async def close(self) -> None:
        """End the threads: the writer after the reader, so that it leaves one file behind.

        The last one lets others see that this process is gone, when it has nothing more to write.
        """
        for lane in (self.reads, self.writes, self.files):
            await lane.close()

    def stop(self) -> None:
        """Let the threads end by themselves."""
        if self.is_of_this_process():
            for lane in (self.reads, self.writes, self.files):
                lane.stop()
