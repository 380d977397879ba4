"""Follows the durable events of a run through its store, whoever drives it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from time import time_ns
from typing import Final, NamedTuple

from holdfast.checkpoint.checkpoint_info import moment
from holdfast.checkpoint.events.event_reader import EventReader
from holdfast.checkpoint.events.events import CheckpointSavedEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.store import EventRow, Head
from holdfast.engine.status import RunStatus
from holdfast.errors import InvalidArgument, MissedEvents
from holdfast.ids import RunId

# Rows that are read at once.
_PAGE = 64
# A watcher looks for more after the first, then less and less often, up to the second.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.02, 0.5
_SHAPE: Final = re.compile(r"(\d{1,15})\.(\d{1,15})")


class EventPosition(NamedTuple):
    """The place of an event in its run: the seq of its row, and its number among the events of that seq."""

    seq: int
    number: int

    @classmethod
    def of(cls, event_id: str | None) -> EventPosition:
        """Read the id of an event; None stands before the first.

        >>> EventPosition.of("12.3")
        EventPosition(seq=12, number=3)
        """
        if event_id is None:
            return cls(0, -1)
        found = _SHAPE.fullmatch(str(event_id))
        if found is None:
            raise InvalidArgument(
                f"after={event_id!r} is no id of an event; give the event_id of one that watch gave, like '12.3'"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.seq}.{self.number}"


async def watch_events(
    catalog: RunCatalog, run_id: RunId, after: EventPosition, follow: bool
) -> AsyncGenerator[WorkflowEvent, None]:
    """Give the events of a run behind ``after``; raise ``RunNotFound`` if there is no such run."""
    async for event in EventWatch(catalog, await catalog.head(run_id), after).events(follow):
        yield event


class EventWatch:
    """Gives the events of one run in order, each once, beginning behind an event."""

    def __init__(self, catalog: RunCatalog, head: Head, after: EventPosition) -> None:
        self._store = catalog.store
        self._run_id: RunId = head.run_id
        self._created = head.created
        self._reader = EventReader(catalog, head)
        self._last = after
        self._is_begun = False

    async def events(self, follow: bool) -> AsyncGenerator[WorkflowEvent, None]:
        """Give events as they come true; end when the run rests, unless ``follow``, or when it is removed."""
        pause = _SHORTEST_SECONDS
        quiet: Head | None = None
        while (head := await self._store.head(self._run_id)) is not None and head.created == self._created:
            # Whatever brings events changes the head.
            new = [] if head == quiet else await self._read(head)
            for event in new:
                yield event
            if new:
                pause, quiet = _SHORTEST_SECONDS, None
            elif not follow and _rests(head):
                return
            else:
                quiet = head
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_SECONDS)

    async def read_page(self, limit: int) -> list[WorkflowEvent]:
        """Return the next events that are there now, at most so many with an id."""
        events: list[WorkflowEvent] = []
        while len(events) < limit and (head := await self._store.head(self._run_id)) is not None:
            new = await self._read(head)
            events += new
            if not new:
                break
        while (
            limit < len(events) and events[limit - 1].event_id is None
        ):  # nobody could ask for those behind it
            limit += 1
        return events[:limit]

    async def _read(self, head: Head) -> list[WorkflowEvent]:
        """Return the next events, with their ids; none if there are none yet."""
        if self._last.seq > head.seq:
            later, self._last = self._last, EventPosition.of(None)
            return [_unknown(head, later), *await self._read(head)]
        rows = await self._store.events(self._run_id, self._last.seq, _PAGE)
        is_gap = (not rows and not self._is_begun) or (bool(rows) and await self._is_gap(rows[0]))
        events = await self._read_rows(rows)
        self._is_begun = True
        return [_missed(head), *events] if is_gap else events

    async def _read_rows(self, rows: Sequence[EventRow]) -> list[WorkflowEvent]:
        events: list[WorkflowEvent] = []
        place = EventPosition(0, -1)
        for row in rows:
            if row.seq != place.seq:
                place = EventPosition(row.seq, -1)
            for event in await self._read_row(row):
                place = EventPosition(place.seq, place.number + 1)
                if place > self._last:
                    event.event_id = str(place)
                    events.append(event)
        self._last = max(self._last, place)
        return events

    async def _read_row(self, row: EventRow) -> Sequence[WorkflowEvent]:
        try:
            return await self._reader.read(row)
        except ValueError as error:
            text = f"events of run {self._run_id!r} at {row.seq} are damaged and left out: {error}"
            return [WorkflowWarningEvent(MissedEvents(text), run_id=self._run_id, provisional=True)]

    async def _is_gap(self, first: EventRow) -> bool:
        """Return True if events before the next row may be gone: rows are removed from the front."""
        if self._last.seq:
            return first.seq != self._last.seq
        saved = [one for one in await self._read_row(first) if isinstance(one, CheckpointSavedEvent)]
        return not saved or saved[0].checkpoint.seq != 1


def _rests(head: Head) -> bool:
    """Return True if nobody moves a run, and it has nothing to do now, as one that was just submitted has."""
    if head.status is RunStatus.RUNNING:
        return False
    return head.status is not RunStatus.WAITING or head.wake_at is None or head.wake_at > time_ns() // 1_000


def _missed(head: Head) -> WorkflowWarningEvent:
    return _marker(
        head,
        f"events of run {head.run_id!r} are missing here: they are no longer kept; "
        f"'storage.event_retention' says how many are",
    )


def _unknown(head: Head, after: EventPosition) -> WorkflowWarningEvent:
    return _marker(
        head,
        f"run {head.run_id!r} has no event '{after}', it stands at {head.seq}: the storage is an older copy, or the "
        f"run was repaired; all events that it has follow",
    )


def _marker(head: Head, text: str) -> WorkflowWarningEvent:
    time = moment(head.updated)
    return WorkflowWarningEvent(MissedEvents(text), run_id=head.run_id, timestamp=time, provisional=True)
