"""The threads and connections of a store in one process."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.checkpoint.store import Commit
from holdfast.stores.blob_files import BlobFiles
from holdfast.stores.sqlite.failures import patiently, storage_error
from holdfast.stores.sqlite.handle import Handle, Place
from holdfast.stores.sqlite.lane import Call, Lane, settle
from holdfast.stores.sqlite.writing import Writer

Query = Callable[[sqlite3.Connection], Any]


class Session:
    """One thread that writes, one that reads, and one for large files; nothing here knows the store object."""

    def __init__(self, path: Path, namespace: str, busy_seconds: float, big_blob: int) -> None:
        self.pid = os.getpid()
        self.blob_files = BlobFiles(path.with_name(path.name + "-blobs"), namespace)
        self._place = place = Place(path, busy_seconds)
        self.reader = Handle(place, reads_only=True)
        write_handle = Handle(place, reads_only=False)
        self.writer = Writer(place, write_handle, namespace, big_blob)
        self.files: Lane[Callable[[], None]] = Lane("holdfast-sqlite-files", self._write_files)
        self.reads: Lane[Query] = Lane("holdfast-sqlite-reads", self._read, self.reader.close)
        self.writes: Lane[Commit] = Lane("holdfast-sqlite-writes", self.writer.work, write_handle.close)

    def _read(self, calls: list[Call[Query]]) -> None:
        for call in calls:
            try:
                with self.reader.gate:
                    call.result = self._answer(call.task)
            except Exception as error:
                call.error = storage_error(error, self._place.path, "reading", self._place.busy_seconds)
            settle([call])

    def _answer(self, query: Query) -> Any:
        connection = self.reader.connection()
        return patiently(lambda: query(connection), self._place.busy_seconds)

    def _write_files(self, calls: list[Call[Callable[[], None]]]) -> None:
        for call in calls:
            try:
                call.task()
            except Exception as error:
                call.error = storage_error(error, self._place.path, "writing large values of", 0)
            settle([call])

    async def close(self) -> None:
        """End the threads; the writer is last, so that it leaves one file behind."""
        for lane in (self.files, self.reads, self.writes):
            await lane.close()

    def stop(self) -> None:
        """Let the threads end by themselves."""
        if self.pid == os.getpid():
            for lane in (self.files, self.reads, self.writes):
                lane.stop()
