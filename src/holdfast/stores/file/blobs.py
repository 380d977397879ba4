"""Blobs as files, one each, named by their digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import Blob
from holdfast.ids import Digest, RunId
from holdfast.stores.disk import Disk
from holdfast.stores.names import safe_name


class Blobs:
    """A folder with a folder for each family, and in it a file for each blob."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def add(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable; one that is there already is left as it is."""
        folder = self._folder / safe_name(family)
        self._disk.make_folder(folder)
        for blob in blobs:
            self._add(folder / blob.digest.hex(), blob.data)
        # Also for those that were there: their writer may not have come this far yet.
        self._disk.sync_folder(folder)

    def _add(self, place: Path, data: bytes) -> None:
        if place.exists():
            return
        temp = self._disk.write(data)
        try:
            self._disk.publish(temp, place)
        except FileExistsError:
            pass
        finally:
            self._disk.remove(temp)

    def read(self, family: RunId, digests: Sequence[Digest]) -> dict[Digest, bytes]:
        """Those of the blobs that are there."""
        folder = self._folder / safe_name(family)
        found = {}
        for digest in digests:
            try:
                found[digest] = (folder / digest.hex()).read_bytes()
            except FileNotFoundError:
                pass
        return found
