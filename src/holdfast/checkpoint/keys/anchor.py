"""Anchors: the newest head of each run, remembered outside of a store, so that an older copy of it is noticed.

An anchor keeps a number for each name and does not understand it. ``AnchorCheck`` does: a name is that of a run in its
namespace, and a number the version of its head and what became of the run. So a run that was deleted is remembered,
and one that begins under its id counts its versions on.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from holdfast.errors import CheckpointUntrusted, InvalidArgument, StorageError, WrongType
from holdfast.ids import RunId

_WORTH_REWRITING = 10_000
_LONGEST_LINE = 1 << 20
_LIVES, _MAY_GO, _GONE = range(3)
"""The fate of a run: it is there; it was about to be removed, so it may be there or not; it was removed."""
_STATES = 3
_STORE = "store:"
"""Begins the names by which a store and its keys are remembered: id, epoch, fingerprint. Those of runs have a slash."""


@runtime_checkable
class Anchor(Protocol):
    """Remembers a number for each name, which grows: a name for each run, also of deleted ones, and those of the store.

    The storage calls it in the thread of the event loop, for every commit and each run that is listed: it has to be
    quick. It may forget what was saved last, after a crash; then a run that was taken back by so much is not noticed.

    >>> class AnchorInMemory(dict):
    ...     def load(self, run): return self.get(run)
    ...     def save(self, run, version): self[run] = max(version, self.get(run, 0))
    ...     def runs(self): return dict(self)
    >>> isinstance(AnchorInMemory(), Anchor)
    True
    """

    def load(self, run: str) -> int | None:
        """Return the greatest number that was saved for a name; None if there is none, or it was forgotten."""
        ...

    def save(self, run: str, version: int) -> None:
        """Remember a number for a name, unless a greater one is known."""
        ...

    def runs(self) -> dict[str, int]:
        """Return all names that are remembered, with their numbers."""
        ...


class AnchorFile:
    """An anchor in a file, which any number of processes on one machine may share: a line for each change.

    Keep it where those who can write the store cannot write. Lines are not synced. A last line that a crash tore is
    cut.

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
        """The end of the last whole line that was read."""
        self._lines = 0
        self._versions: dict[str, int] = {}

    def __del__(self) -> None:
        if self._handle >= 0 and self._process == os.getpid():
            os.close(self._handle)

    def load(self, run: str) -> int | None:
        """Return the greatest number that any process saved for a name."""
        with self._lock:
            self._catch_up()
            return self._versions.get(run)

    def runs(self) -> dict[str, int]:
        """Return all names that are remembered, with their numbers."""
        with self._lock:
            self._catch_up()
            return dict(self._versions)

    def save(self, run: str, version: int) -> None:
        """Remember the number of a name."""
        line = json.dumps([run, version]).encode() + b"\n"
        with self._lock:
            try:
                self._hold()
                try:
                    self._append(line)
                    if self._lines > _WORTH_REWRITING and self._lines > 4 * len(self._versions):
                        self._rewrite()
                finally:
                    fcntl.flock(self._handle, fcntl.LOCK_UN)
            except OSError as error:
                raise self._failure(error) from error

    def _append(self, line: bytes) -> None:
        """Add a line behind the last whole one; the lock is held, so nobody is writing what stands behind that."""
        if self._read_on():
            os.ftruncate(self._handle, self._offset)
        if os.write(self._handle, line) < len(line):
            os.ftruncate(self._handle, self._offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._read_on()

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

    def _read_on(self) -> bool:
        """Take the whole lines that were not read yet; return True if a part of one follows."""
        rest = b""
        while data := os.pread(self._handle, 1 << 16, self._offset + len(rest)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
                self._offset += len(line) + 1
            if len(rest) > _LONGEST_LINE:
                raise self._damaged()
        return bool(rest)

    def _open_current(self) -> None:
        if self._is_current():
            return
        if self._handle >= 0 and self._process == os.getpid():
            os.close(self._handle)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._process = os.getpid()
        self._offset, self._lines, self._versions = 0, 0, {}

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

    def _take(self, line: bytes) -> None:
        try:
            run, version = json.loads(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged() from error
        if type(run) is not str or type(version) is not int or version < 0:
            raise self._damaged()
        self._lines += 1
        if version > self._versions.get(run, 0):
            self._versions[run] = version

    def _damaged(self) -> StorageError:
        return StorageError(
            f"the anchor {str(self._path)!r} is damaged in line {self._lines + 1}; restore it, or begin with a new "
            f"file if you trust the store as it is"
        )

    def _rewrite(self) -> None:
        """Write the file anew without smaller numbers; the lock is held."""
        temp = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        lines = [json.dumps([run, version]) + "\n" for run, version in self._versions.items()]
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(handle, "w") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(handle)  # else a power cut may leave an empty file under the name
            os.replace(temp, self._path)
        except OSError:
            temp.unlink(missing_ok=True)
            raise

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"the anchor {str(self._path)!r} cannot be used: {error}")


class AnchorCheck:
    """Compares heads that were read with what an anchor remembers."""

    def __init__(self, anchor: Anchor, namespace: str) -> None:
        self._anchor = anchor
        self._prefix = f"{namespace}/"

    def bind(self, store_id: str, fingerprints: Mapping[int, str]) -> None:
        """Remember a store, and the key of each epoch of it.

        Raise ``CheckpointUntrusted`` if the anchor is that of another store, or remembers a key that is not there.
        """
        mine = {f"{_STORE}{store_id}:{epoch}:{key}" for epoch, key in fingerprints.items()}
        known = {name for name in self._anchor.runs() if name.startswith(_STORE) and "/" not in name}
        for other in (name.split(":")[1] for name in known):
            if other != store_id:
                raise CheckpointUntrusted(
                    f"the anchor remembers the runs of store {other}, but this is store {store_id}: somebody put "
                    f"another store there, or two stores were given one anchor. If you replaced the store on purpose, "
                    f"give the storage a new anchor"
                )
        if known - mine:
            raise CheckpointUntrusted(
                f"store {store_id} lacks keys that its anchor remembers, which a rekey made: somebody put back an "
                f"older copy, or keys of their own. If that was you, give the storage a new anchor"
            )
        for name in sorted(mine - known):
            self._anchor.save(name, 1)

    def load(self, run_id: RunId) -> int | None:
        """Return the number that is remembered for a run; ``accepts`` compares it with a head that is read after."""
        return self._anchor.load(self._prefix + run_id)

    def runs(self) -> set[RunId]:
        """Return the runs that have to be there."""
        return {
            RunId(name.removeprefix(self._prefix))
            for name, number in self._anchor.runs().items()
            if name.startswith(self._prefix) and "/" not in name.removeprefix(self._prefix)
            if number % _STATES == _LIVES
        }

    def last_version(self, run_id: RunId) -> int:
        """Return the greatest version that a head with this id had; 0 if none is known."""
        return (self.load(run_id) or 0) // _STATES

    def moved(self, run_id: RunId, version: int) -> None:
        """Remember that a head is durable."""
        self._save(run_id, version, _LIVES)

    def may_go(self, run_id: RunId, version: int) -> None:
        """Remember that a run may be gone from now on; if it stays after all, that counts until its next change."""
        self._save(run_id, version, _MAY_GO)

    def gone(self, run_id: RunId, version: int) -> None:
        """Remember that a run was removed, so that it cannot be put back."""
        self._save(run_id, version, _GONE)

    def accepts(self, version: int | None, least: int | None) -> bool:
        """Return True if a head may have a version, or be missing, if ``least`` was loaded before it was read."""
        if least is None:
            return True
        known, state = divmod(least, _STATES)
        if version is None:
            return state != _LIVES
        return version > known or (version == known and state != _GONE)

    def missing(self, run_id: RunId, least: int | None) -> None:
        """Remember that a run is gone if it was about to: whoever removed it died before they could say so."""
        if least is not None and least % _STATES == _MAY_GO:
            self.gone(run_id, least // _STATES)

    def refusal(self, run_id: RunId, version: int | None, least: int) -> CheckpointUntrusted:
        """Return the error for a run that is not what is remembered."""
        known, state = divmod(least, _STATES)
        what = "is missing" if version is None else f"is an older copy (change {version} of its head)"
        remembered = f"change {known}"
        if state == _GONE:
            what, remembered = (
                f"is there (change {version} of its head)",
                f"that it was deleted at change {known}",
            )
        return CheckpointUntrusted(
            f"run {run_id!r} {what}, though its anchor remembers {remembered}: somebody took the store back, cut it, "
            f"or changed or removed the run without the anchor. If that was you, give the storage a new anchor"
        )

    def _save(self, run_id: RunId, version: int, state: int) -> None:
        self._anchor.save(self._prefix + run_id, version * _STATES + state)


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
