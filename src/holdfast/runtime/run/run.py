"""Runs as their callers hold them, and the factory of those that are not stored."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.checkpoint.arguments import check_by, check_key
from holdfast.checkpoint.events.events import PendingRequest, Response
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.engine.superstep import begin
from holdfast.engine.value import Copier
from holdfast.errors import (
    HoldfastWarning,
    InvalidArgument,
    RequestAlreadyAnswered,
    RunEnded,
    RunTaken,
    WrongType,
)
from holdfast.ids import RequestId, RunId
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.run.lifecycle import GRACE_SECONDS, RunLifecycle
from holdfast.runtime.run.result import RunResult
from holdfast.runtime.run.stream import EventFeed, RunStream, RunWatch
from holdfast.runtime.run.wakeup import Waker
from holdfast.runtime.step.runner import ResumePoint, Runner
from holdfast.runtime.times import as_time

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.runtime.config import RunContext, WorkflowDefinition
    from holdfast.runtime.durable.stored_runs import StoredRuns

Answers: TypeAlias = Mapping[RequestId, Any] | Mapping[str, Any]
"""Answers by the ids of the requests."""

_INTERNAL = frozenset(
    {
        "abandon",
        "begin",
        "driven",
        "event_feed",
        "go_on",
        "open",
        "rest_if_idle",
        "stand_still",
        "take",
        "leave_out_replay",
        "warn_at_start",
    }
)
"""Methods of ``Run`` for other parts of Holdfast, which ``dir`` leaves out."""


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
        home: StoredRuns | None = None,
    ) -> None:
        """``home`` finds the checkpoints of a run that is stored."""
        self._lifecycle = RunLifecycle(workflow_name, run_id, runner, log)
        self._waker = Waker(self, self._lifecycle, home)
        self._home = home
        self._follow_up: asyncio.Task[None] | None = None
        """Goes on with a message that was stored behind the last commit of the run, once that rests."""
        if runner.recorder is not None:
            runner.recorder.hold_claim(self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _INTERNAL)

    def __repr__(self) -> str:
        return f"<Run {self.run_id!r} of {self._lifecycle.workflow_name!r}, {self.status}>"

    @property
    def run_id(self) -> RunId:
        """The id of the run."""
        return self._lifecycle.run_id

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        return self._lifecycle.status

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """For a run that is WAITING: ``"answers"``, ``"time"`` (a sleep) or ``"messages"`` (of fan-ins); else empty."""
        return self._lifecycle.waiting_for

    @property
    def failure(self) -> BaseException | None:
        """The error with which the run failed, as ``wait_for_completion`` raises it; None if it did not fail."""
        return self._lifecycle.error

    @property
    def warnings(self) -> list[HoldfastWarning]:
        """The last thousand warnings since the run was started or resumed."""
        return list(self._lifecycle.runner.warnings)

    @property
    def wake_at(self) -> datetime.datetime | None:
        """The time at which a run that waits goes on by itself, after a sleep or the time of a request; else None."""
        time = self._lifecycle.runner.wakes_at if self.status is RunStatus.WAITING else None
        return None if time is None else as_time(time)

    @property
    def asleep_until(self) -> datetime.datetime | None:
        """The time at which sleeping handlers of a run that waits go on, whatever else it waits for; else None."""
        time = self._lifecycle.runner.asleep_until if self.status is RunStatus.WAITING else None
        return None if time is None else as_time(time)

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints that this object has seen, oldest first, on all branches; none without storage.

        Those that the run made since it was started, or resumed: then the list begins with the one from which it goes
        on. Going back to an earlier one takes none from it. Where the run has retention, those are left out that it
        does not keep.
        """
        recorder = self._lifecycle.runner.recorder
        return recorder.checkpoints if recorder is not None else []

    @property
    def latest_checkpoint(self) -> CheckpointInfo | None:
        """The checkpoint that the run stands on; None without storage."""
        recorder = self._lifecycle.runner.recorder
        return recorder.latest if recorder is not None else None

    @property
    def snapshot(self) -> Snapshot:
        """The run as it was after its last superstep."""
        return self._lifecycle.snapshot

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it: when this returns, the run is in the storage."""
        try:
            await self._lifecycle.runner.open()
        except asyncio.CancelledError:
            await self._lifecycle.come_to_rest(RunStatus.STOPPED)
            raise
        except RequestAlreadyAnswered:  # the run is as well as it was
            await self._lifecycle.come_to_rest(RunStatus.STOPPED)
            raise
        except Exception as error:
            self._lifecycle.error = error
            await self._lifecycle.come_to_rest(RunStatus.FAILED, error)
            raise

    def leave_out_replay(self) -> None:
        """Do not tell the outputs of a finished run again when it goes on."""
        self._lifecycle.runner.leave_out_replay()

    def begin(self) -> None:
        """Let the run begin, once; needs a running event loop."""
        if self._lifecycle.task is None and self.status is RunStatus.RUNNING:
            self._lifecycle.move()

    def warn_at_start(self, warning: HoldfastWarning) -> None:
        """Add a warning to the events of a run that is to begin."""
        self._lifecycle.first_warnings.append(warning)

    def event_feed(self) -> EventFeed:
        """Return the feed from which streams take the events of the run."""
        lifecycle = self._lifecycle
        return EventFeed(lifecycle.log, self._waker.wait_here, lifecycle.raise_failure)

    async def rest_if_idle(self) -> None:
        """Wait until a run rests that begins with nothing to do, so that its status is what the storage says."""
        lifecycle = self._lifecycle
        if lifecycle.task is not None and not lifecycle.runner.has_work:
            await asyncio.wait([lifecycle.task])

    @property
    def pending_requests(self) -> list[PendingRequest]:
        """The requests that wait for an answer; none once the run is over."""
        return [] if self.status.ended else self._lifecycle.runner.pending_requests

    def watch_stream(self) -> RunWatch:
        """The run's events since it started, or since an answer let it go on; ends when it waits or is over.

        Any number of watchers may watch, at any time; leaving never stops the run. A watcher that comes too late or
        is too slow for events that are no longer kept gets a ``MissedEvents`` warning in their place. Raises what
        the run failed with.
        """
        return RunWatch(self)

    async def send_response(
        self, request_id: str | Response, data: Any = None, *, by: str | None = None
    ) -> None:
        """Answer a pending request, by its id or with a response that the request created.

        The answer is brought to the type that the request asks for. It is delivered at the next barrier. ``by`` says
        who answers.
        """
        if not isinstance(request_id, str | Response):
            raise WrongType(
                f"send_response takes the id of a request and an answer, not a {type(request_id).__name__}; for "
                f"several answers there is 'run.respond({{request_id: answer}})'"
            )
        response = request_id if isinstance(request_id, Response) else Response(RequestId(request_id), data)
        await self.respond({response.request_id: response.data}, by=by)

    async def respond(self, responses: Answers, *, by: str | None = None) -> None:
        """Answer several pending requests at once, all or none; with storage they are durable when this returns.

        Raises ``RequestAlreadyAnswered`` if someone else was faster, here or in another process. ``by`` says who
        answers.
        """
        by = check_by(by)
        if not responses:
            raise InvalidArgument(f"no response was given to run {self.run_id}; pass {{request_id: answer}}")
        if self.status is RunStatus.WAITING and await self._waker.moved_by_others() is not None:
            recorder = self._lifecycle.runner.recorder
            assert recorder is not None, "nobody else can move a run that is not stored"
            await recorder.leave_at_newest_head(responses, by)
            return
        runner = self._lifecycle.runner
        await runner.leave_answers(self.take(responses, by))
        self._waker.go_on_if_waiting(runner)

    async def send(
        self, message: Any, target_id: str | None = None, *, key: str | None = None, by: str | None = None
    ) -> None:
        """Send a further message into the run: to its start executor, or to ``target_id``; its state is kept.

        A run that moves takes it before its next superstep, one that waits or is over goes on with it. With storage it
        is durable when this returns, and a ``key`` makes it once: a message that was sent with that key before is not
        sent again. ``by`` says who sent it.
        """
        lifecycle = self._lifecycle
        await lifecycle.settled()
        runner = lifecycle.runner
        if runner.recorder is None and lifecycle.status.ended:
            raise RunEnded(
                f"run {self.run_id} is {lifecycle.status}, and without storage nothing of it is left; start a new run, "
                f"or build the workflow with a storage"
            )
        is_seen = await runner.inputs.send(message, target_id, check_key(key), check_by(by))
        if lifecycle.status is not RunStatus.RUNNING:
            await self._go_on_with_message()
        elif not is_seen and (self._follow_up is None or self._follow_up.done()):
            self._follow_up = asyncio.create_task(self._go_on_once_at_rest())

    async def _go_on_once_at_rest(self) -> None:
        """Go on with a message that the run may not see any more before it rests, unless the run is left."""
        lifecycle = self._lifecycle
        if lifecycle.task is not None:
            await asyncio.wait([lifecycle.task])
        if lifecycle.leaving is None:
            await self._go_on_with_message()

    async def _go_on_with_message(self) -> None:
        """Go on with a run at rest for which a message was left, unless another one was faster."""
        lifecycle = self._lifecycle
        await lifecycle.settled()
        runner = lifecycle.runner
        if lifecycle.status.ended:
            await self._reopen()
        elif lifecycle.status is RunStatus.WAITING:
            is_stored = runner.recorder is not None
            if is_stored and await self._waker.moved_by_others() is not None:
                return
            if not is_stored or await runner.look_for_letters():
                self._waker.go_on_if_waiting(runner)

    async def _reopen(self) -> None:
        """Go on with a stored run that is over, if a message waits for it; whoever was faster goes on with it."""
        lifecycle, home = self._lifecycle, self._home
        assert home is not None, "it is stored"
        lifecycle.going_back = asyncio.get_running_loop().create_future()
        try:
            if not await home.has_letters(self.run_id):  # another message was faster, and took this one along
                return
            runner = await home.runner_at_head(self.run_id, lifecycle.log)
            runner.leave_out_replay()
            lifecycle.go_back(runner)
            await self.open()
            lifecycle.move()
        except RunTaken:  # another process has it, and the message
            return
        finally:
            lifecycle.going_back.set_result(None)
            lifecycle.going_back = None

    def take(self, responses: Answers, by: str | None = None) -> Sequence[RequestId]:
        """Take answers, which are delivered when the run moves; return the requests that they answer."""
        if not isinstance(responses, Mapping):
            raise WrongType(
                f"responses are a dict of request ids and answers, not a {type(responses).__name__}"
            )
        lifecycle, runner = self._lifecycle, self._lifecycle.runner
        if lifecycle.going_back is not None:
            raise RunEnded(
                f"run {self.run_id} is going back to an earlier checkpoint; respond when it is there"
            )
        status = RunStatus.COMPLETED if runner.finished and runner.resumed else lifecycle.status
        if lifecycle.about_to_rest and lifecycle.leaving is not None:
            status = lifecycle.leaving
        if status.ended:
            resumable = "resume it from the checkpoint that asked, or " if runner.recorder is not None else ""
            raise RunEnded(
                f"run {self.run_id} is {status}; it takes no responses: {resumable}start a new run"
            )
        return runner.take_answers(responses, by)

    async def wait_for_completion(self) -> RunResult:
        """Wait until the run waits for answers or messages, or is over; raise the error with which it failed.

        One that waits goes on if an answer was left for it by ``storage.respond``. One that only sleeps is waited for;
        raises ``RunTaken`` if someone else woke it.
        """
        lifecycle = self._lifecycle
        await lifecycle.settled()
        self.begin()
        self._waker.wait_here()
        if lifecycle.status is RunStatus.WAITING and lifecycle.runner.recorder is not None:
            await self._waker.go_on_with_letters()
        await self._at_rest()
        lifecycle.raise_failure()
        return self.result()

    async def _at_rest(self) -> None:
        """Wait until the run rests and no message waits with which it goes on."""
        lifecycle, is_resting = self._lifecycle, False
        while not is_resting:
            if lifecycle.rest is not None:
                await asyncio.wait([lifecycle.rest])  # others go on meanwhile, also if it rests already
            if self._follow_up is not None and not self._follow_up.done():
                await asyncio.wait([self._follow_up])
            is_resting = lifecycle.rest is None or lifecycle.rest.done()  # else it went on with a message
        follow_up, self._follow_up = self._follow_up, None
        if follow_up is not None and not follow_up.cancelled():  # else its event loop ended
            follow_up.result()

    def result(self) -> RunResult:
        """Return the result of the run so far."""
        outputs = [output.value.load() for output in self.snapshot.outputs]
        result = RunResult(self.run_id, self.status, outputs, [], self.warnings, self.waiting_for, self)
        if not self.status.ended:
            result.ask_later(self._lifecycle.runner.pending_now())
        return result

    async def restore_checkpoint(
        self, checkpoint: str | CheckpointInfo, grace: float = GRACE_SECONDS, *, by: str | None = None
    ) -> None:
        """Go back to an earlier checkpoint of this run, in place, and go on from there.

        What the current superstep did is discarded. What followed that checkpoint stays readable. ``by`` says who goes
        back.
        """
        by = check_by(by)
        lifecycle, home = self._lifecycle, self._home
        if home is None:
            raise InvalidArgument(
                f"run {self.run_id} has no storage, so there is no checkpoint to go back to"
            )
        if lifecycle.going_back is not None:
            raise InvalidArgument(f"run {self.run_id} is going back to a checkpoint already")
        if lifecycle.runner.runs_in(asyncio.current_task()):
            raise InvalidArgument(
                f"a handler of run {self.run_id} is to take that run back to a checkpoint, but would be cancelled for "
                f"it itself; do so from outside the run, or begin a new run there with 'workflow.fork(checkpoint)'"
            )
        lifecycle.going_back = asyncio.get_running_loop().create_future()
        try:
            await home.check(checkpoint, self.run_id)  # before the run is stopped for it
            if lifecycle.status is RunStatus.RUNNING:
                await lifecycle.leave(RunStatus.STOPPED, grace)
            lifecycle.go_back(await home.runner_at(checkpoint, self.run_id, lifecycle.log, by))
            await self.open()
            lifecycle.move()
        finally:
            lifecycle.going_back.set_result(None)
            lifecycle.going_back = None
        await self.rest_if_idle()

    async def cancel(self, grace: float = GRACE_SECONDS, *, by: str | None = None) -> None:
        """End the run as CANCELLED; what its current superstep did reaches nobody, unless the run is resumed.

        Handlers get a ``CancelledError``. One that has not ended after ``grace`` seconds is left behind, with a
        ``StubbornHandler`` warning; nothing that it does counts. The same goes for sync functions in their threads.
        ``by`` says who cancels it (``RunInfo.by``).
        """
        by = check_by(by)
        await self._lifecycle.settled()
        if self._lifecycle.runner.recorder is not None and by is not None:
            self._lifecycle.runner.recorder.name_canceller(by)
        await self._lifecycle.leave(RunStatus.CANCELLED, grace)

    async def close(self, grace: float = GRACE_SECONDS) -> None:
        """Leave the run: if it still goes on it ends as STOPPED.

        A run that waits goes on waiting; one that sleeps is not woken by this object any more.
        """
        await self._lifecycle.settled()
        if self.status is not RunStatus.WAITING:
            await self._lifecycle.leave(RunStatus.STOPPED, grace)
        if self._lifecycle.sleeps:
            self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Leave a run that waits to whoever wakes it."""
        self._waker.let_go()
        self._lifecycle.stop_following()

    async def go_on(self) -> None:
        """Go on if a sleep or the time of a question is over, or answers were left, until nothing drives the run."""
        lifecycle = self._lifecycle
        if lifecycle.status is RunStatus.WAITING and lifecycle.runner.asleep_until is None:
            await self._waker.go_on_with_letters()
        if lifecycle.status is RunStatus.WAITING:
            await self._waker.wake()
        if lifecycle.task is not None:
            await asyncio.wait([lifecycle.task])

    def stand_still(self) -> AbstractAsyncContextManager[None]:
        """Let a stored run commit nothing for a while."""
        recorder = self._lifecycle.runner.recorder
        assert recorder is not None
        return recorder.stand_still()

    async def abandon(self) -> None:
        """Leave the run as a process does that dies: it is interrupted, and whoever finds it so goes on with it."""
        recorder = self._lifecycle.runner.recorder
        if recorder is not None and not self.status.ended:
            recorder.abandon()
        await self._lifecycle.settled()
        await self._lifecycle.leave(RunStatus.STOPPED, GRACE_SECONDS)

    async def driven(self) -> None:
        """Wait until nothing drives the run: it is over, or waits, or sleeps; then it is left to whoever wakes it."""
        if self._lifecycle.task is not None:
            await asyncio.wait([self._lifecycle.task])
        if self.status is RunStatus.WAITING:
            self._leave_waiting()


class RunFactory:
    """Makes the runs of one workflow that are not stored."""

    def __init__(self, workflow: WorkflowDefinition) -> None:
        self._workflow = workflow
        self._capture = Copier(workflow.config.limits.max_value_size)

    def new_run(self, message: Any, run_id: RunId, run_context: RunContext) -> Run:
        """Return a run with this input, of which nothing is stored."""
        workflow = self._workflow
        snapshot = begin(workflow.graph, workflow.name, message, workflow.config.limits, self._capture)
        log = EventLog()
        runner = Runner(workflow, run_id, ResumePoint(snapshot), self._capture, log, run_context)
        return Run(workflow.name, run_id, runner, log)

    def stream(self, run: Run) -> RunStream:
        """Return the events of a run, which begins when the first is asked for."""
        return RunStream(run)
