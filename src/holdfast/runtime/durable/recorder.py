"""When a run makes checkpoints, and what they hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.checkpoint.inbox import asks_to_cancel
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Contents, Journaled, MergeFor, Told, result_draft, turn_draft
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.log import Draft, RunLog
from holdfast.engine.durability import Durability
from holdfast.engine.snapshot import Snapshot, distance, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, HoldfastError, RunExists, RunTaken
from holdfast.ids import ExecutorId, RequestId
from holdfast.runtime.durable.checkpoints import BEGAN, Beginning, Checkpoints
from holdfast.runtime.durable.journal import StoredJournal
from holdfast.runtime.events.events import WorkflowEvent, WorkflowWarningEvent

if TYPE_CHECKING:
    from holdfast.runtime.step.turn import Finished


class Recorder(Checkpoints):
    """Makes the checkpoints of one run, notes in its journal what comes between them, and reads its inbox.

    ``first`` are the checkpoints to make before anything else: the input of a new run, or the place to which an old
    one is restored. ``head`` is the checkpoint that a resumed run stands on. ``before`` reads the journal of a
    resumed run; with ``carries`` it is still worth something behind ``first``. ``began`` is where the superstep to come
    began: with another graph the run stands there anew, but nothing of it begins anew. ``durability`` says when
    supersteps are committed.
    """

    def __init__(
        self,
        log: RunLog,
        merge_for: MergeFor,
        durability: Durability,
        first: Sequence[Entry] = (),
        head: CheckpointInfo | None = None,
        before: Callable[[], Awaitable[Contents]] | None = None,
        carries: bool = False,
        began: Beginning | None = None,
    ) -> None:
        super().__init__(log, head, began)
        self.durability = durability
        self._merge_for = merge_for
        self._before = before
        self._carries = carries
        self.journal = StoredJournal(self)
        self.journal.patient = durability == "exit"
        self._first = list(first)
        self._resumed = head is not None
        self._opened = False
        self._stored = False
        """Whether the head in the store is this run's own: from then on it says how the run stands."""

    @property
    def status(self) -> RunStatus:
        """What the store says of the run."""
        return self.log.head.status

    @property
    def asks_again(self) -> bool:
        """Whether it has yet to make a checkpoint that asks the pending requests again."""
        return not self._opened and any(entry.cause in (Cause.RESTORE, Cause.FORK) for entry in self._first)

    async def open(self, moves: bool, superstep: int) -> None:
        """Commit what comes before anything else, once; a run that ``moves`` is RUNNING from now on.

        ``superstep`` is the one to come: what the journal holds belongs to it.
        """
        if self._opened:
            return
        self._opened = True
        await self.log.join()
        if not self._resumed:
            await self._begin()
            return
        if self.status is RunStatus.RUNNING:
            await self._shielded(self.log.acquire())
        elif moves and not self._first:
            await self._shielded(self.log.set_status(RunStatus.RUNNING))
        else:
            await self.log.read_letters()
        self._stored = not self._first
        if self._before is not None and (self._carries or not self._first):
            contents = await self._before()
            self.log.knows(contents.digests)
            self.journal.found(superstep, contents)
            if (began := contents.results.get(BEGAN)) is not None:
                self._began = Beginning(began.load(), {} if self._began is None else self._began.names)
                self._origin = self._began.name.rpartition("/")[0]
        if self._first:
            made = await self._append(self._first, self._carried())
            self._stored = True
            self._began = self._began if self._carries else _beginning(made)

    async def _begin(self) -> None:
        try:
            self._began = _beginning(await self._append(self._first))
            self._stored = True
        except HeadMoved as error:
            attach = ", or say if_exists='attach'" if self._first[0].cause is Cause.INPUT else ""
            raise RunExists(
                f"run {self.log.run_id!r} is in this storage already; choose another id or leave it out, or go on "
                f"with that run by 'workflow.resume(run_id=...)'{attach}"
            ) from error

    def _carried(self) -> list[Draft]:
        """The journal once more, for a checkpoint at which the run stands as it stood before."""
        turns = [turn_draft(turn, self.log.encoder, self._merge_for) for turn in self.journal.turns.values()]
        return turns + [result_draft(*key, result) for key, result in self.journal.results]

    # The journal.

    def draft_turn(self, turn: Finished) -> Draft:
        """The note of a turn that is over."""
        assert turn.outcome is not None
        events = [self._kept(event) for event in turn.events if not event.provisional]
        journaled = Journaled(turn.outcome, events, turn.attempt)
        return turn_draft(journaled, self.log.encoder, self._merge_for)

    def draft_result(self, executor_id: ExecutorId, name: str, result: Value) -> Draft:
        """The note of what ``once`` gave."""
        return result_draft(executor_id, name, result)

    async def note(self, drafts: Sequence[Draft], count: Callable[[], bool]) -> None:
        """Make notes durable, if they still count when it comes to that."""
        await self._sound()
        if count():  # else their superstep was committed meanwhile, and the journal is that of the next
            await self._shielded(self.log.note(drafts))

    # Checkpoints.

    async def answered(self, snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> None:
        """Commit responses before anything acts on them."""
        await self.caught_up()
        self._began = None
        self.journal.over = False
        await self._append([_answers(snapshot, responses)], taken=self._taken_by(responses))

    async def superstep(
        self,
        before: Snapshot,
        applied: Applied,
        happened: Sequence[WorkflowEvent],
        responses: Mapping[RequestId, Value],
    ) -> Sequence[CheckpointInfo]:
        """Commit the end of a superstep, and the start of the next in the same commit if there is one.

        Where the run goes on, the commit may be still under way when this returns (``behind``), or none be made.
        """
        after, delta = applied.snapshot, applied.delta
        self.journal.clear()
        kept = [self._kept(event) for event in happened] if happened else ()
        going_on = bool(after.deliveries or responses)
        at_leisure = going_on and not responses
        if self.durability == "exit":
            if at_leisure:
                self._began = None
                self._put_off(before, after, kept)
                return []
            await self._idle()
            if self._uncommitted is not None:
                before, _, earlier = self._uncommitted
                delta, kept = distance(before, after), [*earlier, *kept]
        elif self.durability == "async":
            await self._sound()
        self._began = None
        taken = self._taken_by(responses)
        if at_leisure and not kept and self.durability == "sync":
            # Most end here, and need no entry that could say all that others say.
            if self._under_way:
                await self._idle()
            prepared = self.log.prepare_step(after.superstep, after.since_input, delta, taken)
            if prepared is not None:
                await self._shielded(self.log.commit(prepared))
                return self._went_on(prepared.made)
        status = RunStatus.RUNNING if going_on else status_at_rest(after)
        entries = [self._end(status, before, after, delta, kept, at_leisure)]
        if responses:
            entries.append(_answers(after, responses))
        if at_leisure and self.durability == "async":
            made = await self._in_background(entries, taken, self._see)
            self._news += made
            self._made(made)
            return made
        return await self._append(entries, taken=taken)

    def _kept(self, event: WorkflowEvent) -> Told:
        if isinstance(event, WorkflowWarningEvent):
            return event.executor_id, (type(event.warning).__name__, str(event.warning))
        return None, self.log.encoder(event, "event")

    def abandon(self) -> None:
        """Say no more how the run stands: whoever finds it RUNNING without an owner goes on with it."""
        self._stored = False

    def _standing(self, status: RunStatus) -> RunStatus:
        """How a run stands that was left with ``status``: what was committed counts."""
        stored = self.status if self.log.head.checkpoint_id else RunStatus.RUNNING
        left = status in (RunStatus.STOPPED, RunStatus.CANCELLED)
        if left and stored is RunStatus.COMPLETED:
            return stored
        return stored if status is RunStatus.STOPPED and stored is RunStatus.WAITING else status

    async def rest(self, status: RunStatus, error: BaseException | None) -> RunStatus:
        """Let the head say how the run ended, if it does not say so already; gives the status that it has then.

        A run whose end is stored is complete, and one that is left when it waits goes on waiting. Never raises what
        the store raises: a head that cannot be changed still says RUNNING, and the run can be resumed as well.
        """
        await self._idle()
        if self.journal.writing is not None:  # notes that waited for a commit as well
            await self._over(self.journal.writing)
        await self._catch_up_at_last(error)
        status = self._standing(status)
        pending = self.journal.take_pending()
        settled = status is self.status and not self._void
        if not self._stored or settled or isinstance(error, HeadMoved | RunTaken):
            return status
        try:
            drafts, taken = [draft() for draft in pending], self._taken_by(())
            await self._shielded(self.log.set_status(status, _reason(error), drafts, taken))
            if status.ended:
                await self._forget_cancels(status, _reason(error))
        except HoldfastError as problem:
            if error is not None:
                error.add_note(f"that the run is {status} could not be stored: {problem}")
        return status

    async def _catch_up_at_last(self, error: BaseException | None) -> None:
        if self._uncommitted is None or self._failure is not None:
            return
        try:
            await self._catch_up()
        except HoldfastError as problem:
            if error is not None:
                error.add_note(f"what it did since its last checkpoint could not be stored: {problem}")

    async def _forget_cancels(self, status: RunStatus, reason: str) -> None:
        """A run that is over has no wish left that it be cancelled: one that is resumed should not find it."""
        taken: set[str] = set()
        while wishes := {w.key for w in self.log.letters if asks_to_cancel(w)} - taken:
            taken |= wishes
            await self._shielded(self.log.set_status(status, reason, taken=sorted(wishes)))


def _beginning(made: Sequence[CheckpointInfo]) -> Beginning | None:
    """At which of the checkpoints that were made together a superstep begins: those behind it only edit it."""
    for info in made:
        if info.phase is Phase.START:
            return Beginning(info.checkpoint_id, {})
    return None


def _answers(snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> Entry:
    # In the order in which they are delivered: that of the requests, of which there may be many more.
    ordered = (
        responses
        if len(responses) == 1
        else {known: responses[known] for known in snapshot.requests if known in responses}
    )
    return Entry(
        Phase.START,
        snapshot.superstep + 1,
        Cause.RESPONSE,
        RunStatus.RUNNING,
        responses=ordered,
        since_input=0,
    )


def _reason(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"[:1_000]
