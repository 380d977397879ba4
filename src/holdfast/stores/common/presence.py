"""Shows which processes use a store now: each holds a locked file in a folder that all of them see.

The kernel drops the lock when its process dies, however that happens, also on another host that mounts the folder.
A process that stands still keeps its lock, so a thread also renews the file every ``RENEW_SECONDS``; a process whose
file was not renewed for ``LEASE_SECONDS`` counts as dead. On file systems without such locks the process table of this
machine says which processes are gone.

The age of a file is measured by the monotonic clock, which nobody sets: on each renewal a process writes the reading of
that clock and the name of its machine into its file. For processes of other machines the modification times of files
are compared, as their file system sets them.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import sys
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from holdfast.checkpoint.ownership import is_gone, this_machine, this_process
from holdfast.stores.common.disk import open_regular, reject_link

RENEW_SECONDS = 10.0
LEASE_SECONDS = 60.0

_FOLDER_MODE = 0o700
_ENDING = ".lock"
_CLOCK = "clock"
_STAMP_BYTES = 4_096
# Other processes test a lock by taking it for an instant, so taking it is tried again for some time.
_PATIENCE_SECONDS = 10.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

if sys.platform == "win32":

    def _try_lock(handle: int) -> bool | None:
        return None

    _try_shared_lock = _try_lock

else:
    import fcntl

    def _try_shared_lock(handle: int) -> bool | None:
        """Take a lock that many may hold, on a file that is open for reading; returns as ``_try_lock`` does."""
        return _try_lock(handle, fcntl.LOCK_SH)

    def _try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool | None:
        """Take the lock; return False if another process has it, None if the file system has no locks.

        Not by ``flock``: a forked child would share the lock, and keep it when the parent dies. A process loses a lock
        of this kind when it closes any descriptor of the file, so it opens its own file only once.
        """
        try:
            fcntl.lockf(handle, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True


class Presence:
    """Shows other processes in a folder that this one lives, and asks whether others live.

    Several objects of one process share one file. All methods may be called from any thread, block for the time of some
    file operations, and raise ``OSError``. A finalizer may call none of them, for it may interrupt another call. The
    folder above ``folder`` must exist when ``join`` is called.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     presence = Presence(Path(folder) / "owners")
    ...     presence.join()
    ...     print(presence.lives(this_process()))
    ...     presence.leave()
    ...     print(presence.lives(this_process()))
    True
    False
    """

    def __init__(self, folder: Path) -> None:
        self._given = folder
        self._joined = 0
        """The id of the process that joined, or 0: a forked child has not joined."""

    @cached_property
    def _folder(self) -> Path:
        reject_link(self._given)
        return Path(os.path.realpath(self._given))

    @property
    def joined(self) -> bool:
        """True if this process joined and did not leave; does not block."""
        return self._joined == os.getpid()

    def join(self) -> None:
        """Let other processes see this one; a second call does nothing."""
        own = _get_process_files()
        with own.lock:
            if self._joined != own.pid:
                own.enter(self._folder)
                self._joined = own.pid

    def leave(self) -> None:
        """Hide this process from others, unless another object of it joined the same folder."""
        own = _get_process_files()
        with own.lock:
            if self._joined != own.pid:
                return
            self._joined = 0
            renewer = own.exit(self._folder)
        if renewer is not None:
            renewer.join()

    def has_others(self) -> bool:
        """Return True if another process joined in this folder and lives."""
        own = _get_process_files()
        with own.lock:
            mine = _get_path(self._folder, this_process()).name
            try:
                names = [name for name in os.listdir(self._folder) if name.endswith(_ENDING) and name != mine]
            except FileNotFoundError:
                return False
            return any(_is_alive(own, self._folder, self._folder / name, "") for name in names)

    def seems_alive(self, process: str) -> bool:
        """Return what ``lives`` would, without writing anything; True where this user cannot tell."""
        try:
            handle = open_regular(_get_path(self._folder, process), os.O_RDONLY)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True
        try:
            free = _try_shared_lock(handle)
            return not is_gone(process) if free is None else not free
        finally:
            os.close(handle)

    def lives(self, process: str) -> bool:
        """Return True if a process joined in this folder and lives; False if it never joined."""
        own = _get_process_files()
        with own.lock:
            if process == this_process():
                return self._folder in own.files
            return _is_alive(own, self._folder, _get_path(self._folder, process), process)

    def lives_hashed(self, name: str) -> bool:
        """Return what ``lives`` would of a process that is named by ``hash_process``."""
        own = _get_process_files()
        with own.lock:
            if name == hash_process(this_process()):
                return self._folder in own.files
            return _is_alive(own, self._folder, self._folder / (name + _ENDING), "")


class _PresenceFile:
    """The locked file of this process in one folder."""

    def __init__(self, folder: Path) -> None:
        self.users = 0
        self._folder = folder
        self._path = _get_path(folder, this_process())
        self._handle = self._take()

    def _take(self) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with suppress(
                FileExistsError
            ):  # another process may remove it right now: then this is tried again
                os.mkdir(self._folder, _FOLDER_MODE)
            try:
                handle = open_regular(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # the last process that left has just removed the folder
                handle = -1
            if handle >= 0:
                if self._try_take(handle):
                    return handle
                os.close(handle)
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, "another process keeps it locked or removes it", str(self._path))
            time.sleep(0.001)

    def _try_take(self, handle: int) -> bool:
        """Lock the file; return False if another process tested it before that and is about to remove it."""
        try:
            if _try_lock(handle) is False or not _is_at(handle, self._path):
                return False
            os.ftruncate(handle, 0)
            _write_stamp(handle)
        except BaseException:
            os.close(handle)
            raise
        return True

    def renew(self) -> None:
        """Write a new stamp; take the file again if it was removed or its lock was lost.

        The lock is lost when a program in this process that copies the folder opens and closes the file.
        """
        if self._handle < 0 or _try_lock(self._handle) is False or not _is_at(self._handle, self._path):
            self.forget()
            self._handle = self._take()
        _write_stamp(self._handle)
        self.touch()

    @property
    def is_open(self) -> bool:
        """True if the file is open; False while its folder cannot be reached."""
        return self._handle >= 0

    def touch(self) -> float:
        """Set the modification time of the file to now, by the clock of its file system, and return it."""
        return _touch(self._handle, self._path)

    def remove(self) -> None:
        """Remove the file, then release the lock: so a file that others find is locked."""
        if sys.platform == "win32":  # an open file cannot be removed there
            self.forget()
            _unlink(self._path)
        else:
            _unlink(self._path)
            self.forget()
        try:
            self._folder.rmdir()
        except OSError:  # other processes are in it
            pass

    def forget(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _close(handle)


class _Renewer:
    """A thread that renews all files of this process every ``RENEW_SECONDS``."""

    def __init__(self, process: _ProcessFiles) -> None:
        self._end = threading.Event()
        self._process = process
        self._thread = threading.Thread(target=self._run, name="holdfast-presence", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            with self._process.lock:
                if not self._end.is_set():
                    self._renew()

    def _renew(self) -> None:
        for file in self._process.files.values():
            try:
                file.renew()
            except OSError:  # the folder cannot be reached; the next round tries again
                pass

    def stop(self) -> None:
        """Let the thread end; the caller holds the lock that it needs, so it must not wait yet."""
        self._end.set()

    def join(self) -> None:
        """Wait until the thread is gone."""
        self._thread.join()


class _ProcessFiles:
    """All files of this process, by folder; ``lock`` is held while they are used."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lock = threading.Lock()
        self.files: dict[Path, _PresenceFile] = {}
        self._renewer: _Renewer | None = None

    def enter(self, folder: Path) -> None:
        """Count one more user of the file in a folder; make the file for the first."""
        file = self.files.get(folder)
        if file is None:
            file = _PresenceFile(folder)
            try:
                self._renewer = self._renewer or _Renewer(self)
            except BaseException:  # the thread could not be started
                file.remove()
                raise
            self.files[folder] = file
            _sweep_dead(self, folder)
        file.users += 1

    def exit(self, folder: Path) -> _Renewer | None:
        """Count one user less, and remove the file after the last; return the thread if it ends for that."""
        file = self.files.get(folder)
        if file is None:  # the process is about to end
            return None
        file.users -= 1
        if file.users:
            return None
        del self.files[folder]
        file.remove()
        if self.files or self._renewer is None:
            return None
        renewer, self._renewer = self._renewer, None
        renewer.stop()
        return renewer


