"""The database file and its write-ahead log on the disk: making them, sizing the log, and keeping both durable."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StorageError
from holdfast.stores.common.disk import Disk
from holdfast.stores.sqlite.schema import PAGE_SIZE
from holdfast.stores.sqlite.sqlite_errors import BUSY, make_storage_error, retry_while_busy

# In pages: 4 MB. Index pages that many commits change are then copied once for several hundred of them.
WAL_PAGES = 2000
LONGEST_LOG = WAL_PAGES * (PAGE_SIZE + 24)
"""The bytes of that many pages in the log, each with its header."""
# 256 KB, for runs that retention keeps small: a log of the usual size would take more room than all that they hold.
SMALL_WAL_PAGES = 128


@dataclass
class DatabaseLocation:
    """The path of a database, how long to wait for other processes, and whether its log can be trusted."""

    path: Path
    busy_seconds: float
    read_only: bool = False
    """True if nothing may be written, whoever opens it."""
    keyed: bool = False
    """True if its content is sealed by a layer above."""
    epoch: int = 0
    """Counts failed syncs; connections of an earlier epoch are not used again."""
    secured: int = 0
    """The epoch whose log is known to be on the disk."""
    was_empty: bool | None = None
    """True if the file existed and was empty when this process first opened it; None before that."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file when this process first opened it."""

    @property
    def log(self) -> Path:
        """The path of the write-ahead log."""
        return self.path.with_name(self.path.name + "-wal")

    @property
    def mark(self) -> Path:
        """The path of a file that exists while nobody may trust the log."""
        return self.path.with_name(self.path.name + "-unsynced")

    def distrust(self) -> None:
        """Let nobody trust the log until it was made durable again: a sync of it failed.

        The mark tells other processes, also later ones. It is not synced: after a power cut nobody needs it.
        """
        self.epoch += 1
        try:
            os.close(os.open(self.mark, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:  # this process knows without it, and the next COMMIT on such a disk fails too
            pass

    def remember_identity(self) -> None:
        """Remember which file lies at the path, when it is opened for the first time."""
        self.identity = self.identity or _read_identity(self.path)

    def check_identity(self) -> None:
        """Raise ``StorageError`` if the file was removed or replaced: writes to a file without a name are lost."""
        if self.identity is not None and _read_identity(self.path) != self.identity:
            raise StorageError(
                f"{str(self.path)!r} was removed or replaced while it was in use, so nothing more can be stored there; "
                "put the file back, or close this storage and open a new one"
            )


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def make_file(path: Path) -> bool:
    """Make the database file if it does not exist; return True if it existed and was empty."""
    try:
        found = path.stat()
    except FileNotFoundError:
        _make_folder(path.parent)
        make_new_file(path)
        return False
    check_file(path, found)
    return found.st_size == 0


def make_new_file(path: Path) -> None:
    """Make a database file where none lies; raise ``StorageError`` if a link lies there that leads nowhere."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if path.exists():
            return  # another process was faster
        raise StorageError(
            f"{str(path)!r} is a link that leads nowhere, and nothing was made there; remove it, or name a file"
        ) from None


def check_file(path: Path, found: os.stat_result) -> None:
    """Raise ``StorageError`` if what lies there is no file that this user can read and write."""
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


def _make_folder(folder: Path) -> None:
    """Make the folder of the file durable, also an empty one: its maker may have died before syncing it."""
    try:
        Disk(folder).make_folder(folder)
    except PermissionError:
        if not folder.is_dir():
            raise  # else it was made by someone who may read the folders above it


def set_log_size(connection: sqlite3.Connection, small: bool) -> None:
    """Set how long the write-ahead log of a connection gets; a small log is also cut when a commit made it longer."""
    connection.execute(f"PRAGMA wal_autocheckpoint = {SMALL_WAL_PAGES if small else WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {SMALL_WAL_PAGES * PAGE_SIZE if small else -1}")


def switch_to_wal(connection: sqlite3.Connection, location: DatabaseLocation) -> None:
    """Put the database in write-ahead mode; raise ``StorageError`` if its file system cannot do that."""
    (mode,) = retry_while_busy(
        lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), location.busy_seconds
    )
    if mode != "wal":
        raise StorageError(
            f"{str(location.path)!r} lies on a file system that cannot do SQLite's write-ahead log; use a local disk"
        )


def sync_log_name(connection: sqlite3.Connection, location: DatabaseLocation) -> None:
    """Make the name of the log durable before its first commit.

    SQLite also syncs the folder with the first commit, but ignores an error of that sync.
    """
    folder = location.path.parent
    # SQLite makes the log when it first reads.
    retry_while_busy(lambda: connection.execute("PRAGMA schema_version").fetchone(), location.busy_seconds)
    try:
        if location.log.stat().st_size == 0:
            Disk(folder).sync_folder(folder)
    except (FileNotFoundError, PermissionError):
        pass  # who may not read the folder cannot sync it
    except OSError:
        location.distrust()
        raise


def sync_log(location: DatabaseLocation) -> None:
    """Make the log durable: it may hold commits of a process that was killed before it had synced them."""
    try:
        if location.log.stat().st_size:
            Disk(location.path.parent).sync_file(location.log)
    except FileNotFoundError:
        pass
    except OSError:
        location.distrust()
        raise


def secure_log(connection: sqlite3.Connection, location: DatabaseLocation) -> None:
    """Write everything that can be seen to the disk again after a failed sync; raise ``StorageError`` if that fails.

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
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), location.busy_seconds)
        try:  # nobody else writes to it meanwhile, and readers cannot tell
            Disk(location.path.parent).write_again(location.log)
        except OSError:
            pass  # not there, or a block that stays bad
        connection.execute("ROLLBACK")
        retry_while_busy(lambda: _empty_log(connection), location.busy_seconds)
        sync_log_name(connection, location)
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), location.busy_seconds)
        # Before the COMMIT: later it might be the mark of another process, whose sync failed since.
        location.mark.unlink(missing_ok=True)
        connection.execute(
            "INSERT INTO meta VALUES ('fence', hex(randomblob(8))) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        location.distrust()
        raise make_storage_error(
            error, location.path, "syncing again", location.busy_seconds, _UNTIL_SYNCED
        ) from error
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, False)


