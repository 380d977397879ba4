"""Gives the room that a database does not use back to the file system, beside others who use it. Everything blocks.

VACUUM writes all that is in use anew, in one transaction: readers go on, writers wait for it. They give up after their
busy time, so where others drive runs it is given up before they do.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.progress import Stopped
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.sqlite_errors import BUSY, FULL, make_storage_error, retry_while_busy

Report = Callable[[int, int], None]

_INTERRUPT = 9
_HARMLESS = (BUSY, FULL, _INTERRUPT)
# Between two looks at how far it has come: some milliseconds.
_STEPS_BETWEEN_LOOKS = 20_000
# The half that can be interrupted may take such a part of the time for which others wait; the other half takes as long.
_PART_OF_PATIENCE = 3
# How long the log waits for readers to leave the old pages.
_READER_SECONDS = 5.0
_HEADROOM = 1 << 20

_UNUSED_FAMILIES = (
    "SELECT families.family, EXISTS (SELECT 1 FROM blobs WHERE blobs.family = families.id) FROM families "
    "WHERE families.namespace = ?1 "
    "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.namespace = ?1 AND runs.run = families.family) "
    "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.namespace = ?1 AND runs.family = families.family "
    "AND runs.family <> runs.run)"
)


def find_unused_families(connection: sqlite3.Connection, namespace: str) -> list[tuple[RunId, bool]]:
    """Return the families without a run, each with whether rows of blobs are left of it."""
    return [
        (RunId(family), bool(rows)) for family, rows in connection.execute(_UNUSED_FAMILIES, (namespace,))
    ]


def measure(database: Path, large_values: Path) -> int:
    """Return the bytes of the database, its log and its large values."""
    files = [database, database.with_name(database.name + "-wal")]
    for folder, _, names in os.walk(large_values):
        files += [Path(folder) / name for name in names]
    return sum(_size(file) for file in files)


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0


class _Pages(NamedTuple):
    """The pages of a database."""

    size: int
    total: int
    free: int

    @property
    def bytes_in_use(self) -> int:
        """The bytes that are written anew."""
        return self.size * (self.total - self.free)


def give_room_back(location: DatabaseLocation, is_alone: bool, report: Report) -> float:
    """Shrink the file of a database; return for how many seconds writers had to wait.

    Raises ``StorageError`` and changes nothing if there is too little room on the disk, or if it would take longer than
    others wait; ``is_alone`` says that nobody else drives runs.
    """
    connection = DatabaseConnection(location, reads_only=False)
    try:
        with connection.gate:
            opened = connection.open()
            waited = _vacuum(opened, location, is_alone, report)
            _shorten_log(opened)
            return waited
    except (StorageError, Stopped):
        raise
    except Exception as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if isinstance(error, sqlite3.Error) and code not in _HARMLESS:
            location.distrust()
        raise make_storage_error(error, location.path, "vacuuming", location.busy_seconds) from error
    finally:
        connection.close()


def _vacuum(opened: sqlite3.Connection, location: DatabaseLocation, is_alone: bool, report: Report) -> float:
    pages = _Pages(*(opened.execute(f"PRAGMA {name}").fetchone()[0] for name in _PRAGMAS))
    if not pages.free:
        return 0.0
    _check_room(location.path, pages.bytes_in_use)
    watch = _Watch(location, pages.bytes_in_use, is_alone, report)
    opened.set_progress_handler(watch.look, _STEPS_BETWEEN_LOOKS)
    try:
        retry_while_busy(lambda: watch.begin(opened), location.busy_seconds)
    except sqlite3.OperationalError:
        watch.explain()
        raise
    finally:
        opened.set_progress_handler(None, 0)
    return time.monotonic() - watch.began


_PRAGMAS = ("page_size", "page_count", "freelist_count")


class _Watch:
    """Looks at a VACUUM while it runs, and interrupts it."""

    def __init__(self, location: DatabaseLocation, total: int, is_alone: bool, report: Report) -> None:
        self._location = location
        self._total = total
        self._longest = None if is_alone else location.busy_seconds / _PART_OF_PATIENCE
        self._report = report
        self._stopped: Stopped | None = None
        self._is_late = False
        self.began = time.monotonic()

    def begin(self, opened: sqlite3.Connection) -> None:
        """Run VACUUM."""
        self.began = time.monotonic()
        opened.execute("VACUUM")

    def look(self) -> bool:
        """Report how far it has come; return True if it is to be interrupted."""
        try:
            self._report(min(log_size(self._location), self._total), self._total)
        except Stopped as stopped:
            self._stopped = stopped
        self._is_late = self._longest is not None and time.monotonic() - self.began > self._longest
        return self._stopped is not None or self._is_late

    def explain(self) -> None:
        """Raise the reason why it was interrupted, if it was."""
        if self._stopped is not None:
            raise self._stopped
        if self._is_late:
            raise StorageError(
                f"{str(self._location.path)!r} was not vacuumed, and nothing was changed: writing its "
                f"{self._total:,} bytes anew would take longer than other writers wait "
                f"({self._location.busy_seconds:g} s); call it when no other process drives runs"
            )


def log_size(location: DatabaseLocation) -> int:
    """Return the bytes of the write-ahead log."""
    return _size(location.log)


def _check_room(database: Path, wanted: int) -> None:
    """Raise ``StorageError`` unless the disks have room: for a copy in the temporary folder, and for the log."""
    temporary = _temporary_folder()
    needs = {database.parent: wanted + _HEADROOM}
    if os.stat(temporary).st_dev == os.stat(database.parent).st_dev:
        needs[database.parent] *= 2
    else:
        needs[temporary] = wanted + _HEADROOM
    for folder, need in needs.items():
        free = shutil.disk_usage(folder).free
        if free < need:
            raise StorageError(
                f"{str(database)!r} was not vacuumed: that needs {need:,} bytes in {str(folder)!r} for a while, and "
                f"{free:,} are free; make room, or remove more runs first, so that less has to be written anew"
            )


def _temporary_folder() -> Path:
    """Return the folder in which SQLite makes temporary files."""
    given = [os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp"]
    for folder in given:
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    return Path(tempfile.gettempdir())


def _shorten_log(opened: sqlite3.Connection) -> None:
    """Copy the log to the database, which then gets its new length, and empty it; readers of old pages may delay it."""
    opened.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # the most of it, without keeping writers out
    until = time.monotonic() + _READER_SECONDS
    while True:
        (busy, _, _) = opened.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy or time.monotonic() > until:
            return
        time.sleep(0.02)
