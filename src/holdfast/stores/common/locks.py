"""Locks between processes: they keep processes that remove files apart from those that write them.

They are locks of the operating system (flock) on small files; it drops them when a process dies, however it dies. On
systems without such locks nothing is removed that a sleeping writer might need.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.stores.common.disk import open_regular

_FOLDER_MODE = 0o700
_PATIENCE = 60.0
_PAUSE = 0.002
_BUSY = {errno.EWOULDBLOCK, errno.EACCES}


class Locks:
    """Locks that are files of one folder, by name; files that were removed are made again."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._folder = folder
        self._prefix = prefix

    @contextmanager
    def hold_shared(self, name: str) -> Iterator[int | None]:
        """Hold a lock together with others; yield the open file, or None if the system has no locks.

        Wait while another process holds it alone; raise ``TimeoutError`` if that takes a minute.
        """
        with self._hold(name, alone=False) as handle:
            yield handle

    @contextmanager
    def hold_alone(self, name: str) -> Iterator[int | None]:
        """Hold a lock alone, as ``hold_shared`` does together with others."""
        with self._hold(name, alone=True) as handle:
            yield handle

    @contextmanager
    def _hold(self, name: str, alone: bool) -> Iterator[int | None]:
        handle = self._take(name, alone, patience=_PATIENCE)
        if handle == _HELD:
            raise TimeoutError(
                errno.ETIMEDOUT, "another process holds it, which seems to stand still", self._path(name)
            )
        try:
            yield handle
        finally:
            _release(handle)

    @contextmanager
    def try_alone(self, name: str, patience: float = 0.0) -> Iterator[int | None]:
        """Hold a lock alone; yield the open file, or None if others hold it or the system has no locks."""
        handle = self._take(name, alone=True, patience=patience)
        try:
            yield None if handle == _HELD else handle
        finally:
            _release(handle)

    @contextmanager
    def try_turn(self, name: str) -> Iterator[bool]:
        """Hold a lock alone; yield False if others hold it. Always yield True if the system has no locks."""
        handle = self._take(name, alone=True, patience=0.0)
        try:
            yield handle != _HELD
        finally:
            _release(handle)

    def remove(self, name: str) -> None:
        """Remove the file of a lock that is held alone; processes that wait for it make another one."""
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> str:
        return str(self._folder / f"{self._prefix}{name}")

    def _take(self, name: str, alone: bool, patience: float) -> int | None:
        """Return the locked open file; None if the system has no locks, ``_HELD`` if others held it too long."""
        if sys.platform == "win32":
            return None
        until = time.monotonic() + patience
        while True:
            handle = self._open_file(name)
            outcome = _try(handle, alone)
            if outcome is True and is_at(self._path(name), handle):
                return handle
            os.close(handle)
            if outcome is None:
                return None
            if outcome is False:
                if time.monotonic() >= until:
                    return _HELD
                time.sleep(_PAUSE)

    def _open_file(self, name: str) -> int:
        while True:
            try:
                return open_regular(self._path(name), os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                try:
                    os.mkdir(self._folder, _FOLDER_MODE)
                except FileExistsError:
                    pass


_HELD = -1


def _try(handle: int, alone: bool) -> bool | None:
    """Return True if the lock was free and is now taken; None if the system has no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def _release(handle: int | None) -> None:
    if handle is not None and handle != _HELD:
        unlock(handle)


def unlock(handle: int) -> None:
    """Release the lock on an open file, and close it."""
    drop_lock(handle)
    os.close(handle)


def drop_lock(handle: int) -> None:
    """Release the lock on an open file; closing it would not be enough: the child of a fork may have a copy of it."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError:
        pass


def is_at(path: str | Path, handle: int) -> bool:
    """Return True if the open file is still the one with this name, which others lock."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
