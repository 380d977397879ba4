"""The folder of one run: a file for each commit, and the newest says where the run stands."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Record
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.stores.compare import check_head
from holdfast.stores.disk import Disk, explain
from holdfast.stores.file import document
from holdfast.stores.file.blobs import Blobs
from holdfast.stores.file.hints import Hints
from holdfast.stores.names import safe_name

_NAME = re.compile(r"(\d{8,})-(\d+)\.json")


class Place(NamedTuple):
    """Which commit file: ``seq`` is the least that its records can have, ``round`` counts commits without records.

    A place follows from the commit before it alone. So all who would follow the same commit try the same name,
    and only one of them gets it; and the names tell which file holds which seq.
    """

    seq: int
    round: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.seq:08}-{self.round}.json"

    def after(self, last_seq: int) -> Place:
        """The place of the commit that follows one at this place with records up to ``last_seq``."""
        return Place(last_seq + 1, 0) if last_seq >= self.seq else Place(self.seq, self.round + 1)


FIRST = Place(1, 0)


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
        self._head: Head | None = None
        self._newest: Place | None = None
        self._next = FIRST
        self._places: list[Place] | None = None

    def head(self) -> Head | None:
        """Where the run stands, also if others moved it; None if nothing was committed."""
        with self._lock:
            self._catch_up()
            return self._head

    def commit(self, commit: Commit, blobs: Blobs, hints: Hints) -> None:
        """Make a commit durable, its blobs first; its hints are there before anyone can see it."""
        with self._lock:
            try:
                self._check(commit)
                if commit.blobs:
                    blobs.add(commit.head.family, commit.blobs)
                if self._head is None:
                    self._disk.make_folder(self.path)
                self._append(commit, hints)
            except OSError:
                self._forget()
                raise

    def _check(self, commit: Commit) -> None:
        """Raise unless the commit may follow what is there, as far as is known; publishing it will show."""
        if self._head is None or _expected(self._head) != commit.expected:
            self._catch_up()
        check_head(commit, _expected(self._head))
        for record in commit.records:
            if record.run_id != commit.head.run_id:
                raise StorageError(
                    f"a commit of run {commit.head.run_id!r} has a record of run {record.run_id!r}"
                )
            least = self._next.seq if self._head is not None else 0
            if record.seq < least:
                raise StorageError(
                    f"run {record.run_id!r}: a new checkpoint has seq {record.seq}, but the next one is {least}; "
                    f"seqs only grow"
                )

    def _append(self, commit: Commit, hints: Hints) -> None:
        temp = self._disk.write(document.written(commit))
        try:
            while not self._published(temp, commit, hints):
                self._catch_up()
                self._check(commit)
        except BaseException:
            self._disk.remove(temp)
            raise
        self._sync(commit)
        self._stand(self._next, commit.head, max((record.seq for record in commit.records), default=0))

    def _published(self, temp: Path, commit: Commit, hints: Hints) -> bool:
        place = self.path / self._next.name
        for record in commit.records:
            hints.add(record.checkpoint_id, place)
        try:
            self._disk.publish(temp, place)
        except FileExistsError:
            return False
        return True

    def _sync(self, commit: Commit) -> None:
        try:
            self._disk.sync_folder(self.path)
        except OSError as error:
            self._forget()
            raise StorageError(
                f"run {commit.head.run_id!r}: {explain(error)}. It was committed, but a power cut may undo that; "
                f"read the head before going on"
            ) from error

    def _stand(self, place: Place, head: Head, last_seq: int) -> None:
        self._newest, self._head, self._next = place, head, place.after(last_seq)
        if self._places is not None:
            self._places.append(place)

    def _catch_up(self) -> None:
        """Find out where the run stands: from what is known step by step, or else from the names in the folder."""
        if self._newest is not None and not (self.path / self._newest.name).exists():
            self._forget()  # someone removed it by hand
        if self._newest is None:
            places = self._listed()
            if places:
                self._read(places[-1])
        else:
            while os.path.lexists(self.path / self._next.name):
                self._read(self._next)

    def _read(self, place: Place) -> None:
        try:
            file = document.read(self.path / place.name)
        except CheckpointCorrupt:
            self._forget()
            raise
        if safe_name(file.head.run_id) != self.path.name:
            raise Misplaced(
                f"{file.path} belongs to run {file.head.run_id!r}, whose folder is {safe_name(file.head.run_id)!r}; "
                f"{self.path} was copied or renamed: rename it back, or move it out of the store"
            )
        self._stand(place, file.head, file.last_seq)

    def _listed(self) -> list[Place]:
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(Place(int(match[1]), int(match[2])) for match in map(_NAME.fullmatch, names) if match)

    def records(self, first: int, last: int, depth: Depth) -> list[Record]:
        """The records with these seqs, in their order."""
        found = []
        for place in self._covering(first, last):
            file = document.read(self.path / place.name)
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
                return self._listed()
            newest = self._newest
            if newest is None:
                return []
            if self._places is None:
                # Later ones may be listed with gaps, while others write.
                self._places = [place for place in self._listed() if place <= newest]
            return list(self._places)


def _expected(head: Head | None) -> Expected | None:
    return Expected(head.checkpoint_id, head.token) if head is not None else None
