"""Locks between processes: they keep what is removed apart from what is being written.

A commit needs none of them to have one winner. They are locks of the system on small files, which it drops when a
process dies, however it dies. Where there are none, nothing is removed that a sleeping writer might need.
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
    """A folder with a file for each lock of a namespace; files that are gone are made again."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._folder = folder
        self._prefix = prefix

    @contextmanager
    def hold_shared(self, name: str) -> Iterator[int | None]:
        """Hold a lock together with others; gives the open file, None where there are no locks.

        Waits while someone has it alone, which nobody has for long; raises ``TimeoutError`` if one does.
        """
        handle = self._locked(name, alone=False, patience=_PATIENCE)
        if handle == _HELD:
            raise TimeoutError(
                errno.ETIMEDOUT, "another process holds it, which seems to stand still", self._path(name)
            )
        try:
            yield handle
        finally:
            _unlock(handle)

    @contextmanager
    def try_alone(self, name: str, patience: float = 0.0) -> Iterator[int | None]:
        """Hold a lock alone; gives the open file, None if others hold it or where there are no locks."""
        handle = self._locked(name, alone=True, patience=patience)
        try:
            yield None if handle == _HELD else handle
        finally:
            _unlock(handle)

    @contextmanager
    def try_turn(self, name: str) -> Iterator[bool]:
        """Whether this one may do what only one does at a time; always, where there are no locks."""
        handle = self._locked(name, alone=True, patience=0.0)
        try:
            yield handle != _HELD
        finally:
            _unlock(handle)

    def is_unused(self, name: str) -> bool:
        """Whether nobody holds it at this moment; false where there are no locks."""
        with self.try_alone(name) as handle:
            return handle is not None

    def remove(self, name: str) -> None:
        """Remove the file of a lock that is held alone; whoever waits for it makes another one."""
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> str:
        return str(self._folder / f"{self._prefix}{name}")

    def _locked(self, name: str, alone: bool, patience: float) -> int | None:
        """The open file with the lock; None where there are no locks, ``_HELD`` if it was not to be had in time."""
        if sys.platform == "win32":
            return None
        until = time.monotonic() + patience
        while True:
            handle = self._opened(name)
            outcome = _try(handle, alone)
            if outcome is True and _leads_to(self._path(name), handle):
                return handle
            os.close(handle)
            if outcome is None:
                return None
            if outcome is False:
                if time.monotonic() >= until:
                    return _HELD
                time.sleep(_PAUSE)

    def _opened(self, name: str) -> int:
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
    """Whether the lock was to be had; None where there are none."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def _unlock(handle: int | None) -> None:
    if handle is None or handle == _HELD:
        return
    if sys.platform != "win32":
        import fcntl

        try:
            # Closing it alone would leave it locked where a fork has a copy.
            fcntl.flock(handle, fcntl.LOCK_UN)
        except OSError:
            pass
    os.close(handle)


def _leads_to(path: str, handle: int) -> bool:
    """Whether the file is still the one that others lock."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
