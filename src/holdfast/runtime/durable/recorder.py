"""Makes a run durable: its checkpoints, the notes in its journal, and the status in its head."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.events.events import WorkflowEvent
from holdfast.checkpoint.journal import Contents, Journaled, MergeFor, result_draft, turn_draft
from holdfast.checkpoint.ownership import Claim
from holdfast.checkpoint.receipts import Receipt
from holdfast.checkpoint.store import Head, Store
from holdfast.checkpoint.values import Encoded
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import Failure, NoteDraft, RunLog
from holdfast.engine.durability import Durability
from holdfast.engine.message import Expiry, Request
from holdfast.engine.snapshot import FurtherInput, Snapshot, compute_delta, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, HoldfastError, RunExists, RunTaken
from holdfast.ids import ExecutorId, RequestId
from holdfast.runtime.durable.checkpoint_drafts import (
    describe_failure,
    draft_answers,
    draft_asking_again,
    draft_input,
)
from holdfast.runtime.durable.checkpoint_trail import Beginning, CheckpointTrail
from holdfast.runtime.durable.checkpoint_writer import BEGAN, CheckpointWriter
from holdfast.runtime.durable.commit_queue import CommitQueue
from holdfast.runtime.durable.inbox_client import InboxClient, OpenedLetters
from holdfast.runtime.durable.journal import StoredJournal
from holdfast.runtime.durable.run_owner import OwnerCheck

if TYPE_CHECKING:
    from holdfast.runtime.step.turn import FinishedTurn, FinishedTurns

# Shorter work between commits gains nothing from a commit beside it.
BACKGROUND_SECONDS = 0.0005


class Resumption(NamedTuple):
    """The checkpoint that a resumed run stands on, and what is left of the superstep after it."""

    head: CheckpointInfo
    read_journal: Callable[[], Awaitable[Contents]]
    keeps_journal: bool
    """True if the journal still counts behind the first checkpoints of the recorder."""
    began: Beginning | None
    """The point where the superstep to come began, which stays the same when another graph needs a new checkpoint."""


class RunLineage(NamedTuple):
    """The descent of a run."""

    family: str
    """The run at the root of its forks; the run itself if it is no fork."""
    restored: int
    """The seq of the last checkpoint by which the run was taken back to an earlier one; 0 if it never was."""


class _Pace:
    """Measures how long a run works between its commits.

    A commit in the background is handed to a thread and waited for before the next one. That costs more than making it
    at once, unless the run has work to do meanwhile.
    """

    def __init__(self) -> None:
        self._begun = monotonic()
        self._seconds = 0.0

    def begin(self) -> None:
        """Take note that the work after a commit begins."""
        self._begun = monotonic()

    def is_slow(self) -> bool:
        """Take note that work ends; return True if commits beside it pay, here or a few supersteps before."""
        self._seconds = max(monotonic() - self._begun, self._seconds / 2)
        return self._seconds > BACKGROUND_SECONDS


class Recorder:
    """Makes the checkpoints of one run, notes in its journal what comes between them, and reads its inbox.

    ``first`` are the checkpoints to make before anything else: the input of a new run, or the point to which an old
    one is restored. ``durability`` says when supersteps are committed.
    """

    def __init__(
        self,
        log: RunLog,
        merge_for: MergeFor,
        durability: Durability,
        first: Sequence[CheckpointDraft] = (),
        resumption: Resumption | None = None,
    ) -> None:
        head, began = (None, None) if resumption is None else (resumption.head, resumption.began)
        self._log = log
        self._commits = CommitQueue(log)
        self._inbox = InboxClient(log, self._commits)
        self._trail = CheckpointTrail(log.head.retention, head, began)
        self._writer = CheckpointWriter(log, self._commits, self._trail)
        self._pace = _Pace()
        self.journal = StoredJournal(self)
        self.journal.patient = durability == "exit"
        self._durability = durability
        self._merge_for = merge_for
        self._resumption = resumption
        self._first = list(first)
        self.is_submitted = log.submitted is not None
        """True if the run was submitted, and had not moved before."""
        self._opened = False
        self._stored = False
        """True once the head in the store is this run's own: from then on it has to say how the run stands."""
        self._owner_check = OwnerCheck(log, self._commits)

    # The run as the store has it.

    @property
    def status(self) -> RunStatus:
        """The status of the run in the store."""
        return self._log.head.status

    @property
    def head(self) -> Head:
        """The head of the run as this process committed or read it."""
        return self._log.head

    @property
    def store(self) -> Store:
        """The store that has the run."""
        return self._log.store

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints that this process has seen, oldest first, as far as the run keeps them."""
        return self._trail.checkpoints

    @property
    def latest(self) -> CheckpointInfo | None:
        """The newest checkpoint."""
        return self._trail.latest

    @property
    def started(self) -> CheckpointInfo | None:
        """The checkpoint at the start of the superstep that comes next or is under way."""
        return self._trail.started

    @property
    def durable(self) -> Snapshot | None:
        """The snapshot that the store has, if the run is further than that; else None."""
        uncommitted = self._trail.uncommitted
        return None if uncommitted is None else uncommitted.before

    def expiries(self) -> dict[RequestId, Expiry | None]:
        """Return until when the pending requests wait."""
        return self._log.expiries()

    def news(self, most: int | None = None) -> list[WorkflowEvent]:
        """Return the events for checkpoints that were made and not told yet, the first ``most`` of them."""
        return self._trail.news(most)

    def begun(self, address: ExecutorId) -> tuple[str, str]:
        """Return the checkpoint at which the superstep under way began, and the name an executor had there."""
        return self._trail.beginning_of(address)

    def lineage(self) -> RunLineage:
        """Return the descent of the run."""
        head = self._log.head
        return RunLineage(head.family, head.restored)

    def follow(self, before: Recorder) -> None:
        """Go on with the claim's holder and the checkpoints of the recorder that the run had until now."""
        self._log.claim.holder = before._log.claim.holder
        self._trail.follow(before._trail)

    def sleep_until(self, time: int) -> None:
        """Let the head of the run say when its first sleeping turn goes on."""
        self._log.asleep_until = time

    # Ownership.

    @property
    def claim(self) -> Claim:
        """The claim that makes this process the owner of the run while it moves."""
        return self._log.claim

    def use_claim(self, claim: Claim) -> None:
        """Drive the run with a claim that owns it already."""
        self._log.claim = claim

    def hold_claim(self, holder: object) -> None:
        """Name the object that drives the run, for others in this process who look for it."""
        self._log.claim.holder = holder

    def release_claim(self) -> None:
        """Give up the ownership of the run: nothing drives it here any more."""
        self._log.claim.release()

    def announce_leaving(self) -> None:
        """Let others in this process know that the claim is about to be released."""
        self._log.claim.leaving = True

    async def moved_by_others(self) -> RunStatus | None:
        """Return the status of a run that another process moved since it came to rest here; None if nobody did."""
        while True:
            ours = self.head
            head = await self._log.newest()
            if self.head is ours:  # else it went on here meanwhile
                break
        is_ours = (head.checkpoint_id, head.token) == (ours.checkpoint_id, ours.token)
        return None if is_ours else head.status

    async def check_owned(self) -> None:
        """Make sure that this process drives the run; raise ``RunTaken`` if another process does by now."""
        await self._owner_check.check()

    # Commits.

    @property
    def behind(self) -> bool:
        """True while a commit goes on in the background: the last superstep may yet come to nothing."""
        return self._commits.behind

    def when_committed(self, call: Callable[[BaseException | None], None]) -> None:
        """Call this when a commit in the background is over, with its error if it failed."""
        self._commits.on_background_end = call

    def stand_still(self) -> AbstractAsyncContextManager[None]:
        """Let all further commits wait until this context ends."""
        return self._commits.stand_still()

    async def caught_up(self) -> None:
        """Wait until all that the run stands on is durable; raise if it cannot be."""
        await self._writer.caught_up()

    def when_written_late(self, tell: Callable[[Sequence[WorkflowEvent]], None]) -> None:
        """Call this with the events of checkpoints that are made between the ends of supersteps."""
        self._writer.tell = tell

    def raise_if_cancelled(self) -> None:
        """Raise the cancellation that came during a commit, if one came."""
        self._commits.raise_if_cancelled()

    # The beginning.

    def sign(self, by: str | None) -> None:
        """Say who goes back, forks or edits: the checkpoints with which the recorder begins keep that."""
        if by is not None:
            self._first = [
                draft if draft.cause is Cause.SUPERSTEP else draft._replace(by=by) for draft in self._first
            ]

    def use_receipt(self, receipt: Receipt) -> None:
        """Keep the receipt of the call that resumes the run with the first commit."""
        self._log.receipt = receipt

    def name_canceller(self, by: str | None) -> None:
        """Say who cancels the run."""
        self._inbox.cancelled_by = by

    @property
    def asks_again(self) -> bool:
        """True if it has yet to make a checkpoint that asks the pending requests again."""
        return not self._opened and any(entry.cause in (Cause.RESTORE, Cause.FORK) for entry in self._first)

    async def read_journal(self) -> None:
        """Read the journal of a resumed run; raise if the run cannot go on with it."""
        if self._resumption is not None:
            await self._resumption.read_journal()

    async def open(self, moves: bool, superstep: int) -> None:
        """Commit what comes before anything else, once; a run that ``moves`` is RUNNING from now on.

        ``superstep`` is the one to come: what the journal holds belongs to it.
        """
        if self._opened:
            return
        self._opened = True
        log, resumption = self._log, self._resumption
        await log.join()
        if resumption is None:
            await self._begin()
            return
        if self.status is RunStatus.RUNNING:
            await self._take_over(resumption)
        elif moves and not self._first:
            await self._commits.run(log.set_status(RunStatus.RUNNING))
        else:
            await log.read_letters()
            if not self._first and self.status in (RunStatus.WAITING, RunStatus.COMPLETED):
                await log.keep_receipt()  # it stays as it is; others get a commit when they come to rest
        self._stored = not self._first
        if resumption.keeps_journal or not self._first:
            contents = await resumption.read_journal()
            log.knows(contents.digests)
            self.journal.found(superstep, contents)
            if (began := contents.results.get(BEGAN)) is not None:
                self._trail.begin_at(began.load())
        if self._first:
            made = await self._writer.write(self._first, self._journal_drafts())
            self._stored = True
            self._trail.began = self._trail.began if resumption.keeps_journal else _beginning(made)

    async def _take_over(self, resumption: Resumption) -> None:
        """Become the owner of a run whose owner is gone.

        The receipt of the call comes with the commit that does what was asked for, which may be a later one.
        """
        log = self._log
        receipt, log.receipt = log.receipt, None
        if receipt is not None and not self._first:
            await resumption.read_journal()  # raises while the key is free
            log.receipt = receipt
        await self._commits.run(log.acquire())
        if self._first:
            log.receipt = receipt

    async def _begin(self) -> None:
        try:
            self._trail.began = _beginning(await self._writer.write(self._first))
            self._stored = True
        except HeadMoved as error:
            await self._log.store.head(self._log.run_id)  # raises if it is there and cannot be believed
            attach = ", or say if_exists='attach'" if self._first[0].cause is Cause.INPUT else ""
            raise RunExists(
                f"run {self._log.run_id!r} is in this storage already; choose another id or leave it out, or go on "
                f"with that run by 'workflow.resume(run_id=...)'{attach}"
            ) from error

    def _journal_drafts(self) -> list[NoteDraft]:
        """Return the journal once more, for a new checkpoint at the same point of the run."""
        turns = [turn_draft(turn, self._log.encoder, self._merge_for) for turn in self.journal.turns.values()]
        return turns + [result_draft(*key, result) for key, result in self.journal.results]

    # The journal.

    def draft_turn(self, turn: FinishedTurn) -> NoteDraft:
        """Return the note of a turn that is over."""
        assert turn.outcome is not None
        events = [self._writer.storable(event) for event in turn.events if not event.provisional]
        journaled = Journaled(turn.outcome, events, turn.attempt)
        return turn_draft(journaled, self._log.encoder, self._merge_for)

    def draft_result(self, executor_id: ExecutorId, name: str, result: Value) -> NoteDraft:
        """Return the note of a result of ``once``."""
        return result_draft(executor_id, name, result)

    async def note(self, drafts: Sequence[NoteDraft], count: Callable[[], bool]) -> None:
        """Make notes durable, if they still count when no other commit is under way."""
        await self._commits.settle()
        if count():  # else their superstep was committed meanwhile, and the journal is that of the next
            await self._commits.run(self._log.note(drafts))
            self._owner_check.confirm()

    # The inbox.

    @property
    def has_letters(self) -> bool:
        """True if the inbox had letters at the last commit."""
        return self._inbox.has_letters

    async def leave(self, answers: Mapping[RequestId, Value], by: str | None = None) -> None:
        """Leave answers to pending requests, so that they are durable; raise ``RequestAlreadyAnswered`` if late."""
        await self.caught_up()  # who answers has seen a request that has to be stored
        await self._inbox.leave(answers, by)

    async def leave_at_newest_head(self, responses: Mapping[Any, Any], by: str | None) -> None:
        """Answer requests of a run that another process moved on."""
        await self._inbox.leave_at_newest_head(responses, by)

    async def read_inbox(self) -> None:
        """Read the inbox now instead of with the next commit."""
        await self._inbox.read()

    async def send(self, value: Encoded, target: str | None, key: str | None, by: str | None) -> Head:
        """Leave a further input in the inbox of the run, so that it is durable."""
        return await self._inbox.send(value, target, key, by)

    def open_letters(self) -> OpenedLetters:
        """Return what somebody can act on in the inbox: answers, messages, and a call to cancel the run."""
        return self._inbox.open_letters()

    def drop_letter(self, key: str) -> None:
        """Let the next commit take a letter that nobody can act on."""
        self._inbox.drop(key)

    # Checkpoints.

    async def answered(self, snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> None:
        """Commit responses before anything acts on them."""
        await self.caught_up()
        self._trail.began = None
        self.journal.over = False
        draft = draft_answers(snapshot, responses, self._inbox.answered_by(responses))
        await self._writer.write([draft], taken=self._inbox.take(responses))

    async def asked_again(
        self, snapshot: Snapshot, requests: Sequence[Request], warnings: Sequence[WorkflowEvent]
    ) -> None:
        """Commit that requests are asked again, with the warnings that say why; their letters are used up."""
        await self.caught_up()
        moves = bool(snapshot.deliveries)
        if moves:
            self._trail.began = None
            self.journal.over = False
        draft = draft_asking_again(
            snapshot, requests, [self._writer.storable(warning) for warning in warnings]
        )
        ids = [request.request_id for request in requests]
        self._inbox.answered_by(ids)  # those answers do not count
        await self._writer.write([draft], taken=self._inbox.take(ids))

    async def given(
        self, inputs: Sequence[tuple[FurtherInput, str | None]], superstep: int, keys: Sequence[str]
    ) -> None:
        """Commit further inputs before anything acts on them, each with who sent it; ``keys`` are their letters."""
        await self.caught_up()
        self._trail.began = None
        self.journal.over = False
        drafts = [draft_input(superstep, further, by) for further, by in inputs]
        await self._writer.write(drafts, taken=self._inbox.take_messages(keys))

    async def superstep(
        self,
        before: Snapshot,
        applied: Applied,
        turns: FinishedTurns,
        responses: Mapping[RequestId, Value],
    ) -> Sequence[CheckpointInfo]:
        """Commit the end of a superstep, and the start of the next in the same commit if there is one.

        Where the run goes on, the commit may be still under way when this returns (``behind``), or none be made.
        """
        after, delta = applied.snapshot, applied.delta
        in_background = self._durability == "async" and self._pace.is_slow()
        self.journal.clear()
        ended, happened = turns
        kept = [self._writer.storable(event) for event in happened] if happened else ()
        commits, trail = self._commits, self._trail
        going_on = bool(after.deliveries or responses)
        at_leisure = going_on and not responses and not delta.answers
        if self._durability == "exit":
            if at_leisure:
                trail.put_off(before, after, kept)
                return []
            await commits.idle()
            if trail.uncommitted is not None:
                before, _, earlier = trail.uncommitted
                delta, kept = compute_delta(before, after), [*earlier, *kept]
                ended = [(ExecutorId(""), len(earlier)), *ended] if earlier else ended
        elif self._durability == "async":
            await commits.settle()
        trail.began = None
        taken = self._inbox.take(responses)
        if at_leisure and not kept and not in_background:
            # Most supersteps end here, and need no entry.
            if commits.busy:
                await commits.idle()
            prepared = self._log.prepare_step(after.superstep, after.since_input, delta, taken, ended)
            if prepared is not None:
                await commits.run(self._log.commit(prepared))
                end, start = prepared.made
                trail.go_on(end, start)
                self._pace.begin()
                return prepared.made
        status = RunStatus.RUNNING if going_on else status_at_rest(after)
        draft = self._writer.draft_end(status, before, after, delta, kept, at_leisure)
        asked = [request.request_id for request in applied.asked]
        entries = [draft._replace(ended=ended, asked=asked)]
        if responses:
            entries.append(draft_answers(after, responses, self._inbox.answered_by(responses)))
        if at_leisure and in_background:
            made = await self._writer.write_behind(entries, taken)
        else:
            made = await self._writer.write(entries, taken=taken)
        self._pace.begin()
        return made

    # The end.

    def abandon(self) -> None:
        """Leave the head as it is: whoever finds the run RUNNING without an owner goes on with it."""
        self._stored = False

    def _resting_status(self, status: RunStatus) -> RunStatus:
        """Return the status of a run that was left with ``status``: a stored end or wait counts more than a leave."""
        stored = self.status if self._log.head.checkpoint_id else RunStatus.RUNNING
        left = status in (RunStatus.STOPPED, RunStatus.CANCELLED)
        if left and stored is RunStatus.COMPLETED:
            return stored
        return stored if status is RunStatus.STOPPED and stored is RunStatus.WAITING else status

    async def rest(self, status: RunStatus, error: BaseException | None) -> RunStatus:
        """Let the head say how the run ended, if it does not say so already; return the status that it has then.

        A run whose end is stored is complete, and one that is left while it waits goes on waiting. Never raises an
        error of the store: a head that cannot be changed still says RUNNING, and the run can be resumed as well.
        """
        await self._commits.idle()
        if self.journal.writing is not None:  # notes that waited for a commit as well
            await self._commits.wait_for(self.journal.writing)
        await self._writer.catch_up_at_last(error)
        status = self._resting_status(status)
        pending = self.journal.take_pending()
        settled = status is self.status and not self._inbox.has_void_letters
        if not self._stored or settled or isinstance(error, HeadMoved | RunTaken):
            return status
        try:
            if status in (RunStatus.FAILED, RunStatus.CANCELLED):
                # Those that came meanwhile do not make it worth another try, either.
                await self._log.read_letters()
            drafts, taken = [draft() for draft in pending], self._inbox.take(())
            by = self._inbox.cancelled_by if status is RunStatus.CANCELLED else None
            failure = describe_failure(error)
            await self._commits.run(self._log.set_status(status, failure, drafts, taken, by))
            if status.ended:
                await self._forget_cancels(status, failure, by)
        except HoldfastError as problem:
            if error is not None:
                error.add_note(f"that the run is {status} could not be stored: {problem}")
        return status

    async def _forget_cancels(self, status: RunStatus, failure: Failure, by: str | None) -> None:
        """Take letters that ask to cancel the run, which is over: a resume should not find them."""
        taken: set[str] = set()
        while found := self._inbox.cancel_keys() - taken:
            taken |= found
            await self._commits.run(self._log.set_status(status, failure, taken=sorted(found), by=by))


def _beginning(made: Sequence[CheckpointInfo]) -> Beginning | None:
    """Return the checkpoint at which a superstep begins, of those made together: the ones behind it only edit it."""
    for info in made:
        if info.phase is Phase.START:
            return Beginning(info.checkpoint_id, {})
    return None
