"""Which processes use a store now: each holds a locked file in a folder that all of them see.

The kernel drops the lock when its process dies, however that happens, also on another host that mounts the folder.
A process that stands still keeps its lock, so the file is also renewed every ``RENEW_SECONDS``: one that was not
for ``LEASE_SECONDS`` belongs to nobody who could be waited for. Where there are no locks of that kind, the table of
processes says who is gone, as far as it can.

How long ago that was is told by the clock that nobody sets: when a file is renewed its process writes into it what that
clock says, and on which machine. Of those on other machines the times of files tell, as their file system has them.
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
# Others look at a lock by taking it, for an instant.
_PATIENCE_SECONDS = 10.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

if sys.platform == "win32":

    def _try_lock(handle: int) -> bool | None:
        return None

else:
    import fcntl

    def _try_lock(handle: int) -> bool | None:
        """Whether this process has the lock now; None where the file system knows no locks.

        Not ``flock``: a forked child would share its lock, and keep it when the parent dies. Of this kind a process
        loses all that it has on a file when it closes any descriptor of it, so its own is opened only once.
        """
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True


class Presence:
    """Shows in a folder that this process is there, and tells which others are.

    Several of one process share one file. All methods may be called from any thread, block for the time of some
    file operations, and raise ``OSError``; a finalizer may call none of them, for it may run in the middle of another.
    The folder above ``folder`` must be there when ``join`` is called.

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
        """The process that joined: a forked child did not."""

    @cached_property
    def _folder(self) -> Path:
        reject_link(self._given)
        return Path(os.path.realpath(self._given))

    @property
    def joined(self) -> bool:
        """Whether this process joined, and did not leave; blocks for nothing."""
        return self._joined == os.getpid()

    def join(self) -> None:
        """Let others see this process; more than once is once."""
        here = _here()
        with here.lock:
            if self._joined != here.pid:
                here.enter(self._folder)
                self._joined = here.pid

    def leave(self) -> None:
        """Let others see no longer that this process is there, unless it joined in another way too."""
        here = _here()
        with here.lock:
            if self._joined != here.pid:
                return
            self._joined = 0
            renewer = here.exit(self._folder)
        if renewer is not None:
            renewer.join()

    def lives(self, process: str) -> bool:
        """Whether a process that joined in this folder is to be waited for; false for one that did not."""
        here = _here()
        with here.lock:
            if process == this_process():
                return self._folder in here.files
            return _lives(here, self._folder, _path_of(self._folder, process), process)


