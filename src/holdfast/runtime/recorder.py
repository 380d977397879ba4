"""What the runner tells the log of its run: when a checkpoint is made, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.checkpoint.driving import leave_answers
from holdfast.checkpoint.inbox import Answer, Cancel, answer_letter, asks_to_cancel, read_letter
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Contents, Journaled, MergeFor, result_draft, turn_draft
from holdfast.checkpoint.loading import Blobs
from holdfast.checkpoint.log import Draft, RunLog
from holdfast.checkpoint.packing import Entry
from holdfast.engine.answers import already_answered
from holdfast.engine.snapshot import Snapshot, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, HoldfastError, RunExists, RunTaken
from holdfast.ids import CheckpointId, ExecutorId, RequestId
from holdfast.runtime.events import CheckpointSavedEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.runtime.journal import StoredJournal

if TYPE_CHECKING:
    from holdfast.runtime.turns import Finished

T = TypeVar("T")


class Beginning(NamedTuple):
    """The checkpoint at which a superstep began, and what executors that were renamed since were called there."""

    checkpoint_id: CheckpointId
    names: Mapping[str, str]


class Recorder:
    """Makes the checkpoints of one run, notes in its journal what comes between them, and reads its inbox.

    ``first`` are the checkpoints to make before anything else: the input of a new run, or the place to which an old
    one is restored. ``head`` is the checkpoint that a resumed run stands on. ``before`` reads the journal of a
    resumed run; with ``carries`` it is still worth something behind ``first``. ``began`` is where the superstep to come
    began: with another graph the run stands there anew, but nothing of it begins anew.
    """

    def __init__(
        self,
        log: RunLog,
        merge_for: MergeFor,
        first: Sequence[Entry] = (),
        head: CheckpointInfo | None = None,
        before: Callable[[], Awaitable[Contents]] | None = None,
        carries: bool = False,
        began: Beginning | None = None,
    ) -> None:
        self.log = log
        self._merge_for = merge_for
        self._before = before
        self._carries = carries
        self._began = began
        self.journal = StoredJournal(self._note, self._draft, result_draft)
        self._letters: dict[RequestId, str] = {}
        """The keys of the letters in which answers came."""
        self._void: set[str] = set()
        """The keys of letters that are of no use, which the next commit takes."""
        self.checkpoints: list[CheckpointInfo] = [head] if head is not None else []
        self.started: CheckpointInfo | None = head if head is not None and head.phase is Phase.START else None
        """The checkpoint at the start of the superstep that comes next or is under way."""
        self._news: list[CheckpointInfo] = []
        self._first = list(first)
        self._resumed = head is not None
        self._opened = False
        self._stored = False
        """Whether the head in the store is this run's own: from then on it says how the run stands."""
        self._committing: asyncio.Future[Any] | None = None
        self._cancelled: asyncio.CancelledError | None = None

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
        told = self._news[:most]
        self._news = self._news[len(told) :]
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

    # The inbox.

    async def leave(self, answers: Mapping[RequestId, Value]) -> None:
        """Leave answers to pending requests, so that they are durable; raises ``RequestAlreadyAnswered``."""
        letters = [
            answer_letter(request_id, self._asked_by(request_id), value)  # type: ignore[arg-type]
            for request_id, value in answers.items()
        ]
        left = await self._unless_taken(self.log.leave(letters))
        if left.refused:
            known = {letter.key: str(request_id) for letter, request_id in zip(letters, answers, strict=True)}
            raise already_answered([known[key] for key in left.refused])
        self._letters.update(zip(answers, (letter.key for letter in letters), strict=True))

    async def moved_by_others(self) -> RunStatus | None:
        """How a run stands that someone else moved on since it came to rest here; None if nobody did."""
        head = await self.log.newest()
        ours = (head.checkpoint_id, head.token) == (self.log.head.checkpoint_id, self.log.head.token)
        return None if ours else head.status

    async def respond_where_it_stands(self, responses: Mapping[Any, Any]) -> None:
        """Answer requests of a run that someone else moved on, as those do who never had it."""
        head, store = await self.log.newest(), self.log.store
        blobs = Blobs(store, head.family, self.log.encoder.counters)
        await leave_answers(store, head, blobs, self.log.encoder, responses)

    async def look(self) -> None:
        """Read the inbox now, and not only with the next commit; not while a commit is about to change what counts."""
        await self._idle()
        before, seen = self._committing, self.log.letters
        await self.log.read_letters()
        if self._committing is not before:
            self.log.letters = seen

    def _asked_by(self, request_id: RequestId) -> int:
        asked_by = self.log.asked_by(request_id)
        if asked_by is None:  # a commit under way delivers another answer
            raise already_answered([request_id])
        return asked_by

    def wishes(self) -> tuple[dict[RequestId, Value], bool]:
        """The answers that others left for pending requests, and whether the run is to be cancelled."""
        answers: dict[RequestId, Value] = {}
        cancelled = False
        for letter in self.log.letters:
            wish = read_letter(letter, self.log.encoder)
            if isinstance(wish, Answer) and self.log.asked_by(wish.request_id) == wish.asked_by:
                answers[wish.request_id] = wish.value
                self._letters[wish.request_id] = letter.key
            else:
                cancelled = cancelled or isinstance(wish, Cancel)
                self._void.add(letter.key)
        return answers, cancelled

    def _taken_by(self, responses: Iterable[RequestId]) -> list[str]:
        """The letters that a commit with these responses uses up."""
        if self.log.ahead:  # what could not be committed says nothing of what is void
            return []
        void, self._void = self._void, set()
        return [*(self._letters[known] for known in responses if known in self._letters), *void]

    # The journal.

    def begun(self, address: ExecutorId) -> tuple[str, str]:
        """The id of the checkpoint at which the superstep under way began, and what an executor was called there."""
        if self._began is not None:
            return self._began.checkpoint_id, self._began.names.get(address, address)
        return "" if self.started is None else self.started.checkpoint_id, address

    def _draft(self, turn: Finished) -> Draft:
        assert turn.outcome is not None
        events = [self._kept(event) for event in turn.events if not event.provisional]
        journaled = Journaled(turn.outcome, events, turn.attempt)
        return turn_draft(journaled, self.log.encoder, self._merge_for)

    async def _note(self, drafts: Sequence[Draft], count: Callable[[], bool]) -> None:
        await self._idle()
        if count():  # else their superstep was committed meanwhile, and the journal is that of the next
            await self._shielded(self.log.note(drafts))

    # Checkpoints.

    async def answered(self, snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> None:
        """Commit responses before anything acts on them."""
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
        """Commit the end of a superstep, and the start of the next in the same commit if there is one."""
        after, delta = applied.snapshot, applied.delta
        since_input = after.since_input if after.since_input != self.log.since_input + 1 else None
        going_on = bool(after.deliveries or responses)
        status = RunStatus.RUNNING if going_on else status_at_rest(after)
        end = Entry(
            Phase.END,
            after.superstep,
            Cause.SUPERSTEP,
            status,
            before=before,
            delta=delta,
            since_input=since_input,
            happened=[self._kept(event) for event in happened],
        )
        entries = [end]
        if responses:
            entries.append(_answers(after, responses))
        elif going_on:
            entries.append(Entry(Phase.START, after.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING))
        self.journal.clear()
        self._began = None
        return await self._append(entries, taken=self._taken_by(responses))

    def _kept(self, event: WorkflowEvent) -> tuple[ExecutorId | None, Value | tuple[str, str]]:
        if isinstance(event, WorkflowWarningEvent):
            return event.executor_id, (type(event.warning).__name__, str(event.warning))
        return None, self.log.encoder(event, "event")

    async def _append(
        self, entries: Sequence[Entry], drafts: Sequence[Draft] = (), taken: Sequence[str] = ()
    ) -> list[CheckpointInfo]:
        made = await self._shielded(self.log.append(entries, taken, drafts))
        self.checkpoints += made
        self._news += made
        last = made[-1]
        self.started = last if last.phase is Phase.START else None
        return made

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

    async def _forget_cancels(self, status: RunStatus, reason: str) -> None:
        """A run that is over has no wish left that it be cancelled: one that is resumed should not find it."""
        taken: set[str] = set()
        while wishes := {w.key for w in self.log.letters if asks_to_cancel(w)} - taken:
            taken |= wishes
            await self._shielded(self.log.set_status(status, reason, taken=sorted(wishes)))

    async def _idle(self) -> None:
        """Wait for commits that are under way: a run may be left while it commits."""
        while self._committing is not None and not self._committing.done():
            await self._over(self._committing)

    async def _shielded(self, commit: Coroutine[Any, Any, T]) -> T:
        """Wait for a commit to end, also while being cancelled: what was committed counts.

        The cancellation is raised by ``raise_if_cancelled``, once the caller has taken what was committed.
        """
        await self._idle()
        task: asyncio.Task[T] = asyncio.ensure_future(commit)
        self._committing = task
        await self._over(task)
        return await self._unless_taken(task)

    async def _unless_taken(self, commit: Awaitable[T]) -> T:
        """What a commit gives; one that another writer prevented raises ``RunTaken``."""
        try:
            return await commit
        except HeadMoved as error:
            if not self.log.head.checkpoint_id:
                raise  # of a run that begins
            raise RunTaken(
                f"run {self.log.run_id} was taken over, or cancelled, by someone else; what was done here since its "
                f"last checkpoint is not part of it. Let its new owner go on, or take it back with "
                f"'workflow.resume(run_id=..., take_over=True)'"
            ) from error

    async def _over(self, task: asyncio.Future[Any]) -> None:
        while not task.done():
            # What asyncio.wait does, without its ceremony: this is done in every superstep.
            ended = asyncio.get_running_loop().create_future()
            task.add_done_callback(partial(_ended, ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                self._cancelled = error

    def raise_if_cancelled(self) -> None:
        """Be cancelled, if that was asked for during a commit."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled


def _beginning(made: Sequence[CheckpointInfo]) -> Beginning | None:
    """At which of the checkpoints that were made together a superstep begins: those behind it only edit it."""
    for info in made:
        if info.phase is Phase.START:
            return Beginning(info.checkpoint_id, {})
    return None


def _ended(ended: asyncio.Future[None], _: object) -> None:
    if not ended.done():
        ended.set_result(None)


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
