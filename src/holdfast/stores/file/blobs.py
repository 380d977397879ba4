"""Blobs as files, one each, named by their digest.

A sweep removes blobs that no record names while others write records. Three things keep the two apart. A commit that
brings blobs holds a lock together with others, from before it looks at the first until it is published. A sweep holds
it alone when it begins, so all who came before are published and will be seen; and when it removes something. And the
time of a blob is when it was last brought, but never before the mark of the last sweep: whole seconds, which every file
system keeps, and counted on from the greatest there is, so that clocks do not matter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from holdfast.checkpoint.store import Blob, MarkedBlobs
from holdfast.ids import Digest, RunId
from holdfast.stores.common.disk import Disk, IrregularFile, is_regular, read_regular, reject_link
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.locks import Locks

_DIGEST_BYTES = 32
_SECOND = 10**9
# There are file systems that keep only even seconds.
_STEP = 2
# How long a sweep waits for commits that are under way, and lets others wait; one that stands still keeps it from the
# family.
_PATIENCE = 1.0


class BlobFolder:
    """A folder with a folder for each family, and in it a file for each blob."""

    def __init__(self, folder: Path, disk: Disk, locks: Locks) -> None:
        self._folder = folder
        self._disk = disk
        self._locks = locks

    @contextmanager
    def bring(
        self, family: RunId, blobs: Sequence[Blob], needs: Sequence[Digest] = ()
    ) -> Iterator[set[Digest]]:
        """Make blobs durable; yield those of ``needs`` that are there. None is removed before this ends."""
        if not blobs and not needs:
            yield set()
            return
        with ExitStack() as held:
            with self._locks.hold_shared(_gate_name(family)):
                handle = held.enter_context(self._locks.hold_shared(_lock_name(family)))
            mark = _last_mark(handle)
            needed = {digest for digest in needs if self._bring_again(family, digest, mark)}
            if blobs:
                self._add(family, blobs, mark)
            yield needed

    def _bring_again(self, family: RunId, digest: Digest, mark: int) -> bool:
        """Let a blob be seen to be brought; return False if it is not there."""
        place = self._family(family) / digest.hex()
        if not is_regular(place):
            return False
        try:
            _touch(place, mark)
        except FileNotFoundError:
            return False
        return True

    def remove_unused(self, used: Callable[[], set[str] | None]) -> None:
        """Remove the folders of families that no run has any more; ``used`` names those that are, None if unsure."""
        known = used()
        if known is None or not self._folder.is_dir():
            return
        for name in sorted(set(os.listdir(self._folder)) - known):
            folder = self._folder / name
            if folder.is_symlink() or not folder.is_dir():
                continue
            with self._alone_by_name(name) as handle:
                if handle is None:
                    continue
                if os.listdir(folder):
                    known = used()  # a run may have begun before the lock was taken
                    if known is None or name in known:
                        continue
                    for file in filter(_is_digest, os.listdir(folder)):
                        os.unlink(folder / file)
                with suppress(OSError):  # something else lies in it
                    folder.rmdir()
                    self._locks.remove(f"{name}.gate")  # the other lock has the last mark

    @contextmanager
    def _alone(self, family: RunId) -> Iterator[int | None]:
        """Wait until all commits under way are published, with those that come later behind the gate.

        Without it, commits that overlap would keep a sweep waiting for ever.
        """
        with self._alone_by_name(make_file_name(family)) as handle:
            yield handle

    @contextmanager
    def _alone_by_name(self, name: str) -> Iterator[int | None]:
        """Hold the lock of the family with this name alone."""
        with (
            self._locks.try_alone(f"{name}.gate", _PATIENCE),
            self._locks.try_alone(f"{name}.blobs", _PATIENCE) as handle,
        ):
            yield handle

    def _family(self, family: RunId) -> Path:
        """Return the folder of a family; raise ``OSError`` if it is a link."""
        folder = self._folder / make_file_name(family)
        reject_link(folder)
        return folder

    def _add(self, family: RunId, blobs: Sequence[Blob], mark: int) -> None:
        folder = self._family(family)
        self._disk.make_folder(folder)
        unsure = self._disk.has_unsynced_names(folder)
        for blob in blobs:
            place = folder / blob.digest.hex()
            # After a sync that failed also one that is there: its name may not be on the disk.
            self._disk.put(blob.data, place, anew=unsure)
            _touch(place, mark)
        # Also for those that were there: their writer may not have come this far yet.
        self._disk.sync_names(folder)

    def read(self, family: RunId, digests: Sequence[Digest]) -> dict[Digest, bytes]:
        """Return those of the blobs that are there."""
        folder = self._family(family)
        found = {}
        for digest in digests:
            try:
                found[digest] = read_regular(folder / digest.hex())
            except (FileNotFoundError, IrregularFile):
                pass
        return found

    def mark(self, family: RunId) -> MarkedBlobs:
        """Return the blobs once all commits that brought some are made; none if that cannot be known."""
        if not self._family(family).is_dir():  # a lock for each run without blobs would stay for ever
            return MarkedBlobs(0, {})
        with self._alone(family) as handle:
            if handle is None:
                return MarkedBlobs(0, {})
            files = self._files(family)
            last = max(
                [_last_mark(handle), *(-(-status.st_mtime_ns // _SECOND) for status in files.values())]
            )
            mark = (last // _STEP + 1) * _STEP
            os.pwrite(handle, b"%020d" % mark, 0)
            return MarkedBlobs(mark, {digest: status.st_size for digest, status in files.items()})

    def _files(self, family: RunId) -> dict[Digest, os.stat_result]:
        try:
            with os.scandir(self._family(family)) as entries:
                return {
                    Digest(bytes.fromhex(entry.name)): entry.stat(follow_symlinks=False)
                    for entry in entries
                    if _is_digest(entry.name) and entry.is_file(follow_symlinks=False)
                }
        except FileNotFoundError:
            return {}

    def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        """Remove blobs that nobody brought since the mark; return the bytes that were freed."""
        freed = 0
        with self._alone(family) as handle:
            for digest in digests if handle is not None else ():
                path = self._family(family) / digest.hex()
                try:
                    status = os.lstat(path)
                    if status.st_mtime_ns < mark * _SECOND:
                        os.unlink(path)
                        freed += status.st_size
                except FileNotFoundError:
                    pass
        return freed


def _touch(place: Path, mark: int) -> None:
    """Let the time of a blob be when it was brought, as far as a sweep will want to know."""
    if mark:
        brought = max(int(time.time()), mark)
        os.utime(place, (brought, brought))
    else:
        os.lstat(place)


def _lock_name(family: RunId) -> str:
    return f"{make_file_name(family)}.blobs"


def _gate_name(family: RunId) -> str:
    return f"{make_file_name(family)}.gate"


def _last_mark(handle: int | None) -> int:
    text = os.pread(handle, 20, 0) if handle is not None else b""
    return int(text) if text.isdigit() else 0


def _is_digest(name: str) -> bool:
    try:
        return len(bytes.fromhex(name)) == _DIGEST_BYTES
    except ValueError:
        return False
