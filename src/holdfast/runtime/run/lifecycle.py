"""The lifecycle of a run: which states it has, and what moves it between them.

A run has one status at a time. It is RUNNING from the moment that it is made, and moves in a task of its own once it
begins. It comes to rest as WAITING, from where it can go on, or in one of four final states.

| from | to | because |
|---|---|---|
| RUNNING | WAITING | nothing is left to deliver, but a request, a sleep or a fan-in is open |
| RUNNING | COMPLETED | nothing is left at all |
| RUNNING | FAILED | a handler, a limit or the store raised |
| RUNNING, WAITING | STOPPED | ``close`` was called, the task was cancelled, or the run was lost while it slept |
| RUNNING, WAITING | CANCELLED | ``cancel`` was called, here or by a letter in the inbox |
| WAITING | RUNNING | an answer came, a sleep or the time of a request is over (``go_on``) |
| any | RUNNING | the run goes back to an earlier checkpoint (``go_back``) |

What was committed counts: a run whose end is stored is COMPLETED, and one that is stopped while the store says WAITING
stays WAITING. So ``come_to_rest`` asks the store before it tells anyone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.checkpoint.events.events import (
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowStatusEvent,
)
from holdfast.engine.snapshot import Snapshot, status_at_rest
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.errors import HoldfastError, HoldfastWarning, InvalidArgument, StubbornHandler
from holdfast.ids import RunId
from holdfast.runtime._async import run_uncancelled
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.step.runner import Runner

# How long handlers have to clean up after they were cancelled.
GRACE_SECONDS = 5.0
# How often a run that makes no checkpoint looks whether someone wants to cancel it.
_INBOX_SECONDS = 1.0


class RunLifecycle:
    """Moves one run between its states, and tells those who follow it."""

    def __init__(self, workflow_name: str, run_id: RunId, runner: Runner, log: EventLog) -> None:
        self.workflow_name = workflow_name
        self.run_id = run_id
        self.runner = runner
        self.log = log
        self.status = RunStatus.RUNNING
        self.error: BaseException | None = None
        self.leaving: RunStatus | None = None
        """The status with which someone is about to leave the run, if anyone is."""
        self.going_back: asyncio.Future[None] | None = None
        """Done when the run is at another checkpoint, if it goes back to one."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it moved last."""
        self.rest: asyncio.Future[None] | None = None
        """Done when the run rests; not when it only sleeps, because those who follow it wait on."""
        self.task: asyncio.Task[None] | None = None
        """The task in which the run moves, or moved last."""
        self.first_warnings: list[HoldfastWarning] = []
        """Warnings that the run gives when it begins to move."""
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever the run begins to move or comes to rest."""
        self._drive: _Drive | None = None
        self._resting: asyncio.Future[None] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The run as it was after its last superstep."""
        return self.runner.shown

    @property
    def waits(self) -> bool:
        """True if the run waits, and nobody is about to leave it, or to go back with it."""
        return self.status is RunStatus.WAITING and self.leaving is None and self.going_back is None

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """The reasons why the run waits; empty unless it is WAITING."""
        return self.runner.waiting_for if self.status is RunStatus.WAITING else ()

    @property
    def sleeps(self) -> bool:
        """True if the run waits for nothing but time."""
        return self.status is RunStatus.WAITING and self.runner.only_sleeps

    @property
    def status_if_cut(self) -> RunStatus:
        """The status with which the run ends if its task is cancelled."""
        return self.leaving or RunStatus.STOPPED

    @property
    def about_to_rest(self) -> bool:
        """True if the run is being left, so that an answer comes too late."""
        return self._resting is not None and self.leaving is not None

    def emit(self, event: WorkflowEvent) -> None:
        """Tell those who follow the run."""
        self.runner.emit([event])

    # Into movement.

    def move(self) -> None:
        """Let the run move; needs a running event loop."""
        self.leaving = self._resting = None
        self.status = RunStatus.RUNNING
        self.loop = asyncio.get_running_loop()
        self.on_change()
        if self.rest is None or self.rest.done():  # else it only slept
            self.rest = self.loop.create_future()
        self._drive = _Drive(self)
        self.task = self._drive.task
        self.task.add_done_callback(self._end_of_task)

    def _end_of_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved: it is on its way already, to whoever waits or to the event loop
        if task is not self.task:
            return
        self._drive = None
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
        # A task that just came to its end must not end the run anew.
        self.error = self.task = self._drive = None
        self.status = RunStatus.RUNNING
        self.log.reopen()

    def _adopt(self, runner: Runner) -> None:
        before, self.runner = self.runner, runner
        if runner.recorder is not None and before.recorder is not None:
            runner.recorder.follow(before.recorder)

    # Out of it.

    async def come_to_rest(self, status: RunStatus, error: BaseException | None = None) -> None:
        """Let the store know how the run stands, then everyone else; what the store has counts more."""
        if self.runner.recorder is not None and not self.status.ended:
            status = await self.runner.recorder.rest(status, error)
        if error is not None:
            self.end(status, WorkflowErrorEvent(error))
        elif status is RunStatus.COMPLETED:
            self.end(status, await self.runner.completed_event())
        else:
            self.end(status)

    def end(self, status: RunStatus, *events: WorkflowEvent) -> None:
        """Come to rest with ``status``, unless the run has ended already because it was left behind."""
        if self.status.ended:
            return
        self.status = status
        left = self.leaving is not None
        if not status.ended:
            self.leaving = self._resting = None  # what was committed counts: it waits, and can go on
        if self._drive is not None:
            self._drive.over()
        if self.runner.recorder is not None:
            self.runner.recorder.release_claim()
        self.runner.drop_answers()
        for event in (WorkflowStatusEvent(status, self.waiting_for), *events):
            self.emit(event)
        self.on_change()
        if left or not self.sleeps:
            self.stop_following()
        if status.ended:
            self.runner.let_go()

    def stop_following(self) -> None:
        """Let go of those who follow the run: nothing more happens here."""
        self.log.close()
        if self.rest is not None and not self.rest.done():
            self.rest.set_result(None)

    def raise_failure(self) -> None:
        """Raise the error with which the run failed, if it failed."""
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
        if self._drive is None or self.rest is None or self._drive.task.done():
            await self._leave_at_rest(status)
            return
        if self.leaving is None:  # a second cancellation would only disturb the cleaning up
            self._announce_leaving(status)
            self._drive.stop()
        rest = self.rest  # another once an answer lets the run go on
        await asyncio.wait([rest], timeout=grace)
        if not rest.done():
            await self._leave_behind(grace)
        elif status is RunStatus.CANCELLED and self.status is RunStatus.WAITING:
            await self._leave_at_rest(status)  # it was coming to rest already

    def _announce_leaving(self, status: RunStatus) -> None:
        self.leaving = status
        if self.runner.recorder is not None:
            self.runner.recorder.announce_leaving()

    async def _leave_at_rest(self, status: RunStatus) -> None:
        if self.runner.recorder is None:
            self.end(status)
            return
        status = self.leaving or status
        self._announce_leaving(status)
        await self._rest_in_a_task(status)

    async def _leave_behind(self, grace: float) -> None:
        runner = self.runner
        warning = StubbornHandler(
            f"a handler in superstep {runner.superstep} of run {self.run_id} did not end within {grace:g} s "
            f"after it was cancelled and was left behind; let CancelledError through, and use 'finally' to clean up"
        )
        assert self.leaving is not None
        runner.warn(warning)
        await self._rest_in_a_task(self.leaving)
        runner.leave_behind()

    async def _rest_in_a_task(self, status: RunStatus) -> None:
        """Come to rest in a task of its own, so that the caller can be cancelled."""
        if self._resting is None:
            self._resting = asyncio.ensure_future(self.come_to_rest(status))
        resting = self._resting
        try:
            await asyncio.shield(resting)
        except asyncio.CancelledError:
            await asyncio.wait([resting])  # then it is known how the run stands
            raise


