"""Files and folders that are still there after a power cut."""

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
_LEFT_BEHIND = 24 * 3600
_CHUNK = 1 << 20
_LONGEST_READ = 1 << 30
_TEMPORARY = ".tmp"
UNSYNCED_MARK = ".unsynced"
"""The file that says that a sync of its folder failed."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


# A link is not followed, and whoever opens a pipe waits for nobody.
_CAREFULLY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
# What the system says of links, sockets and folders that are opened in this way.
_IRREGULAR = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR}
# No value and no commit is larger, and no memory holds much more.
_LARGEST = 1 << 33


class IrregularFile(OSError):
    """Something lies where a regular file belongs: a link, a folder, a pipe, a device, or a file that is too large."""

    def __init__(self, path: str | Path, what: str = "it is no regular file") -> None:
        super().__init__(errno.EINVAL, what, str(path))


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a file of a store; raises ``IrregularFile`` where something else lies there."""
    try:
        handle = os.open(path, flags | _CAREFULLY, _FILE_MODE)
    except OSError as error:
        if error.errno in _IRREGULAR:
            raise IrregularFile(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise IrregularFile(path)
    return handle


def read_regular(path: str | Path, largest: int = _LARGEST) -> bytes:
    """The content of a file of a store, as long as the file is now; raises ``IrregularFile`` if it is longer."""
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
    """Tell whether a regular file lies there."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def reject_link(folder: Path) -> None:
    """Raise ``OSError`` if there is a link in place of a folder: a store removes nothing that lies elsewhere."""
    if os.path.islink(folder):
        raise OSError(errno.ELOOP, "a link lies in place of a folder of the store", str(folder))


class Disk:
    """Writes files whole: first under a name that nobody reads in ``temp``, durable, and only then in their place.

    A temporary file is locked until it is published or removed: so what a process that died left behind can be told
    from what is being written. Raises ``OSError`` with the path in ``filename``. ``fsyncs`` counts those of files and
    of folders.
    """

    def __init__(self, temp: Path) -> None:
        self.temp = temp
        self._syncs: dict[int, int] = {}
        """How often each thread synced. A lock would stay locked in the child of a process that forks meanwhile."""
        self._locked: dict[Path, int] = {}
        """The temporary files that are being written, each with what holds its lock."""
        self.doubted: set[Path] = set()
        """The folders of runs in which something can be seen that may not be durable, and could not be taken away."""

    @property
    def fsyncs(self) -> int:
        """How many syncs there were."""
        return sum(list(self._syncs.values()))

    def write(self, data: bytes) -> Path:
        """Make a durable file in ``temp``, to be published or removed."""
        return self.write_pieces([data])

    def write_pieces(self, pieces: Iterable[bytes]) -> Path:
        """Make a durable file of pieces that come one by one, as ``write`` does."""
        path, handle = self._new_file()
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(handle, rest) :]
            self._sync(handle)
            if sys.platform == "win32":  # there a file that is open can be neither renamed nor removed
                self._let_go(path)
        except OSError as error:
            self.remove(path)
            error.filename = error.filename or str(path)
            raise
        except BaseException:  # of whoever makes the pieces
            self.remove(path)
            raise
        return path

    def new_file(self) -> Path:
        """Make an empty file in ``temp`` for someone else to write to, to be published or removed."""
        path, _ = self._new_file()
        if sys.platform == "win32":
            self._let_go(path)
        return path

    def new_folder(self) -> Path:
        """Make a folder in ``temp``, to be put in its place, and then to be let go of by ``remove``."""
        return self._create_locked(_make_folder)[0]

    def _new_file(self) -> tuple[Path, int]:
        return self._create_locked(_make_file)

    def _create_locked(self, make: Callable[[Path], int | None]) -> tuple[Path, int]:
        while True:
            path = self.temp / f"{secrets.token_hex(8)}{_TEMPORARY}"
            handle = make(path)
            if handle is None:
                continue
            if handle == _NOTHING:
                return path, handle
            locked = _try_lock(handle)
            # Not by the number of its links: not every file system says that a folder which is gone has none.
            if locked is None or (locked and os.path.lexists(path)):
                self._locked[path] = handle
                return path, handle
            os.close(handle)  # someone sweeps it up, or did, before it was locked

    def _let_go(self, temp: Path) -> None:
        handle = self._locked.pop(temp, None)
        if handle is not None:
            os.close(handle)

    def replace(self, temp: Path, place: Path) -> None:
        """Let a written file take the place of another one; it is removed if that fails."""
        try:
            os.replace(temp, place)
        except BaseException:
            self.remove(temp)
            raise
        self._let_go(temp)

    def publish(self, temp: Path, place: Path) -> None:
        """Let a written file appear in its place, whole; raises ``FileExistsError`` if something is there already.

        The folder of ``place`` must be synced before anyone may rely on it.
        """
        try:
            os.link(temp, place)
        except FileExistsError:
            # NFS may make the link, lose the answer and try again.
            if not os.path.samefile(temp, place):
                raise
            self.remove(temp)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                error.filename = str(place)
                raise
            _rename_if_free(temp, place)
            self._let_go(temp)
        else:
            self.remove(temp)

    def move_away(self, place: Path) -> Path:
        """Take a folder from its place, at once; what it gives is to be removed."""
        temp = self.temp / f"{secrets.token_hex(8)}{_TEMPORARY}"
        os.rename(place, temp)
        return temp

    def remove(self, temp: Path) -> None:
        """Remove a temporary file or folder if that is possible; what stays is swept up later."""
        try:
            os.unlink(temp)
        except (IsADirectoryError, PermissionError):  # which of them it is depends on the system
            _remove_folder(temp, ignore_errors=True)
        except OSError:
            pass
        self._let_go(temp)

    def put(self, data: bytes, place: Path, anew: bool = False) -> None:
        """Make sure that a durable file lies in its place; a regular one that is there is left, unless ``anew``.

        The folder of ``place`` must be synced before anyone may rely on it.
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

        Nothing is put into a folder before it is durable itself: so one that is not empty is.
        """
        if _has_entries(folder):
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
                os.rmdir(folder)  # so that the next one makes it anew
            raise

    def make_temp(self) -> None:
        """Make the folder for files that are being written; they need not survive anything."""
        reject_link(self.temp)
        self.temp.mkdir(_FOLDER_MODE, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make durable which names the folder holds.

        If it raises, a later sync that succeeds proves nothing: the system may take for written what it could not
        write. Names that were to become durable must be taken away or made anew, or nobody may rely on them.
        """
        if sys.platform == "win32":  # it cannot open folders; NTFS journals their names
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            self._sync(handle)
        except OSError as error:
            error.filename = str(folder)
            raise
        finally:
            os.close(handle)

    def sync_names(self, folder: Path) -> None:
        """Make durable which names the folder holds; if that fails, ``has_unsynced_names`` says so later."""
        try:
            self.sync_folder(folder)
        except OSError:
            with suppress(OSError):
                os.close(open_regular(folder / UNSYNCED_MARK, os.O_CREAT | os.O_WRONLY))
            raise

    def has_unsynced_names(self, folder: Path) -> bool:
        """Tell whether a sync of the folder failed at some time: names that are there may not be on the disk.

        What says so need not be durable: a power cut takes it away together with names that are not.
        """
        return os.path.lexists(folder / UNSYNCED_MARK)

    def sync_file(self, path: Path) -> None:
        """Make durable what another wrote to a file, which nobody may use meanwhile."""
        handle = os.open(path, os.O_RDWR)
        try:
            self._sync(handle)
        finally:
            os.close(handle)

    def write_again(self, path: Path) -> None:
        """Write a file over with itself and make it durable, after a sync of it failed; nobody else may write to it.

        What a failed sync did not write counts as written: later syncs pass it over, unless it is written again.
        """
        handle = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            position = 0
            while data := os.read(handle, _CHUNK):
                os.lseek(handle, position, os.SEEK_SET)
                while data:
                    written = os.write(handle, data)
                    data, position = data[written:], position + written
            self._sync(handle)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(handle)

    def sweep(self) -> None:
        """Remove temporary files and folders that a crash left behind: nobody has locked them.

        Where there are no locks, those that are a day old, for nobody can be writing them. What has another name than
        such a file is not of this store, and stays.
        """
        reject_link(self.temp)
        oldest = time.time() - _LEFT_BEHIND
        with os.scandir(self.temp) as entries:
            for entry in entries:
                if not entry.name.endswith(_TEMPORARY):
                    continue
                try:
                    _sweep(entry, oldest)
                except OSError:  # another process sweeps too
                    pass

    def _sync(self, handle: int) -> None:
        if sys.platform == "darwin":
            import fcntl

            # There fsync leaves the data in the drive's cache.
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)
        thread = threading.get_ident()
        self._syncs[thread] = self._syncs.get(thread, 0) + 1


