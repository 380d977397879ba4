"""The commit files of a run as they lie in its folder, and what is known from them."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.store import Note
from holdfast.errors import CheckpointCorrupt
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.file import document
from holdfast.stores.file.edits import Overlay
from holdfast.stores.file.place import Misplaced, Names, Place, full, listed, names_in
from holdfast.stores.file.standing import Standing


class View(NamedTuple):
    """What is to be read to know the records of a run, at one moment."""

    places: list[Place]
    """Oldest first, of this life of the run."""
    paths: dict[Place, Path]
    overlay: Overlay
    base: Place | None
    newest: Place | None

    def emptied(self, place: Place) -> bool:
        """Whether nothing need be in a file: the records in it were removed, or it is followed by a round."""
        path = self.paths[place]
        removed = self.base is not None and place < self.base
        return removed or os.path.lexists(path.parent / place.next_round.name)


class Row:
    """Commit files, one behind the other. It remembers where the run stands, and looks only for what came since.

    A name is freed only while another one behind it stays, and only after all before it. So where the newest that is
    known is there and the next is not, it is the newest still. Whoever uses it holds a lock: it is for one thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self.known = Standing()
        self._newest: tuple[int, int, int] | None = None
        self._names: Names | None = None

    def forget_names(self) -> None:
        """Look again which files there are."""
        self._names = None

    def catch_up(self) -> None:
        """Find out where the run stands: from what is known step by step, or else from the names in the folder."""
        while True:
            try:
                if self.known.newest is None:
                    self._start(listed(self.path))
                while os.path.lexists(self.path / self.known.next.name):
                    self._read(self.known.next)
            except FileNotFoundError:  # its name was freed after it was listed
                self.forget()
                continue
            newest = self.known.newest
            if newest is None or _looks_of(self.path / newest.name) == self._newest:
                return
            # The run moved on and the name was freed; or it was removed and began anew; or someone removed it by hand.
            self.forget()

    @contextmanager
    def may_move_on(self) -> Iterator[None]:
        """Catch up instead of raising, if what cannot be read was emptied or freed because the run moved on."""
        newest = self.known.newest
        try:
            yield
        except (CheckpointCorrupt, FileNotFoundError):
            self.forget_names()
            self.catch_up()
            if self.known.newest == newest:
                raise

    def _start(self, places: Sequence[Place]) -> None:
        """Begin with the newest of the files."""
        self.known = Standing.before(places)
        if places:
            self._read(places[-1])

    def _read(self, place: Place) -> None:
        """Take in a file."""
        looks = _looks_of(self.path / place.name)
        try:
            file = self.file(place)
        except CheckpointCorrupt:
            self.forget()
            places = listed(self.path)
            if not places or places[-1] <= place:
                raise
            self._start(places)  # what matters of a damaged or emptied file, those behind it say again
            return
        if file is None:
            self.known.pass_over(place)
            self._newest = looks
            self.add(place)
        elif make_file_name(file.head.run_id) != self.path.name:
            self.forget()
            raise Misplaced(
                f"{file.path} belongs to run {file.head.run_id!r}, whose folder is "
                f"{make_file_name(file.head.run_id)!r}; "
                f"{self.path} was copied or renamed: rename it back, or move it out of the store"
            )
        else:
            self._follow(place, file.outline, looks)

    def follow(self, place: Place, outline: document.Outline) -> None:
        """Take in what the next file says, which was just made."""
        self._follow(place, outline, _looks_of(self.path / place.name))

    def _follow(self, place: Place, outline: document.Outline, looks: tuple[int, int, int] | None) -> None:
        self._newest = looks
        base = self.known.base
        if outline.gone:
            self.known = Standing.after_end(place)
        else:
            self.known.follow(place, outline)
        self.add(place)
        if self.known.base != base:
            self._names = None  # what is before it may be gone soon

    def add(self, place: Place) -> None:
        """Know the name of the next file."""
        if self._names is not None:
            self._names.row.append(place)

    def file(self, place: Place) -> document.CommitFile | None:
        """What stands in a commit file; None if it was emptied and is followed by a round."""
        path = self.path / place.name
        content = document.content_of(path)
        if not content and os.path.lexists(self.path / place.next_round.name):
            return None
        return document.parsed(path, content).trusted()

    def whole(self, place: Place) -> document.CommitFile:
        """What stands in a commit file that must not be empty."""
        path = self.path / place.name
        return document.parsed(path, document.content_of(path)).trusted()

    def names(self) -> Names:
        """The files of this life of the run, up to the newest that is known."""
        newest = self.known.newest
        if newest is None or self.known.head is None:
            return Names([], [])
        if self._names is None:
            row, kept = names_in(self.path)
            # Later ones may be listed with gaps, while others write.
            self._names = Names(
                [place for place in row if newest.offset < place.seq and place <= newest],
                [place for place in kept if newest.offset < place.seq],
            )
        return self._names

    def view(self) -> View:
        """What is to be read for the records. A damaged newest file does not keep anyone from reading the others."""
        while True:
            try:
                self.catch_up()
                known = self.known
                names, unsettled, base = self.names(), known.unsettled, known.base
            except CheckpointCorrupt:
                names, unsettled, base = self._before_damage()
            try:
                overlay = Overlay(self._edits(place, base) for place in unsettled)
            except (FileNotFoundError, CheckpointCorrupt):
                before = self.known.newest
                self.forget()
                self.catch_up()
                if self.known.newest == before:
                    raise
                continue
            row, kept = set(names.row), set(names.kept)
            places = sorted(row | kept)
            paths = {place: self.path / (place.name if place in row else place.kept_name) for place in places}
            return View(places, paths, overlay, base, self.known.newest)

    def _edits(self, place: Place, base: Place | None) -> dict[str, Any]:
        """What a file changes in earlier ones; nothing if it was freed or emptied: then that was carried out."""
        try:
            content = document.content_of(self.path / place.name)
        except FileNotFoundError:
            content = b""
        if not content and base is not None and place < base:
            return {}
        return self.whole(place).edits

    def lost_edits(self) -> list[Place]:
        """The files that the newest file lists as unsettled and that cannot be read."""
        lost = []
        for place in self.known.unsettled:
            try:
                self._edits(place, self.known.base)
            except (FileNotFoundError, CheckpointCorrupt):
                lost.append(place)
        return lost

    def _before_damage(self) -> tuple[Names, tuple[Place, ...], Place | None]:
        """The files of a run whose newest one is damaged, and what the last says that is not."""
        row, kept = names_in(self.path)
        for place in reversed(row[:-1]):
            try:
                outline = self.whole(place).outline
            except (FileNotFoundError, CheckpointCorrupt):
                continue
            if outline.gone:
                return Names(row[-1:], []), (), None
            alive = [[one for one in places if one.seq > place.offset] for places in (row, kept)]
            return Names(*alive), outline.unsettled, outline.base
        return Names(row, kept), (), None

    def journal(self) -> list[Note]:
        """The notes since the head came to its checkpoint, in order."""
        notes: dict[str, Note] = {}
        for file in self.noted():
            notes.update({note.key: note for note in file.notes()})
        return list(notes.values())

    def noted(self) -> list[document.CommitFile]:
        """The files with notes since the head came to its checkpoint."""
        if self.known.noted is None:
            self.known.noted = self._look_back()
        return [self.whole(place) for place in self.known.noted]

    def _look_back(self) -> list[Place]:
        """Which files have notes since the head came to its checkpoint."""
        return [place for place, outline in self._since_moved() if outline.noted]

    def moved(self) -> Place:
        """The file with which the head came to its checkpoint, or the first that is left since."""
        return self._since_moved()[0][0]

    def _since_moved(self) -> list[tuple[Place, document.Outline]]:
        found: list[tuple[Place, document.Outline]] = []
        for place in reversed(self.names().row):
            outline = self.whole(place).outline
            found.append((place, outline))
            if outline.moved:
                break
        return found[::-1]

    def learn_keys(self, since: int) -> None:
        """Know all keys that were taken in files behind the checkpoint with this seq."""
        known, base = self.known, self.known.base
        wanted = known.next.offset + since + 1
        if wanted >= known.known_from:
            return
        taken: list[str] = []
        if base is not None and wanted <= base.seq:
            taken += self.whole(base).used()
            wanted = base.offset + 1
        # Each says what those without records before it took.
        for place in full(self.names().row):
            if wanted <= place.seq < known.known_from and (base is None or base < place):
                taken += self.whole(place).outline.taken
        known.learn(wanted, taken)


def _looks_of(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from others that have had its name; None if it is not there."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def covering(places: Sequence[Place], first: int, last: int) -> list[Place]:
    """Those of the places that can hold these seqs."""
    if not places:
        return []
    offset = places[-1].offset
    start = max(bisect_right(places, Place(offset + first, 0)) - 1, 0)
    stop = max(bisect_left(places, Place(offset + last + 1, 0)), 1)
    # One that is followed by another with the same seq holds no records; only the first may hold seq 0.
    return [
        place
        for index, place in enumerate(places[start:stop], start)
        if index in (0, len(places) - 1) or places[index + 1].seq > place.seq
    ]
