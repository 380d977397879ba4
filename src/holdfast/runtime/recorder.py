"""What the runner tells the log of its run: when a checkpoint is made, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.log import RunLog
from holdfast.checkpoint.packing import Entry
from holdfast.engine.snapshot import Snapshot, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied
from holdfast.engine.value import Value
from holdfast.errors import HeadMoved, HoldfastError, RunExists
from holdfast.ids import ExecutorId, RequestId
from holdfast.runtime.events import CheckpointSavedEvent, WorkflowEvent, WorkflowWarningEvent

T = TypeVar("T")


class Recorder:
    """Makes the checkpoints of one run.

    ``first`` are the checkpoints to make before anything else: the input of a new run, or the place to which an old
    one is restored. ``head`` is the checkpoint that a resumed run stands on.
    """

    def __init__(self, log: RunLog, first: Sequence[Entry] = (), head: CheckpointInfo | None = None) -> None:
        self.log = log
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

    def news(self, most: int | None = None) -> list[WorkflowEvent]:
        """The events for checkpoints that were made and not told yet."""
        told = self._news[:most]
        self._news = self._news[len(told) :]
        return [CheckpointSavedEvent(info) for info in told]

    async def open(self, moves: bool) -> None:
        """Commit what comes before anything else, once; a run that ``moves`` is RUNNING from now on."""
        if self._opened:
            return
        self._opened = True
        self._stored = self._resumed and not self._first
        if self._first:
            try:
                await self._append(self._first)
                self._stored = True
                return
            except HeadMoved as error:
                if self._resumed:
                    raise
                raise RunExists(
                    f"run {self.log.run_id!r} is in this storage already; choose another id or leave it out, go on "
                    f"with that run by 'workflow.resume(run_id=...)', or say if_exists='attach'"
                ) from error
        if moves and self.status is not RunStatus.RUNNING:
            await self._shielded(self.log.set_status(RunStatus.RUNNING))

    async def answered(self, snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> None:
        """Commit responses before anything acts on them."""
        await self._append([_answers(snapshot, responses)])

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
        if responses:
            return await self._append([end, _answers(after, responses)])
        if going_on:
            return await self._append(
                [end, Entry(Phase.START, after.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)]
            )
        return await self._append([end])

    def _kept(self, event: WorkflowEvent) -> tuple[ExecutorId | None, Value | tuple[str, str]]:
        if isinstance(event, WorkflowWarningEvent):
            return event.executor_id, (type(event.warning).__name__, str(event.warning))
        return None, self.log.encoder(event, "event")

    async def _append(self, entries: Sequence[Entry]) -> list[CheckpointInfo]:
        made = await self._shielded(self.log.append(entries))
        self.checkpoints += made
        self._news += made
        last = made[-1]
        self.started = last if last.phase is Phase.START else None
        return made

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
        if not self._stored or status is self.status or isinstance(error, HeadMoved):
            return status
        try:
            await self._shielded(self.log.set_status(status, _reason(error)))
        except HoldfastError as problem:
            if error is not None:
                error.add_note(f"that the run is {status} could not be stored: {problem}")
        return status

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
        return task.result()

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