_processes: dict[int, _ProcessFiles] = {}


def _get_process_files() -> _ProcessFiles:
    pid = os.getpid()
    return _processes.get(pid) or _processes.setdefault(pid, _ProcessFiles(pid))


def _after_fork() -> None:
    """Forget all files in a forked child: the locks and the files are the parent's."""
    for process in _processes.values():
        for file in process.files.values():
            file.forget()
    _processes.clear()


def _at_exit() -> None:
    """Remove all files when the process ends; a killed process leaves its files behind, unlocked."""
    own = _get_process_files()
    if own.lock.acquire(timeout=1):  # a disk that does not answer must not prevent the end
        for file in own.files.values():
            file.remove()
        own.files.clear()
        own.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _get_path(folder: Path, process: str) -> Path:
    """Return the path of the file of a process; its name is hashed, because it comes from outside."""
    return folder / (hash_process(process) + _ENDING)


def hash_process(process: str) -> str:
    """Return the name of a process in a folder: 32 hexadecimal digits."""
    return hashlib.blake2b(process.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _is_alive(own: _ProcessFiles, folder: Path, path: Path, process: str) -> bool:
    """Return True if another process holds its file and renews it; remove a file that nobody holds."""
    while True:
        try:
            handle = open_regular(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            free = _try_lock(handle)
            if free or (free is None and is_gone(process)):
                if not _is_at(handle, path):  # the process left, and may have joined again
                    continue
                _unlink(path)  # under the lock, so that no process joins with it meanwhile
                return False
            try:
                return _measure_age(own, folder, handle) <= LEASE_SECONDS
            except FileNotFoundError:  # the last process that left has just removed the folder
                continue
        finally:
            os.close(handle)


def _sweep_dead(own: _ProcessFiles, folder: Path) -> None:
    """Remove the files of dead processes that nobody asks for any more."""
    own_name = _get_path(folder, this_process()).name
    try:
        for name in os.listdir(folder):
            if name.endswith(_ENDING) and name != own_name:
                _is_alive(own, folder, folder / name, "")
    except OSError:  # harmless: a dead process is noticed when somebody asks for it
        pass


def _write_stamp(handle: int) -> None:
    """Write the process, its machine and the monotonic clock; the number of bytes never changes."""
    text = f"{this_process()}\n{this_machine()} {time.monotonic():020.6f}\n"
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, text.encode("utf-8", "surrogateescape"))


def _measure_age(own: _ProcessFiles, folder: Path, handle: int) -> float:
    """Return how many seconds ago a file was renewed."""
    stamp = os.read(handle, _STAMP_BYTES).decode("utf-8", "surrogateescape").split("\n")
    machine, _, renewed = (stamp[1] if len(stamp) > 1 else "").rpartition(" ")
    if machine == this_machine():
        try:
            age = time.monotonic() - float(renewed)
        except ValueError:
            age = -1.0
        if age >= 0:  # else the clock began anew since
            return age
    return _read_file_system_time(own, folder) - os.fstat(handle).st_mtime


def _read_file_system_time(own: _ProcessFiles, folder: Path) -> float:
    """Return the time by the clock of the file system: clocks of two hosts are never compared."""
    file = own.files.get(folder)
    if file is not None and file.is_open:
        return file.touch()
    path = folder / _CLOCK
    handle = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        return _touch(handle, path)
    finally:
        os.close(handle)
        _unlink(path)


def _touch(handle: int, path: Path) -> float:
    os.utime(handle if os.utime in os.supports_fd else path)
    return os.fstat(handle).st_mtime


def _is_at(handle: int, path: Path) -> bool:
    """Return True if the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _close(handle: int) -> None:
    try:
        os.close(handle)
    except OSError:  # the descriptor is closed all the same
        pass


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:  # the next process that asks tries again
        pass
