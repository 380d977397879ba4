"""The events of one run, kept for those who watch it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Generator, Sequence

from holdfast.errors import MissedEvents
from holdfast.runtime.events.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.runtime.run.hold import Hold, Seat

# How many events are kept for watchers that come late or are slow.
RETAINED = 10_000


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
        """Whether no more events follow."""
        self._held_back: list[WorkflowEvent] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.held_by: Hold | None = None
        """How a watcher holds the run, if one does."""
        self.end = 0
        """The number of the event that comes next."""
        self.more_soon = False
        """Whether more is told in a moment: the watcher that holds the run can take it all at once."""

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
        """What was held back came to nothing."""
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
        """Whether there is a watcher that holds the run and has not yet asked for more than there is."""
        return self.held_by is not None and self.held_by.lasts()

    @types.coroutine
    def released(self) -> Generator[Seat, None, None]:
        """Wait until the watcher that holds the run has taken all events and asks for more, or leaves."""
        while (hold := self.held_by) is not None and hold.lasts():
            if not hold.alternating:
                hold.alternate_soon()
            yield hold.run.taken()

    def watch(self) -> Watcher:
        """A watcher of all events since the run last began to move, then of the ones that come."""
        return Watcher(self._chapter)

    def hold(self, watcher: Watcher) -> None:
        """Let this watcher hold the run, and no other."""
        before = self.held_by
        if before is None or before.watcher is not watcher:
            self.held_by = Hold(self, watcher)
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
        """The events that are new to the watcher, waiting if there are none; empty when the log is closed."""
        while (end := self.end) == watcher.next:
            if self.closed:
                return []
            hold = self.held_by
            if hold is not None and hold.watcher is watcher and (seat := hold.reader).wake is None:
                if not hold.alternating:
                    hold.alternate_soon()
                yield seat.taken()
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


def _missed(count: int, first: WorkflowEvent) -> WorkflowWarningEvent:
    warning = MissedEvents(
        f"{count:,} events are missing here: this watcher came too late or was too slow, and they are no longer "
        f"kept; watch from the start, or take events faster"
    )
    return WorkflowWarningEvent(
        warning, run_id=first.run_id, superstep=first.superstep, timestamp=first.timestamp, provisional=True
    )
