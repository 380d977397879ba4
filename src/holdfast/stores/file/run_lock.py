"""The lock of a run: one writer at a time, and a mark that tells readers how much of the file is durable.

The lock is one of the system on a file that is never replaced, so that it ends with its process, however that ends. The
file holds the mark: the id of the run's data file and up to where it was synced. The mark is written behind each sync
and need not be durable itself: after a power cut it is at most too small, and the next one who looks syncs anew.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from holdfast.errors import StorageError
from holdfast.stores.common.disk import Disk, open_regular
from holdfast.stores.common.locks import drop_lock
from holdfast.stores.file.open_files import OpenFile, may_stay_open

_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.01
_BUSY = {errno.EWOULDBLOCK, errno.EACCES}
_OFFSET_DIGITS = 20
_DOUBT = "doubt"
_MARK_BYTES = 80


class LockBusy(Exception):
    """Raised where another process holds a lock, and the caller has no time to wait."""


class SyncMark(NamedTuple):
    """A file and the position up to which it is durable."""

    file_id: str = ""
    offset: int = 0
    in_doubt: bool = False
    """True if a sync failed and the file could not be put right: nothing in it may be believed before it is."""

    def covers(self, file_id: str, end: int) -> bool:
        """Return True if all of the file up to ``end`` is durable."""
        return not self.in_doubt and self.file_id == file_id and end <= self.offset


class HeldLock:
    """The lock while it is held."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file

    def read_mark(self) -> SyncMark:
        """Read the mark."""
        return _parse(os.pread(self.file.handle, _MARK_BYTES, 0))

    def write_mark(self, file_id: str, offset: int) -> None:
        """Say that the file is durable up to ``offset``."""
        self._write(f"{file_id} {offset:0{_OFFSET_DIGITS}d}")

    def write_doubt(self, file_id: str, offset: int) -> None:
        """Say that nobody may believe the file beyond ``offset`` before it was written anew."""
        self._write(f"{file_id} {offset:0{_OFFSET_DIGITS}d} {_DOUBT}")

    def clear_mark(self) -> None:
        """Say that there is no file."""
        self._write("")

    def sync_mark(self, disk: Disk) -> None:
        """Make the mark durable."""
        disk.sync(self.file.handle)

    def _write(self, text: str) -> None:
        # Padded, so that it is as long as any before it; summed, for a full disk may take half of it.
        summed = f"{text} {_sum_of(text)}" if text else ""
        os.pwrite(self.file.handle, f"{summed:<{_MARK_BYTES}}\n".encode(), 0)


class RunLock:
    """The file of the lock of one run. Not safe for several threads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = str(path)
        self._file: OpenFile | None = None
        """The file, where it stayed open."""

    @contextmanager
    def hold(self, is_patient: bool = True) -> Iterator[HeldLock]:
        """Hold the lock, as ``acquire`` says."""
        held = self.acquire(is_patient)
        try:
            yield held
        finally:
            self.release(held)

    def acquire(self, is_patient: bool = True) -> HeldLock:
        """Take the lock; raise ``StorageError`` if another process keeps it for long, ``LockBusy`` without patience."""
        file, self._file = self._file, None
        if file is not None and self._try(file):
            return HeldLock(file)
        return HeldLock(self._wait(_PATIENCE_SECONDS if is_patient else 0.0))

    def release(self, held: HeldLock) -> None:
        """Let go of the lock."""
        drop_lock(held.file.handle)
        if may_stay_open():
            self._file = held.file
        else:
            held.file.close()

    def read_mark(self) -> SyncMark:
        """Read the mark without the lock."""
        try:
            handle = open_regular(self.path)
        except FileNotFoundError:
            return SyncMark()
        try:
            return _parse(os.pread(handle, _MARK_BYTES, 0))
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Remove the file while the lock is held; whoever waits for it makes another one."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def _wait(self, patience: float) -> OpenFile:
        until, pause = time.monotonic() + patience, _FIRST_PAUSE_SECONDS
        while True:
            file = OpenFile(self._open())
            if self._try(file):
                return file
            if not patience:
                raise LockBusy(self.path)
            if time.monotonic() >= until:
                raise StorageError(
                    f"{self.path}: another process holds this lock for {patience:g} s, and seems to stand still. "
                    f"If it is stopped, let it go on or end it; the lock ends with it. Nothing was written"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _try(self, file: OpenFile) -> bool:
        """Lock an open file if nobody else has, and it is still the one that others lock; else close it."""
        is_ours = False
        try:
            is_ours = try_lock(file.handle) and file.status_at(self._place) is not None
            return is_ours
        finally:
            if not is_ours:
                file.close()

    def _open(self) -> int:
        while True:
            try:
                return open_regular(self.path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                try:
                    os.mkdir(self.path.parent, 0o700)
                except FileExistsError:
                    pass


def try_lock(handle: int) -> bool:
    """Lock an open file if nobody else has; raise ``OSError`` where the file system has no locks."""
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "there are no locks of this kind on Windows")
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _sum_of(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _parse(content: bytes) -> SyncMark:
    """Read a mark; one that is not whole says nothing, as if there were none."""
    text, _, summed = content.decode("ascii", "replace").strip().rpartition(" ")
    words = text.split()
    if len(words) < 2 or not words[1].isdigit() or summed != _sum_of(text):
        return SyncMark()
    return SyncMark(words[0], int(words[1]), words[2:] == [_DOUBT])
