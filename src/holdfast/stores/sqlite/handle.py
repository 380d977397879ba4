"""One connection to the file: opened on demand, safe to drop at any time, gone before a fork."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.store import StoreInfo
from holdfast.errors import StorageError
from holdfast.stores.common.disk import Disk
from holdfast.stores.sqlite import forking, schema
from holdfast.stores.sqlite.failures import BUSY, patiently, storage_error

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
    """How often a sync failed; connections of an earlier epoch are not used again."""
    secured: int = 0
    """The epoch whose log is known to be on the disk as it is seen."""
    was_empty: bool | None = None
    """Whether the file was there and had nothing in it when it was first opened here; later it may be in the making."""
    identity: tuple[int, int] | None = None
    """Which file it was when it was first opened: device and number."""

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.path.with_name(self.path.name + "-wal")

    @property
    def mark(self) -> Path:
        """A file that is there while nobody may believe what the log holds."""
        return self.path.with_name(self.path.name + "-unsynced")

    def distrust(self) -> None:
        """Let nobody believe what the log holds before it was made durable: a sync of it failed.

        The mark is for other processes, also for later ones. It is not synced: after a power cut nobody needs it.
        """
        self.epoch += 1
        try:
            os.close(os.open(self.mark, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:  # this process knows without it, and the next COMMIT on such a disk fails too
            pass


class Handle:
    """A connection for one thread; it is used while ``gate`` is held."""

    def __init__(self, place: Place, *, reads_only: bool) -> None:
        self.gate = threading.RLock()
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
        except StorageError:
            raise
        # SQLite may name what is wrong with a damaged schema in words that are no text: no error of its own then.
        except Exception as error:
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
        if not self._reads_only:
            _sync_name_of_log(connection, place)
        if place.secured != self._epoch or place.mark.exists():
            _secure(connection, place)
            place.secured = self._epoch
        else:
            _sync_log(place)
        if self._reads_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            self._add_missing(connection)
            # Who begins a transaction says how patient it is: the thread of an event loop is not.
            connection.execute("PRAGMA busy_timeout = 0")
        return info

    def _add_missing(self, connection: sqlite3.Connection) -> None:
        try:
            patiently(lambda: schema.add_missing(connection), self._place.busy_seconds)
        except sqlite3.Error:
            self._place.distrust()
            raise

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
        _make_folder(path.parent)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            pass  # another process was faster
        return False
    if stat.S_ISDIR(found.st_mode):
        raise StorageError(
            f"{str(path)!r} is a folder, not a file; name a file for the store in it or beside it"
        )
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{str(path)!r} is no regular file; name a file for the store beside it")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StorageError(
            f"{str(path)!r} cannot be read and written by this user; give it access to the file and its folder, "
            "and see that the file system is not mounted read-only"
        )
    return found.st_size == 0


def _make_folder(folder: Path) -> None:
    """Make the folder of the file durable, also one that is empty: who made it may have died before that."""
    try:
        Disk(folder).make_folder(folder)
    except PermissionError:
        if not folder.is_dir():
            raise  # else it was made by someone who may read the folders above it


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


def _sync_name_of_log(connection: sqlite3.Connection, place: Place) -> None:
    """Make durable that there is a log, before its first commit.

    SQLite syncs the folder together with the first commit, too, but passes over an error of that.
    """
    folder = place.path.parent
    # SQLite makes the log when it first reads.
    patiently(lambda: connection.execute("PRAGMA schema_version").fetchone(), place.busy_seconds)
    try:
        if place.log.stat().st_size == 0:
            Disk(folder).sync_folder(folder)
    except (FileNotFoundError, PermissionError):
        pass  # who may not read the folder cannot sync it
    except OSError:
        place.distrust()
        raise


def _sync_log(place: Place) -> None:
    """Make the log durable: it may hold commits of a process that was killed before it had synced them."""
    try:
        if place.log.stat().st_size:
            Disk(place.path.parent).sync_file(place.log)
    except FileNotFoundError:
        pass
    except OSError:
        place.distrust()
        raise


def _secure(connection: sqlite3.Connection, place: Place) -> None:
    """Make durable what can be seen after a sync failed; raises ``StorageError`` if the disk is still ill.

    What a failed sync did not write stays in the cache of the system as if it were written. SQLite finds it there when
    it reads the log anew, and the next sync passes it over and succeeds. So all of it is written once more: the log in
    its place, then its pages to the database, so that the log can begin anew even where its blocks stay bad. The
    COMMIT at the end makes durable that the old log is gone. Until then each state of the disk is one of the database,
    because the log there is whole; where a block stays bad, a power cut within these steps may damage the database.
    """
    if sys.version_info >= (3, 12):
        # If this fails, closing the connection must not copy what is in doubt to the database.
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
    try:
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), place.busy_seconds)
        try:  # nobody else writes to it meanwhile, and who reads it cannot tell
            Disk(place.path.parent).write_again(place.log)
        except OSError:
            pass  # not there, or a block that stays bad
        connection.execute("ROLLBACK")
        patiently(lambda: _begin_log_anew(connection), place.busy_seconds)
        _sync_name_of_log(connection, place)
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), place.busy_seconds)
        # Before the COMMIT: later it might be the mark of another, whose sync failed since.
        place.mark.unlink(missing_ok=True)
        connection.execute(
            "INSERT INTO meta VALUES ('fence', hex(randomblob(8))) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        place.distrust()
        raise storage_error(error, place.path, "syncing again", place.busy_seconds, _UNTIL_SYNCED) from error
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, False)


def _begin_log_anew(connection: sqlite3.Connection) -> None:
    """Copy all pages of the log to the database, sync that, and empty the log."""
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        error = sqlite3.OperationalError("others read from the log")
        error.sqlite_errorcode, error.sqlite_errorname = BUSY, "SQLITE_BUSY"
        raise error


_UNTIL_SYNCED = (
    ". A sync of it failed before, and until one succeeds nothing of it is believed: neither read nor added to. If the "
    "disk stays ill, copy the file together with its '-wal' file and its '-blobs' folder to another disk before this "
    "machine is restarted, and open it there"
)