def _empty_log(connection: sqlite3.Connection) -> None:
    """Copy all pages of the log to the database, sync the database, and empty the log."""
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

LEAST_ROOM = 64 * 1024
_MOST_ROOM = 1024 * 1024
"""Bounds of the bytes added at once: the least at first, for a process may end soon, then twice the size of the log."""
_COMMITS_BETWEEN_LOOKS = 4
"""A process that makes fewer commits never looks at the log, and pays nothing."""
_ZEROS = bytes(16 * 1024)


class WalRoom:
    """Lengthens the write-ahead log before commits need the room, so that a commit does not have to.

    ``longest`` is about the length at which SQLite begins the log anew.
    """

    def __init__(self, database: Path, longest: int) -> None:
        self._log = os.fspath(database) + "-wal"
        self._longest = longest
        self._end = 0
        self._commits = 0
        self.added = 0
        """Counts the bytes added so far."""

    def make(self, commits: int) -> None:
        """Make room if none is left, in a write transaction: so no other process is at the end of the log."""
        self._commits += commits
        if self._commits < _COMMITS_BETWEEN_LOOKS:
            return
        self._commits = 0
        try:
            size = os.stat(self._log).st_size
            # If the end has moved, frames went beyond it, or this is another log.
            if size != self._end and size < self._longest:
                wanted = max(2 * size, LEAST_ROOM) if self.added else LEAST_ROOM
                added = self._add(min(wanted, _MOST_ROOM, self._longest - size))
                self._end = size + added
                self.added += added
        except OSError:  # without room commits take longer, and a full disk they notice themselves
            self._end = 0

    def _add(self, count: int) -> int:
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        try:
            # In small pieces: making room must not take much memory.
            return sum(os.write(log, _ZEROS[: count - begin]) for begin in range(0, count, len(_ZEROS)))
        finally:
            os.close(log)
