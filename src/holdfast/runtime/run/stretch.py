"""One stretch of movement of a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.engine.snapshot import status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError
from holdfast.runtime.events.events import WorkflowEvent, WorkflowStartedEvent, WorkflowStatusEvent

if TYPE_CHECKING:
    from holdfast.runtime.run.course import Course

# How long handlers have to clean up after they were cancelled.
GRACE_SECONDS = 5.0
# How often a run that makes no checkpoint looks whether someone wants to cancel it.
_LOOK_SECONDS = 1.0


class Stretch:
    """Lets a run move, in a task of its own, until it waits or is over."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._runner = course.runner
        self._begun = False
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[None] | None = None
        self.task = asyncio.create_task(self._drive(), name=f"holdfast run {course.run_id}")

    def stop(self) -> None:
        """Cancel what goes on; a task that has yet to begin sees by itself that it need not."""
        if self._begun:
            self._runner.stop(self.task)

    def over(self) -> None:
        """The run came to rest."""
        if self._look is not None:
            self._look.cancel()

    @property
    def _left_behind(self) -> bool:
        """Whether the run went back to another checkpoint, without waiting for this any longer."""
        return self._runner is not self._course.runner

    async def _drive(self) -> None:
        course, runner = self._course, self._runner
        self._begun = True
        if course.leaving is not None:
            await course.come_to_rest(course.leaving)
            return
        events: list[WorkflowEvent] = [WorkflowStatusEvent(course.status)]
        if course.snapshot.superstep == 0 and not runner.resumed:
            events.insert(0, WorkflowStartedEvent(course.workflow_name))
        runner.teller.emit(events)
        self._look_later()
        try:
            if runner.resumed:
                runner.teller.emit(runner.again())
            await runner.drive()
        except asyncio.CancelledError:
            if self._left_behind:
                return
            await course.come_to_rest(course.status_if_cut)
            if course.leaving is None:
                raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            if not self._left_behind:
                course.error = error if not course.status.ended else None
                await course.come_to_rest(RunStatus.FAILED, error)
        else:
            asleep = runner.at.asleep_until is not None
            waits = RunStatus.WAITING if asleep else status_at_rest(course.snapshot)
            await course.come_to_rest(RunStatus.CANCELLED if runner.questions.cancel_asked else waits)

    def _look_later(self) -> None:
        """Look into the inbox now and then, for those who want to cancel a run in a long superstep."""
        recorder = self._runner.recorder
        if recorder is not None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK_SECONDS, self._look_now, recorder.head.seq)

    def _look_now(self, seq: int) -> None:
        course, recorder = self._course, self._runner.recorder
        assert recorder is not None
        if self._left_behind or course.status is not RunStatus.RUNNING or course.leaving is not None:
            return
        if recorder.head.seq == seq:  # else a commit has looked since
            self._looking = asyncio.ensure_future(self._look_into_inbox())
        self._look_later()

    async def _look_into_inbox(self) -> None:
        try:
            await self._runner.questions.look_for_letters()
        except HoldfastError:  # the next commit will tell
            return
        if self._runner.questions.cancel_asked and not self._left_behind:
            await self._course.settled()
            await self._course.leave(RunStatus.CANCELLED, GRACE_SECONDS)