_NOTHING = -1
"""What stands for an open file where the system opens none."""


def _make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), _FILE_MODE)


def _make_folder(path: Path) -> int | None:
    """Make a folder and open it; None if someone swept it up in between."""
    os.mkdir(path, _FOLDER_MODE)
    if sys.platform == "win32":  # it cannot open folders
        return _NOTHING
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _try_lock(handle: int) -> bool | None:
    """Whether this one has the lock now; None where there are none."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _remove_folder(path: str | Path, ignore_errors: bool = False) -> None:
    import shutil  # with all its archive formats it takes longer than the rest of a store, and is seldom needed

    shutil.rmtree(path, ignore_errors=ignore_errors)


def _sweep(entry: os.DirEntry[str], oldest: float) -> None:
    """Remove a temporary file or folder, while its lock is held, if nobody else holds that."""
    lockable = sys.platform != "win32" and (
        entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
    )
    handle = os.open(entry.path, os.O_RDONLY | _CAREFULLY) if lockable else _NOTHING
    unused = _try_lock(handle) if lockable else None
    try:
        if unused is None:
            unused = entry.stat(follow_symlinks=False).st_mtime < oldest
        if unused and entry.is_dir(follow_symlinks=False):
            _remove_folder(entry.path)
        elif unused:
            os.unlink(entry.path)
    finally:
        if handle != _NOTHING:
            os.close(handle)


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


def _rename_if_free(temp: Path, place: Path) -> None:
    """What a hard link does, where there are none: one process at a time looks and renames."""
    with _locked(place.parent / ".lock"):
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
        os.rename(temp, place)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if sys.platform == "win32":  # there a rename fails by itself if something is in its place
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
    """What went wrong, where, and what to do."""
    path = f"{error.filename}: " if error.filename else ""
    number = error.errno or 0
    advice = f"; {_ADVICE[number]}" if number in _ADVICE else ""
    return f"{path}{error.strerror or error}{advice}"
