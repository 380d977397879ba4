"""Large blobs, one file each, named by their digest and never changed; and the lock that keeps sweeps from them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.checkpoint.store import Blob
from holdfast.ids import Digest, RunId
from holdfast.stores.common.disk import Disk, read_regular, reject_link
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.locks import Locks

_LOCK, _GATE = ".sweep", ".gate"
# In seconds: how long a sweep waits for writers, and lets new writers wait. A writer that stands still prevents it.
_PATIENCE = 1.0


class BlobSweepLock:
    """A lock that many writers hold together, or one sweep alone; the kernel drops it when a process dies.

    A writer holds it from before it writes a blob, or finds it there, until the commit that names it is durable.
    """

    def __init__(self, folder: Path) -> None:
        self._locks = Locks(folder)

    def hold_shared(self) -> HeldSweepLock:
        """Take the lock together with other writers; raise ``TimeoutError`` if a sweep holds it for very long."""
        held = ExitStack()
        with self._locks.hold_shared(_GATE):
            held.enter_context(self._locks.hold_shared(_LOCK))
        return HeldSweepLock(held)

    def try_exclusive(self) -> HeldSweepLock | None:
        """Take the lock alone; None if writers hold it for long, or if the system has no locks.

        New writers wait at the gate meanwhile: writers that overlap would keep a sweep waiting for ever.
        """
        held = ExitStack()
        with self._locks.try_alone(_GATE, _PATIENCE):
            alone = held.enter_context(self._locks.try_alone(_LOCK, _PATIENCE))
        if alone is not None:
            return HeldSweepLock(held)
        held.close()
        return None


class HeldSweepLock:
    """A lock that is held until the context is left or the object is collected: its owner may have been cancelled."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock."""
        self._held.close()

    __del__ = release


_BLOB_NAME = re.compile(r"[0-9a-f]{64}")


class BlobFiles:
    """Reads and writes the files of one namespace: a folder for each family of runs, in it a file for each blob."""

    def __init__(self, root: Path, namespace: str) -> None:
        self._root = root
        self._disk = Disk(root / ".temp")
        self._folder = root / f"namespace-{make_file_name(namespace)}"
        self._swept = False
        self._lock = BlobSweepLock(root)

    def read(self, family: RunId, digest: Digest, size: int) -> bytes:
        """Return a blob of at most ``size`` bytes; raise ``OSError``, and ``IrregularFile`` if the file is longer."""
        return read_regular(self._get_family_folder(family) / digest.hex(), size)

    def _get_family_folder(self, family: RunId) -> Path:
        """Return the folder of a family; raise ``OSError`` if it, or a folder above it, is a link."""
        folder = self._folder / make_file_name(family)
        for own in (self._root, self._folder, folder):
            reject_link(own)
        return folder

    def path(self, family: RunId, digest: Digest) -> Path:
        """Return the path of a blob."""
        return self._folder / make_file_name(family) / digest.hex()

    def write(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable; leave files that exist as they are. Raise ``OSError`` if that fails."""
        folder = self._get_family_folder(family)
        reject_link(self._disk.temp)
        self._disk.make_folder(self._disk.temp)
        self._disk.make_folder(folder)
        if not self._swept:
            self._disk.sweep()
            self._swept = True
        unsure = self._disk.has_unsynced_names(folder)
        for blob in blobs:
            self._disk.put(blob.data, folder / blob.digest.hex(), anew=unsure)
        # Also for files that existed: their writer may have died before it synced the folder.
        self._disk.sync_names(folder)

    def write_and_hold(self, family: RunId, blobs: Sequence[Blob]) -> HeldSweepLock:
        """Write blobs, and keep sweeps out until the returned lock is released; writers do not keep each other out."""
        self._make_root()
        held = self._lock.hold_shared()
        try:
            self.write(family, blobs)
        except BaseException:
            held.release()
            raise
        return held

    def try_sweep_lock(self) -> HeldSweepLock | None:
        """Keep writers out until the returned lock is released: none is between writing a blob and its commit.

        Return None if writers hold the lock for long, or if the system has no locks.
        """
        self._make_root()
        return self._lock.try_exclusive()

    def list_sizes(self, family: RunId) -> dict[Digest, int]:
        """Return the sizes of the blobs of a family, by digest."""
        found: dict[Digest, int] = {}
        try:
            with os.scandir(self._get_family_folder(family)) as entries:
                for entry in entries:
                    if _BLOB_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found[Digest(bytes.fromhex(entry.name))] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            pass
        return found

    def remove(self, family: RunId, digests: Sequence[Digest]) -> int:
        """Remove blobs, while the lock of ``try_sweep_lock`` is held; return the bytes that they took."""
        freed, folder = 0, self._get_family_folder(family)
        for digest in digests:
            path = folder / digest.hex()
            try:
                size = path.lstat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            freed += size
        return freed

    def has_folder(self, family: RunId) -> bool:
        """Return True if a family has, or had, blobs here."""
        return (self._folder / make_file_name(family)).is_dir()

    def remove_empty_folders(self) -> None:
        """Remove temporary files that a crash left, and the folders of families without blobs; writers wait for it."""
        if not self._root.is_dir():
            return
        alone = self.try_sweep_lock()
        if alone is None:
            return
        with alone:
            if self._disk.temp.is_dir():
                self._disk.sweep()
            for folder in self._folder.iterdir() if self._folder.is_dir() else ():
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

    def _make_root(self) -> None:
        reject_link(self._root)
        # Before the lock makes its files: a folder that is not empty counts as durable.
        self._disk.make_folder(self._root)
