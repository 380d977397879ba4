"""Runs as their callers hold them."""

from __future__ import annotations

import asyncio
import datetime
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast.engine.snapshot import Snapshot, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    RequestAlreadyAnswered,
    RunEnded,
    RunTaken,
    StubbornHandler,
    WrongType,
)
from holdfast.ids import RequestId, RunId
from holdfast.runtime.alarm import Alarm
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.events import (
    PendingRequest,
    Response,
    WorkflowCompletedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
)
from holdfast.runtime.result import RunResult
from holdfast.runtime.runner import Runner
from holdfast.runtime.streams import RunWatch
from holdfast.runtime.times import as_time

if TYPE_CHECKING:
    from holdfast.checkpoint.info import CheckpointInfo
    from holdfast.checkpoint.store import Head, Store

Answers: TypeAlias = Mapping[RequestId, Any] | Mapping[str, Any]
"""Answers by the ids of the requests."""

# How long handlers have to clean up after they were cancelled.
GRACE_SECONDS = 5.0
# How often a run that makes no checkpoint looks whether someone wants to cancel it.
_LOOK_SECONDS = 1.0


class Home(Protocol):
    """What finds the checkpoints of a run, and drives it from one of them on."""

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        ...

    async def runner_at(self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog) -> Runner:
        """What drives the run from that checkpoint on."""
        ...

    async def runner_where_it_stands(self, run_id: RunId, log: EventLog) -> Runner:
        """What goes on with the run; raises ``RunTaken`` if someone else does."""
        ...


_held: weakref.WeakValueDictionary[tuple[int, str], Run] = weakref.WeakValueDictionary()
"""Runs that wait, or were woken since, by the identity of their store, which they keep alive, and their id."""


def held_here(store: Store, head: Head) -> Run | None:
    """The object with which someone in this event loop follows a run that stands there; None if nobody does."""
    run = _held.get((id(store), head.run_id))
    latest = None if run is None or run.status.ended else run.latest_checkpoint
    if run is None or latest is None or latest.checkpoint_id != head.checkpoint_id:
        return None
    return run if run._loop is asyncio.get_running_loop() else None


