"""Large blobs, one file each: written once under a name of their own, never changed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.checkpoint.store import Blob
from holdfast.ids import Digest, RunId
from holdfast.stores.common.disk import Disk, read_regular, reject_link
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.locks import Locks

_LOCK, _GATE = ".sweep", ".gate"
# How long a sweep waits for writers, and lets others wait; one of them that stands still keeps it from sweeping.
_PATIENCE = 1.0


class BlobSweepLock:
    """A lock in a folder, which the kernel drops when its process dies: many writers, or one sweep.

    A writer holds it from before it writes a blob, or finds it there, until the commit that names it is durable.
    """

    def __init__(self, folder: Path) -> None:
        self._locks = Locks(folder)

    def hold_shared(self) -> HeldSweepLock:
        """Take the lock together with other writers; raises ``TimeoutError``."""
        held = ExitStack()
        with self._locks.hold_shared(_GATE):
            held.enter_context(self._locks.hold_shared(_LOCK))
        return HeldSweepLock(held)

    def try_exclusive(self) -> HeldSweepLock | None:
        """Take the lock alone; None if writers hold it for long, or where there are no locks.

        Writers that come later wait at the gate: those that overlap would keep a sweep waiting for ever.
        """
        held = ExitStack()
        with self._locks.try_alone(_GATE, _PATIENCE):
            alone = held.enter_context(self._locks.try_alone(_LOCK, _PATIENCE))
        if alone is not None:
            return HeldSweepLock(held)
        held.close()
        return None


class HeldSweepLock:
    """A lock that is held until the context is left, or forgotten: whoever waited for it may have been cancelled."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Hold it no longer."""
        self._held.close()

    __del__ = release


_NAME = re.compile(r"[0-9a-f]{64}")


class BlobFiles:
    """The folder that holds them, with a folder for each namespace and in it one for each family."""

    def __init__(self, root: Path, namespace: str) -> None:
        self._root = root
        self._disk = Disk(root / ".temp")
        self._folder = root / f"namespace-{make_file_name(namespace)}"
        self._swept = False
        self._lock = BlobSweepLock(root)

    def read(self, family: RunId, digest: Digest, size: int) -> bytes:
        """The bytes of a blob, of which it has so many; raises ``OSError``, and ``IrregularFile`` if it has more."""
        return read_regular(self._family(family) / digest.hex(), size)

    def _family(self, family: RunId) -> Path:
        """The folder of a family; raises ``OSError`` if it, or one above it, is a link."""
        folder = self._folder / make_file_name(family)
        for own in (self._root, self._folder, folder):
            reject_link(own)
        return folder

    def path(self, family: RunId, digest: Digest) -> Path:
        """Where a blob lies."""
        return self._folder / make_file_name(family) / digest.hex()

    def write(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable; one that is there is left as it is. Raises ``OSError``."""
        folder = self._family(family)
        reject_link(self._disk.temp)
        self._disk.make_folder(self._disk.temp)
        self._disk.make_folder(folder)
        if not self._swept:
            self._disk.sweep()
            self._swept = True
        unsure = self._disk.has_unsynced_names(folder)
        for blob in blobs:
            self._disk.put(blob.data, folder / blob.digest.hex(), anew=unsure)
        # Also for those that were there: whoever wrote them may have died before this.
        self._disk.sync_names(folder)

    def write_and_hold(self, family: RunId, blobs: Sequence[Blob]) -> HeldSweepLock:
        """Write blobs, and keep sweeps out until the context is left; writers do not keep each other out."""
        self._make_root()
        held = self._lock.hold_shared()
        try:
            self.write(family, blobs)
        except BaseException:
            held.release()
            raise
        return held

    def try_sweep_lock(self) -> HeldSweepLock | None:
        """Keep writers out, from now until the context is left: none is between writing a blob and naming it.

        None if that cannot be had.
        """
        self._make_root()
        return self._lock.try_exclusive()

    def list_sizes(self, family: RunId) -> dict[Digest, int]:
        """The blobs of a family, with their sizes."""
        found: dict[Digest, int] = {}
        try:
            with os.scandir(self._family(family)) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found[Digest(bytes.fromhex(entry.name))] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            pass
        return found

    def remove(self, family: RunId, digests: Sequence[Digest]) -> int:
        """Remove blobs that are there, while ``alone``; the bytes that they took."""
        freed, folder = 0, self._family(family)
        for digest in digests:
            path = folder / digest.hex()
            try:
                size = path.lstat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            freed += size
        return freed

    def _make_root(self) -> None:
        reject_link(self._root)
        # Before the lock puts its files there: a folder that is not empty counts as durable.
        self._disk.make_folder(self._root)