class _OwnFile:
    """The locked file of this process in one folder."""

    def __init__(self, folder: Path) -> None:
        self.users = 0
        self._folder = folder
        self._path = _path_of(folder, this_process())
        self._handle = self._take()

    def _take(self) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with suppress(FileExistsError):  # who removes it right now is no matter: it is tried again
                os.mkdir(self._folder, _FOLDER_MODE)
            try:
                handle = open_regular(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # the last one that left has just removed the folder
                handle = -1
            if handle >= 0:
                if self._is_ours(handle):
                    return handle
                os.close(handle)
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, "another process keeps it locked or removes it", str(self._path))
            time.sleep(0.001)

    def _is_ours(self, handle: int) -> bool:
        """Lock it; false if somebody who looked at it before it was locked is about to remove it."""
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
        """Show that this process does not stand still.

        The file may be gone, and the lock too: a program that copies the folder opens and closes all that is in it.
        """
        if self._handle < 0 or _try_lock(self._handle) is False or not _is_at(self._handle, self._path):
            self.forget()
            self._handle = self._take()
        _write_stamp(self._handle)
        self.touch()

    @property
    def is_open(self) -> bool:
        """Whether the file is held; not while its folder is out of reach."""
        return self._handle >= 0

    def touch(self) -> float:
        """Set the time of the file to what its file system thinks it is now."""
        return _touch(self._handle, self._path)

    def remove(self) -> None:
        """Remove the file, then the lock: whoever finds the file finds it locked."""
        if sys.platform == "win32":  # it removes no file that is open
            self.forget()
            _unlink(self._path)
        else:
            _unlink(self._path)
            self.forget()
        try:
            self._folder.rmdir()
        except OSError:  # others are in it
            pass

    def forget(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _close(handle)


class _Renewer:
    """A thread that touches all files of this process now and then."""

    def __init__(self, process: _Process) -> None:
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
            except OSError:  # the folder is out of reach; it is tried again as long as somebody is joined
                pass

    def stop(self) -> None:
        """Let the thread end; called with the lock that it needs, so it cannot be waited for yet."""
        self._end.set()

    def join(self) -> None:
        """Wait until the thread is gone."""
        self._thread.join()


class _Process:
    """What this process holds, by folder; used while ``lock`` is held."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lock = threading.Lock()
        self.files: dict[Path, _OwnFile] = {}
        self._renewer: _Renewer | None = None

    def enter(self, folder: Path) -> None:
        """Count one more who joined in the folder."""
        file = self.files.get(folder)
        if file is None:
            file = _OwnFile(folder)
            try:
                self._renewer = self._renewer or _Renewer(self)
            except BaseException:  # no thread can be started
                file.remove()
                raise
            self.files[folder] = file
            _sweep(self, folder)
        file.users += 1

    def exit(self, folder: Path) -> _Renewer | None:
        """Count one less; a thread that is returned is about to end."""
        file = self.files.get(folder)
        if file is None:  # the process is ending
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


_processes: dict[int, _Process] = {}


def _here() -> _Process:
    pid = os.getpid()
    return _processes.get(pid) or _processes.setdefault(pid, _Process(pid))


def _after_fork() -> None:
    """A child holds nothing: the locks are the parent's, and so are the files."""
    for process in _processes.values():
        for file in process.files.values():
            file.forget()
    _processes.clear()


def _at_exit() -> None:
    """Leave no file behind when a process ends that did not leave; one that is killed leaves its file unlocked."""
    here = _here()
    if here.lock.acquire(timeout=1):  # a disk that does not answer must not keep it from ending
        for file in here.files.values():
            file.remove()
        here.files.clear()
        here.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _path_of(folder: Path, process: str) -> Path:
    """Its name comes from outside, so it is not part of a path."""
    name = hashlib.blake2b(process.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return folder / (name + _ENDING)


def _lives(here: _Process, folder: Path, path: Path, process: str) -> bool:
    """Whether the file of another process is held; one that is not is removed."""
    while True:
        try:
            handle = open_regular(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            free = _try_lock(handle)
            if free or (free is None and is_gone(process)):
                if not _is_at(handle, path):  # its process left, and may have joined again
                    continue
                _unlink(path)  # under the lock, so that nobody joins with it meanwhile
                return False
            try:
                return _age(here, folder, handle) <= LEASE_SECONDS
            except FileNotFoundError:  # the last one that left has just removed the folder
                continue
        finally:
            os.close(handle)


def _sweep(here: _Process, folder: Path) -> None:
    """Remove what processes left that died and that nobody asks for any more."""
    own = _path_of(folder, this_process()).name
    try:
        for name in os.listdir(folder):
            if name.endswith(_ENDING) and name != own:
                _lives(here, folder, folder / name, "")
    except OSError:  # of no consequence: they are noticed when somebody asks
        pass


def _write_stamp(handle: int) -> None:
    """Write who this is, and what the clock of this machine says that runs on evenly; always so many bytes."""
    text = f"{this_process()}\n{this_machine()} {time.monotonic():020.6f}\n"
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, text.encode("utf-8", "surrogateescape"))


def _age(here: _Process, folder: Path, handle: int) -> float:
    """How many seconds ago a file was renewed."""
    stamp = os.read(handle, _STAMP_BYTES).decode("utf-8", "surrogateescape").split("\n")
    machine, _, renewed = (stamp[1] if len(stamp) > 1 else "").rpartition(" ")
    if machine == this_machine():
        try:
            age = time.monotonic() - float(renewed)
        except ValueError:
            age = -1.0
        if age >= 0:  # else it was not this clock
            return age
    return _now(here, folder) - os.fstat(handle).st_mtime


def _now(here: _Process, folder: Path) -> float:
    """What the file system thinks the time is: clocks of two hosts are never compared."""
    own = here.files.get(folder)
    if own is not None and own.is_open:
        return own.touch()
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
    """Whether the open file still bears this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _close(handle: int) -> None:
    try:
        os.close(handle)
    except OSError:  # it is closed all the same
        pass


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:  # the next one who asks tries again
        pass
