"""Where an export lies: a file that gets its name when it is complete. Everything here blocks."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from holdfast.errors import StorageError

T = TypeVar("T")

_MODE = 0o600


class NewFile:
    """A file that nobody takes for what it is to be before it is published."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Absolute: the process may change its directory before the file is complete.
        self._place = Path(os.path.abspath(path))
        self._temp = self._place.with_name(f".{secrets.token_hex(8)}.tmp")
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The open file."""
        assert self._file is not None
        return self._file

    def open(self) -> None:
        """Make the file; raises ``StorageError`` if that cannot be, or if something has its name."""
        if os.path.lexists(self._place):
            raise self._taken()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = self.doing(lambda: os.open(self._temp, flags, _MODE))
        self._file = os.fdopen(handle, "w+b")

    def doing(self, work: Callable[[], T]) -> T:
        """What writing to the file gives; raises ``StorageError`` where the system refuses it."""
        try:
            return work()
        except OSError as error:
            raise StorageError(
                f"cannot write {str(self._place)!r}: {error.strerror or error}; nothing was exported: see that its "
                f"folder is there, that this user may write to it, and that there is room on its disk"
            ) from error

    def publish(self) -> None:
        """Make the file durable, and give it its name."""
        self.doing(self._publish)

    def _publish(self) -> None:
        self.file.flush()
        _sync(self.file.fileno())
        try:
            os.link(self._temp, self._place)
        except FileExistsError:
            raise self._taken() from None
        except OSError:  # no hard links here: whoever makes a file of that name right now loses it
            if os.path.lexists(self._place):
                raise self._taken() from None
            self.file.close()
            os.rename(self._temp, self._place)
        if sys.platform != "win32":
            folder = os.open(self._place.parent, os.O_RDONLY)
            try:
                _sync(folder)
            except OSError:
                os.unlink(self._place)  # whoever is told that it failed can do it again
                raise
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Close the file; only what was published stays."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError:  # what could not be written is not wanted any more
            pass
        try:
            os.unlink(self._temp)
        except OSError:
            pass

    def _taken(self) -> StorageError:
        return StorageError(
            f"there is something at {str(self._place)!r} already, which is not written over; remove it, or choose "
            f"another path"
        )


class Source:
    """A file to import from."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The open file."""
        assert self._file is not None
        return self._file

    def open(self) -> None:
        """Open it; raises ``StorageError``."""
        try:
            if not stat.S_ISREG(os.stat(self._path).st_mode):
                raise StorageError(f"{self._path!r} is not a file, and an exported run is one")
            self._file = open(self._path, "rb")  # noqa: SIM115 - whoever opens it closes it
        except OSError as error:
            raise StorageError(
                f"cannot read {self._path!r}: {error.strerror or error}; nothing was imported: give the path of a file "
                f"that 'storage.export_run' made"
            ) from error

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._file is not None:
            self._file.close()


def _sync(handle: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the drive's cache
    else:
        os.fsync(handle)
