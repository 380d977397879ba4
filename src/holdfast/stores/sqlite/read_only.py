"""Connections that write nothing: neither to the database, nor a log, nor a lock file beside it.

A database in write-ahead mode needs its shared memory file to be read beside others. Where that is there, a connection
maps it without writing to it. Where neither it nor a log is there, nobody uses the database, and the file alone is all
of it: it is opened as one that does not change. Where only the log is there, as in a copy of a database in use, both
are copied to a temporary folder. The latter two take no locks, so what was read counts only if no file changed
meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from holdfast.errors import StorageError
from holdfast.stores.sqlite.schema import is_empty

# Times of files have steps of some milliseconds: within them a change might not be seen.
_STEP_SECONDS = 0.05
_MOST_LOOKS = 20


class FileState(NamedTuple):
    """Inode, size and time of change of a file."""

    inode: int
    size: int
    changed: int


class DatabaseState(NamedTuple):
    """The files of a database at one moment; None for one that is not there."""

    database: FileState | None
    log: FileState | None
    has_shared_memory: bool

    @classmethod
    def of(cls, path: Path) -> DatabaseState:
        """Look at the files of a database."""
        log = _state(path.with_name(path.name + "-wal"))
        has_memory = os.path.lexists(path.with_name(path.name + "-shm"))
        return cls(_state(path), log if log is not None and log.size else None, has_memory)


def _state(path: Path) -> FileState | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns)


class ReadOnlyConnection:
    """An open connection, with the state of the files that it was opened for."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self._path = path
        self._copy: TemporaryDirectory[str] | None = None
        _check_file(path)
        for _ in range(_MOST_LOOKS):
            self._state = DatabaseState.of(path)
            _wait_for_next_step(self._state)
            if self._state.has_shared_memory:
                self.connection = _connect(path, "mode=ro&readonly_shm=1", busy_seconds)
            elif self._state.log is None:
                self.connection = _connect(path, "mode=ro&immutable=1", busy_seconds)
            else:
                self.connection = _connect(self._copied(), "mode=rw", busy_seconds)
            try:
                empty = is_empty(self.connection)
                self.connection.execute("PRAGMA query_only = ON")
            except sqlite3.Error:
                self.close()
                if self.is_current():
                    raise
                continue  # another process began or ended its use of the database right now
            if not self.is_current():
                self.close()
                continue
            if empty:
                self.close()
                raise StorageError(f"{str(path)!r} holds no store: it is empty, and nothing was made of it")
            return
        raise StorageError(f"{str(path)!r} changes faster than it can be opened for reading; try it again")

    def is_current(self) -> bool:
        """Return True if what was read through the connection is what the database held."""
        now = DatabaseState.of(self._path)
        if self._state.has_shared_memory:
            return now.has_shared_memory
        return now == self._state

    def close(self) -> None:
        """Close the connection, and remove the copy that it may have made."""
        self.connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    def _copied(self) -> Path:
        """Copy the database and its log to a folder of their own, which goes when the connection is closed."""
        self._copy = TemporaryDirectory(prefix="holdfast-")
        copy = Path(self._copy.name) / "copy.db"
        shutil.copyfile(self._path, copy)
        shutil.copyfile(self._path.with_name(self._path.name + "-wal"), copy.with_name("copy.db-wal"))
        return copy


def _check_file(path: Path) -> None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise StorageError(
            f"there is no store at {str(path)!r}, and one that is opened with read_only=True is not made"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{str(path)!r} is no regular file, so no store can be read from it")


def _wait_for_next_step(state: DatabaseState) -> None:
    """Wait until a change that comes now would have another time than the last one."""
    if state.has_shared_memory or state.database is None:
        return
    last = max(state.database.changed, state.log.changed if state.log is not None else 0)
    if 0 <= time.time_ns() - last < _STEP_SECONDS * 1_000_000_000:
        time.sleep(_STEP_SECONDS)


def _connect(path: Path, options: str, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fspath(path))}?{options}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,  # as for other connections, a gate sees to it
    )
