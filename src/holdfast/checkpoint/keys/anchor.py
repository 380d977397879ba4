"""Anchors: the newest head of each run, remembered outside of a store, so that an older copy of it is noticed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import CheckpointUntrusted, InvalidArgument, StorageError, WrongType
from holdfast.ids import RunId

_WORTH_REWRITING = 10_000


@runtime_checkable
class Anchor(Protocol):
    """Remembers a number for each run, which grows with each change of its head.

    The storage calls it in the thread of the event loop, for every commit: it has to be quick. It may forget what was
    saved last, after a crash; then a run that was taken back by so much is not noticed.

    >>> class AnchorInMemory(dict):
    ...     def load(self, run): return self.get(run)
    ...     def save(self, run, version): self[run] = max(version or 0, self.get(run) or 0) if version else None
    ...     def runs(self): return {run: version for run, version in self.items() if version}
    >>> isinstance(AnchorInMemory(), Anchor)
    True
    """

    def load(self, run: str) -> int | None:
        """Return the greatest number that was saved for a run; None if there is none, or it was forgotten."""
        ...

    def save(self, run: str, version: int | None) -> None:
        """Remember a number for a run, unless a greater one is known; with None, forget the run: it was deleted."""
        ...

    def runs(self) -> dict[str, int]:
        """Return all runs that are remembered, with their numbers."""
        ...


class AnchorFile:
    """An anchor in a file, which any number of processes on one machine may share: a line for each change.

    Keep it where those who can write the store cannot write. It is not synced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     anchor = AnchorFile(folder + "/anchor")
    ...     anchor.save("r1", 3)
    ...     AnchorFile(folder + "/anchor").load("r1")
    3
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._lock = threading.Lock()
        self._handle = -1
        self._process = 0
        self._offset = 0
        self._rest = b""
        self._lines = 0
        self._versions: dict[str, int] = {}

    def __del__(self) -> None:
        if self._handle >= 0 and self._process == os.getpid():
            os.close(self._handle)

    def load(self, run: str) -> int | None:
        """Return the greatest number that any process saved for a run."""
        with self._lock:
            self._catch_up()
            return self._versions.get(run)

    def runs(self) -> dict[str, int]:
        """Return all runs that are remembered, with their numbers."""
        with self._lock:
            self._catch_up()
            return dict(self._versions)

    def save(self, run: str, version: int | None) -> None:
        """Remember the number of a run, or forget the run."""
        line = json.dumps([run, version]).encode() + b"\n"
        with self._lock:
            try:
                self._hold()
                try:
                    self._read_on()
                    os.write(self._handle, line)
                    self._read_on()
                    if self._lines > _WORTH_REWRITING and self._lines > 4 * len(self._versions):
                        self._rewrite()
                finally:
                    fcntl.flock(self._handle, fcntl.LOCK_UN)
            except OSError as error:
                raise self._failure(error) from error

    def _hold(self) -> None:
        """Lock the file that has the name now: another process may have written it anew meanwhile."""
        while True:
            self._open_current()
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            if self._is_current():
                return

    def _catch_up(self) -> None:
        """Read what was appended since the last time, also by other processes."""
        try:
            self._open_current()
            self._read_on()
        except OSError as error:
            raise self._failure(error) from error

    def _read_on(self) -> None:
        while data := os.pread(self._handle, 1 << 16, self._offset):
            self._offset += len(data)
            self._take(data)

    def _open_current(self) -> None:
        if self._is_current():
            return
        if self._handle >= 0 and self._process == os.getpid():
            os.close(self._handle)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._process = os.getpid()
        self._offset, self._rest, self._lines, self._versions = 0, b"", 0, {}

    def _is_current(self) -> bool:
        if self._handle < 0 or self._process != os.getpid():
            return False
        try:
            there, here = os.stat(self._path), os.fstat(self._handle)
        except FileNotFoundError:
            raise StorageError(
                f"the anchor {str(self._path)!r} is gone while it is used; put it back, or open the storage again "
                f"without what it remembered"
            ) from None
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines += 1
            try:
                run, version = json.loads(line)
            except ValueError as error:
                raise StorageError(
                    f"the anchor {str(self._path)!r} is damaged in line {self._lines}; restore it, or begin with a new "
                    f"file if you trust the store as it is"
                ) from error
            if version is None:
                self._versions.pop(run, None)
            elif version > self._versions.get(run, 0):
                self._versions[run] = version

    def _rewrite(self) -> None:
        """Write the file anew without what no longer counts; the lock is held."""
        temp = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        lines = [json.dumps([run, version]) + "\n" for run, version in self._versions.items()]
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.writelines(lines)
        os.replace(temp, self._path)

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"the anchor {str(self._path)!r} cannot be used: {error}")


class AnchorCheck:
    """Compares heads that were read with what an anchor remembers."""

    def __init__(self, anchor: Anchor, namespace: str) -> None:
        self._anchor = anchor
        self._prefix = f"{namespace}/"

    def load(self, run_id: RunId) -> int | None:
        """Return the number that a head has at least which is read from now on."""
        return self._anchor.load(self._prefix + run_id)

    def runs(self) -> dict[RunId, int]:
        """Return the runs that are remembered, with their numbers."""
        return {
            RunId(name.removeprefix(self._prefix)): version
            for name, version in self._anchor.runs().items()
            if name.startswith(self._prefix) and "/" not in name.removeprefix(self._prefix)
        }

    def save(self, run_id: RunId, version: int | None) -> None:
        """Remember that a head with this number is durable, or that the run goes."""
        self._anchor.save(self._prefix + run_id, version)

    def check(self, run_id: RunId, version: int | None, least: int | None) -> None:
        """Raise ``CheckpointUntrusted`` if a head that was read is older than ``least``, or missing.

        ``least`` was loaded before the head was read; the run may have been deleted meanwhile.
        """
        if least is None or (version is not None and version >= least):
            return
        least = self.load(run_id)
        if least is None or (version is not None and version >= least):
            return
        raise CheckpointUntrusted(explain_loss(run_id, version, least))


def explain_loss(run_id: RunId, version: int | None, least: int) -> str:
    """Say that a run is not as new as an anchor remembers."""
    what = "is missing" if version is None else f"is an older copy (change {version} of its head)"
    return (
        f"run {run_id!r} {what}, though its anchor remembers change {least}: somebody took the store back, cut it, or "
        f"removed the run without the anchor. If that was you, give the storage a new anchor"
    )


def check_anchor(anchor: Any) -> Anchor:
    """Return an anchor that is given as one, or as the path of a file; raise ``WrongType`` for anything else."""
    if isinstance(anchor, str | os.PathLike):
        if not os.fspath(anchor):
            raise InvalidArgument("anchor='': give the path of a file")
        return AnchorFile(anchor)
    if not isinstance(anchor, Anchor):
        raise WrongType(
            f"anchor={anchor!r}: give the path of a file, or an object with the methods load, save and runs"
        )
    return anchor