class Run:
    """One execution of a workflow, in a task of its own; made by ``Workflow.start``.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... async def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     run = await workflow.start(21)
    ...     return await run.wait_for_completion()
    >>> asyncio.run(main()).outputs
    [42]
    """

    def __init__(
        self,
        workflow_name: str,
        run_id: RunId,
        runner: Runner,
        log: EventLog,
        home: Home | None = None,
    ) -> None:
        self._workflow_name = workflow_name
        self._run_id = run_id
        self._runner = runner
        self._log = log
        self._home = home
        self._going_back: asyncio.Future[None] | None = None
        self._status = RunStatus.RUNNING
        self._error: BaseException | None = None
        self._leaving: RunStatus | None = None
        self._resting: asyncio.Future[None] | None = None
        self._moving = False
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest: asyncio.Future[None] | None = None
        if runner.recorder is not None:
            runner.recorder.log.claim.holder = self
        self._alarm: Alarm | None = None
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Run {self._run_id!r} of {self._workflow_name!r}, {self._status}>"

    @property
    def run_id(self) -> RunId:
        """The id of the run."""
        return self._run_id

    @property
    def status(self) -> RunStatus:
        """Where the run stands."""
        return self._status

    @property
    def wake_at(self) -> datetime.datetime | None:
        """When a run that waits goes on by itself, because a sleep or the time of a question is over; else None."""
        time = self._runner.wakes_at if self._status is RunStatus.WAITING else None
        return None if time is None else as_time(time)

    @property
    def asleep_until(self) -> datetime.datetime | None:
        """When a run that waits goes on because handlers of it sleep, whatever else it waits for; else None."""
        time = self._runner.asleep_until if self._status is RunStatus.WAITING else None
        return None if time is None else as_time(time)

    @property
    def _sleeps(self) -> bool:
        """Whether the run waits for nothing but time: to those who follow it, it is not at rest."""
        runner = self._runner
        return self._status is RunStatus.WAITING and runner.asleep_until is not None and not runner.pending

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints that the run made since it was started or resumed, oldest first; none without storage.

        That of a resumed run begins with the checkpoint from which it goes on.
        """
        recorder = self._runner.recorder
        return list(recorder.checkpoints) if recorder is not None else []

    @property
    def latest_checkpoint(self) -> CheckpointInfo | None:
        """The checkpoint that the run stands on; None without storage."""
        recorder = self._runner.recorder
        return recorder.checkpoints[-1] if recorder is not None and recorder.checkpoints else None

    @property
    def snapshot(self) -> Snapshot:
        """The run as it was after its last superstep."""
        return self._runner.shown

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it: when this returns, the run is in the storage."""
        try:
            await self._runner.open()
        except asyncio.CancelledError:
            await self._come_to_rest(RunStatus.STOPPED)
            raise
        except RequestAlreadyAnswered:  # the run is as well as it was
            await self._come_to_rest(RunStatus.STOPPED)
            raise
        except Exception as error:
            self._error = error
            await self._come_to_rest(RunStatus.FAILED, error)
            raise

    def begin(self) -> None:
        """Let the run begin, once; needs a running event loop."""
        if self._task is None and self._status is RunStatus.RUNNING:
            self._move()

    def _move(self) -> None:
        self._moving = False
        self._leaving = self._resting = None
        self._loop = asyncio.get_running_loop()
        self._turn_alarm_off()
        if self._rest is None or self._rest.done():  # else it only slept
            self._rest = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._drive(), name=f"holdfast run {self._run_id}")
        self._task.add_done_callback(self._moved)

    def _moved(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # taken note of: it is on its way already, to whoever waits or to the event loop
        if task is self._task and self._status is RunStatus.RUNNING:
            # It was cancelled before it began, or ended with the whole program, and could not say so itself.
            self._end(self._leaving or RunStatus.STOPPED)

    @property
    def pending_requests(self) -> list[PendingRequest]:
        """The requests that wait for an answer; none once the run is over."""
        return [] if self._status.ended else self._runner.pending

    def watch_stream(self) -> RunWatch:
        """The run's events since it started, or since an answer let it go on; ends when it waits or is over.

        Any number of watchers may watch, at any time; leaving never stops the run. A watcher that comes too late or
        is too slow for events that are no longer kept gets a ``MissedEvents`` warning in their place. Raises what
        the run failed with.
        """
        return RunWatch(self)

    async def send_response(self, request_id: str | Response, data: Any = None) -> None:
        """Answer a pending request, by its id or with a response that the request created.

        The answer is brought to the type that the request asks for. It is delivered at the next barrier.
        """
        if not isinstance(request_id, str | Response):
            raise WrongType(
                f"send_response takes the id of a request and an answer, not a {type(request_id).__name__}; for "
                f"several answers there is 'run.respond({{request_id: answer}})'"
            )
        response = request_id if isinstance(request_id, Response) else Response(RequestId(request_id), data)
        await self.respond({response.request_id: response.data})

    async def respond(self, responses: Answers) -> None:
        """Answer several pending requests at once, all or none; with storage they are durable when this returns.

        Raises ``RequestAlreadyAnswered`` if someone else was faster, here or in another process.
        """
        if not responses:
            raise InvalidArgument(f"no response was given to run {self._run_id}; pass {{request_id: answer}}")
        runner = self._runner
        recorder = runner.recorder if self._status is RunStatus.WAITING else None
        if recorder is not None and await recorder.moved_by_others() is not None:
            await recorder.respond_where_it_stands(responses)
            return
        await runner.leave_answers(self.take(responses))
        if self._may_go_on(runner):
            self._go_on()

    def _may_go_on(self, runner: Runner) -> bool:
        """Whether the run waits, and nobody is about to leave it, or to go back with it."""
        waits = self._status is RunStatus.WAITING and self._leaving is None and runner.asleep_until is None
        return waits and runner is self._runner and self._going_back is None

    async def _go_on_with_letters(self, runner: Runner) -> None:
        assert runner.recorder is not None
        status = await runner.recorder.moved_by_others()
        if status is None:
            found = await runner.look_for_letters()
            if found and self._may_go_on(runner):
                self._go_on()
        elif status is RunStatus.CANCELLED:
            if runner is self._runner and self._may_wake():
                self._end(status)
        else:
            raise RunTaken(
                f"run {self._run_id} is {status}: someone else went on with it since this object saw it wait; get one "
                f"that knows where it stands with 'workflow.resume(run_id=...)'"
            )

    def _set_alarm(self) -> None:
        wakes_at = self._runner.wakes_at
        if wakes_at is not None:
            self._alarm = self._alarm or Alarm(self._runner.environment, self._wake)
            self._alarm.set(wakes_at)
        if self._runner.recorder is not None:
            _held[id(self._runner.recorder.log.store), self._run_id] = self

    def _turn_alarm_off(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _let_go(self) -> None:
        """Be no longer the object with which the run is followed here."""
        self._turn_alarm_off()
        held = 0 if self._runner.recorder is None else id(self._runner.recorder.log.store)
        if _held.get((held, self._run_id)) is self:
            del _held[held, self._run_id]

    def wait_here(self) -> None:
        """Let a run that waits be woken in this event loop, if the one in which it came to rest is closed."""
        if self._status is RunStatus.WAITING and self._loop is not None and self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            if self._sleeps:
                self._rest = self._loop.create_future()
            self._set_alarm()

    def _may_wake(self) -> bool:
        return self._status is RunStatus.WAITING and self._leaving is None and self._going_back is None

    async def _wake(self) -> None:
        """A sleep is over, or the time of a question: go on, unless someone else did or is about to leave the run."""
        before = runner = self._runner
        if not self._may_wake():
            return
        try:
            moved = None if runner.recorder is None else await runner.recorder.moved_by_others()
            if moved is RunStatus.CANCELLED and before is self._runner and self._may_wake():
                self._end(moved)
            elif moved is not None and self._sleeps:  # others are told when they ask for something
                raise RunTaken(
                    f"run {self._run_id} was woken by someone else; get an object that knows where it stands with "
                    f"'workflow.resume(run_id=...)'"
                )
            if moved is not None:
                return
            if runner.asleep_until is not None and self._home is not None:
                # As in another process: executors are as they were before the superstep, and its journal is read.
                runner = await self._home.runner_where_it_stands(self._run_id, self._log)
        except HoldfastError as error:
            if before is self._runner and self._may_wake():  # else this object itself was faster
                self._error = error
                self._end(RunStatus.STOPPED)
            return
        if before is not self._runner or not self._may_wake():
            return
        followed, self._runner = self._sleeps, runner
        if runner.recorder is not None:
            runner.recorder.log.claim.holder = self
        self._go_on(followed)

    def _go_on(self, followed: bool = False) -> None:
        if not followed:
            self._log.reopen()
        self._status = RunStatus.RUNNING
        self._move()

    def take(self, responses: Answers) -> Sequence[RequestId]:
        """Take answers, which are delivered when the run moves; gives the requests that they answer."""
        if not isinstance(responses, Mapping):
            raise WrongType(
                f"responses are a dict of request ids and answers, not a {type(responses).__name__}"
            )
        status = RunStatus.COMPLETED if self._runner.finished and self._runner.resumed else self._status
        if self._going_back is not None:
            raise RunEnded(
                f"run {self._run_id} is going back to an earlier checkpoint; respond when it is there"
            )
        resting = self._resting is not None and self._leaving is not None
        if status.ended or resting:
            stored = self._runner.recorder is not None
            hint = (
                "resume it from the checkpoint that asked, or start a new run"
                if stored
                else "start a new run"
            )
            raise RunEnded(
                f"run {self._run_id} is {self._leaving if resting else status}; it takes no responses: {hint}"
            )
        return self._runner.respond(responses)

    async def wait_for_completion(self) -> RunResult:
        """Wait until the run waits for an answer or is over; raises what it failed with.

        One that waits goes on if an answer was left for it by ``storage.respond``. One that only sleeps is waited for;
        raises ``RunTaken`` if someone else woke it.
        """
        await self._settled()
        self.begin()
        self.wait_here()
        if self._status is RunStatus.WAITING and self._runner.recorder is not None:
            await self._go_on_with_letters(self._runner)
        if self._rest is not None:
            await asyncio.wait([self._rest])
        self._raise_failure()
        return self.result()

    def result(self) -> RunResult:
        """What came of the run so far."""
        outputs = [output.value.load() for output in self.snapshot.outputs]
        warnings = list(self._runner.warnings)
        return RunResult(self._run_id, self._status, outputs, self.pending_requests, warnings, self)

    async def restore_checkpoint(
        self, checkpoint: str | CheckpointInfo, grace: float = GRACE_SECONDS
    ) -> None:
        """Go back to an earlier checkpoint of this run, in place, and go on from there.

        What the current superstep did is discarded. What followed that checkpoint stays readable.
        """
        if self._home is None:
            raise InvalidArgument(
                f"run {self._run_id} has no storage, so there is no checkpoint to go back to"
            )
        if self._going_back is not None:
            raise InvalidArgument(f"run {self._run_id} is going back to a checkpoint already")
        self._going_back = asyncio.get_running_loop().create_future()
        try:
            await self._home.check(checkpoint, self._run_id)  # before the run is stopped for it
            if self._status is RunStatus.RUNNING:
                await self._leave_now(RunStatus.STOPPED, grace)
            self._runner = await self._home.runner_at(checkpoint, self._run_id, self._log)
            if self._runner.recorder is not None:
                self._runner.recorder.log.claim.holder = self
            self._error = self._task = None  # a task that has just come to its end must not end this anew
            self._status = RunStatus.RUNNING
            self._log.reopen()
            await self.open()
            self._move()
        finally:
            self._going_back.set_result(None)
            self._going_back = None

    async def cancel(self, grace: float = GRACE_SECONDS) -> None:
        """End the run as CANCELLED; what its current superstep did reaches nobody, unless the run is resumed.

        Handlers get a ``CancelledError``. One that has not ended after ``grace`` seconds is left behind, with a
        ``StubbornHandler`` warning; nothing that it does counts. The same goes for sync functions in their threads.
        """
        await self._leave(RunStatus.CANCELLED, grace)

    async def close(self, grace: float = GRACE_SECONDS) -> None:
        """Leave the run: if it still goes on it ends as STOPPED.

        A run that waits goes on waiting; one that sleeps is not woken by this object any more.
        """
        await self._settled()
        if self._status is not RunStatus.WAITING:
            await self._leave(RunStatus.STOPPED, grace)
        elif self._sleeps:
            self._stop_following()

    def _stop_following(self) -> None:
        """Leave a run that sleeps to whoever wakes it."""
        self._let_go()
        self._log.close()
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    async def go_on(self) -> None:
        """Go on if a sleep or the time of a question is over, or answers were left, until nothing drives the run."""
        if self._status is RunStatus.WAITING and self._runner.asleep_until is None:
            await self._go_on_with_letters(self._runner)
        if self._status is RunStatus.WAITING:
            await self._wake()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def abandon(self) -> None:
        """Leave the run as a process does that dies: it is interrupted, and whoever finds it so goes on with it."""
        if self._runner.recorder is not None and not self._status.ended:
            self._runner.recorder.abandon()
        await self._leave(RunStatus.STOPPED, GRACE_SECONDS)

    async def driven(self) -> None:
        """Wait until nothing drives the run: it is over, or waits, or sleeps; then it is left to whoever wakes it."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._status is RunStatus.WAITING:
            self._stop_following()

    async def _settled(self) -> None:
        """Wait while the run goes back to another checkpoint."""
        while self._going_back is not None:
            await asyncio.wait([self._going_back])

    async def _leave(self, status: RunStatus, grace: float) -> None:
        await self._settled()
        await self._leave_now(status, grace)

    async def _leave_now(self, status: RunStatus, grace: float) -> None:
        if not grace >= 0:
            raise InvalidArgument(f"grace={grace!r}: must be 0 or more seconds")
        if self._status.ended:
            return
        if self._task is None or self._rest is None or self._task.done():
            await self._leave_at_rest(status)
            return
        if self._leaving is None:  # a second cancellation would only disturb the cleaning up
            self._leave_with(status)
            if self._moving:  # else its task has yet to begin, and sees that it need not
                self._runner.stop(self._task)
        rest = self._rest  # another once an answer lets the run go on
        await asyncio.wait([rest], timeout=grace)
        if not rest.done():
            await self._leave_behind(grace)

    def _leave_with(self, status: RunStatus) -> None:
        self._leaving = status
        if self._runner.recorder is not None:
            self._runner.recorder.log.claim.leaving = True

    async def _leave_at_rest(self, status: RunStatus) -> None:
        if self._runner.recorder is None:
            self._end(status)
            return
        self._leave_with(self._leaving or status)
        assert self._leaving is not None
        await self._rest_in_a_task(self._leaving)

    async def _rest_in_a_task(self, status: RunStatus) -> None:
        """Come to rest in a task of its own, so that whoever waits for it can be cancelled."""
        if self._resting is None:
            self._resting = asyncio.ensure_future(self._come_to_rest(status))
        try:
            await asyncio.shield(self._resting)
        except asyncio.CancelledError:
            await asyncio.wait([self._resting])  # then it is known how the run stands
            raise

    async def _leave_behind(self, grace: float) -> None:
        warning = StubbornHandler(
            f"a handler in superstep {self._runner.superstep} of run {self._run_id} did not end within {grace:g} s "
            f"after it was cancelled and was left behind; let CancelledError through, and use 'finally' to clean up"
        )
        assert self._leaving is not None
        self._emit(self._runner.warning(warning))
        await self._rest_in_a_task(self._leaving)
        self._runner.leave_behind()

    async def _drive(self) -> None:
        """Let the run move until it waits or is over."""
        self._moving = True
        if self._leaving is not None:
            await self._come_to_rest(self._leaving)
            return
        runner = self._runner
        if self.snapshot.superstep == 0 and not runner.resumed:
            self._emit(WorkflowStartedEvent(self._workflow_name))
        self._emit(WorkflowStatusEvent(self._status))
        self._look_later()
        try:
            runner.emit(runner.again())
            await runner.drive()
        except asyncio.CancelledError:
            if runner is not self._runner:  # it was left behind, and the run went back to another checkpoint
                return
            await self._come_to_rest(self._left())
            if self._leaving is None:
                raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if runner is not self._runner:
                return
            self._error = error if not self._status.ended else None
            await self._come_to_rest(RunStatus.FAILED, error)
        else:
            asleep = runner.asleep_until is not None
            waits = RunStatus.WAITING if asleep else status_at_rest(self.snapshot)
            await self._come_to_rest(RunStatus.CANCELLED if runner.cancel_asked else waits)

    def _look_later(self) -> None:
        """Look into the inbox now and then, for those who want to cancel a run in a long superstep."""
        recorder = self._runner.recorder
        if recorder is not None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK_SECONDS, self._look_now, self._runner, recorder.log.head.seq)

    def _look_now(self, runner: Runner, seq: int) -> None:
        assert runner.recorder is not None
        if runner is not self._runner or self._status is not RunStatus.RUNNING or self._leaving is not None:
            return
        if runner.recorder.log.head.seq == seq:  # else a commit has looked since
            self._looking = asyncio.ensure_future(self._look_into_inbox(runner))
        self._look_later()

    async def _look_into_inbox(self, runner: Runner) -> None:
        try:
            await runner.look_for_letters()
        except HoldfastError:  # the next commit will tell
            return
        if runner.cancel_asked and runner is self._runner:
            await self._leave(RunStatus.CANCELLED, GRACE_SECONDS)

    def _left(self) -> RunStatus:
        return self._leaving or RunStatus.STOPPED

    async def _come_to_rest(self, status: RunStatus, error: BaseException | None = None) -> None:
        """Let the store know how the run stands, then everyone else.

        What was committed counts, so the store has the last word on it.
        """
        if self._runner.recorder is not None and not self._status.ended:
            status = await self._runner.recorder.rest(status, error)
        if error is not None:
            self._end(status, WorkflowErrorEvent(error))
        elif status is RunStatus.COMPLETED:
            outputs = self.snapshot.outputs
            data = outputs.last.value.load() if outputs else None
            self._end(status, WorkflowCompletedEvent(data))
        else:
            self._end(status)

    def _end(self, status: RunStatus, *events: WorkflowEvent) -> None:
        """Come to rest with ``status``; a run that was left behind has come to rest already."""
        if self._status.ended:
            return
        self._status = status
        if not status.ended:
            self._leaving = None  # what was committed counts: it waits, and can go on
        if self._look is not None:
            self._look.cancel()
        if self._runner.recorder is not None:
            self._runner.recorder.log.claim.release()
        self._runner.drop_answers()
        for event in (WorkflowStatusEvent(status), *events):
            self._emit(event)
        if status is RunStatus.WAITING:
            self._set_alarm()
        else:
            self._let_go()
        if self._sleeps:
            return
        self._log.close()
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)
        if status.ended:
            self._runner.cast.let_go()

    def _emit(self, event: WorkflowEvent) -> None:
        self._runner.emit([event])

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
