"""Large blobs, one file each: written once under a name of their own, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import Blob
from holdfast.ids import Digest, RunId
from holdfast.stores.disk import Disk
from holdfast.stores.names import safe_name


class BlobFiles:
    """The folder that holds them, with a folder for each namespace and in it one for each family."""

    def __init__(self, root: Path, namespace: str) -> None:
        self._disk = Disk(root / ".temp")
        self._folder = root / f"namespace-{safe_name(namespace)}"
        self._swept = False

    def path(self, family: RunId, digest: Digest) -> Path:
        """Where a blob lies."""
        return self._folder / safe_name(family) / digest.hex()

    def write(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable; one that is there is left as it is. Raises ``OSError``."""
        folder = self._folder / safe_name(family)
        self._disk.make_folder(self._disk.temp)
        self._disk.make_folder(folder)
        if not self._swept:
            self._disk.sweep()
            self._swept = True
        for blob in blobs:
            self._write(folder / blob.digest.hex(), blob.data)
        # Also for those that were there: whoever wrote them may have died before this.
        self._disk.sync_folder(folder)

    def _write(self, path: Path, data: bytes) -> None:
        if path.exists():
            return
        temporary = self._disk.write(data)
        try:
            self._disk.publish(temporary, path)
        except FileExistsError:  # another process was faster
            self._disk.remove(temporary)
        except BaseException:
            self._disk.remove(temporary)
            raise