class _Drive:
    """Drives a run in a task of its own, from the moment it begins to move until it rests."""

    def __init__(self, lifecycle: RunLifecycle) -> None:
        self._lifecycle = lifecycle
        self._runner = lifecycle.runner
        self._begun = False
        self._inbox_timer: asyncio.TimerHandle | None = None
        self._inbox_task: asyncio.Future[None] | None = None
        self.task = asyncio.create_task(self._drive(), name=f"holdfast run {lifecycle.run_id}")

    def stop(self) -> None:
        """Cancel what goes on; a task that has yet to begin sees by itself that it need not."""
        if self._begun:
            self._runner.stop(self.task)

    def over(self) -> None:
        """Read the inbox no more: the run came to rest."""
        if self._inbox_timer is not None:
            self._inbox_timer.cancel()

    @property
    def _left_behind(self) -> bool:
        """True if the run went back to another checkpoint, without waiting for this any longer."""
        return self._runner is not self._lifecycle.runner

    async def _drive(self) -> None:
        lifecycle, runner = self._lifecycle, self._runner
        self._begun = True
        if lifecycle.leaving is not None:
            await self._come_to_rest(lifecycle.leaving)
            return
        events: list[WorkflowEvent] = [WorkflowStatusEvent(lifecycle.status)]
        if runner.begins:
            events.insert(0, runner.started_event())
        runner.emit(events)
        while lifecycle.first_warnings:
            runner.warn(lifecycle.first_warnings.pop(0))
        self._read_inbox_later()
        try:
            if runner.resumed:
                runner.emit(runner.events_again())
            await runner.drive()
        except asyncio.CancelledError:
            if self._left_behind:
                return
            await self._come_to_rest(lifecycle.status_if_cut)
            if lifecycle.leaving is None:
                raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if not self._left_behind:
                lifecycle.error = error if not lifecycle.status.ended else None
                await self._come_to_rest(RunStatus.FAILED, error)
        else:
            waits = (
                RunStatus.WAITING if runner.asleep_until is not None else status_at_rest(lifecycle.snapshot)
            )
            await self._come_to_rest(RunStatus.CANCELLED if runner.cancel_asked else waits)

    async def _come_to_rest(self, status: RunStatus, error: BaseException | None = None) -> None:
        """Come to rest as the store has it, also if somebody cancels the task meanwhile."""
        await run_uncancelled(self._lifecycle.come_to_rest(status, error), lambda _: None)

    def _read_inbox_later(self) -> None:
        """Read the inbox now and then, for letters that ask to cancel a run in a long superstep."""
        recorder = self._runner.recorder
        if recorder is not None:
            loop = asyncio.get_running_loop()
            self._inbox_timer = loop.call_later(_INBOX_SECONDS, self._read_inbox_now, recorder.head.seq)

    def _read_inbox_now(self, seq: int) -> None:
        lifecycle, recorder = self._lifecycle, self._runner.recorder
        assert recorder is not None
        if self._left_behind or lifecycle.status is not RunStatus.RUNNING or lifecycle.leaving is not None:
            return
        if recorder.head.seq == seq:  # else a commit has read the inbox since
            self._inbox_task = asyncio.ensure_future(self._read_inbox())
        self._read_inbox_later()

    async def _read_inbox(self) -> None:
        try:
            await self._runner.look_for_letters()
        except HoldfastError:  # the next commit will tell
            return
        if self._runner.cancel_asked and not self._left_behind:
            await self._lifecycle.settled()
            await self._lifecycle.leave(RunStatus.CANCELLED, GRACE_SECONDS)
