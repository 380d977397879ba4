"""The folder of one run: a file for each commit, and the newest says where the run stands."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.checkpoint.store import (
    Commit,
    Damage,
    Depth,
    Expected,
    Head,
    Left,
    Letter,
    Mended,
    Note,
    Record,
    Removal,
)
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import RunId
from holdfast.stores.common.head_check import (
    change_tags,
    check_expected,
    check_head,
    check_needs,
    check_removal,
    tags_allow,
)
from holdfast.stores.file import document
from holdfast.stores.file.arrival import written_whole
from holdfast.stores.file.edits import Overlay, removal_document, tags_document
from holdfast.stores.file.inspecting import inspect, run_of
from holdfast.stores.file.mending import Mending, put_aside
from holdfast.stores.file.publishing import Draft, Publishing
from holdfast.stores.file.row import Row, View, covering
from holdfast.stores.file.standing import Standing
from holdfast.stores.file.tidying import Tidying
from holdfast.stores.file.tools import Tools

# How long a repair waits for those who are about to write.
_PATIENCE = 1.0


class RunFolder:
    """The commits of one run. Used by several threads: each method that needs it takes the lock."""

    def __init__(self, path: Path, tools: Tools) -> None:
        self.path = path
        self._tools = tools
        self._lock = threading.RLock()
        self._row = Row(path)
        self._publishing = Publishing(self._row, tools)
        self._tidying = Tidying(self._row, tools.disk, tools.locks, tools.hints)

    def head(self) -> Head | None:
        """Where the run stands, also if others moved it; None if nothing was committed."""
        with self._lock:
            self._publishing.look()
            return self._row.known.head

    def inbox(self) -> list[Letter]:
        """The letters that wait, oldest first."""
        with self._lock:
            self._publishing.look()
            return list(self._row.known.letters.values())

    def set_sign(self) -> None:
        """Make sure that the run is found when it is to be woken."""
        with self._lock:
            self._publishing.look()
            sign = self._row.known.sign(self.path.name)
            if sign is not None:
                self._tools.waking.add(sign)

    def notes(self) -> list[Note]:
        """The journal of the checkpoint on which the run stands, in order."""
        with self._lock:
            self._publishing.look()
            while True:
                with self._row.may_move_on():
                    return self._row.journal()

    def commit(self, commit: Commit) -> list[Letter]:
        """Make a commit durable, its blobs first; its hints are there before anyone can see it."""

        def draft() -> Draft:
            self._publishing.check(commit)
            return Draft(commit)

        with self._lock, self._forgetting():
            self._publishing.look()
            self._publishing.check(commit)
            family = commit.head.family
            with self._tools.blobs.bringing(family, commit.blobs, commit.needs) as needed:
                check_needs(commit, needed)
                self._publishing.append(draft)
            if commit.expected is None or commit.expected.checkpoint_id != commit.head.checkpoint_id:
                self._tidying.after_moving()
            return list(self._row.known.letters.values())

    def leave(self, since: int, letters: Sequence[Letter]) -> Left:
        """Leave letters in a commit that changes nothing else, unless one of their keys was used since that seq."""
        found = Left(None)

        def draft() -> Draft | None:
            nonlocal found
            known = self._row.known
            if known.head is None:
                found = Left(None)
                return None
            self._row.learn_keys(since)
            refused = tuple(known.used_of(letter.key for letter in letters))
            found = Left(known.head, refused)
            return None if refused or not letters else Draft(Commit(known.head, known.expected), letters)

        with self._lock, self._forgetting():
            self._publishing.look()
            if self._row.known.head is not None:
                self._publishing.append(draft)
            return found

    def tag(self, seq: int, tags: Sequence[str], drop: Sequence[str] | None) -> bool:
        """Take tags from a record and add others; false if it is not there."""

        def draft() -> Draft | None:
            known = self._row.known
            records = self.records(seq, seq, Depth.HEADERS) if known.head is not None else ()
            if known.head is None or not records:
                return None
            edits = tags_document({seq: change_tags(records[0].tags, tags, drop)})
            return Draft(Commit(known.head, known.expected), edits=edits, change=self._change(edits))

        with self._lock, self._forgetting():
            self._publishing.look()
            done = self._row.known.head is not None and self._publishing.append(draft)
            if done:
                self._tidying.settle()
            return done

    def remove(self, removal: Removal) -> bool:
        """Remove records and give others keyframes, all at once; the room is freed afterwards."""

        def draft() -> Draft | None:
            head = self._stands(removal.run_id, removal.expected)
            check_removal(head, removal)
            if not tags_allow(removal, self._tags_of({*removal.seqs, *(seq for seq, _, _ in removal.tags)})):
                return None
            self._row.learn_keys(0)
            known = self._row.known
            edits = removal_document(removal, sorted(known.used))
            return Draft(Commit(head, known.expected), edits=edits, change=self._change(edits), removes=True)

        with self._lock, self._forgetting():
            self._publishing.look()
            head = self._stands(removal.run_id, removal.expected)
            check_removal(head, removal)
            with self._tools.blobs.bringing(head.family, removal.blobs):
                done = self._publishing.append(draft)
            if done:
                self._tidying.settle()
            return done

    def _tags_of(self, seqs: Set[int]) -> dict[int, tuple[str, ...]]:
        records = self.records(min(seqs), max(seqs), Depth.HEADERS) if seqs else []
        return {record.seq: record.tags for record in records if record.seq in seqs}

    def remove_run(self, run_id: RunId, expected: Expected) -> None:
        """Remove the run: a last commit says so. Its folder goes by ``finish_removing``."""

        def draft() -> Draft:
            head = self._stands(run_id, expected)
            return Draft(Commit(head, self._row.known.expected), gone=True)

        with self._lock, self._forgetting():
            self._publishing.append(draft)

    def finish_removing(self) -> bool:
        """Let the folder go if its run was removed, perhaps by a process that died over it; whether there is none."""
        with self._lock, self._forgetting():
            self._publishing.look()
            if self._row.known.head is None and self._row.known.newest is not None:
                self._tidying.clear()
                self._row.catch_up()
            return self._row.known.head is not None or self._row.known.newest is None

    def _stands(self, run_id: RunId, expected: Expected) -> Head:
        head = self._row.known.head
        check_expected(run_id, expected, head)
        assert head is not None
        return head

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forget what is known if anything fails."""
        try:
            yield
        except OSError:
            self._row.forget()
            raise

    def records(self, first: int, last: int, depth: Depth) -> list[Record]:
        """The records with these seqs, in their order."""
        while True:
            with self._lock:
                self._publishing.check_durable()
                view = self._row.view()
            try:
                found = _read(view, first, last, depth)
            except FileNotFoundError:  # it was freed, or its name is another now
                with self._lock:
                    self._row.forget_names()
                continue
            except CheckpointCorrupt:
                if self._known().newest == view.newest:
                    raise
                continue
            # If records were removed meanwhile, some files may have been read before that, others after.
            if self._known().base in (None, view.base):
                return found

    def _change(self, edits: dict[str, Any]) -> int:
        """By how much edits change the sum of the seals of the records; what is damaged counts as it is."""
        view, overlay = self._row.view(), Overlay([edits])
        change = 0
        for place in {one for first, last in overlay.ranges for one in covering(view.places, first, last)}:
            content = document.content_of(view.paths[place])
            if content:
                records = view.overlay.applied(document.parsed(view.paths[place], content).records)
                change += total(overlay.applied(records)) - total(records)
        return change

    def _known(self) -> Standing:
        """What is known now; nothing, if the newest file is damaged."""
        with self._lock:
            try:
                self._row.catch_up()
            except CheckpointCorrupt:
                pass
            return self._row.known

    def run_id(self) -> RunId | None:
        """The run whose folder this is, as far as it can be told."""
        with self._lock:
            return run_of(self._row)

    def inspect(self) -> list[Damage]:
        """What is wrong with the files."""
        with self._lock:
            return inspect(self._row, self._tools.hints)

    def mend(self, damaged: Path) -> list[Mended]:
        """Let the newest file be one that can be read; those that cannot go to ``damaged``."""
        with self._lock, self._forgetting(), self._alone():
            mending = Mending(self._row, self._tools.disk, self._tools.hints, damaged)
            done = list(mending.mended())
            self._row.forget()
            return done

    def replace(self, commit: Commit, damaged: Path, mending: Path) -> None:
        """Let another folder take the place of this one, which goes to ``damaged``.

        It lies in ``mending`` between the two: if this process dies then, the next one that writes puts it into place.
        """
        with self._lock, self._forgetting(), self._alone():
            self._publishing.look()
            check_head(commit, self._row.known.expected)
            with self._tools.blobs.bringing(commit.head.family, commit.blobs):
                whole = written_whole(commit, self.path, self._tools.disk, self._tools.hints)
                try:
                    os.rename(whole, mending)
                finally:
                    self._tools.disk.remove(whole)
                self._tools.disk.sync_folder(mending.parent)
                put_aside(self.path, damaged, self._tools.disk)
                os.rename(mending, self.path)
                self._tools.disk.sync_folder(self.path.parent)
            self._row.forget()
            self._row.catch_up()
            if self._row.known.newest is not None:
                self._tools.hints.forget(self.path)
                self._tools.hints.reached(self.path, self._row.known.newest)

    def finish_mending(self, mending: Path) -> None:
        """Put the folder into its place that a process left on its way, unless that died before it took the other."""
        with self._lock, self._forgetting(), self._alone(patience=0.0):
            if self.path.exists():
                self._tools.disk.remove(mending)
            else:
                os.rename(mending, self.path)
                self._tools.disk.sync_folder(self.path.parent)
            self._row.forget()

    @contextmanager
    def _alone(self, patience: float = _PATIENCE) -> Iterator[None]:
        """Keep everybody else from the folder."""
        locks, name = self._tools.locks, self.path.name
        with locks.try_turn(f"{name}.tidy") as mine, locks.try_alone(f"{name}.run", patience) as handle:
            if not mine or (handle is None and not locks.is_unused(f"{name}.run")):
                raise StorageError(f"{self.path} is in use by others, and was not repaired; try again")
            yield

    def files(self) -> list[Path]:
        """All commit files, newest first."""
        with self._lock:
            view = self._row.view()
            return [view.paths[place] for place in reversed(view.places)]


def total(records: Sequence[dict[str, Any]]) -> int:
    """The sum of the seals of records."""
    return sum(seal for record in records if isinstance(seal := record.get("seal"), int))


def _read(view: View, first: int, last: int, depth: Depth) -> list[Record]:
    """The records with these seqs, in their order."""
    found: dict[int, Record] = {}
    for place in covering(view.places, first, last):
        path = view.paths[place]
        content = document.content_of(path)
        if not content and view.emptied(place):
            continue
        file = document.parsed(path, content)
        for item in view.overlay.applied(file.records):
            if first <= item["seq"] <= last:
                found[item["seq"]] = file.record(item, depth)
    return [found[seq] for seq in sorted(found)]
