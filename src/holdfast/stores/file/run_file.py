"""One run in its file: commits, letters, tags and removals, each a line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.store import (
    Commit,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    Note,
    Record,
    Removal,
)
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.head_check import (
    TagChange,
    check_expected,
    check_head,
    check_needs,
    check_removal,
    marks_allow,
    select_givers,
    tags_allow,
)
from holdfast.stores.file.blobs import BlobFolder
from holdfast.stores.file.line import LineDraft
from holdfast.stores.file.line_file import LineFile, PendingLine, RunGlance
from holdfast.stores.file.run_lock import HeldLock
from holdfast.stores.file.run_reader import RunReader
from holdfast.stores.file.run_state import RunState
from holdfast.stores.file.wake_signs import RunSign, WakeSign, WakeSigns

_T = TypeVar("_T")
# A commit with more records than this, of a run that comes whole, is many lines.
_MANY = 16
# The file is written anew when more than this is of no use, and more than what is of use.
_WASTE = 64 * 1024
_LITTLE_WASTE = 4096


class RunFile:
    """The file of one run. Used by several threads: each method takes the lock."""

    def __init__(self, lines: LineFile, blobs: BlobFolder, signs: WakeSigns) -> None:
        self.path = lines.path
        self._lines = lines
        self._reader = RunReader(lines)
        self._sign = RunSign(lines, signs)
        self._blobs = blobs
        self._lock = threading.RLock()

    # Reading.

    def head(self) -> Head | None:
        """Return where the run stands, also if others moved it; None if nothing was committed."""
        return self._look().head

    def peek(self) -> RunGlance:
        """Return where the run stands, without reading the whole file or waiting for a writer."""
        with self._lock:
            return self._lines.peek()

    def inbox(self) -> list[Letter]:
        """Return the letters that wait, oldest first; raise ``CheckpointCorrupt`` if some are missing."""
        return self._read(self._reader.letters)

    def taken(self, keys: Sequence[str]) -> list[str]:
        """Return those of the keys whose letters were left and taken."""
        state = self._look()
        return [key for key in keys if key in state.used and key not in state.letters]

    def notes(self) -> list[Note]:
        """Return the journal of the checkpoint on which the run stands, in order.

        Raises ``CheckpointCorrupt`` if some of it may be missing: what it noted would be done again.
        """
        return self._read(self._reader.notes)

    def events(self, first: int, limit: int) -> list[EventRow]:
        """Return the rows of events from a seq on, about ``limit`` of them and all of each seq."""
        return self._read(lambda: self._reader.events(first, limit))

    def records(self, first: int, last: int, depth: Depth) -> list[Record]:
        """Return the records with these seqs; raise ``CheckpointCorrupt`` if some of them cannot be read."""
        with self._lock:
            while True:
                state = self._lines.look()
                self._reader.check_lost(state.lost_between(first, last) if state.bad else None)
                found = self._reader.records(state.seqs_between(first, last), depth)
                if found is not None:
                    return found

    def ids(self) -> list[CheckpointId]:
        """Return the ids of all records."""
        with self._lock:
            return list(self._lines.look().by_id)

    def tags(self) -> list[str]:
        """Return the tags of all records."""
        with self._lock:
            return [tag for tags in self._lines.look().tags.values() for tag in tags]

    def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """Return the run and the seq of a checkpoint of this run."""
        with self._lock:
            state = self._lines.look()
            seq = state.by_id.get(checkpoint_id)
            return None if seq is None or state.run_id is None else (state.run_id, seq)

    def knows(self, checkpoint_id: CheckpointId) -> bool:
        """Return True if the run had a checkpoint when it was looked at last."""
        return checkpoint_id in self._lines.state.by_id

    def _look(self) -> RunState:
        with self._lock:
            state = self._lines.look()
            self._lines.check_readable()
            return state

    def _read(self, read: Callable[[], _T | None]) -> _T:
        """Read something of a run, once more whenever the file is written anew meanwhile."""
        with self._lock:
            while True:
                self._look()
                found = read()
                if found is not None:
                    return found

    # Writing.

    @contextmanager
    def _hold(self, is_patient: bool = True) -> Iterator[HeldLock]:
        """Keep other threads and processes from writing; the state is current."""
        with self._lock, self._lines.hold(is_patient) as held:
            self._lines.check_readable()
            yield held

    def commit(self, commit: Commit, is_patient: bool = True, is_doubtful: bool = False) -> list[Letter]:
        """Make a commit durable, its blobs first; return the letters that wait.

        Raises ``LockBusy`` where it would have to wait and is not ``is_patient``. If it ``is_doubtful``, it may have
        been made already, and then is not made again.
        """
        if not commit.blobs and not commit.needs:
            with self._hold(is_patient) as held:
                return self._commit(held, commit, set(), is_doubtful)
        check_head(commit, self._look().expected)
        family = commit.head.family
        with (
            self._blobs.bring(family, commit.blobs, commit.needs) as needed,
            self._hold(is_patient) as held,
        ):
            return self._commit(held, commit, needed, is_doubtful)

    def begin_commit(self, commit: Commit) -> PendingCommit | None:
        """Write a commit without syncing it; None if it cannot be made together with others. Raises ``LockBusy``.

        The locks of the run are held until it is finished, in the same thread.
        """
        if commit.blobs or commit.needs or len(commit.records) > _MANY:
            return None
        self._lock.acquire()
        held = None
        try:
            held = self._lines.acquire(is_patient=False)
            self._lines.check_readable()
            state = self._lines.state
            check_head(commit, state.expected)
            _check_records(commit, state.head)
            draft = self._counted(_commit_draft(commit, state))
            outdated = self._sign.announce(commit.head, draft.inbox)
            return PendingCommit(self, held, self._lines.begin_append(held, draft), outdated)
        except BaseException as error:
            self.release(held, error)
            raise

    def sync_name(self, pending: PendingLine) -> None:
        """Make the name of a new file durable, as ``LineFile.sync_name`` does."""
        self._lines.sync_name(pending)

    def release(self, held: HeldLock | None, error: BaseException | None) -> None:
        """Let go of the locks that ``begin_commit`` took; ``error`` is what went wrong, if something did."""
        try:
            if held is not None:
                self._lines.release(held, error)
        finally:
            self._lock.release()

    def finish_append(self, held: HeldLock, pending: PendingLine, outdated: WakeSign | None) -> list[Letter]:
        """Make a commit count that was synced; return the letters that wait."""
        self._lines.finish_append(held, pending)
        self._sign.withdraw(outdated)
        return self._letters_now()

    def _commit(self, held: HeldLock, commit: Commit, needed: set[Digest], is_doubtful: bool) -> list[Letter]:
        state = self._lines.state
        if not is_doubtful or state.head != commit.head:
            check_head(commit, state.expected)
            check_needs(commit, needed)
            _check_records(commit, state.head)
            if commit.expected is None and len(commit.records) > _MANY:
                self._rewrite(held, commit.head, commit.letters, _drafts_of(commit))
            else:
                self._append(held, _commit_draft(commit, state))
        return self._letters_now()

    def leave(self, letters: Sequence[Letter], most: int | None) -> LeaveResult:
        """Leave letters, unless one of their keys was used before, or more than ``most`` would wait."""
        if self._look().head is None:
            return LeaveResult(None)
        with self._hold() as held:
            state = self._lines.state
            if state.head is None:
                return LeaveResult(None)
            refused = tuple(letter.key for letter in letters if letter.key in state.used)
            if not refused and most is not None and len(state.letters) + len(letters) > most:
                return LeaveResult(state.head, is_full=True)
            if letters and not refused:
                self._append(held, LineDraft("letters", state.head, letters=letters))
            return LeaveResult(state.head, refused)

    def use_up(self, keys: Sequence[str]) -> LeaveResult:
        """Use up keys of letters, unless one of them was used before."""
        if self._look().head is None:
            return LeaveResult(None)
        with self._hold() as held:
            state = self._lines.state
            refused = tuple(key for key in keys if key in state.used)
            if keys and not refused and state.head is not None:
                self._append(held, LineDraft("used", state.head, further={"used": list(keys)}))
            return LeaveResult(state.head, refused)

    def tag(self, seq: int, change: TagChange) -> bool:
        """Take tags from a record and add others; return False if it is not there."""
        if seq not in self._look().records:
            return False
        with self._hold() as held:
            state = self._lines.state
            if state.head is None or seq not in state.records:
                return False
            known = state.tags.get(seq, ()), state.tagged_by.get(seq, {})
            changed = change.apply(*known)
            if changed != known:
                tags, givers = changed
                self._append(held, LineDraft("tags", state.head, tags={seq: tags}, tagged_by={seq: givers}))
            return True

    def remove(self, removal: Removal) -> bool:
        """Remove records and give others keyframes, all at once; return False if one of them has tags."""
        with self._lock:
            head = self._expect(self._look(), removal.run_id, removal.expected)
        with self._blobs.bring(head.family, removal.blobs), self._hold() as held:
            state = self._lines.state
            head = self._expect(state, removal.run_id, removal.expected)
            check_removal(head, removal)
            named = {*removal.seqs, *(seq for seq, _, _ in removal.tags)} & state.records.keys()
            if not tags_allow(removal, {seq: state.tags.get(seq, ()) for seq in named}):
                return False
            keyframes = [(seq, frame) for seq, frame in removal.keyframes if seq in state.records]
            removed = [seq for seq in removal.seqs if seq in state.records]
            tags = {seq: after for seq, _, after in removal.tags}
            givers = {seq: select_givers(state.tagged_by.get(seq, {}), after) for seq, after in tags.items()}
            if keyframes or removed or tags:
                draft = LineDraft("removal", head, keyframes=keyframes, tags=tags, tagged_by=givers)
                self._append(held, draft._replace(further={"removed": removed}))
            self._make_room(held)
            return True

    def make_room(self) -> None:
        """Write the file anew if a tenth of it is needed by nobody; raise ``CheckpointCorrupt`` if it is damaged."""
        state = self._look()
        if state.head is None or not self._has_waste(state.live_bytes() // 10, _LITTLE_WASTE):
            return
        with self._hold() as held:
            if self._lines.state.head is not None:
                self._make_room(held, self._lines.state.live_bytes() // 10, _LITTLE_WASTE)

    def _has_waste(self, *least: int) -> bool:
        state = self._lines.state
        return not state.bad and state.end - state.live_bytes() > max(least)

    def _make_room(self, held: HeldLock, *least: int) -> None:
        """Write the file anew without what nobody needs, if that is much."""
        state = self._lines.state
        if not self._has_waste(*(least or (state.live_bytes(), _WASTE))):
            return
        drafts = self._drafts_of_all()
        assert state.head is not None
        if drafts is not None:
            self._rewrite(held, state.head, self._letters_now(), drafts)

    def _drafts_of_all(self) -> list[LineDraft] | None:
        state = self._lines.state
        notes, letters, events = self._reader.notes(), self._reader.letters(), self._reader.events(0)
        records = self._reader.records(state.seqs, Depth.ALL)
        if records is None or notes is None or letters is None or events is None or state.head is None:
            return None
        used = sorted(state.used - state.letters.keys())
        return [
            *_kept_drafts(records, events),
            _state_draft(state.head, notes, letters, used),
        ]

    def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None) -> bool:
        """Remove the run: a last line says so, and then the file goes; return False if letters or tags forbid it."""
        with self._hold() as held:
            state = self._lines.state
            head = self._expect(state, run_id, expected)
            if not marks_allow(known, len(state.letters), state.tags):
                return False
            before = self._sign.needed
            self._lines.append(held, LineDraft("gone", head))
            self._sign.withdraw(before)
            with suppress(OSError):  # whoever comes next tries again
                self._lines.remove(held)
                self._lines.remove_lock()
            return True

    def replace(self, commit: Commit, aside: Path) -> None:
        """Let the run be what a commit says; the file as it is goes to ``aside``."""
        with self._hold() as held:
            check_head(commit, self._lines.state.expected)
        with self._blobs.bring(commit.head.family, commit.blobs), self._hold() as held:
            check_head(commit, self._lines.state.expected)
            copy_aside(self.path, aside)
            events = (*self._events_up_to(commit.head), *commit.events)
            self._rewrite(held, commit.head, commit.letters, _drafts_of(commit._replace(events=events)))

    def _events_up_to(self, head: Head) -> list[EventRow]:
        """Return the events that can be read, as far as a new head goes."""
        return [row for row in self._reader.events(0) or () if row.seq <= head.seq]

    def read_record(self, seq: int, depth: Depth) -> list[Record]:
        """Return one record of the state as it is known, damaged or not; raise ``CheckpointCorrupt``."""
        return self._reader.records([seq], depth) or []

    def rewrite_salvaged(self, held: HeldLock, head: Head) -> None:
        """Write the file anew with another head, and with all that can be read."""
        state = self._lines.state
        records = []
        for seq in state.seqs:
            with suppress(CheckpointCorrupt):
                records += self.read_record(seq, Depth.ALL)
        notes: list[Note] = []
        letters: list[Letter] = []
        if state.head is not None and state.head.checkpoint_id == head.checkpoint_id:
            with suppress(CheckpointCorrupt):
                notes = self._reader.notes() or []
        with suppress(CheckpointCorrupt):
            letters = self._reader.letters() or []
        used = sorted(state.used - state.letters.keys())
        kept = _kept_drafts(records, self._events_up_to(head))
        drafts = [*kept, _state_draft(head, notes, letters, used)]
        self._rewrite(held, head, letters, drafts)

    def _expect(self, state: RunState, run_id: RunId, expected: Expected) -> Head:
        check_expected(run_id, expected, state.head)
        assert state.head is not None
        return state.head

    # Lines, with the signs that belong to them.

    def _append(self, held: HeldLock, draft: LineDraft) -> None:
        counted = self._counted(draft)
        outdated = self._sign.announce(draft.head, counted.inbox)
        self._lines.append(held, counted)
        self._sign.withdraw(outdated)

    def _counted(self, draft: LineDraft) -> LineDraft:
        """Return a draft that says how many letters wait; raise ``CheckpointCorrupt`` if that cannot be known."""
        self._reader.check_lost(self._lines.state.lost_letters())
        inbox = len(self._lines.state.letters) - len(draft.taken) + len(draft.letters)
        return draft._replace(inbox=inbox) if inbox else draft

    def _rewrite(
        self, held: HeldLock, head: Head, letters: Sequence[Letter], drafts: Sequence[LineDraft]
    ) -> None:
        outdated = self._sign.announce(head, len(letters))
        self._lines.rewrite(held, head.run_id, drafts)
        self._sign.withdraw(outdated)

    def set_sign(self, wrong: WakeSign | None = None) -> None:
        """Make sure that the run has the sign that it needs, and not the ``wrong`` one."""
        with self._hold():
            self._sign.correct(wrong)

    def _letters_now(self) -> list[Letter]:
        letters = self._reader.letters() if self._lines.state.letters else []
        assert letters is not None, "nobody else writes"
        return letters


class PendingCommit:
    """A commit that is written, and not durable before it is synced; the locks of its run are held meanwhile."""

    def __init__(self, file: RunFile, held: HeldLock, line: PendingLine, outdated: WakeSign | None) -> None:
        self._file = file
        self._held = held
        self._line = line
        self._outdated = outdated
        self._is_over = False

    def begin_sync(self) -> None:
        """Let the system begin to write it, in any thread."""
        self._line.begin_sync()

    def sync(self) -> None:
        """Sync it, in any thread."""
        self._line.sync()

    @property
    def begins_file(self) -> bool:
        """True if the file is new: then its name has to be synced, too."""
        return self._line.beginning is not None

    @property
    def error(self) -> OSError | None:
        """The error of a sync."""
        return self._line.error

    @error.setter
    def error(self, error: OSError | None) -> None:
        self._line.error = error

    def sync_name(self) -> None:
        """Sync the name of a new file, and of all others in its folder."""
        self._file.sync_name(self._line)

    def finish(self) -> list[Letter]:
        """Make it count, or take it back if it could not be synced, and raise; return the letters that wait."""
        try:
            letters = self._file.finish_append(self._held, self._line, self._outdated)
        except BaseException as error:
            self.abandon(error)
            raise
        self.abandon()
        return letters

    def abandon(self, error: BaseException | None = None) -> None:
        """Let go of the locks, if they are held; whoever looks next settles a line that was not finished."""
        if not self._is_over:
            self._is_over = True
            self._file.release(self._held, error)


def _commit_draft(commit: Commit, state: RunState) -> LineDraft:
    letters = [letter for letter in commit.letters if letter.key not in state.used]
    taken: list[str] = []
    if commit.taken:
        there = state.letters.keys() | {letter.key for letter in letters}
        taken = [key for key in dict.fromkeys(commit.taken) if key in there]
    return LineDraft(
        "commit",
        commit.head,
        commit.records,
        commit.notes,
        letters,
        taken,
        events=commit.events,
        events_from=commit.events_from,
    )


def _check_records(commit: Commit, head: Head | None) -> None:
    for record in commit.records:
        if record.run_id != commit.head.run_id:
            raise StorageError(
                f"a commit of run {commit.head.run_id!r} has a record of run {record.run_id!r}"
            )
        if head is not None and record.seq <= head.seq:
            raise StorageError(
                f"run {record.run_id!r}: a new checkpoint has seq {record.seq}, but the next one is {head.seq + 1}; "
                f"seqs only grow"
            )


def _drafts_of(commit: Commit) -> list[LineDraft]:
    """Return the lines of a run that is what a commit says, and nothing else."""
    letters = [letter for letter in commit.letters if letter.key not in commit.taken]
    used = [letter.key for letter in commit.letters if letter.key in commit.taken]
    kept = _kept_drafts(commit.records, commit.events)
    return [*kept, _state_draft(commit.head, commit.notes, letters, used)]


def _kept_drafts(records: Sequence[Record], events: Sequence[EventRow]) -> Iterator[LineDraft]:
    for record in records:
        yield LineDraft("kept", records=[record])
    for first in range(0, len(events), _MANY):
        yield LineDraft("events", events=events[first : first + _MANY])


def _state_draft(
    head: Head, notes: Sequence[Note], letters: Sequence[Letter], used: Sequence[str]
) -> LineDraft:
    further = {"used": list(used)} if used else {}
    return LineDraft("state", head, notes=notes, letters=letters, inbox=len(letters), further=further)


def copy_aside(path: Path, aside: Path) -> None:
    """Keep a damaged file where nobody reads it, under a name that no other has."""
    aside.parent.mkdir(0o700, exist_ok=True)
    try:
        os.link(path, aside)
    except FileNotFoundError:
        pass
    except OSError:
        import shutil  # takes long to import, and is seldom needed

        shutil.copyfile(path, aside)
