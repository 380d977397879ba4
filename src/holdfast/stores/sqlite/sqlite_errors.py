"""Errors of SQLite and of the file system as ``StorageError`` with advice; retries while others hold a lock."""

from __future__ import annotations

import copy
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.errors import StorageError, StoreDamaged
from holdfast.stores.common.disk import explain_os_error

Result = TypeVar("Result")

# The names for these are in sqlite3 since Python 3.11 only in part; the numbers never change.
BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB = 5, 6, 8, 10, 11, 13, 14, 15, 26
_BUSY_CODES = (BUSY, LOCKED, PROTOCOL)


_CODES_OF_ERRNO = {
    errno.EACCES: CANTOPEN,
    errno.EPERM: CANTOPEN,
    errno.EROFS: READONLY,
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EIO: IOERR,
}


def _primary_code(error: BaseException) -> int:
    """Return the primary result code of SQLite, also for an error of the file system; 0 if there is none."""
    if isinstance(error, OSError):
        return _CODES_OF_ERRNO.get(error.errno or 0, 0)
    if isinstance(error, UnicodeDecodeError):  # SQLite's own words quote a damaged definition
        return CORRUPT
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def retry_while_busy(call: Callable[[], Result], seconds: float) -> Result:
    """Call again while others hold a lock, for so many seconds: SQLite's own busy timeout does not cover every case."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if _primary_code(error) not in _BUSY_CODES or time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def decode_any_text(stored: bytes) -> str:
    """Decode text for a connection that also has to read damaged rows: other bytes than UTF-8 become other text."""
    return stored.decode("utf-8", "replace")


def is_decoding_error(error: sqlite3.Error) -> bool:
    """Return True if a row holds text that is not UTF-8; SQLite has no code for that."""
    return str(error).startswith("Could not decode to UTF-8")


def make_storage_error(
    error: BaseException, path: Path, doing: str, seconds: float, doubt: str = ""
) -> StorageError:
    """Return the error for one caller; of a ``StorageError`` a copy, so that no two callers raise the same object."""
    if isinstance(error, StorageError):
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        return own
    code = _primary_code(error)
    if code in _BUSY_CODES:
        meaning = (
            f"another process has held it locked for more than {seconds:g} s. "
            "Find the one that left a transaction open (lsof shows who has the file open), then try again"
        )
    else:
        explained = (
            explain_os_error(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        )
        meaning = _MEANINGS.get(code, "") or explained
    name = getattr(error, "sqlite_errorname", None)
    code_name = f" [{name}]" if name else ""
    kind = StoreDamaged if code == CORRUPT else StorageError
    explained_error = kind(f"{doing} {os.fspath(path)!r} failed: {meaning}{doubt}{code_name}")
    explained_error.__cause__ = error
    return explained_error


_MEANINGS = {
    READONLY: "it cannot be written. Give this user write access to the file and its folder, and see that the "
    "file system is not mounted read-only",
    IOERR: "the disk or file system reported an error. Look at the system log; when it is well again, "
    "resume the runs",
    CORRUPT: "the database is damaged. Restore it from a backup together with its '-blobs' folder, or rescue what "
    "is readable with: sqlite3 FILE .recover",
    FULL: "no room is left on its disk. Make room, then resume the runs",
    CANTOPEN: "it cannot be opened. Give this user access to the file and write access to its folder, where "
    "SQLite keeps the '-wal' and '-shm' files beside it",
    NOTADB: "this is not a SQLite database; nothing was changed. Give the store another path",
}
