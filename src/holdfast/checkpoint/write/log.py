"""Writes the commits of one run, each of which moves its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from datetime import timedelta
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo
from holdfast.checkpoint.format.changes import Changes, digests_of
from holdfast.checkpoint.format.event_row import (
    PackedStep,
    RestEvents,
    pack_events,
)
from holdfast.checkpoint.ownership import Claim
from holdfast.checkpoint.receipts import Receipt, use_up
from holdfast.checkpoint.retention import EventRetention
from holdfast.checkpoint.store import (
    Blob,
    Commit,
    EventRow,
    Expected,
    Head,
    LeaveResult,
    Letter,
    Note,
    Record,
    Store,
)
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write._fast import pack_plain
from holdfast.checkpoint.write.bundles import bundle_notes
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.encode import Packer, ValueNamer, pack_entries, pack_in_time
from holdfast.checkpoint.write.event_rows import EVENTS_TRIMMED, find_oldest_kept
from holdfast.checkpoint.write.prune_schedule import PruneSchedule
from holdfast.checkpoint.write.records import MadeRecords, RecordMaker
from holdfast.engine._fast import make_tuple
from holdfast.engine.message import Expiry
from holdfast.engine.snapshot import Delta
from holdfast.engine.status import RunStatus, waiting_for
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import CheckpointId, Digest, ExecutorId, RequestId, RunId


class NoteDraft(NamedTuple):
    """A note that is made when it is needed: most supersteps end before anything of them is noted."""

    values: Sequence[Value]
    make: Callable[[Packer], Note]


class Prepared(NamedTuple):
    """A commit that is to be made: checkpoints that have their ids, or none."""

    made: Sequence[CheckpointInfo]
    head: Head
    records: tuple[Record, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[Note, ...] = ()
    taken: tuple[str, ...] = ()
    noted: Set[Digest] = frozenset()
    """The blobs that the notes name."""
    events: tuple[EventRow, ...] = ()


class Failure(NamedTuple):
    """The error with which a run failed, for people."""

    reason: str = ""
    traceback: str = ""
    executor_id: str = ""
    """The executor that failed, if one did."""
    cause: str = ""
    """The class and message of the error that it raised."""


NO_FAILURE = Failure()


class RunLog:
    """Writes the checkpoints of one run. A run has one writer at a time, which the head names."""

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        head: Head,
        maker: RecordMaker,
        schedule: PruneSchedule | None = None,
        event_retention: EventRetention | None = None,
    ) -> None:
        self.head = head
        self.store = store
        """The store of the records."""
        self.encoder = encoder
        """Captures the values of the run."""
        self._counters = encoder.counters
        self._manifest = maker.manifest
        self._maker = maker
        self._schedule = schedule
        self._event_retention = event_retention or EventRetention()
        self._needs: tuple[Digest, ...] = ()
        self._acquired = False
        self._noted: Set[Digest] = frozenset()
        self._ahead = False
        """True while the manifest holds changes that are not committed: no ref of it may be noted then."""
        self.claim = Claim()
        """Makes this process the owner of the run while it moves."""
        self.letters: Sequence[Letter] = ()
        """The letters that wait for the run, as of the last commit."""
        self.submitted: PackedStep | None = None
        """The input of the run if it was submitted and has yet to move."""
        self.team_size: tuple[int, ...] = ()
        """The numbers of agents and layers, for the run of a team of agents."""
        self.receipt: Receipt | None = None
        """The receipt of the call by which the run begins or goes on; the next commit keeps it."""
        self.asleep_until: int | None = None
        """When the first turn that sleeps goes on, if the superstep under way waits for one."""

    @property
    def run_id(self) -> RunId:
        """The id of the run."""
        return self.head.run_id

    @property
    def since_input(self) -> int:
        """Supersteps since the last input, as the newest checkpoint has it."""
        return self._manifest.since_input

    def asked_by(self, request_id: RequestId) -> int | None:
        """The seq of the checkpoint that asked a pending request."""
        asked = self._manifest.requests.get(request_id)
        return None if asked is None else asked.seq

    def expiries(self) -> dict[RequestId, Expiry | None]:
        """Until when the pending requests wait."""
        return {key: asked.expiry for key, asked in self._manifest.requests.items()}

    def stand_on(self, checkpoint_id: CheckpointId) -> None:
        """Let the next record follow the checkpoint that was loaded instead of the head.

        Nobody keeps that one from being removed meanwhile, so what it holds has to be there when the record is stored.
        """
        self._maker.parent = checkpoint_id
        self._needs = tuple(self._manifest.digests)

    async def append(
        self, entries: Sequence[CheckpointDraft], taken: Sequence[str] = (), drafts: Sequence[NoteDraft] = ()
    ) -> Sequence[CheckpointInfo]:
        """Make checkpoints durable, all or none; then they are what the run stands on.

        ``taken`` are the keys of letters that they use up, ``drafts`` what is noted at the last of them. Raises
        ``HeadMoved`` if another writer took the run, ``StorageError`` if it cannot be stored.
        """
        prepared = await self.prepare(entries, taken, drafts)
        await self.commit(prepared)
        return prepared.made

    async def prepare(
        self, entries: Sequence[CheckpointDraft], taken: Sequence[str] = (), drafts: Sequence[NoteDraft] = ()
    ) -> Prepared:
        """Give checkpoints their ids; nothing else may be written before they are committed."""
        prepared = None if drafts else self._prepare_plain_entry(entries, taken)
        if prepared is None:
            packer, changes = await pack_entries(entries, self._packer)
            prepared = self._prepare_entries(packer, changes, entries, taken, drafts)
        return prepared

    def _prepare_plain_entry(
        self, entries: Sequence[CheckpointDraft], taken: Sequence[str]
    ) -> Prepared | None:
        end = entries[0]
        if not end.goes_on or len(entries) > 1 or end.delta is None:
            return None
        if end.happened or end.since_input is not None:
            return None
        return self.prepare_step(end.superstep, self._manifest.since_input + 1, end.delta, taken, end.ended)

    def prepare_step(
        self,
        superstep: int,
        since_input: int,
        delta: Delta,
        taken: Sequence[str],
        ended: Sequence[tuple[ExecutorId, int]] = (),
    ) -> Prepared | None:
        """Prepare the end of a superstep that goes on, if it changed little; else return None."""
        if since_input != self._manifest.since_input + 1 or (plain := pack_plain(delta)) is None:
            return None
        self._ahead = True
        namer = ValueNamer(self._manifest, self._noted)
        return self._prepare(self._maker.make_plain(self.head, superstep, plain, namer, ended), taken)

    def _prepare_entries(
        self,
        packer: Packer,
        changes: Sequence[Changes],
        entries: Sequence[CheckpointDraft],
        taken: Sequence[str],
        drafts: Sequence[NoteDraft] = (),
    ) -> Prepared:
        notes = _make_notes(drafts, packer) if drafts else ()
        self._ahead = True
        records = self._maker.make(self.head, entries, changes, packer)
        noted: set[Digest] = set()
        for draft in drafts:
            noted.update(digest for value in draft.values for digest in digests_of(packer.ref(value)))
        prepared = self._prepare(records, taken, notes, noted)
        if entries[0].cause is not Cause.RESTORE:
            return prepared
        return prepared._replace(head=prepared.head._replace(restored=self.head.seq + 1))

    def _prepare(
        self,
        made: MadeRecords,
        taken: Sequence[str],
        notes: tuple[Note, ...] = (),
        noted: Set[Digest] = frozenset(),
    ) -> Prepared:
        records, infos, status, named, steps = made
        head = self._next_head(status, infos[-1].checkpoint_id, self.head.seq + len(infos))
        blobs = tuple(map(Blob, named, named.values())) if named else ()
        events = (self._event_row(head, steps, records[-1].seq),)
        return make_tuple(Prepared, (infos, head, records, blobs, notes, tuple(taken), noted, events))

    def _event_row(
        self, head: Head, steps: Sequence[PackedStep], seq: int, failure: Failure = NO_FAILURE
    ) -> EventRow:
        """Return the events of a commit that brings ``head`` and the checkpoints of ``steps``."""
        before, maker = self.head, self._maker
        is_running = head.status is RunStatus.RUNNING
        is_moving = is_running and (
            not steps or before.status is not RunStatus.RUNNING or not before.checkpoint_id
        )
        rest = None if is_running else self._rest_events(head, failure)
        begun = None
        if is_moving and self.submitted is not None:
            begun, self.submitted = self.submitted, None
        size = self.team_size if is_moving else ()
        return EventRow(seq, pack_events(maker.time, maker.superstep, is_moving, steps, rest, begun, size))

    def _rest_events(self, head: Head, failure: Failure) -> RestEvents:
        outputs = self._manifest.outputs
        last = outputs[-1][1] if outputs and head.status is RunStatus.COMPLETED else None
        error, executor_id, cause = failure.reason, failure.executor_id, failure.cause
        return RestEvents(head.status, head.waiting_for, head.by, last, error, executor_id, cause)

    async def commit(self, prepared: Prepared) -> None:
        """Make a prepared commit durable."""
        infos, head, records, blobs, notes, taken, noted, events = prepared
        current = self.head
        expected = (
            make_tuple(Expected, (current.checkpoint_id, current.token)) if current.checkpoint_id else None
        )
        oldest = (
            await self._oldest_events(head)
            if head.seq // EVENTS_TRIMMED != current.seq // EVENTS_TRIMMED
            else 0
        )
        commit = make_tuple(Commit, (head, expected, records, blobs, notes, taken, (), (), events, oldest))
        if (receipt := self.receipt) is not None:
            commit = commit._replace(taken=(*taken, *receipt.names), letters=receipt.letters)
        if records and self._needs:
            commit, self._needs = commit._replace(needs=self._needs), ()
        claims = bool(head.owner) and not self.claim.held
        if claims:
            self.claim.take()  # before anyone can see its name in the head
        try:
            try:
                self.letters = await self.store.commit(commit)
            except HeadMoved:
                raise
            except StorageError as error:
                await self._reread(head, error, notes)
        except BaseException:
            if claims:
                self.claim.release()
            raise
        self.head = head
        self.receipt = None
        self._acquired = True
        counters = self._counters
        counters.commits += 1
        if not records:
            return
        self._noted = noted
        self._ahead = False
        counters.checkpoints += len(infos)
        counters.blobs_written += len(blobs)
        for record in records:
            counters.new_bytes += record.new_bytes
        if head.retention and self._schedule is not None:
            await self._schedule.count(head, records, self._manifest)

    async def set_status(
        self,
        status: RunStatus,
        failure: Failure = NO_FAILURE,
        drafts: Sequence[NoteDraft] = (),
        taken: Sequence[str] = (),
        by: str | None = None,
    ) -> None:
        """Change only what the head says of the run, and note what the superstep under way did already."""
        notes, blobs = await self._notes(drafts)
        self._maker.tick()
        head = self._next_head(status)
        head = head._replace(reason=failure.reason, traceback=failure.traceback, by=by or "")
        if status in (RunStatus.FAILED, RunStatus.CANCELLED):
            # Only letters that come later make it worth another try.
            left = sum(1 for letter in self.letters if letter.key not in taken)
            head = head._replace(letters_known=left)
        is_told = status is self.head.status  # such a commit only takes letters
        events = () if is_told else (self._event_row(head, (), head.seq, failure),)
        await self.commit(Prepared((), head, (), blobs, notes, tuple(taken), events=events))

    async def acquire(self) -> None:
        """Become the owner of a run that is RUNNING but whose owner does not drive it any more."""
        self._maker.tick()
        head = self._next_head(RunStatus.RUNNING)
        events = (self._event_row(head, (), head.seq),)
        head = head._replace(takeovers=self.head.takeovers + 1)
        await self.commit(Prepared((), head, events=events))

    async def _oldest_events(self, head: Head) -> int:
        """Return the seq before which the events of the run are no longer kept; 0 if all are."""
        kept_from = head.seq - self._event_retention.checkpoints
        if kept_from <= 0:
            return 0
        oldest = self._maker.time - self._event_retention.age // timedelta(microseconds=1)
        try:
            return await find_oldest_kept(self.store, head, kept_from, oldest)
        except StorageError:  # it is no reason not to commit
            return 0

    async def note(self, drafts: Sequence[NoteDraft]) -> None:
        """Make notes durable in the journal of the checkpoint that the run stands on."""
        notes, blobs = await self._notes(drafts)
        await self.commit(Prepared((), self._next_head(self.head.status), (), blobs, notes))
        self._noted |= {blob.digest for blob in blobs}

    async def join(self) -> None:
        """Let others see that this process lives."""
        await self.store.join()

    @property
    def ahead(self) -> bool:
        """Return True if the manifest is ahead of the last commit: then the log is of no more use."""
        return self._ahead

    async def newest(self) -> Head:
        """The head as the store has it; that of this log if the run was removed."""
        return await self.store.head(self.run_id) or self.head

    async def is_owned(self) -> bool:
        """Read whether the head in the store still names the claim and the token of this log."""
        head = await self.store.head(self.run_id)
        return head is not None and (head.owner, head.token) == (self.claim.name, self.head.token)

    async def keep_receipt(self) -> None:
        """Keep the receipt without a commit, for a run that has nothing to commit."""
        if (receipt := self.receipt) is not None:
            self.receipt = None
            await use_up(self.store, self.run_id, receipt)

    async def leave(self, letters: Sequence[Letter]) -> LeaveResult:
        """Leave letters for whoever drives the run."""
        return await self.store.leave(self.run_id, self.head.seq, letters)

    async def read_letters(self) -> None:
        """Read what others left for the run, without a commit."""
        self.letters = await self.store.inbox(self.run_id)

    async def _notes(self, drafts: Sequence[NoteDraft]) -> tuple[tuple[Note, ...], tuple[Blob, ...]]:
        if not drafts or self._ahead:
            return (), ()
        packer = self._packer()
        values = [value for draft in drafts for value in draft.values]
        notes = await pack_in_time(lambda: _make_notes(drafts, packer), values)
        return notes, tuple(Blob(digest, data) for digest, data in packer.blobs.items())

    def knows(self, digests: Iterable[Digest]) -> None:
        """The journal of the checkpoint names these blobs: they are stored already."""
        self._noted |= set(digests)

    def _packer(self) -> Packer:
        return Packer(self._manifest, self.encoder, self._noted)

    def _next_head(self, status: RunStatus, checkpoint_id: CheckpointId | None = None, seq: int = 0) -> Head:
        """The head after a commit: at the same checkpoint as before, or at another."""
        current = self.head
        waits = status is RunStatus.WAITING
        return make_tuple(
            Head,
            (
                current.run_id,
                current.workflow_name,
                current.family,
                current.checkpoint_id if checkpoint_id is None else checkpoint_id,
                current.seq if checkpoint_id is None else seq,
                current.token if self._acquired else current.token + 1,
                status,
                current.created,
                self._maker.time,
                self.claim.name if status is RunStatus.RUNNING else "",
                self._wake_at() if waits else None,
                0,
                "",
                current.retention,
                self._waiting_for() if waits else "",
                0,
                self._manifest.fingerprint,
                "",
                "",
                current.origin,
                current.restored,
            ),
        )

    def _wake_at(self) -> int | None:
        # A question that expires meanwhile has to wait: answers are taken when the superstep that sleeps is over.
        return self._manifest.first_expiry() if self.asleep_until is None else self.asleep_until

    def _waiting_for(self) -> str:
        manifest = self._manifest
        return " ".join(waiting_for(manifest.requests, self.asleep_until, manifest.buffers))

    async def _reread(self, head: Head, error: StorageError, notes: tuple[Note, ...]) -> None:
        """Count a commit that failed as made if the store tells that it is durable; else raise its error.

        That a head is merely visible would not do. What a store tells after a failed commit is durable, or it raises.
        """
        try:
            there = await self.store.head(self.run_id)
            noted = await self.store.notes(self.run_id) if notes else ()
            self.letters = await self.store.inbox(self.run_id)
        except StorageError as unreadable:
            error.add_note(f"whether it happened cannot be told: {unreadable}")
            raise error from error.__cause__
        if there != head:
            raise error
        if not set(notes) <= set(noted):
            raise error


def _make_notes(drafts: Sequence[NoteDraft], packer: Packer) -> tuple[Note, ...]:
    return bundle_notes([draft.make(packer) for draft in drafts], packer)
