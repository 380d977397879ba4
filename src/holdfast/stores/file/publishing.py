"""Making the file that comes next in the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.store import Commit, Letter
from holdfast.errors import StorageError
from holdfast.stores.common.disk import explain_os_error
from holdfast.stores.common.head_check import check_head
from holdfast.stores.file import document
from holdfast.stores.file.arrival import arrives, publish_whole
from holdfast.stores.file.place import Place, listed
from holdfast.stores.file.row import Row
from holdfast.stores.file.tools import Tools
from holdfast.stores.file.waking import Sign, sign_of

# How long one whose commit may not be durable waits for those who are about to write.
_PATIENCE = 1.0


class Draft(NamedTuple):
    """What the next file is to say."""

    commit: Commit
    left: Sequence[Letter] = ()
    edits: dict[str, Any] | None = None
    change: int = 0
    """By how much the edits change the sum of the seals of the records."""
    removes: bool = False
    gone: bool = False


class _NotSynced(Exception):
    """The newest file of a run can be seen, but a power cut may take it away."""

    def __init__(self, draft: Draft, newest: Sequence[Place], path: Path, error: OSError) -> None:
        super().__init__(path)
        self.draft, self.error = draft, error
        self.newest = list(newest)
        """The newest file; none if others removed the run already."""
        self.path = path
        """The path that appeared: that file, or the folder of a run that came whole."""
        self.inode = _inode_of(path)


class Publishing:
    """What makes the next file, used by whoever holds the lock of the ``Row``."""

    def __init__(self, row: Row, tools: Tools) -> None:
        self._row = row
        self._tools = tools

    def append(self, draft: Callable[[], Draft | None]) -> bool:
        """Look where the run stands and publish what is to follow, until no other writer was faster.

        The lock tells those who free names that someone is about to take one; false if there is nothing to publish.
        """
        try:
            while True:
                with self._tools.locks.hold_shared(f"{self._row.path.name}.run"):
                    self.look()
                    with self._row.may_move_on():
                        newest = self._row.known.newest
                        wanted = draft()
                        if self._row.known.newest != newest:
                            continue  # the run moved on while that was read, so it may say where the run stood before
                        if wanted is None:
                            return False
                        if self._published(wanted):
                            return True
        except _NotSynced as unsynced:
            self._row.forget()
            raise self._failure(unsynced) from unsynced.error

    def _failure(self, unsynced: _NotSynced) -> StorageError:
        """Take back what was published, unless others went on from it; what is to be said of that.

        Where it cannot be taken back, this process tells nothing more of the run.
        """
        run, left = self._row.path.name, unsynced.draft.left
        with self._tools.locks.try_alone(f"{run}.run", _PATIENCE) as handle:
            if not unsynced.newest or listed(self._row.path)[-1:] != unsynced.newest:
                said = "Another process went on from it, but a power cut may undo it: check the disk"
            elif handle is not None and self._taken_back(unsynced.path, unsynced.inode):
                said = (
                    "No letter was left: check the disk, then leave them again"
                    if left
                    else "It was taken back: check the disk, then resume the run from where it stood before"
                )
            else:
                self._tools.disk.doubted.add(self._row.path)
                said = (
                    "It can be seen, but a power cut may undo it: check the disk, then open the storage anew"
                )
        return StorageError(
            f"run {unsynced.draft.commit.head.run_id!r}: {explain_os_error(unsynced.error)}. {said}"
        )

    def _taken_back(self, path: Path, inode: int | None) -> bool:
        """Take away what was published, while nobody else writes; false if that cannot be done."""
        disk = self._tools.disk
        if inode is None or _inode_of(path) != inode:
            return False
        try:
            if path == self._row.path:
                disk.remove(disk.move_away(path))
            else:
                os.unlink(path)
        except OSError:
            return False
        with suppress(OSError):  # if a power cut brings it back, that is as if the commit had happened
            disk.sync_folder(path.parent)
        return True

    def look(self) -> None:
        """Find out where the run stands; raises ``StorageError`` if what can be seen may not be durable."""
        self.check_durable()
        self._row.catch_up()

    def check_durable(self) -> None:
        """Raise ``StorageError`` if the newest commit that can be seen may not be durable."""
        if self._row.path in self._tools.disk.doubted:
            raise StorageError(
                f"{self._row.path}: the disk failed to confirm the newest commit, which could not be taken back and "
                f"may be lost; check the disk, then open the storage anew"
            )

    def check(self, commit: Commit) -> None:
        """Raise unless the commit may follow what is there, as far as is known; publishing it will show."""
        known = self._row.known
        check_head(commit, known.expected)
        for record in commit.records:
            if record.run_id != commit.head.run_id:
                raise StorageError(
                    f"a commit of run {commit.head.run_id!r} has a record of run {record.run_id!r}"
                )
            least = known.next.seq - known.next.offset if known.head is not None else 0
            if record.seq < least:
                raise StorageError(
                    f"run {record.run_id!r}: a new checkpoint has seq {record.seq}, but the next one is {least}; "
                    f"seqs only grow"
                )

    def _published(self, draft: Draft) -> bool:
        """Make the next file, durably; false if another writer made it first."""
        disk, known, commit = self._tools.disk, self._row.known, draft.commit
        if known.newest is None:
            disk.make_folder(self._row.path)
        run, waking, before = self._row.path.name, self._tools.waking, known.sign(self._row.path.name)
        if arrives(commit) and known.newest is None:
            if self._published_whole(draft):
                return True
            self._row.catch_up()
            if self._row.known.newest is not None:
                return False
            known = self._row.known  # something lies there that is no commit, in the way of a folder only
        place = known.next
        outline = known.outline(commit, draft.left, draft.edits is not None, draft.removes, draft.change)
        if draft.gone:
            outline = document.Outline(commit.head, False, 0, gone=True)
        temp = disk.write(
            document.written(
                commit,
                outline.letters,
                outline.taken,
                draft.edits,
                outline.unsettled,
                outline.base,
                outline.content,
                outline.journal,
                outline.gone,
                place,
            )
        )
        sign = None if outline.gone else sign_of(commit.head, bool(outline.letters), run)
        try:
            for record in commit.records:
                self._tools.hints.add(record.checkpoint_id, self._row.path / place.name)
            if sign is not None and sign != before:
                waking.add(sign)
            disk.publish(temp, self._row.path / place.name)
        except FileExistsError:
            disk.remove(temp)
            return False
        except BaseException as error:
            appeared = _is_same(temp, self._row.path / place.name)
            disk.remove(temp)
            if appeared and isinstance(error, OSError):  # though the system said that it did not
                raise _NotSynced(draft, [place], self._row.path / place.name, error) from error
            raise
        try:
            disk.sync_folder(self._row.path)
        except OSError as error:
            raise _NotSynced(draft, [place], self._row.path / place.name, error) from error
        self._row.follow(place, outline)
        self._tools.hints.reached(self._row.path, place)
        if sign != before:
            self._change_sign(before, sign)
        return True

    def _published_whole(self, draft: Draft) -> bool:
        """Make the folder of a run that comes with many checkpoints, durably; false if something lies there."""
        commit, path, disk = draft.commit, self._row.path, self._tools.disk
        sign = sign_of(commit.head, bool(commit.letters), path.name)
        if sign is not None:
            self._tools.waking.add(sign)
        if not publish_whole(commit, path, disk, self._tools.hints):
            return False
        try:
            disk.sync_folder(path.parent)
        except OSError as error:
            raise _NotSynced(draft, listed(path)[-1:], path, error) from error
        self._row.forget()
        self._row.catch_up()
        if self._row.known.newest is not None:
            self._tools.hints.reached(path, self._row.known.newest)
        return True

    def _change_sign(self, before: Sign | None, sign: Sign | None) -> None:
        """Let the run have the sign of where it stands, and no other."""
        waking = self._tools.waking
        if sign is not None:
            waking.add(sign)  # once more: one that took long could be thought to be wrong
        if before is not None:
            waking.remove(before)
            # If this took long, another process may have brought the run back to where it needs that.
            self._row.catch_up()
            if self._row.known.sign(self._row.path.name) == before:
                waking.add(before)


def _inode_of(path: Path) -> int | None:
    """Tell a file from others that have its name later; None where the disk does not even tell that."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _is_same(temp: Path, place: Path) -> bool:
    try:
        return os.path.samefile(temp, place)
    except OSError:
        return False
