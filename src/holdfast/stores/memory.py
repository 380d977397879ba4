"""The store in memory, and the storage on it: for tests, and for runs that need not survive their process."""

from __future__ import annotations

import asyncio
import os
import secrets
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

from holdfast.checkpoint.ownership import ask_for_owners, is_driven_by, this_process
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    Blob,
    ClaimRequest,
    Commit,
    Damage,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    MarkedBlobs,
    Mended,
    Note,
    Record,
    Rehearsal,
    Removal,
    RunQuery,
    SealedForms,
    StoreInfo,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.features import new_features
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
from holdfast.stores.common.run_query import (
    RunClaim,
    by_age,
    filter_runs,
    fits,
    make_claim,
    select_runs,
    sort_due_runs,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring

_MOST_HINTS = 1_000


class MemoryStore:
    """A store in dicts, which lives as long as the object.

    >>> import asyncio
    >>> asyncio.run(MemoryStore().head(RunId("r1"))) is None
    True
    """

    in_any_task = True
    """Explained where ``Store`` is defined."""

    def __init__(self, namespace: str = "", *, keyed: bool = False) -> None:
        self.namespace = namespace
        features = frozenset(new_features(keyed))
        self._info = StoreInfo(secrets.token_hex(16), FORMAT_MAJOR, FORMAT_MINOR, features)
        self._key_box = ""
        self._closed = self._joined = False
        self._heads: dict[RunId, Head] = {}
        self._records: dict[tuple[RunId, int], Record] = {}
        self._seqs: dict[RunId, list[int]] = {}
        self._places: dict[CheckpointId, tuple[RunId, int]] = {}
        self._blobs: dict[tuple[RunId, Digest], bytes] = {}
        self._marks = 0
        self._blob_marks: dict[tuple[RunId, Digest], int] = {}
        """By blob, the number of marks when a commit last wrote or needed it."""
        self._notes: dict[RunId, dict[str, Note]] = {}
        self._letters: dict[RunId, dict[str, Letter | None]] = {}
        """By run and key; None for a letter that was taken."""
        self._claims: dict[RunId, RunClaim] = {}
        self._listeners: set[asyncio.Queue[RunId]] = set()
        self._events: dict[RunId, list[EventRow]] = {}

    async def open(self) -> StoreInfo:
        self._check_open()
        return self._info

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._check_open()
        head = commit.head
        there = self._heads.get(head.run_id)
        check_head(commit, (there.checkpoint_id, there.token) if there is not None else None)
        if commit.needs:
            check_needs(commit, {digest for digest in commit.needs if (head.family, digest) in self._blobs})
            self._add_blobs(head.family, [Blob(digest, b"") for digest in commit.needs])
        if commit.blobs:
            self._add_blobs(head.family, commit.blobs)
        for record in commit.records:
            self._add_record(record)
        self._heads[head.run_id] = head
        if self._listeners and head.status is RunStatus.WAITING and head.wake_at is not None:
            self._hint(head.run_id)
        if there is None or there.checkpoint_id != head.checkpoint_id:
            self._notes.pop(head.run_id, None)
        if commit.notes:
            self._notes.setdefault(head.run_id, {}).update({note.key: note for note in commit.notes})
        for letter in commit.letters:
            self._letters.setdefault(head.run_id, {}).setdefault(letter.key, letter)
        if commit.events or commit.events_from:
            self._add_events(head.run_id, commit.events, commit.events_from)
        if (known := self._letters.get(head.run_id)) is None:
            return ()
        known.update({key: None for key in commit.taken if key in known})
        return self._get_waiting_letters(head.run_id)

    def _add_events(self, run_id: RunId, rows: Sequence[EventRow], first: int) -> None:
        events = self._events.setdefault(run_id, [])
        events += rows
        if first:
            del events[: bisect_left(events, first, key=lambda row: row.seq)]

    def _get_waiting_letters(self, run_id: RunId) -> list[Letter]:
        return [letter for letter in self._letters.get(run_id, {}).values() if letter is not None]

    def _add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            self._blobs.setdefault((family, blob.digest), blob.data)
            self._blob_marks[family, blob.digest] = self._marks

    def _add_record(self, record: Record) -> None:
        place = run_id, seq = record.run_id, record.seq
        if place not in self._records:
            seqs = self._seqs.setdefault(run_id, [])
            if seqs and seq < seqs[-1]:
                insort(seqs, seq)
            else:
                seqs.append(seq)
        self._records[place] = record
        self._places[record.checkpoint_id] = place

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        self._check_open()
        self._add_blobs(family, blobs)

    async def head(self, run_id: RunId) -> Head | None:
        self._check_open()
        return self._heads.get(run_id)

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        self._check_open()
        return select_runs(self._heads.values(), query, self._get_tags)

    async def count_runs(self, query: RunQuery) -> int:
        self._check_open()
        return len(filter_runs(self._heads.values(), query, self._get_tags))

    def _get_tags(self, run_id: RunId) -> list[str]:
        return [tag for seq in self._seqs.get(run_id, ()) for tag in self._records[run_id, seq].tags]

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        self._check_open()
        fitting = [head for head in self._heads.values() if fits(head, request)]
        known: dict[str, bool] = {}
        await ask_for_owners(self, fitting, known)
        found = sort_due_runs(fitting, request.time, self._count_letters)
        if request.abandoned:
            running = [head for head in fitting if head.status is RunStatus.RUNNING]
            found += sorted((head for head in running if not is_driven_by(head, known)), key=by_age)
        free = [head for head in found if not self._is_claimed(head, request)][: max(request.limit, 0)]
        if request.lease:
            self._claims |= {
                head.run_id: make_claim(head, self._count_letters(head.run_id), request) for head in free
            }
        return free

    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        claim = self._claims.get(head.run_id)  # its process lives: no other has this store
        return claim is not None and claim.holds(head, self._count_letters(head.run_id), request)

    def _count_letters(self, run_id: RunId) -> int:
        return len(self._get_waiting_letters(run_id))

    async def wakeups(self) -> AsyncGenerator[RunId]:
        """Yield the ids of runs that are to be woken or got letters, as the port says."""
        hints: asyncio.Queue[RunId] = asyncio.Queue(_MOST_HINTS)
        self._listeners.add(hints)
        try:
            while True:
                yield await hints.get()
        finally:
            self._listeners.discard(hints)

    def _hint(self, run_id: RunId) -> None:
        for hints in self._listeners:
            if not hints.full():  # who has so many looks soon
                hints.put_nowait(run_id)

    async def damaged(self) -> Sequence[Damage]:
        self._check_open()
        return ()

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        return await self.damaged()

    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        self._check_open()
        return ()

    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        yield Rehearsal(
            deepcopy(self, {id(self._listeners): set()}) if run_id is None else self._copy_run(run_id), str
        )

    def _copy_run(self, run_id: RunId) -> MemoryStore:
        """Return a store with one run and the blobs of its family: nothing in them changes, so they are shared."""
        copy = MemoryStore(self.namespace)
        copy._info, copy._joined, copy._marks = self._info, self._joined, self._marks
        copy._key_box = self._key_box
        head = self._heads.get(run_id)
        if head is None:
            return copy
        copy._heads[run_id] = head
        for seq in self._seqs.get(run_id, ()):
            copy._add_record(self._records[run_id, seq])
        copy._add_blobs(
            head.family,
            [Blob(digest, data) for (of, digest), data in self._blobs.items() if of == head.family],
        )
        copy._notes[run_id] = dict(self._notes.get(run_id, {}))
        copy._letters[run_id] = dict(self._letters.get(run_id, {}))
        return copy

    async def replace(self, commit: Commit) -> None:
        self._check_open()
        run_id = commit.head.run_id
        there = self._heads.get(run_id)
        check_head(commit, Expected(there.checkpoint_id, there.token) if there is not None else None)
        kept = [row for row in self._events.get(run_id, ()) if row.seq <= commit.head.seq]
        self._remove_all(run_id)
        await self.commit(commit._replace(expected=None, events=(*kept, *commit.events)))

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        self._check_open()
        return self._places.get(checkpoint_id)

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        self._check_open()
        seqs = self._seqs.get(run_id, [])
        wanted = seqs[bisect_left(seqs, first) : bisect_right(seqs, last)]
        return [_cut_record(self._records[run_id, seq], depth) for seq in wanted]

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        self._check_open()
        return {digest: self._blobs[family, digest] for digest in digests if (family, digest) in self._blobs}

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        self._check_open()
        record = self._records.get((run_id, seq))
        if record is not None:
            now, givers = TagChange(tags, drop, by).apply(record.tags, record.tagged_by)
            self._records[run_id, seq] = record._replace(tags=now, tagged_by=givers)
        return record is not None

    async def remove(self, removal: Removal) -> bool:
        self._check_open()
        head = self._get_expected_head(removal.run_id, removal.expected)
        check_removal(head, removal)
        named = {*removal.seqs, *(retag.seq for retag in removal.tags)}
        there = {
            seq: record for seq in named if (record := self._records.get((removal.run_id, seq))) is not None
        }
        if not tags_allow(removal, {seq: record.tags for seq, record in there.items()}):
            return False
        self._add_blobs(head.family, removal.blobs)
        for seq, keyframe in removal.keyframes:
            place = removal.run_id, seq
            if place in self._records:
                self._records[place] = self._records[place]._replace(keyframe=keyframe)
        for seq, _, after in removal.tags:
            place = removal.run_id, seq
            givers = select_givers(self._records[place].tagged_by, after)
            self._records[place] = self._records[place]._replace(tags=after, tagged_by=givers)
        for seq in removal.seqs:
            self._remove_record(removal.run_id, seq)
        return True

    def _get_expected_head(self, run_id: RunId, expected: Expected) -> Head:
        head = self._heads.get(run_id)
        check_expected(run_id, expected, head)
        assert head is not None
        return head

    def _remove_record(self, run_id: RunId, seq: int) -> None:
        record = self._records.pop((run_id, seq), None)
        if record is not None:
            self._seqs[run_id].remove(seq)
            del self._places[record.checkpoint_id]

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        self._check_open()
        self._get_expected_head(run_id, expected)
        tags = {seq: self._records[run_id, seq].tags for seq in self._seqs.get(run_id, ())}
        if not marks_allow(known, len(self._get_waiting_letters(run_id)), tags):
            return False
        self._remove_all(run_id)
        return True

    def _remove_all(self, run_id: RunId) -> None:
        for seq in list(self._seqs.get(run_id, ())):
            self._remove_record(run_id, seq)
        for table in (self._heads, self._seqs, self._notes, self._letters, self._claims, self._events):
            table.pop(run_id, None)

    async def mark(self, family: RunId) -> MarkedBlobs:
        self._check_open()
        self._marks += 1
        return MarkedBlobs(
            self._marks, {digest: len(data) for (of, digest), data in self._blobs.items() if of == family}
        )

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        self._check_open()
        unused = [digest for digest in digests if self._blob_marks.get((family, digest), 0) < mark]
        for digest in unused:
            self._blob_marks.pop((family, digest), None)
        return sum(len(self._blobs.pop((family, digest), b"")) for digest in unused)

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        self._check_open()
        return list(self._notes.get(run_id, {}).values())

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        self._check_open()
        head = self._heads.get(run_id)
        if head is None:
            return LeaveResult(None)
        known = self._letters.setdefault(run_id, {})
        refused = tuple(letter.key for letter in letters if letter.key in known)
        if refused:
            return LeaveResult(head, refused)
        may_be_full = most is not None and len(known) + len(letters) > most  # some may be taken
        if most is not None and may_be_full and len(self._get_waiting_letters(run_id)) + len(letters) > most:
            return LeaveResult(head, is_full=True)
        known.update({letter.key: letter for letter in letters})
        self._hint(run_id)
        return LeaveResult(head)

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        self._check_open()
        return self._get_waiting_letters(run_id)

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        self._check_open()
        known = self._letters.get(run_id, {})
        return [key for key in keys if key in known and known[key] is None]

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        self._check_open()
        head = self._heads.get(run_id)
        if head is None:
            return LeaveResult(None)
        known = self._letters.setdefault(run_id, {})
        refused = tuple(key for key in keys if key in known)
        if not refused:
            known.update(dict.fromkeys(keys))
        return LeaveResult(head, refused)

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        self._check_open()
        rows = self._events.get(run_id, [])
        begin = bisect_left(rows, first, key=lambda row: row.seq)
        return _whole_seqs(rows[begin:], limit)

    async def key_box(self) -> str:
        self._check_open()
        return self._key_box

    async def set_key_box(self, box: str, expected: str) -> bool:
        self._check_open()
        if self._key_box != expected:
            return False
        self._key_box = box
        return True

    async def join(self) -> None:
        self._check_open()
        self._joined = True

    async def living(self, processes: Collection[str]) -> Set[str]:
        self._check_open()
        return {this_process()} & set(processes) if self._joined else frozenset()

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("this MemoryStore is closed; what it held can no longer be asked for")


class InMemoryCheckpointStorage(CheckpointStorage):
    """Checkpoints in the memory of this process: for tests, and for runs that need not outlive it.

    >>> InMemoryCheckpointStorage().counters.commits
    0
    """

    outlives_process = False

    def __init__(
        self,
        retention: Retention | None = None,
        *,
        keys: Keyring | None = None,
        anchor: Anchor | str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(MemoryStore(keyed=keys is not None), retention, keys=keys, anchor=anchor)


def _cut_record(record: Record, depth: Depth) -> Record:
    """Return a record without the parts that were not asked for."""
    if depth is Depth.ALL:
        return record
    if depth is Depth.HEADERS:
        return record._replace(changes=b"", values=b"", keyframe=None)
    keyframe = record.keyframe
    return record._replace(
        values=b"", keyframe=keyframe._replace(values=b"") if keyframe is not None else None
    )


def _whole_seqs(rows: Sequence[EventRow], limit: int) -> Sequence[EventRow]:
    """Return the first ``limit`` rows or some more, so that no seq is cut; all of them if there are fewer.

    >>> rows = [EventRow(1, b""), EventRow(2, b""), EventRow(2, b""), EventRow(3, b"")]
    >>> [row.seq for row in _whole_seqs(rows, 2)]
    [1, 2, 2]
    """
    if len(rows) <= limit:
        return rows
    last = rows[max(limit, 1) - 1].seq
    end = next((index for index in range(limit, len(rows)) if rows[index].seq != last), len(rows))
    return rows[:end]
