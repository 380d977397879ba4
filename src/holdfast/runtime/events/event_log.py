"""The events of one run, kept for its watchers, and the watcher that holds the run."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from itertools import repeat
from time import monotonic

from holdfast.checkpoint.events.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.errors import MissedEvents

# How many events are kept for watchers that come late or are slow.
RETAINED = 10_000
# How long supersteps that never wait may keep the event loop to themselves.
LONGEST_STRETCH_SECONDS = 0.005


@types.coroutine
def pause() -> Generator[None, None, None]:
    """Let everything else that is ready have its turn; the bare form of ``asyncio.sleep(0)``."""
    yield


class EventLog:
    """A bounded log that any number of watchers read, each at its own pace.

    A watcher that holds the run is never overtaken: the run waits at its barriers until that watcher has
    taken all events. All other watchers may fall behind; they miss what is no longer kept.
    """

    def __init__(self, retained: int = RETAINED) -> None:
        self._events: list[WorkflowEvent] = []
        self._first = 0
        self._retained = retained
        self._full = 2 * retained
        self._chapter = 0
        self.closed = False
        """True if no more events follow."""
        self._held_back: list[WorkflowEvent] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.held_by: RunHold | None = None
        """The hold that a watcher has on the run, if one has."""
        self.end = 0
        """The number of the event that comes next."""
        self.more_soon = False
        """True if more events follow at once: the watcher that holds the run can take them all together."""

    def emit(self, events: Sequence[WorkflowEvent]) -> None:
        """Append events; never waits."""
        if self._held_back is not None:
            self._held_back += events
            return
        self._events += events
        self.end += len(events)
        if self._waiting:
            self._wake()
        hold = self.held_by
        if hold is not None and not hold.alternating:
            hold.alternate_soon()
        if self.end > self._full:
            self._trim()

    def hold_back(self) -> None:
        """Show nothing of what is emitted from now on: what it tells of may yet come to nothing."""
        self._held_back = []

    def show(self) -> None:
        """Show what was held back."""
        events, self._held_back = self._held_back, None
        if events:
            self.emit(events)

    def discard(self) -> None:
        """Forget what was held back: it came to nothing."""
        self._held_back = None

    def close(self) -> None:
        """Say that no more events follow."""
        self.closed = True
        self._wake()
        if self.held_by is not None and not self.held_by.alternating:
            self.held_by.alternate_soon()

    def reopen(self) -> None:
        """Say that the run goes on: events follow, and who begins to watch now begins with them."""
        self.closed = False
        self._chapter = self.end

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _trim(self) -> None:
        # In big bites, because cutting the front off a list costs its length; never what the holder has to take.
        excess = len(self._events) - self._retained
        if self.held_by is not None:
            excess = min(excess, self.held_by.watcher.next - self._first)
        del self._events[:excess]
        self._first += excess
        self._full = self._first + 2 * self._retained

    @property
    def held(self) -> bool:
        """True if there is a watcher that holds the run and has not yet asked for more than there is."""
        return self.held_by is not None and self.held_by.lasts()

    @types.coroutine
    def released(self) -> Generator[ReusableFuture, None, None]:
        """Wait until the watcher that holds the run has taken all events and asks for more, or leaves."""
        while (hold := self.held_by) is not None and hold.lasts():
            if not hold.alternating:
                hold.alternate_soon()
            yield hold.run.taken()

    def watch(self) -> Watcher:
        """Return a watcher of all events since the run last began to move, then of the ones that come."""
        return Watcher(self._chapter)

    def hold(self, watcher: Watcher) -> None:
        """Let this watcher hold the run, and no other."""
        before = self.held_by
        if before is None or before.watcher is not watcher:
            self.held_by = RunHold(self, watcher)
            if before is not None:
                before.end()

    def leave(self, watcher: Watcher) -> None:
        """Stop watching; a run that this watcher held goes on without it."""
        hold = self.held_by
        if hold is not None and hold.watcher is watcher:
            self.held_by = None
            hold.end()

    @types.coroutine
    def take(self, watcher: Watcher) -> Generator[object, None, list[WorkflowEvent]]:
        """Return the events that are new to the watcher, waiting if there are none; none when the log is closed."""
        while (end := self.end) == watcher.next:
            if self.closed:
                return []
            hold = self.held_by
            if hold is not None and hold.watcher is watcher and (future := hold.reader).wake is None:
                if not hold.alternating:
                    hold.alternate_soon()
                yield future.taken()
            else:  # it does not hold the run, or is read by several
                yield from self._more().__await__()
        start, watcher.next = watcher.next - self._first, end
        return self._events[start:] if start >= 0 else [_missed(-start, self._events[0]), *self._events]

    async def _more(self) -> None:
        """Wait until something is emitted."""
        more = asyncio.get_running_loop().create_future()
        self._waiting.append(more)
        try:
            await more
        finally:
            if more.cancelled():
                self._waiting = [future for future in self._waiting if future is not more]


class Watcher:
    """A reader's place in an ``EventLog``: ``next`` is the number of the event that it takes next."""

    __slots__ = ("next",)

    def __init__(self, first: int) -> None:
        self.next = first


class ReusableFuture:
    """A future for one task at a time, done again and again: the task waits until ``go`` is called.

    A future lets its task go on in the next iteration of the event loop. This one lets it go on at once, so that a
    callback of the event loop can have several tasks go on in turn. To its task it looks like any future; see
    ``asyncio.isfuture``. A task may also go on without being let, as when it is cancelled.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "get_loop", "wake")

    # The task calls these each time it waits, so they cost no Python frame.
    result = staticmethod(bool)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self.get_loop = repeat(loop).__next__
        self._context: Context | None = None
        self.wake: Callable[[ReusableFuture], object] | None = None
        """Lets the task go on; None if nobody waits."""

    def taken(self) -> ReusableFuture:
        """Return what a coroutine has to yield to wait here; nobody else may do so."""
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

    def add_done_callback(self, callback: Callable[[ReusableFuture], object], *, context: Context) -> None:
        """Wait: the task asks for this once it stands still."""
        self.wake = callback
        self._context = context

    def cancel(self, msg: object = None) -> bool:
        """Let the task go on, which then sees by itself that it was cancelled."""
        self.go_soon()
        return False


class RunHold:
    """Lets a run and the watcher that holds it go on in turn, as long as they may keep the event loop."""

    __slots__ = ("_log", "_loop", "alternating", "reader", "run", "watcher")

    def __init__(self, log: EventLog, watcher: Watcher) -> None:
        self._log = log
        self._loop = loop = asyncio.get_running_loop()
        self.watcher = watcher
        self.reader = ReusableFuture(loop)
        """The watcher waits here for events."""
        self.run = ReusableFuture(loop)
        """The run waits here for the watcher."""
        self.alternating = False

    def lasts(self) -> bool:
        """Return True if the watcher has yet to ask for more than there is."""
        return self.watcher.next != self._log.end or self.reader.wake is None

    def alternate_soon(self) -> None:
        """Let the watcher and the run go on in turn, from the next iteration of the event loop on."""
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
        """Let both go on, and see that the hold is over."""
        self.run.go_soon()
        self.reader.go_soon()


def _missed(count: int, first: WorkflowEvent) -> WorkflowWarningEvent:
    warning = MissedEvents(
        f"{count:,} events are missing here: this watcher came too late or was too slow, and they are no longer "
        f"kept; watch from the start, or take events faster"
    )
    return WorkflowWarningEvent(
        warning, run_id=first.run_id, superstep=first.superstep, timestamp=first.timestamp, provisional=True
    )
