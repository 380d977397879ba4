"""Files that stay open between commits, so that a run that is driven does not open them again for each of them."""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache
from pathlib import Path

# Two files are open for each run: the one of its lock, and its data.
_MOST_KEPT = 512
_MOST_RUNS_AT_ONCE = 128


class OpenFile:
    """An open file, which is closed when nobody needs it any more."""

    __slots__ = ("__weakref__", "_identity", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        status = os.fstat(handle)
        self._identity = (status.st_ino, status.st_dev)
        _open_files[handle] = weakref.ref(self)

    def status_at(self, path: str | Path) -> os.stat_result | None:
        """Return the status of the file at a path if it is this one still; None if it was removed or replaced."""
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status if (status.st_ino, status.st_dev) == self._identity else None

    def close(self) -> None:
        """Close the file, unless it is closed."""
        self.__del__()

    def __del__(self) -> None:
        handle, self.handle = self.handle, -1
        if handle >= 0:
            _open_files.pop(handle, None)  # before the system gives its number to another file
            os.close(handle)


_open_files: dict[int, weakref.ref[OpenFile]] = {}
"""The files that are open, by their handles."""


def may_stay_open() -> bool:
    """Return True if a file that is open now may stay so: others in this process need files, too."""
    return len(_open_files) <= min(_MOST_KEPT, _file_limit() // 2)


def most_runs_at_once() -> int:
    """Return the number of runs whose files may be open for one batch of commits."""
    return min(_MOST_RUNS_AT_ONCE, max(1, _file_limit() // 8))


@cache
def _file_limit() -> int:
    """Return how many files this process may have open."""
    if sys.platform == "win32":
        return 512
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _close_in_child() -> None:
    """Close the copies that a fork made: they would keep the locks of a parent that died."""
    for found in list(_open_files.values()):
        if (file := found()) is not None:
            file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_child)
