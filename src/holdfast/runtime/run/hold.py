"""How a watcher holds a run: each waits for the other, and they go on in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from itertools import repeat
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.events.event_log import EventLog, Watcher

# How long supersteps that never wait may keep the event loop to themselves.
LONGEST_STRETCH_SECONDS = 0.005


class Seat:
    """What one task at a time waits for, until ``go`` is called.

    A future lets its task go on in the next iteration of the event loop. This one lets it go on at once, so that a
    callback of the event loop can have several tasks go on in turn. To its task it looks like any future; see
    ``asyncio.isfuture``. A task may also go on without being let, as when it is cancelled.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "get_loop", "wake")

    # What the task asks for each time, in forms that cost no frame; ``asyncio.get_running_loop`` asks the system.
    result = staticmethod(bool)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self.get_loop = repeat(loop).__next__
        self._context: Context | None = None
        self.wake: Callable[[Seat], object] | None = None
        """What lets the task go on; None if nobody waits."""

    def taken(self) -> Seat:
        """What a coroutine has to yield to wait here; nobody else may do so."""
        self._asyncio_future_blocking = True
        return self

    def go(self) -> None:
        """Let the task go on that waits here, if one does; only from a callback of the event loop."""
        wake, self.wake = self.wake, None
        if wake is not None and self._context is not None:
            self._context.run(wake, self)

    def go_soon(self) -> None:
        """Let it go on in the next iteration of the event loop."""
        if self.wake is not None:
            self._loop.call_soon(self.go)

    def add_done_callback(self, callback: Callable[[Seat], object], *, context: Context) -> None:
        """Wait: the task asks for this once it stands still."""
        self.wake = callback
        self._context = context

    def cancel(self, msg: object = None) -> bool:
        """Let the task go on, which then sees by itself that it was cancelled."""
        self.go_soon()
        return False


class Hold:
    """Lets a run and the watcher that holds it go on in turn, as long as they may keep the event loop."""

    __slots__ = ("_log", "_loop", "alternating", "reader", "run", "watcher")

    def __init__(self, log: EventLog, watcher: Watcher) -> None:
        self._log = log
        self._loop = loop = asyncio.get_running_loop()
        self.watcher = watcher
        self.reader = Seat(loop)
        """Where the watcher waits for events."""
        self.run = Seat(loop)
        """Where the run waits for the watcher."""
        self.alternating = False

    def lasts(self) -> bool:
        """Whether the watcher has yet to ask for more than there is."""
        return self.watcher.next != self._log.end or self.reader.wake is None

    def alternate_soon(self) -> None:
        """Have those go on who may, in the next iteration of the event loop; no need to while they alternate."""
        self.alternating = True
        self._loop.call_soon(self._alternate)

    def _alternate(self) -> None:
        """The watcher goes on if there is something for it, the run if there is not; until one of them is busy."""
        log, watcher, reader, run = self._log, self.watcher, self.reader, self.run
        until = monotonic() + LONGEST_STRETCH_SECONDS
        try:
            while reader.wake is not None:
                if (watcher.next != log.end and not log.more_soon) or log.closed:
                    reader.go()
                elif run.wake is None:
                    return
                else:
                    run.go()
                    if monotonic() > until:
                        break
        finally:
            self.alternating = False
        if reader.wake is not None:  # others have their turn in between
            self.alternate_soon()

    def end(self) -> None:
        """Let both see that the one does not hold the other any more."""
        self.run.go_soon()
        self.reader.go_soon()
