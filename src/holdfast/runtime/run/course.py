"""How a run stands: moving, waiting, or over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.errors import InvalidArgument, StubbornHandler
from holdfast.ids import RunId
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.events.events import (
    WorkflowCompletedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowStatusEvent,
)
from holdfast.runtime.run.stretch import Stretch
from holdfast.runtime.step.runner import Runner


class Course:
    """Brings a run from movement to rest, and back into movement.

    ``noticed`` is called whenever the one has become the other.
    """

    def __init__(self, workflow_name: str, run_id: RunId, runner: Runner, log: EventLog) -> None:
        self.workflow_name = workflow_name
        self.run_id = run_id
        self.runner = runner
        self.log = log
        self.status = RunStatus.RUNNING
        self.error: BaseException | None = None
        self.leaving: RunStatus | None = None
        """With which status someone is about to leave the run, if anyone is."""
        self.going_back: asyncio.Future[None] | None = None
        """What is done when the run is at another checkpoint, if it goes back to one."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it moved last."""
        self.rest: asyncio.Future[None] | None = None
        """What is done when it rests; to those who follow a run that only sleeps, it does not."""
        self.task: asyncio.Task[None] | None = None
        """The task in which it moves, or moved last."""
        self.noticed: Callable[[], None] = lambda: None
        self._stretch: Stretch | None = None
        self._resting: asyncio.Future[None] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The run as it was after its last superstep."""
        return self.runner.at.shown

    @property
    def waits(self) -> bool:
        """Whether the run waits, and nobody is about to leave it, or to go back with it."""
        return self.status is RunStatus.WAITING and self.leaving is None and self.going_back is None

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """The reasons why the run waits; empty unless it is WAITING."""
        return self.runner.at.waiting_for if self.status is RunStatus.WAITING else ()

    @property
    def sleeps(self) -> bool:
        """Whether the run waits for nothing but time."""
        asleep = self.status is RunStatus.WAITING and self.runner.at.asleep_until is not None
        return asleep and not self.runner.questions.open

    @property
    def status_if_cut(self) -> RunStatus:
        """With which status the run ends if its task is cancelled."""
        return self.leaving or RunStatus.STOPPED

    @property
    def about_to_rest(self) -> bool:
        """Whether the run is being left, and what it takes now comes too late."""
        return self._resting is not None and self.leaving is not None

    def emit(self, event: WorkflowEvent) -> None:
        """Tell those who watch."""
        self.runner.teller.emit([event])

    # Into movement.

    def move(self) -> None:
        """Let the run move; needs a running event loop."""
        self.leaving = self._resting = None
        self.status = RunStatus.RUNNING
        self.loop = asyncio.get_running_loop()
        self.noticed()
        if self.rest is None or self.rest.done():  # else it only slept
            self.rest = self.loop.create_future()
        self._stretch = Stretch(self)
        self.task = self._stretch.task
        self.task.add_done_callback(self._moved)

    def _moved(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # taken note of: it is on its way already, to whoever waits or to the event loop
        if task is not self.task:
            return
        self._stretch = None
        if self.status is RunStatus.RUNNING:
            # It was cancelled before it began, or ended with the whole program, and could not say so itself.
            self.end(self.status_if_cut)

    def go_on(self, runner: Runner | None = None) -> None:
        """Let a run move that waited, with another runner if one is given."""
        followed = self.sleeps  # who follows a run that only slept did not see it rest
        if runner is not None:
            self._adopt(runner)
        if not followed:
            self.log.reopen()
        self.move()

    def go_back(self, runner: Runner) -> None:
        """Let a run that rests stand where another runner drives it on, as soon as it moves."""
        self._adopt(runner)
        self.error = self.task = self._stretch = (
            None  # a task that just came to its end must not end this anew
        )
        self.status = RunStatus.RUNNING
        self.log.reopen()

    def _adopt(self, runner: Runner) -> None:
        before, self.runner = self.runner, runner
        if runner.recorder is not None and before.recorder is not None:
            runner.recorder.follow(before.recorder)

    # Out of it.

    async def come_to_rest(self, status: RunStatus, error: BaseException | None = None) -> None:
        """Let the store know how the run stands, then everyone else.

        What was committed counts, so the store has the last word on it.
        """
        if self.runner.recorder is not None and not self.status.ended:
            status = await self.runner.recorder.rest(status, error)
        if error is not None:
            self.end(status, WorkflowErrorEvent(error))
        elif status is RunStatus.COMPLETED:
            outputs = self.snapshot.outputs
            data = outputs.last.value.load() if outputs else None
            self.end(status, WorkflowCompletedEvent(data))
        else:
            self.end(status)

    def end(self, status: RunStatus, *events: WorkflowEvent) -> None:
        """Come to rest with ``status``; a run that was left behind has come to rest already."""
        if self.status.ended:
            return
        self.status = status
        left = self.leaving is not None
        if not status.ended:
            self.leaving = self._resting = None  # what was committed counts: it waits, and can go on
        if self._stretch is not None:
            self._stretch.over()
        if self.runner.recorder is not None:
            self.runner.recorder.release_claim()
        self.runner.questions.drop()
        for event in (WorkflowStatusEvent(status, self.waiting_for), *events):
            self.emit(event)
        self.noticed()
        if left or not self.sleeps:
            self.stop_following()
        if status.ended:
            self.runner.cast.let_go()

    def stop_following(self) -> None:
        """Let go of those who follow the run: nothing more happens here."""
        self.log.close()
        if self.rest is not None and not self.rest.done():
            self.rest.set_result(None)

    def raise_failure(self) -> None:
        """Raise what the run failed with, if it failed."""
        if self.error is not None:
            raise self.error

    async def settled(self) -> None:
        """Wait while the run goes back to another checkpoint."""
        while self.going_back is not None:
            await asyncio.wait([self.going_back])

    async def leave(self, status: RunStatus, grace: float) -> None:
        """End the run with ``status``, within some seconds, unless what was committed says otherwise."""
        if not grace >= 0:
            raise InvalidArgument(f"grace={grace!r}: must be 0 or more seconds")
        if self.status.ended:
            return
        if self._stretch is None or self.rest is None or self._stretch.task.done():
            await self._leave_at_rest(status)
            return
        if self.leaving is None:  # a second cancellation would only disturb the cleaning up
            self._leave_with(status)
            self._stretch.stop()
        rest = self.rest  # another once an answer lets the run go on
        await asyncio.wait([rest], timeout=grace)
        if not rest.done():
            await self._leave_behind(grace)

    def _leave_with(self, status: RunStatus) -> RunStatus:
        self.leaving = status
        if self.runner.recorder is not None:
            self.runner.recorder.announce_leaving()
        return status

    async def _leave_at_rest(self, status: RunStatus) -> None:
        if self.runner.recorder is None:
            self.end(status)
        else:
            await self._rest_in_a_task(self._leave_with(self.leaving or status))

    async def _leave_behind(self, grace: float) -> None:
        runner = self.runner
        warning = StubbornHandler(
            f"a handler in superstep {runner.teller.superstep} of run {self.run_id} did not end within {grace:g} s "
            f"after it was cancelled and was left behind; let CancelledError through, and use 'finally' to clean up"
        )
        assert self.leaving is not None
        self.emit(runner.teller.warning(warning))
        await self._rest_in_a_task(self.leaving)
        runner.leave_behind()

    async def _rest_in_a_task(self, status: RunStatus) -> None:
        """Come to rest in a task of its own, so that whoever waits for it can be cancelled."""
        if self._resting is None:
            self._resting = asyncio.ensure_future(self.come_to_rest(status))
        resting = self._resting
        try:
            await asyncio.shield(resting)
        except asyncio.CancelledError:
            await asyncio.wait([resting])  # then it is known how the run stands
            raise
