"""Writers and sweeps of one store, in any processes, keep out of each other's way."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class SweepLock:
    """A lock on a file, which the kernel drops when its process dies: many writers, or one sweep.

    A writer holds it from before it writes a blob, or finds it there, until the commit that names it is durable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def shared(self) -> Held:
        """Held from now on, together with other writers, until the context is left."""
        return Held(self._locked(exclusive=False))

    def exclusive(self) -> Held:
        """Held from now on, alone, until the context is left."""
        return Held(self._locked(exclusive=True))

    def _locked(self, exclusive: bool) -> int | None:
        if sys.platform == "win32":  # no shared locks there
            return None
        import fcntl

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except BaseException:
            os.close(handle)
            raise
        return handle


class Held:
    """A lock that is held until the context is left, or forgotten: whoever waited for it may have been cancelled."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Hold it no longer."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)  # this unlocks

    __del__ = release
