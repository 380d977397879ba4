"""A disk that keeps only what was synced. A sync fails: what it was to keep, a later one does not keep, either."""

import errno
import os
from collections import defaultdict
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

import pytest

_ONE_PATH = ("mkdir", "unlink", "rmdir")
_TWO_PATHS = ("link", "rename", "replace")


class _Content:
    """A file: the bytes that are on the disk, and what was written since it was synced."""

    def __init__(self) -> None:
        self.kept = b""
        self._written: list[tuple[int, int]] = []
        self._shortest: int | None = None

    def write(self, begin: int, end: int) -> None:
        self._written.append((begin, end))

    def truncate(self, length: int) -> None:
        self._shortest = min(length, length if self._shortest is None else self._shortest)
        self._written = [(begin, min(end, length)) for begin, end in self._written if begin < length]

    def sync(self, content: bytes, is_good: bool) -> None:
        """Keep what was written since the last sync, good or not; what a bad one was to keep is taken for kept."""
        if is_good:
            kept = bytearray(self.kept[: self._shortest].ljust(len(content), b"\0")[: len(content)])
            for begin, end in self._written:
                kept[begin:end] = content[begin:end]
            self.kept = bytes(kept)
            self._shortest = None
        self._written = []


class SyncedOnly:
    """What a disk holds of a folder, from now until the test ends; links and removals within ``temp`` do not matter.

    ``fails`` counts syncs down: the one at which it comes to zero fails, and ``times - 1`` behind it. What was to
    become durable by it is lost, as the system takes it for written; or is on the disk all the same if ``keeps``. Files
    and folders are kept open, so that no number of an inode is used twice.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, fails: int = 0, keeps: bool = False, times: int = 1
    ) -> None:
        self.folder = folder
        self.fails, self.keeps, self._times = fails, keeps, times
        self.failed = ""
        """What could not be synced."""
        self._names: dict[int, dict[str, int | None]] = {}
        """The names in each folder, as they are on the disk; None for one that is gone."""
        self._changed: dict[int, dict[str, int | None]] = {}
        """The names that changed since the folder was synced."""
        self._contents: defaultdict[int, _Content] = defaultdict(_Content)
        self._open: list[int] = [os.open(folder, os.O_RDONLY)]
        self._fsync, self._listed = os.fsync, os.open
        for name in _ONE_PATH + _TWO_PATHS:
            patch.setattr(os, name, self._noticing(getattr(os, name), name in _TWO_PATHS))
        patch.setattr(os, "open", self._opened)
        self._genuine_write, self._genuine_pwrite, self._genuine_ftruncate = os.write, os.pwrite, os.ftruncate
        for name, call in (
            ("fsync", self._synced),
            ("fdatasync", self._synced),
            ("write", self._write),
            ("pwrite", self._pwrite),
            ("ftruncate", self._ftruncate),
        ):
            patch.setattr(os, name, call)

    def _write(self, handle: int, data: Any) -> int:
        if not S_ISREG(os.fstat(handle).st_mode):  # such as the pipe that wakes an event loop
            return self._genuine_write(handle, data)
        begin = os.lseek(handle, 0, os.SEEK_CUR)
        written = self._genuine_write(handle, data)
        self._contents[os.fstat(handle).st_ino].write(begin, begin + written)
        return written

    def _pwrite(self, handle: int, data: Any, offset: int) -> int:
        written = self._genuine_pwrite(handle, data, offset)
        self._contents[os.fstat(handle).st_ino].write(offset, offset + written)
        return written

    def _ftruncate(self, handle: int, length: int) -> None:
        self._genuine_ftruncate(handle, length)
        self._contents[os.fstat(handle).st_ino].truncate(length)

    def _noticing(self, genuine: Any, two: bool) -> Any:
        def call(*paths: Any, **options: Any) -> None:
            genuine(*paths, **options)
            if "dir_fd" not in options:
                for path in paths[: 1 + two]:
                    self._notice(Path(path))

        return call

    def _opened(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        handle: int = self._listed(path, flags, *rest, **options)
        if new:
            self._notice(Path(path))
        return handle

    def _notice(self, path: Path) -> None:
        """A name appeared, leads to something else, or is gone."""
        if not path.is_relative_to(self.folder) or path == self.folder:
            return
        try:
            parent = path.parent.stat().st_ino
        except FileNotFoundError:  # with all that was in it
            return
        number = None
        if os.path.lexists(path) and not path.is_symlink():
            self._open.append(self._listed(path, os.O_RDONLY))
            number = path.stat().st_ino
        self._changed.setdefault(parent, {})[path.name] = number

    def _synced(self, handle: int) -> None:
        status, place = os.fstat(handle), os.readlink(f"/proc/self/fd/{handle}")
        if not Path(place).is_relative_to(self.folder):
            return
        self.fails -= 1
        fails = -self._times < self.fails <= 0
        good = not fails or self.keeps
        if S_ISDIR(status.st_mode):
            changed = self._changed.pop(status.st_ino, {})
            if good:
                self._names.setdefault(status.st_ino, {}).update(changed)
        else:
            self._contents[status.st_ino].sync(os.pread(handle, status.st_size, 0), good)
        if fails:
            self.failed = place
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def after_power_cut(self, place: Path) -> Path:
        """Make a folder that has what is on the disk."""
        self._restore(self.folder.stat().st_ino, place)
        return place

    def _restore(self, number: int, place: Path) -> None:
        place.mkdir()
        kept = {os.fstat(handle).st_ino: os.fstat(handle) for handle in self._open}
        for name, inode in self._names.get(number, {}).items():
            if inode is not None and S_ISDIR(kept[inode].st_mode):
                self._restore(inode, place / name)
            elif inode is not None:
                (place / name).write_bytes(self._contents[inode].kept)

    def close(self) -> None:
        """Let go of all files."""
        for handle in self._open:
            os.close(handle)
