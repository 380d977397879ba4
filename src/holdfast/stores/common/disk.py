"""Files and folders that survive a power cut: written under a temporary name, synced, and then published."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_ABANDONED_SECONDS = 24 * 3600
_CHUNK = 1 << 20
_MOST_FOLDERS = 1000
_LONGEST_READ = 1 << 30
_TEMPORARY_ENDING = ".tmp"
UNSYNCED_MARK = ".unsynced"
"""The name of the file that marks a folder whose sync failed."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


# Do not follow links, and do not wait for the other end of a pipe.
_SAFE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
# The errors of the system for links, sockets and folders that are opened in this way.
_IRREGULAR_ERRORS = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR}
# In bytes: no value and no commit is larger.
_LARGEST_FILE = 1 << 33


class IrregularFile(OSError):
    """A link, folder, pipe, device or too large file lies where a regular file belongs."""

    def __init__(self, path: str | Path, what: str = "it is no regular file") -> None:
        super().__init__(errno.EINVAL, what, str(path))


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of a store; raise ``IrregularFile`` if something else lies there."""
    try:
        handle = os.open(path, flags | _SAFE_FLAGS, _FILE_MODE)
    except OSError as error:
        if error.errno in _IRREGULAR_ERRORS:
            raise IrregularFile(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise IrregularFile(path)
    return handle


def read_regular(path: str | Path, largest: int = _LARGEST_FILE) -> bytes:
    """Return the content of a file of a store; raise ``IrregularFile`` if it has more than ``largest`` bytes."""
    handle = open_regular(path)
    try:
        left = os.fstat(handle).st_size
        if left > largest:
            raise IrregularFile(path, f"it has {left} bytes, and none has more than {largest}")
        pieces = []
        while left and (piece := os.read(handle, min(left, _LONGEST_READ))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(handle)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_regular(path: Path) -> bool:
    """Return True if a regular file lies there."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def reject_link(folder: Path) -> None:
    """Raise ``OSError`` if a folder of the store is a link: a store removes nothing that lies elsewhere."""
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "a link lies in place of a folder of the store", str(folder))


