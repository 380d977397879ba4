"""Making room in the folder of a run: carrying out edits, emptying files, freeing names.

All of it may be interrupted anywhere, and another process goes on with it later. One process does it at a time, and
one that stands still over it keeps the others from it: so nobody ever wakes up and puts an old file in its place.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.ids import CheckpointId
from holdfast.stores.common.disk import Disk
from holdfast.stores.common.locks import Locks
from holdfast.stores.file import document
from holdfast.stores.file.emptying import empty, empty_rounds
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.place import Place, full, names_in
from holdfast.stores.file.row import Row, View, covering

# How long the end of a removed run waits for those who are about to write to it.
_PATIENCE = 0.2


class Tidying:
    """What is done behind the commits of a run, by whoever holds the lock of its ``Row``."""

    def __init__(self, row: Row, disk: Disk, locks: Locks, hints: Hints) -> None:
        self._row, self._disk, self._locks, self._hints = row, disk, locks, hints
        self._folder = row.path

    @property
    def _name(self) -> str:
        return self._folder.name

    def after_moving(self) -> None:
        """What is due after a commit that moved the head."""
        if self._row.known.unsettled:
            self.settle()
        self._empty_rounds()

    def _empty_rounds(self) -> None:
        """Empty the files without records before earlier ones with records.

        Those right before the newest file stay until the next commit moves the head, for whoever must move a damaged
        newest file out of the folder. So do those with edits that one of the two newest files lists: whoever reads
        that file reads them, whether or not this process knows that they are carried out.
        """
        known = self._row.known
        if known.listed_before is None:
            return  # it is known after the next commit
        listed = {*known.listed, *known.listed_before}
        earlier = [place for place in known.full if place != known.newest]
        later = tuple(place for place in earlier if any(one in listed for one in place.rounds_before))
        known.full = later + known.full[len(earlier) :]
        if not any(place.round for place in earlier):
            return
        with self._locks.try_turn(f"{self._name}.tidy") as mine:
            for place in earlier if mine else ():
                empty_rounds(self._folder, place, self._disk, {*listed, known.base})

    def settle(self) -> None:
        """Carry out all edits, as far as that is possible, and make room; what fails is left to others."""
        try:
            with self._locks.try_turn(f"{self._name}.tidy") as mine:
                if mine:
                    self._settle()
        except (OSError, HoldfastError):
            self._row.forget()

    def _settle(self) -> None:
        view = self._row.view()
        known = self._row.known
        if known.head is None or not known.unsettled or self._disk.has_unsynced_names(self._folder):
            return  # after a sync that failed nobody can tell that edits are carried out: they stay listed for good
        unsettled = known.unsettled
        moved = self._row.moved()
        floor = moved if view.base is None else min(view.base, moved)
        affected = {
            place for first, last in view.overlay.ranges for place in covering(view.places, first, last)
        }
        dead = self._carry_out(view, sorted(affected), floor)
        if dead:
            self._disk.sync_names(self._folder)  # before anything goes that those files make superfluous
            self._free(floor, dead)
        self._disk.sync_names(self._folder)
        known.settle(unsettled)
        self._row.forget_names()

    def _carry_out(self, view: View, affected: Sequence[Place], floor: Place) -> set[Place]:
        """Write files anew: those first that get something, then those that lose something.

        Files before ``floor`` that lose all records are left as they are: they are what it returns.
        """
        losing, dead = [], set()
        for place in affected:
            path = view.paths[place]
            content = document.content_of(path)
            if not content:
                continue
            records = document.parsed(path, content).records
            left = view.overlay.applied(records)
            if len(left) < len(records):
                losing.append((path, place, records))
            elif left is not records:
                self._replace(path, document.rewritten(path, content, left))
        for path, place, records in losing:
            left = view.overlay.applied(records)
            if not left and path.name == place.kept_name:
                os.unlink(path)
            elif not left and place < floor:
                dead.add(place)
            else:
                self._replace(path, document.rewritten(path, document.content_of(path), left))
            kept = {record["seq"] for record in left}
            self._hints.remove(
                CheckpointId(record["checkpoint_id"]) for record in records if record["seq"] not in kept
            )
        return dead

    def _replace(self, path: Path, content: bytes) -> None:
        self._disk.replace(self._disk.write(content), path)

    def _free(self, floor: Place, dead: Container[Place]) -> None:
        """Free the names before a place, if most of them are of no use and nobody is about to write; or empty files.

        Whoever begins to write from now on sees the files behind them first, and takes a later name.
        """
        row, kept = names_in(self._folder)
        for place in kept:
            if place.seq < floor.offset:  # the run was removed since, and began anew
                os.unlink(self._folder / place.kept_name)
        before = [place for place in row if place < floor]
        holding = set(full(row))
        alive = {
            place
            for place in before
            if place in holding
            and place not in dead
            and place.seq > floor.offset
            and self._has_content(place)
        }
        if 2 * len(alive) > len(before) or not self._locks.is_unused(f"{self._name}.run"):
            for place in before:
                if place not in alive:
                    empty(self._folder / place.name, self._disk)
            return
        for place in before:  # from the first on: see ``Row``
            path = self._folder / place.name
            if place in alive:
                self._keep(path, self._folder / place.kept_name)
            else:
                os.unlink(path)

    def _has_content(self, place: Place) -> bool:
        return os.lstat(self._folder / place.name).st_size > 0

    def _keep(self, path: Path, kept: Path) -> None:
        os.rename(path, kept)
        for record in document.parsed(kept, document.content_of(kept)).records:
            self._hints.add(CheckpointId(record["checkpoint_id"]), kept)

    def clear(self) -> None:
        """Remove the folder of a run that was removed, as far as that is possible."""
        try:
            with self._locks.try_turn(f"{self._name}.tidy") as mine:
                if mine:
                    self._clear()
        except OSError:
            pass
        self._row.forget()

    def _clear(self) -> None:
        with self._locks.try_alone(f"{self._name}.run", _PATIENCE) as handle:
            self._row.catch_up()
            end = self._row.known.newest
            if end is None or self._row.known.head is not None:
                return
            row, kept = names_in(self._folder)
            self._forget_hints([self._folder / place.name for place in row if place < end])
            self._forget_hints([self._folder / place.kept_name for place in kept])
            for place in kept:
                os.unlink(self._folder / place.kept_name)
            for place in row:
                if place < end and handle is not None:
                    os.unlink(self._folder / place.name)
                elif place < end:
                    empty(self._folder / place.name, self._disk)
            if handle is None:
                return
            if self._disk.has_unsynced_names(self._folder):
                return
            # Nothing that was there before may come back without the file that ended it.
            self._disk.sync_names(self._folder)
            self._hints.forget_run(self._folder)
            os.unlink(self._folder / end.name)
            os.rmdir(self._folder)
            self._locks.remove(f"{self._name}.run")
            self._locks.remove(f"{self._name}.tidy")

    def _forget_hints(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                records = document.parsed(path, document.content_of(path)).records
            except (OSError, HoldfastError):
                continue
            self._hints.remove(CheckpointId(record["checkpoint_id"]) for record in records)
