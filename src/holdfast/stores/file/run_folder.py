"""The folder of one run: a file for each commit, and the newest says where the run stands."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.store import Commit, Depth, Head, Left, Letter, Note, Record
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.stores.compare import check_head
from holdfast.stores.disk import Disk, explain
from holdfast.stores.file import document
from holdfast.stores.file.arrival import arrives, publish_whole
from holdfast.stores.file.blobs import Blobs
from holdfast.stores.file.emptying import empty_rounds
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.place import Place, full, listed
from holdfast.stores.file.standing import Standing
from holdfast.stores.names import safe_name


class Misplaced(StorageError):
    """The folder holds a run that belongs into another one."""


class RunFolder:
    """The commits of one run. It remembers where the run stands, and looks only for what came since.

    Used by several threads: each method that needs it takes the lock.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._known = Standing()
        self._places: list[Place] | None = None

    def head(self) -> Head | None:
        """Where the run stands, also if others moved it; None if nothing was committed."""
        with self._lock:
            self._catch_up()
            return self._known.head

    def inbox(self) -> list[Letter]:
        """The letters that wait, oldest first."""
        with self._lock:
            self._catch_up()
            return list(self._known.letters.values())

    def notes(self) -> list[Note]:
        """The journal of the checkpoint on which the run stands, in order."""
        with self._lock:
            self._catch_up()
            while True:
                newest = self._known.newest
                try:
                    return self._journal()
                except CheckpointCorrupt:  # or emptied, because the run moved on
                    self._catch_up()
                    if self._known.newest == newest:
                        raise

    def commit(self, commit: Commit, blobs: Blobs, hints: Hints) -> list[Letter]:
        """Make a commit durable, its blobs first; its hints are there before anyone can see it."""
        with self._lock:
            try:
                self._check(commit)
                if commit.blobs:
                    blobs.add(commit.head.family, commit.blobs)
                if self._known.head is None:
                    self._disk.make_folder(self.path)
                while not self._published(commit, hints):
                    self._check(commit)
            except OSError:
                self._forget()
                raise
            return list(self._known.letters.values())

    def leave(self, since: int, letters: Sequence[Letter], hints: Hints) -> Left:
        """Leave letters in a commit that changes nothing else, unless one of their keys was used since that seq."""
        with self._lock:
            try:
                while True:
                    self._catch_up()
                    head = self._known.head
                    if head is None:
                        return Left(None)
                    self._learn_keys(since)
                    refused = tuple(self._known.used_of(letter.key for letter in letters))
                    if refused or not letters:
                        return Left(head, refused)
                    if self._published(Commit(head, self._known.expected), hints, letters):
                        return Left(head)
            except OSError:
                self._forget()
                raise

    def _check(self, commit: Commit) -> None:
        """Raise unless the commit may follow what is there, as far as is known; publishing it will show."""
        self._catch_up()
        check_head(commit, self._known.expected)
        for record in commit.records:
            if record.run_id != commit.head.run_id:
                raise StorageError(
                    f"a commit of run {commit.head.run_id!r} has a record of run {record.run_id!r}"
                )
            least = self._known.next.seq if self._known.head is not None else 0
            if record.seq < least:
                raise StorageError(
                    f"run {record.run_id!r}: a new checkpoint has seq {record.seq}, but the next one is {least}; "
                    f"seqs only grow"
                )

    def _published(self, commit: Commit, hints: Hints, left: Sequence[Letter] = ()) -> bool:
        """Make the next file, durably; false if another writer made it first."""
        if arrives(commit):
            if not publish_whole(commit, self.path, self._disk, hints):
                return False
            self._forget()
            self._catch_up()
            return True
        place, outline = self._known.next, self._known.outline(commit, left)
        temp = self._disk.write(document.written(commit, outline.letters, outline.taken))
        try:
            for record in commit.records:
                hints.add(record.checkpoint_id, self.path / place.name)
            self._disk.publish(temp, self.path / place.name)
        except FileExistsError:
            self._disk.remove(temp)
            return False
        except BaseException:
            self._disk.remove(temp)
            raise
        self._sync(commit, left)
        if outline.moved:
            self._empty()
        self._known.follow(place, outline)
        self._remember(place)
        return True

    def _sync(self, commit: Commit, left: Sequence[Letter]) -> None:
        try:
            self._disk.sync_folder(self.path)
        except OSError as error:
            self._forget()
            what = (
                "The letters were left, but a power cut may undo that; those that are refused now are there"
                if left
                else "It was committed, but a power cut may undo that; read the head before going on"
            )
            raise StorageError(f"run {commit.head.run_id!r}: {explain(error)}. {what}") from error

    def _empty(self) -> None:
        """Empty files that nobody needs any more.

        Those right before the newest file stay until the next commit moves the head, for whoever must move a damaged
        newest file out of the folder.
        """
        for place in self._known.full:
            empty_rounds(self.path, place, self._disk.temp)
        self._known.full = ()

    def _catch_up(self) -> None:
        """Find out where the run stands: from what is known step by step, or else from the names in the folder."""
        newest = self._known.newest
        if newest is not None and not (self.path / newest.name).exists():
            self._forget()  # someone removed it by hand
        if self._known.newest is None:
            self._start(listed(self.path))
        while os.path.lexists(self.path / self._known.next.name):
            self._read(self._known.next)

    def _start(self, places: Sequence[Place]) -> None:
        """Begin with the newest of the files."""
        self._known = Standing.before(places)
        if places:
            self._read(places[-1])

    def _read(self, place: Place) -> None:
        """Take in a file."""
        try:
            file = self._file(place)
        except CheckpointCorrupt:
            self._forget()
            places = listed(self.path)
            if not places or places[-1] <= place:
                raise
            self._start(places)  # what matters of a damaged file, those behind it say again
            return
        if file is None:
            self._known.pass_over(place)
        elif safe_name(file.head.run_id) != self.path.name:
            self._forget()
            raise Misplaced(
                f"{file.path} belongs to run {file.head.run_id!r}, whose folder is {safe_name(file.head.run_id)!r}; "
                f"{self.path} was copied or renamed: rename it back, or move it out of the store"
            )
        else:
            self._known.follow(place, file.outline)
        self._remember(place)

    def _remember(self, place: Place) -> None:
        if self._places is not None:
            self._places.append(place)

    def _file(self, place: Place) -> document.CommitFile | None:
        """What stands in a commit file; None if it was emptied, which is done only to those followed by a round."""
        path = self.path / place.name
        content = path.read_bytes()
        if not content and os.path.lexists(self.path / place.next_round.name):
            return None
        return document.parsed(path, content)

    def _whole_file(self, place: Place) -> document.CommitFile:
        """What stands in a commit file that must not be empty."""
        path = self.path / place.name
        return document.parsed(path, path.read_bytes())

    def _journal(self) -> list[Note]:
        if self._known.noted is None:
            self._known.noted = self._look_back()
        notes: dict[str, Note] = {}
        for place in self._known.noted:
            notes.update({note.key: note for note in self._whole_file(place).notes()})
        return list(notes.values())

    def _look_back(self) -> list[Place]:
        """Which files have notes since the head came to its checkpoint."""
        noted = []
        for place in reversed(self._all_places()):
            outline = self._whole_file(place).outline
            if outline.noted:
                noted.append(place)
            if outline.moved:
                break
        return noted[::-1]

    def _learn_keys(self, since: int) -> None:
        """Know all keys that were taken in files behind the checkpoint with this seq."""
        known = self._known
        if since + 1 < known.known_from:
            taken: list[str] = []
            # Each says what those without records before it took.
            for place in full(self._all_places()):
                if since < place.seq < known.known_from:
                    taken += self._whole_file(place).outline.taken
            known.learn(since + 1, taken)

    def records(self, first: int, last: int, depth: Depth) -> list[Record]:
        """The records with these seqs, in their order."""
        found = []
        for place in self._covering(first, last):
            file = self._file(place)
            if file is not None:
                found += [file.record(item, depth) for item in file.records if first <= item["seq"] <= last]
        return sorted(found, key=lambda record: record.seq)

    def _covering(self, first: int, last: int) -> list[Place]:
        """The files that can hold these seqs."""
        places = self.places()
        start = max(bisect_right(places, Place(first, 0)) - 1, 0)
        stop = max(bisect_left(places, Place(last + 1, 0)), 1)
        # One that is followed by another with the same seq holds no records; only the first may hold seq 0.
        return [
            place
            for index, place in enumerate(places[start:stop], start)
            if index in (0, len(places) - 1) or places[index + 1].seq > place.seq
        ]

    def places(self) -> list[Place]:
        """All commit files, oldest first. A damaged newest one does not keep anyone from reading the others."""
        with self._lock:
            try:
                self._catch_up()
            except CheckpointCorrupt:
                return listed(self.path)
            return list(self._all_places())

    def _all_places(self) -> list[Place]:
        newest = self._known.newest
        if newest is None:
            return []
        if self._places is None:
            # Later ones may be listed with gaps, while others write.
            self._places = [place for place in listed(self.path) if place <= newest]
        return self._places