class Disk:
    """Writes whole files: first durably under a temporary name in the folder ``temp``, and only then in their place.

    A temporary file is locked until it is published or removed: so ``sweep`` can tell files that a dead process left
    behind from those that are being written. All methods raise ``OSError`` with the path in ``filename``.
    """

    def __init__(self, temp: Path) -> None:
        self.temp = temp
        self._syncs: dict[int, int] = {}
        """Counts syncs by thread: a lock around one counter would stay locked in the child of a fork."""
        self._locked: dict[Path, int] = {}
        """The temporary files that are being written, each with the descriptor that holds its lock."""
        self._durable_folders: set[tuple[int, int]] = set()
        """Some of the folders that were seen to have entries, by device and inode."""

    @property
    def fsyncs(self) -> int:
        """Count the syncs of files and folders so far."""
        return sum(list(self._syncs.values()))

    def write(self, data: bytes) -> Path:
        """Make a durable file in ``temp``, which the caller publishes or removes."""
        return self.write_pieces([data])

    def write_pieces(self, pieces: Iterable[bytes]) -> Path:
        """Make a durable file in ``temp`` from pieces that come one by one."""
        path, handle = self._new_file()
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(handle, rest) :]
            self.sync(handle)
            if sys.platform == "win32":  # an open file can be neither renamed nor removed there
                self._release(path)
        except OSError as error:
            self.remove(path)
            error.filename = error.filename or str(path)
            raise
        except BaseException:  # raised by the iterator of pieces
            self.remove(path)
            raise
        return path

    def new_file(self) -> Path:
        """Make an empty file in ``temp`` for other code to write to; the caller publishes or removes it."""
        path, _ = self._new_file()
        if sys.platform == "win32":
            self._release(path)
        return path

    def new_folder(self) -> Path:
        """Make a folder in ``temp``; the caller renames it to its place, then calls ``remove`` to release its lock."""
        return self._create_locked(_make_folder)[0]

    def _new_file(self) -> tuple[Path, int]:
        return self._create_locked(_make_file)

    def _create_locked(self, make: Callable[[Path], int | None]) -> tuple[Path, int]:
        while True:
            path = self.temp / f"{secrets.token_hex(8)}{_TEMPORARY_ENDING}"
            handle = make(path)
            if handle is None:
                continue
            if handle == _NO_DESCRIPTOR:
                return path, handle
            locked = _try_lock(handle)
            # By its name, not by its link count: some file systems keep counting links of a removed folder.
            if locked is None or (locked and os.path.lexists(path)):
                self._locked[path] = handle
                return path, handle
            os.close(handle)  # another process swept it up before it was locked

    def _release(self, temp: Path) -> None:
        handle = self._locked.pop(temp, None)
        if handle is not None:
            os.close(handle)

    def replace(self, temp: Path, place: Path) -> None:
        """Rename a temporary file to its place, over another file; remove it if that fails."""
        try:
            os.replace(temp, place)
        except BaseException:
            self.remove(temp)
            raise
        self._release(temp)

    def publish(self, temp: Path, place: Path) -> None:
        """Move a temporary file to its place in one step; raise ``FileExistsError`` if something is there already.

        The file is durable only after its folder was synced.
        """
        try:
            os.link(temp, place)
        except FileExistsError:
            # NFS may make the link, lose the answer and try again: then both names are one file.
            if not os.path.samefile(temp, place):
                raise
            self.remove(temp)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                error.filename = str(place)
                raise
            _rename_if_free(temp, place)
            self._release(temp)
        else:
            self.remove(temp)

    def remove(self, temp: Path) -> None:
        """Remove a temporary file or folder if possible; a later ``sweep`` removes what stays."""
        try:
            os.unlink(temp)
        except (IsADirectoryError, PermissionError):  # of a folder; which of the two depends on the system
            _remove_folder(temp, ignore_errors=True)
        except OSError:
            pass
        self._release(temp)

    def put(self, data: bytes, place: Path, anew: bool = False) -> None:
        """Write a file to its place; leave a regular file that exists as it is, unless ``anew``.

        The file is durable only after its folder was synced.
        """
        there = os.path.lexists(place)
        if there and not anew and is_regular(place):
            return
        temp = self.write(data)
        if there or anew:
            self.replace(temp, place)
            return
        try:
            self.publish(temp, place)
        except FileExistsError:  # another process was faster
            self.remove(temp)
        except BaseException:
            self.remove(temp)
            raise

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, durably.

        No file is put into a folder before the folder is durable: so a folder that is not empty is durable.
        """
        if self._is_durable(folder):
            return
        self.make_folder(folder.parent)
        try:
            os.mkdir(folder, _FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        try:
            self.sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                os.rmdir(folder)  # so that the next call makes it anew
            raise

    def _is_durable(self, folder: Path) -> bool:
        """Return True if a folder is there and has entries, or had some: to look for one takes long in a large one."""
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            return False
        identity = (status.st_dev, status.st_ino)
        if identity not in self._durable_folders:
            if not _has_entries(folder):
                return False
            if len(self._durable_folders) >= _MOST_FOLDERS:
                self._durable_folders.clear()
            self._durable_folders.add(identity)
        return True

    def make_temp(self) -> None:
        """Make the folder for temporary files; it need not survive a power cut."""
        reject_link(self.temp)
        self.temp.mkdir(_FOLDER_MODE, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable.

        If it raises, a later sync that succeeds proves nothing: the system may take for written what it could not
        write. Names that should have become durable must be removed or made anew; until then nobody may rely on them.
        """
        if sys.platform == "win32":  # folders cannot be opened there; NTFS journals their names
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            self.sync(handle)
        except OSError as error:
            error.filename = str(folder)
            raise
        finally:
            os.close(handle)

    def sync_names(self, folder: Path) -> None:
        """Make the names in a folder durable; if that fails, mark the folder for ``has_unsynced_names``."""
        try:
            self.sync_folder(folder)
        except OSError:
            with suppress(OSError):
                os.close(open_regular(folder / UNSYNCED_MARK, os.O_CREAT | os.O_WRONLY))
            raise

    def has_unsynced_names(self, folder: Path) -> bool:
        """Return True if a sync of the folder failed at some time: names that are seen there may not be on the disk.

        The mark need not be durable: a power cut removes it together with the names that are not durable.
        """
        return os.path.lexists(folder / UNSYNCED_MARK)

    def sync_file(self, path: Path) -> None:
        """Make the content of a file durable that other code wrote; nobody may use it meanwhile."""
        handle = os.open(path, os.O_RDWR)
        try:
            self.sync(handle)
        finally:
            os.close(handle)

    def write_again(self, path: Path) -> None:
        """Overwrite a file with its own content and sync it, after a sync failed; nobody else may write to it.

        The system takes for written what a failed sync did not write: later syncs skip it, unless it is written again.
        """
        handle = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            position = 0
            while data := os.read(handle, _CHUNK):
                os.lseek(handle, position, os.SEEK_SET)
                while data:
                    written = os.write(handle, data)
                    data, position = data[written:], position + written
            self.sync(handle)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(handle)

    def sweep(self) -> None:
        """Remove temporary files and folders that a crash left behind: those that nobody has locked.

        If the system has no locks, remove those that are a day old. Files with other names do not belong to the store,
        and stay.
        """
        reject_link(self.temp)
        oldest = time.time() - _ABANDONED_SECONDS
        with os.scandir(self.temp) as entries:
            for entry in entries:
                if not entry.name.endswith(_TEMPORARY_ENDING):
                    continue
                try:
                    _sweep_entry(entry, oldest)
                except OSError:  # another process sweeps too
                    pass

    def begin_sync(self, handle: int, offset: int, length: int) -> None:
        """Let the system begin to write a part of an open file, and do not wait: the sync is still to come.

        On Linux that is what the advice does to pages that are not written yet; those remain in memory.
        """
        if sys.platform == "linux":
            try:
                os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass  # the sync tells

    def sync_data(self, handle: int) -> None:
        """Make durable what was written to an open file, and its length; times need not be."""
        if sys.platform == "linux":
            os.fdatasync(handle)
            self._count_sync()
        else:
            self.sync(handle)

    def sync(self, handle: int) -> None:
        """Make durable what was written to an open file or folder."""
        if sys.platform == "darwin":
            import fcntl

            # On macOS fsync leaves the data in the cache of the drive.
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)
        self._count_sync()

    def _count_sync(self) -> None:
        thread = threading.get_ident()
        self._syncs[thread] = self._syncs.get(thread, 0) + 1


