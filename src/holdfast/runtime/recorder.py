"""What the runner tells the log of its run: when a checkpoint is made, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.checkpoint.inbox import asks_to_cancel
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Contents, Journaled, MergeFor, Told, result_draft, turn_draft
from holdfast.checkpoint.log import Draft, RunLog
from holdfast.checkpoint.packing import Entry
from holdfast.engine.distance import distance
from holdfast.engine.durability import Durability
from holdfast.engine.snapshot import Delta, Snapshot, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, HoldfastError, RunExists, RunTaken
from holdfast.ids import ExecutorId, RequestId
from holdfast.runtime.correspondence import Correspondence
from holdfast.runtime.events import CheckpointSavedEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.runtime.journal import StoredJournal

if TYPE_CHECKING:
    from holdfast.runtime.turns import Finished

# Under which name the journal has where the superstep began, if that is not the checkpoint it belongs to. No executor
# has an empty id.
_BEGAN: Final = (ExecutorId(""), "began")


class Beginning(NamedTuple):
    """Where a superstep began, and what executors that were renamed since were called there."""

    name: str
    """The id of a checkpoint; with the number of the superstep if it began later, where nothing was durable."""
    names: Mapping[str, str]


class Uncommitted(NamedTuple):
    """What a run did that was not committed: where it was then, where it is, and what happened on the way."""

    before: Snapshot
    after: Snapshot
    happened: list[Told]


class Recorder(Correspondence):
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
        super().__init__(log)
        self.durability = durability
        self._merge_for = merge_for
        self._before = before
        self._carries = carries
        self._began = began
        self.journal = StoredJournal(self._note, self._draft, result_draft, self.caught_up)
        self.journal.patient = durability == "exit"
        self.checkpoints: list[CheckpointInfo] = [head] if head is not None else []
        self.started: CheckpointInfo | None = head if head is not None and head.phase is Phase.START else None
        """The checkpoint at the start of the superstep that comes next or is under way."""
        self._news: list[CheckpointInfo] = []
        self._first = list(first)
        self._resumed = head is not None
        self._opened = False
        self._stored = False
        """Whether the head in the store is this run's own: from then on it says how the run stands."""
        self._origin = "" if self.started is None else str(self.started.checkpoint_id)
        """The checkpoint by which supersteps are named that begin where nothing is durable."""
        self._uncommitted: Uncommitted | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self.tell: Callable[[Sequence[WorkflowEvent]], None] = lambda events: None
        """Told of checkpoints that are made between the ends of supersteps."""

    @property
    def status(self) -> RunStatus:
        """What the store says of the run."""
        return self.log.head.status

    @property
    def asks_again(self) -> bool:
        """Whether it has yet to make a checkpoint that asks the pending requests again."""
        return not self._opened and any(entry.cause in (Cause.RESTORE, Cause.FORK) for entry in self._first)

    def news(self, most: int | None = None) -> list[WorkflowEvent]:
        """The events for checkpoints that were made and not told yet."""
        told, self._news = (self._news, []) if most is None else (self._news[:most], self._news[most:])
        return [CheckpointSavedEvent(info) for info in told]

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
            if (began := contents.results.get(_BEGAN)) is not None:
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

    def begun(self, address: ExecutorId) -> tuple[str, str]:
        """The id of the checkpoint at which the superstep under way began, and what an executor was called there."""
        if self._began is not None:
            return self._began.name, self._began.names.get(address, address)
        if self._uncommitted is not None:
            return self._beginning_of(self._uncommitted.after), address
        return "" if self.started is None else self.started.checkpoint_id, address

    def _beginning_of(self, before: Snapshot) -> str:
        """Names a superstep that began where nothing was durable, as it is named when it is done again."""
        return f"{self._origin}/{before.superstep + 1}"

    def _draft(self, turn: Finished) -> Draft:
        assert turn.outcome is not None
        events = [self._kept(event) for event in turn.events if not event.provisional]
        journaled = Journaled(turn.outcome, events, turn.attempt)
        return turn_draft(journaled, self.log.encoder, self._merge_for)

    async def _note(self, drafts: Sequence[Draft], count: Callable[[], bool]) -> None:
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
    ) -> list[CheckpointInfo]:
        """Commit the end of a superstep, and the start of the next in the same commit if there is one.

        Where the run goes on, the commit may be still under way when this returns (``behind``), or none be made.
        """
        after, delta = applied.snapshot, applied.delta
        self.journal.clear()
        kept = [self._kept(event) for event in happened]
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
        status = RunStatus.RUNNING if going_on else status_at_rest(after)
        entries = [self._end(status, before, after, delta, kept)]
        if responses:
            entries.append(_answers(after, responses))
        elif going_on:
            entries.append(_start(after))
        if at_leisure and self.durability == "async":
            made = await self._in_background(entries, self._taken_by(()), self.checkpoints.extend)
            self._news += made
            self._made(made)
            return made
        return await self._append(entries, taken=self._taken_by(responses))

    def _end(
        self,
        status: RunStatus,
        before: Snapshot,
        after: Snapshot,
        delta: Delta,
        happened: Sequence[Told],
    ) -> Entry:
        since_input = after.since_input if after.since_input != self.log.since_input + 1 else None
        return Entry(
            Phase.END,
            after.superstep,
            Cause.SUPERSTEP,
            status,
            before=before,
            delta=delta,
            since_input=since_input,
            happened=happened,
        )

    # What is not committed at once.

    def _put_off(self, before: Snapshot, after: Snapshot, happened: Sequence[Told]) -> None:
        """Let a superstep be committed with those that follow: of all of them only the last snapshot is kept."""
        if self._uncommitted is None:
            self._uncommitted = Uncommitted(before, after, list(happened))
        else:
            self._uncommitted.happened.extend(happened)
            self._uncommitted = self._uncommitted._replace(after=after)
        self.started = None

    @property
    def durable(self) -> Snapshot | None:
        """The snapshot on which the run stands in the store, if it is an earlier one than the run is at."""
        return None if self._uncommitted is None else self._uncommitted.before

    async def caught_up(self) -> None:
        """Wait until all that the run stands on is durable; raises if it cannot be.

        Whoever waits can be cancelled, which is no business of the commit.
        """
        if self._uncommitted is None and not self.behind and self._failure is None:
            return
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.ensure_future(self._catch_up())
            self._catching_up.add_done_callback(_taken_note_of)
        await asyncio.shield(self._catching_up)

    async def _catch_up(self) -> None:
        await self._sound()
        while self._uncommitted is not None:
            await self._shielded(self._commit_late())
            await self._sound()

    async def _commit_late(self) -> None:
        """Commit what was put off, while its superstep is under way."""
        if self._uncommitted is None:
            return
        before, after, happened = self._uncommitted
        told = list(happened)
        end = self._end(RunStatus.RUNNING, before, after, distance(before, after), told)
        began = self._beginning_of(after)
        note = result_draft(*_BEGAN, self.log.encoder(began, "beginning"))
        made = await self._appended([end, _start(after)], (), [note])
        del happened[: len(told)]
        if self._uncommitted.after is after:
            self._uncommitted = None
            self._began = Beginning(began, {})
            self.started = made[-1]
        else:  # another superstep ended meanwhile
            self._uncommitted = self._uncommitted._replace(before=after)
        self.tell(self.news())

    def _kept(self, event: WorkflowEvent) -> Told:
        if isinstance(event, WorkflowWarningEvent):
            return event.executor_id, (type(event.warning).__name__, str(event.warning))
        return None, self.log.encoder(event, "event")

    async def _append(
        self, entries: Sequence[Entry], drafts: Sequence[Draft] = (), taken: Sequence[str] = ()
    ) -> list[CheckpointInfo]:
        if self._uncommitted is not None:
            return await self._shielded(self._append_all(entries, drafts, taken))
        made = await self._shielded(self.log.append(entries, taken, drafts))
        self.checkpoints += made
        self._news += made
        self._made(made)
        return made

    async def _append_all(
        self, entries: Sequence[Entry], drafts: Sequence[Draft], taken: Sequence[str]
    ) -> list[CheckpointInfo]:
        """The same with what was put off, which nobody else may commit then."""
        made = await self._appended(entries, taken, drafts)
        self._made(made)
        self._uncommitted = None
        return made

    async def _appended(
        self, entries: Sequence[Entry], taken: Sequence[str], drafts: Sequence[Draft]
    ) -> list[CheckpointInfo]:
        try:
            made = await self.log.append(entries, taken, drafts)
        except BaseException as error:
            self._failure = self._meaning(error)
            raise
        self.checkpoints += made
        self._news += made
        return made

    def _made(self, made: Sequence[CheckpointInfo]) -> None:
        last = made[-1]
        self.started = last if last.phase is Phase.START else None
        if self.started is not None:
            self._origin = str(last.checkpoint_id)

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


def _start(after: Snapshot) -> Entry:
    return Entry(Phase.START, after.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)


def _taken_note_of(task: asyncio.Task[None]) -> None:
    """Whoever waits is told, if anyone still does."""
    if not task.cancelled():
        task.exception()


def _answers(snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> Entry:
    # In the order in which they are delivered: that of the requests.
    ordered = {known: responses[known] for known in snapshot.requests if known in responses}
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
