"""Wakes a waiting run on a timer, an answer or an expiry."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError, RunTaken
from holdfast.runtime.environment import Environment, Timer
from holdfast.runtime.run.lifecycle import RunLifecycle
from holdfast.runtime.step.runner import Runner
from holdfast.runtime.times import in_microseconds

if TYPE_CHECKING:
    from holdfast.checkpoint.store import Head, Store
    from holdfast.runtime.durable.stored_runs import StoredRuns
    from holdfast.runtime.run.run import Run


class Alarm:
    """Calls an async method at a time, unless its object is gone by then: the alarm keeps nothing alive."""

    def __init__(self, environment: Environment, ring: Callable[[], Awaitable[None]]) -> None:
        self._environment = environment
        self._ring: Callable[[], Any] = weakref.WeakMethod(ring, lambda _: self.cancel())
        self._timer: Timer | None = None
        self._task: asyncio.Future[None] | None = None

    def set(self, time: int | None) -> None:
        """Ring at this time, in microseconds since 1970, instead of the time set before; None is never."""
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


_held: weakref.WeakValueDictionary[tuple[int, str], Waker] = weakref.WeakValueDictionary()
"""The wakers of runs that wait, or were woken since, by the identity of their store and their id.

A run keeps its waker and its store alive.
"""


def held_here(store: Store, head: Head) -> Run | None:
    """Return the object that follows a run at this head in this event loop; None if there is none."""
    waker = _held.get((id(store), head.run_id))
    run = None if waker is None else waker.run_in_this_loop()
    latest = None if run is None or run.status.ended else run.latest_checkpoint
    return run if latest is not None and latest.checkpoint_id == head.checkpoint_id else None


class Waker:
    """Lets a run go on when its time has come or answers were left, as long as someone holds its object.

    It belongs to that object, and keeps nothing of it alive.
    """

    def __init__(self, run: Run, lifecycle: RunLifecycle, home: StoredRuns | None) -> None:
        self._run = weakref.ref(run)
        self._lifecycle = lifecycle
        self._home = home
        self._alarm: Alarm | None = None
        this = weakref.ref(self)

        def on_change() -> None:
            if (waker := this()) is not None:
                waker._notice()

        lifecycle.on_change = on_change

    def _notice(self) -> None:
        """Set the alarm for a run that waits; let go of one that is over."""
        status = self._lifecycle.status
        if status is RunStatus.WAITING:
            self._set_alarm()
        elif status.ended:
            self.let_go()
        else:
            self.turn_off()

    def _set_alarm(self) -> None:
        runner = self._lifecycle.runner
        wakes_at = runner.wakes_at
        if wakes_at is not None:
            self._alarm = self._alarm or Alarm(runner.environment, self.wake)
            self._alarm.set(wakes_at)
        key = self._held_as()
        if key is not None:
            _held[key] = self

    def run_in_this_loop(self) -> Run | None:
        """Return the run, if it moves or waits in this event loop."""
        return self._run() if self._lifecycle.loop is asyncio.get_running_loop() else None

    def turn_off(self) -> None:
        """Do not go on when the time has come."""
        if self._alarm is not None:
            self._alarm.cancel()

    def let_go(self) -> None:
        """Wake the run no more, and let others in this process find it in the storage only."""
        self.turn_off()
        key = self._held_as()
        if key is not None and _held.get(key) is self:
            _held.pop(key, None)

    def _held_as(self) -> tuple[int, str] | None:
        """Return the key of the run in ``_held``; None for one that is not stored, which nobody else can find."""
        recorder = self._lifecycle.runner.recorder
        return None if recorder is None else (id(recorder.store), self._lifecycle.run_id)

    def wait_here(self) -> None:
        """Wake a waiting run in this event loop, if the one in which it came to rest is closed."""
        lifecycle = self._lifecycle
        if (
            lifecycle.status is RunStatus.WAITING
            and lifecycle.loop is not None
            and lifecycle.loop.is_closed()
        ):
            lifecycle.loop = asyncio.get_running_loop()
            if lifecycle.sleeps:
                lifecycle.rest = lifecycle.loop.create_future()
            self._set_alarm()

    def go_on_if_waiting(self, runner: Runner) -> None:
        """Go on with answers that were given to a runner, unless it is no longer that of the run, or asleep."""
        lifecycle = self._lifecycle
        if lifecycle.waits and runner is lifecycle.runner and runner.asleep_until is None:
            lifecycle.go_on()

    async def go_on_with_letters(self) -> None:
        """Go on if answers were left; raise ``RunTaken`` if someone else went on with the run."""
        lifecycle, runner = self._lifecycle, self._lifecycle.runner
        status = await self.moved_by_others()
        if status is None:
            if runner is lifecycle.runner and await runner.look_for_letters():
                self.go_on_if_waiting(runner)
        elif status is RunStatus.CANCELLED:
            if lifecycle.waits:
                lifecycle.end(status)
        else:
            raise RunTaken(
                f"run {lifecycle.run_id} is {status}: someone else went on with it since this object saw it wait; get "
                f"one that knows where it stands with 'workflow.resume(run_id=...)'"
            )

    async def moved_by_others(self) -> RunStatus | None:
        """Return the status of a waiting run that someone else moved; None if nobody did, or this object itself."""
        lifecycle, runner = self._lifecycle, self._lifecycle.runner
        status = None if runner.recorder is None else await runner.recorder.moved_by_others()
        # Its alarm may have rung while the head was read.
        return status if runner is lifecycle.runner and lifecycle.status is RunStatus.WAITING else None

    async def wake(self) -> None:
        """Go on after a sleep or the time of a request, unless someone else did or is about to leave the run."""
        lifecycle, runner = self._lifecycle, self._lifecycle.runner
        if not lifecycle.waits:
            return
        try:
            other = await self._find_runner(runner)
        except HoldfastError as error:
            if runner is lifecycle.runner and lifecycle.waits:  # else this object itself was faster
                lifecycle.error = error
                lifecycle.end(RunStatus.STOPPED)
            return
        if other is not None and runner is lifecycle.runner and lifecycle.waits:
            lifecycle.go_on(other)

    async def _find_runner(self, runner: Runner) -> Runner | None:
        """Return the runner that goes on with the run; None if someone else did, or this object itself."""
        lifecycle = self._lifecycle
        moved = await self.moved_by_others()
        if moved is RunStatus.CANCELLED and lifecycle.waits:
            lifecycle.end(moved)
        elif moved is not None and lifecycle.sleeps:  # others are told when they ask for something
            raise RunTaken(
                f"run {lifecycle.run_id} was woken by someone else; get an object that knows where it stands with "
                f"'workflow.resume(run_id=...)'"
            )
        if moved is not None or runner is not lifecycle.runner:
            return None
        if runner.asleep_until is None or self._home is None:
            return runner
        # As in another process: executors are as they were before the superstep, and its journal is read.
        return await self._home.runner_at_head(lifecycle.run_id, lifecycle.log)
