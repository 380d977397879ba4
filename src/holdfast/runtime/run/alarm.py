"""What lets a run that sleeps, or whose questions expire, go on by itself as long as someone holds its object."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.runtime.environment import Environment, Timer
from holdfast.runtime.times import in_microseconds


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
