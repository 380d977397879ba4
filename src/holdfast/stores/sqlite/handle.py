"""One connection to the file: opened on demand, safe to drop at any time, gone before a fork."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.store import StoreInfo
from holdfast.errors import StorageError
from holdfast.stores.disk import Disk
from holdfast.stores.sqlite import forking, schema
from holdfast.stores.sqlite.failures import patiently, storage_error

CONNECTION_CLASS = sqlite3.Connection

# In pages: 4 MB. Index pages that many commits change are then copied once for several hundred of them.
WAL_PAGES = 2000
LONGEST_LOG = WAL_PAGES * (schema.PAGE_SIZE + 24)
"""The bytes of so many pages in the log, each with its header."""
# The same for runs that retention keeps small, 256 KB: their log would take more room than all that they hold.
SMALL_WAL_PAGES = 128

# By the rules of POSIX, closing any descriptor of a file drops all locks that the process holds on it. So the file
# is opened here only to make it, and no other thread may believe that it is there before that is over.
_making = threading.Lock()


@dataclass
class Place:
    """Where the database is, and how long to wait for others."""

    path: Path
    busy_seconds: float
    epoch: int = 0
    """How often a COMMIT failed; connections of an earlier epoch are not used again."""
    fenced: int = 0
    """The epoch whose doubtful commit, if any, can no longer appear."""
    was_empty: bool | None = None
    """Whether the file was there and had nothing in it when it was first opened here; later it may be in the making."""
    identity: tuple[int, int] | None = None
    """Which file it was when it was first opened: device and number."""


class Handle:
    """A connection for one thread; it is used while ``gate`` is held."""

    def __init__(self, place: Place, *, reads_only: bool) -> None:
        self.gate = threading.Lock()
        self._place = place
        self._reads_only = reads_only
        self._epoch = 0
        self._connection: sqlite3.Connection | None = None
        self._info: StoreInfo | None = None
        forking.watch(self)

    @property
    def info(self) -> StoreInfo:
        """What the store says of itself."""
        self.connection()
        assert self._info is not None
        return self._info

    @property
    def is_open(self) -> bool:
        """Whether the connection can be had without opening it."""
        return self._connection is not None and self._epoch == self._place.epoch

    def connection(self) -> sqlite3.Connection:
        """The connection, opened if it is not; raises ``StorageError``."""
        _check_same(self._place)
        if self._connection is not None and self.is_open:
            return self._connection
        self.drop()
        place = self._place
        try:
            with _making:
                empty = _make_file(place.path)
                place.was_empty = empty if place.was_empty is None else place.was_empty
            self._epoch = place.epoch
            connection = _connect(place)
            try:
                self._info = self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise storage_error(error, place.path, "opening", place.busy_seconds) from error
        self._connection = connection
        place.identity = place.identity or _identity(place.path)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> StoreInfo:
        place = self._place
        if patiently(lambda: schema.is_empty(connection), place.busy_seconds):
            patiently(lambda: schema.create(connection), place.busy_seconds)
        info = patiently(lambda: schema.read_info(connection, place.path), place.busy_seconds)
        _switch_to_wal(connection, place)
        if place.fenced != self._epoch:
            _fence(connection, place)
            place.fenced = self._epoch
        if self._reads_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            patiently(lambda: schema.add_missing(connection), place.busy_seconds)
            # Who begins a transaction says how patient it is: the thread of an event loop is not.
            connection.execute("PRAGMA busy_timeout = 0")
        return info

    def close(self) -> None:
        """Close the connection when nobody uses it."""
        with self.gate:
            self.drop()

    def drop(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # what could still fail is the copying of the log, which the next to open it does again


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_same(place: Place) -> None:
    """Raise if the file was removed or replaced: what is written to one without a name is lost."""
    if place.identity is not None and _identity(place.path) != place.identity:
        raise StorageError(
            f"{str(place.path)!r} was removed or replaced while it was in use, so nothing more can be stored there; "
            "put the file back, or close this storage and open a new one"
        )


def _make_file(path: Path) -> bool:
    """Make the file if it is not there; whether it was there and is empty."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            Disk(path.parent).make_folder(path.parent)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass  # another process was faster
        return False
    if stat.S_ISDIR(found.st_mode):
        raise StorageError(
            f"{str(path)!r} is a folder, not a file; name a file for the store in it or beside it"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise StorageError(
            f"{str(path)!r} cannot be read and written by this user; give it access to the file and its folder, "
            "and see that the file system is not mounted read-only"
        )
    return found.st_size == 0


def _connect(place: Place) -> sqlite3.Connection:
    connection = sqlite3.connect(
        place.path,
        timeout=place.busy_seconds,
        isolation_level=None,
        # The gate sees to it that one thread uses it at a time.
        check_same_thread=False,
        factory=CONNECTION_CLASS,
    )
    connection.execute("PRAGMA synchronous = FULL")
    # On macOS a plain sync leaves the data in the cache of the drive; elsewhere this means nothing.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    set_log(connection, small=False)
    return connection


def set_log(connection: sqlite3.Connection, small: bool) -> None:
    """Say how long the write-ahead log of a connection gets; a small one is also cut when a commit made it longer."""
    connection.execute(f"PRAGMA wal_autocheckpoint = {SMALL_WAL_PAGES if small else WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {SMALL_WAL_PAGES * schema.PAGE_SIZE if small else -1}")


def _switch_to_wal(connection: sqlite3.Connection, place: Place) -> None:
    (mode,) = patiently(
        lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), place.busy_seconds
    )
    if mode != "wal":
        raise StorageError(
            f"{str(place.path)!r} lies on a file system that cannot do SQLite's write-ahead log; use a local disk"
        )


def _fence(connection: sqlite3.Connection, place: Place) -> None:
    """Write something where a failed COMMIT may have left its pages in the log.

    Otherwise they could come to life when the log is read again after a crash, although the head was seen without.
    """
    query = (
        "INSERT INTO meta VALUES ('fence', hex(randomblob(8))) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )
    patiently(lambda: connection.execute(query), place.busy_seconds)