_NO_DESCRIPTOR = -1
"""Stands for an open folder on systems that cannot open folders."""


def _make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), _FILE_MODE)


def _make_folder(path: Path) -> int | None:
    """Make a folder and open it; None if another process swept it up in between."""
    os.mkdir(path, _FOLDER_MODE)
    if sys.platform == "win32":  # folders cannot be opened there
        return _NO_DESCRIPTOR
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _try_lock(handle: int) -> bool | None:
    """Return True if the lock was free and is now taken; None if the system has no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _remove_folder(path: str | Path, ignore_errors: bool = False) -> None:
    import shutil  # its import takes longer than the rest of a store, and it is seldom needed

    shutil.rmtree(path, ignore_errors=ignore_errors)


def _sweep_entry(entry: os.DirEntry[str], oldest: float) -> None:
    """Remove a temporary file or folder if nobody has locked it, and hold its lock meanwhile."""
    lockable = sys.platform != "win32" and (
        entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
    )
    handle = os.open(entry.path, os.O_RDONLY | _SAFE_FLAGS) if lockable else _NO_DESCRIPTOR
    unused = _try_lock(handle) if lockable else None
    try:
        if unused is None:
            unused = entry.stat(follow_symlinks=False).st_mtime < oldest
        if unused and entry.is_dir(follow_symlinks=False):
            _remove_folder(entry.path)
        elif unused:
            os.unlink(entry.path)
    finally:
        if handle != _NO_DESCRIPTOR:
            os.close(handle)


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


def _rename_if_free(temp: Path, place: Path) -> None:
    """Publish a file without hard links: look and rename under a lock, one process at a time."""
    with _locked(place.parent / ".lock"):
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
        os.rename(temp, place)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if sys.platform == "win32":  # a rename fails by itself there if something is in its place
        yield
        return
    import fcntl

    handle = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # this unlocks


_ADVICE = {
    errno.ENOSPC: "the disk is full: make room, then resume the run",
    errno.EDQUOT: "the disk quota is used up: make room, then resume the run",
    errno.EACCES: "this process may not do that: check owner and mode of the path and of the folders above it",
    errno.EPERM: "this process may not do that: check owner and mode of the path and of the folders above it",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOTDIR: "a part of the path is a file, where a folder is needed",
    errno.EEXIST: "a file lies where a folder is needed",
    errno.ENOENT: "a folder was removed or renamed while the store was in use",
    errno.ELOOP: "remove it and put the folder back; a store follows no links",
    errno.EXDEV: "all folders of a store must be on one file system",
    errno.EIO: "the disk reports an error: check it before going on",
    errno.EMFILE: "this process has too many open files: raise its limit (ulimit -n)",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one for the store",
}


def explain_os_error(error: OSError) -> str:
    """Return a text with the path, the error and advice."""
    path = f"{error.filename}: " if error.filename else ""
    number = error.errno or 0
    advice = f"; {_ADVICE[number]}" if number in _ADVICE else ""
    return f"{path}{error.strerror or error}{advice}"
