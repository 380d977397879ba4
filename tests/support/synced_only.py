"""A disk that keeps only what was synced. One sync fails: what it was to keep, a later one does not keep, either."""

import errno
import os
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest

_ONE_PATH = ("mkdir", "unlink", "rmdir")
_TWO_PATHS = ("link", "rename", "replace")


class SyncedOnly:
    """What a disk holds of a folder, from now until the test ends; links and removals within ``temp`` do not matter.

    ``fails`` counts syncs down: the one at which it comes to zero fails. What was to become durable by it is lost, as
    the system takes it for written; or is on the disk all the same if ``keeps``. Files and folders are kept open, so
    that no number of an inode is used twice.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, fails: int = 0, keeps: bool = False) -> None:
        self.folder = folder
        self.fails, self.keeps = fails, keeps
        self.failed = ""
        """What could not be synced."""
        self._names: dict[int, dict[str, int | None]] = {}
        """The names in each folder, as they are on the disk; None for one that is gone."""
        self._changed: dict[int, dict[str, int | None]] = {}
        """The names that changed since the folder was synced."""
        self._contents: dict[int, bytes] = {}
        self._open: list[int] = [os.open(folder, os.O_RDONLY)]
        self._fsync, self._listed = os.fsync, os.open
        for name in _ONE_PATH + _TWO_PATHS:
            patch.setattr(os, name, self._noticing(getattr(os, name), name in _TWO_PATHS))
        patch.setattr(os, "open", self._opened)
        patch.setattr(os, "fsync", self._synced)

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
        status = os.fstat(handle)
        self.fails -= 1
        good = self.fails != 0 or self.keeps
        if S_ISDIR(status.st_mode):
            changed = self._changed.pop(status.st_ino, {})
            if good:
                self._names.setdefault(status.st_ino, {}).update(changed)
        elif good:
            self._contents[status.st_ino] = os.pread(handle, status.st_size, 0)
        if self.fails == 0:
            self.failed = os.readlink(f"/proc/self/fd/{handle}")
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
                (place / name).write_bytes(self._contents.get(inode, b""))

    def close(self) -> None:
        """Let go of all files."""
        for handle in self._open:
            os.close(handle)
