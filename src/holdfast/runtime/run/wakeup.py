"""Wakes a waiting run on a timer, an answer or an expiry."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError, RunTaken
from holdfast.runtime.environment import Environment, Timer
from holdfast.runtime.run.course import Course
from holdfast.runtime.run.home import Home
from holdfast.runtime.step.runner import Runner
from holdfast.runtime.times import in_microseconds

if TYPE_CHECKING:
    from holdfast.checkpoint.store import Head, Store
    from holdfast.runtime.run.run import Run


class Alarm:
    """Calls an async method of something when a time has come, unless that is gone by then: it keeps nothing alive."""

    def __init__(self, environment: Environment, ring: Callable[[], Awaitable[None]]) -> None:
        self._environment = environment
        self._ring: Callable[[], Any] = weakref.WeakMethod(ring, lambda _: self.cancel())
        self._timer: Timer | None = None
        self._task: asyncio.Future[None] | None = None

    def set(self, time: int | None) -> None:
        """Ring at this time, in microseconds since 1970, and not when it was told before; None is never."""
        self.cancel()
        if time is not None:
            left = (time - in_microseconds(self._environment.now())) / 1_000_000
            self._timer = self._environment.later(max(left, 0.0), lambda: self._reached(time))

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reached(self, time: int) -> None:
        self._timer = None
        ring = self._ring()
        if ring is None:
            return
        if in_microseconds(self._environment.now()) < time:  # timers may come early, and clocks be set back
            self.set(time)
        else:
            self._task = asyncio.ensure_future(ring())


_held: weakref.WeakValueDictionary[tuple[int, str], Run] = weakref.WeakValueDictionary()
"""Runs that wait, or were woken since, by the identity of their store, which they keep alive, and their id."""


def held_here(store: Store, head: Head) -> Run | None:
    """The object with which someone in this event loop follows a run that stands there; None if nobody does."""
    run = _held.get((id(store), head.run_id))
    latest = None if run is None or run.status.ended else run.latest_checkpoint
    if run is None or latest is None or latest.checkpoint_id != head.checkpoint_id:
        return None
    return run if run._course.loop is asyncio.get_running_loop() else None


class Waker:
    """Lets a run go on when its time has come or answers were left, as long as someone holds its object.

    It belongs to that object, and keeps nothing of it alive.
    """

    def __init__(self, run: Run, course: Course, home: Home | None) -> None:
        self._run = weakref.ref(run)
        self._course = course
        self._home = home
        self._alarm: Alarm | None = None
        this = weakref.ref(self)

        def noticed() -> None:
            if (waker := this()) is not None:
                waker._notice()

        course.noticed = noticed

    def _notice(self) -> None:
        """Set the alarm for a run that waits; let go of one that is over."""
        status = self._course.status
        if status is RunStatus.WAITING:
            self._set_alarm()
        elif status.ended:
            self.let_go()
        else:
            self.turn_off()

    def _set_alarm(self) -> None:
        runner = self._course.runner
        wakes_at = runner.at.wakes_at
        if wakes_at is not None:
            self._alarm = self._alarm or Alarm(runner.environment, self.wake)
            self._alarm.set(wakes_at)
        key, run = self._held_as(), self._run()
        if key is not None and run is not None:
            _held[key] = run

    def turn_off(self) -> None:
        """Do not go on when the time has come."""
        if self._alarm is not None:
            self._alarm.cancel()

    def let_go(self) -> None:
        """Be no longer that by which the run is followed here."""
        self.turn_off()
        key = self._held_as()
        if key is not None and _held.get(key) is self._run():
            _held.pop(key, None)

    def _held_as(self) -> tuple[int, str] | None:
        """The key of the run in ``_held``; None for one that is not stored, which nobody else can find."""
        recorder = self._course.runner.recorder
        return None if recorder is None else (id(recorder.store), self._course.run_id)

    def wait_here(self) -> None:
        """Let a run that waits be woken in this event loop, if the one in which it came to rest is closed."""
        course = self._course
        if course.status is RunStatus.WAITING and course.loop is not None and course.loop.is_closed():
            course.loop = asyncio.get_running_loop()
            if course.sleeps:
                course.rest = course.loop.create_future()
            self._set_alarm()

    def go_on_if_waiting(self, runner: Runner) -> None:
        """Go on with answers that were given to a runner, unless it is no longer that of the run, or asleep."""
        course = self._course
        if course.waits and runner is course.runner and runner.at.asleep_until is None:
            course.go_on()

    async def go_on_with_letters(self) -> None:
        """Go on if answers were left; raises ``RunTaken`` if someone else went on with the run."""
        course, runner = self._course, self._course.runner
        status = await self.moved_by_others()
        if status is None:
            if runner is course.runner and await runner.questions.look_for_letters():
                self.go_on_if_waiting(runner)
        elif status is RunStatus.CANCELLED:
            if course.waits:
                course.end(status)
        else:
            raise RunTaken(
                f"run {course.run_id} is {status}: someone else went on with it since this object saw it wait; get one "
                f"that knows where it stands with 'workflow.resume(run_id=...)'"
            )

    async def moved_by_others(self) -> RunStatus | None:
        """How a run stands that waits here and was moved on by someone else; None if by nobody, or by this object."""
        course, runner = self._course, self._course.runner
        status = None if runner.recorder is None else await runner.recorder.moved_by_others()
        # Its alarm may have rung while the head was read.
        return status if runner is course.runner and course.status is RunStatus.WAITING else None

    async def wake(self) -> None:
        """A sleep is over, or the time of a question: go on, unless someone else did or is about to leave the run."""
        course, runner = self._course, self._course.runner
        if not course.waits:
            return
        try:
            other = await self._woken(runner)
        except HoldfastError as error:
            if runner is course.runner and course.waits:  # else this object itself was faster
                course.error = error
                course.end(RunStatus.STOPPED)
            return
        if other is not None and runner is course.runner and course.waits:
            course.go_on(other)

    async def _woken(self, runner: Runner) -> Runner | None:
        """What goes on with the run; None if someone else did, or this object itself."""
        course = self._course
        moved = await self.moved_by_others()
        if moved is RunStatus.CANCELLED and course.waits:
            course.end(moved)
        elif moved is not None and course.sleeps:  # others are told when they ask for something
            raise RunTaken(
                f"run {course.run_id} was woken by someone else; get an object that knows where it stands with "
                f"'workflow.resume(run_id=...)'"
            )
        if moved is not None or runner is not course.runner:
            return None
        if runner.at.asleep_until is None or self._home is None:
            return runner
        # As in another process: executors are as they were before the superstep, and its journal is read.
        return await self._home.runner_where_it_stands(course.run_id, course.log)
