"""Event rows that no checkpoint brings, and the age at which rows are dropped."""

from __future__ import annotations

from holdfast.checkpoint.checkpoint_info import applied_supersteps
from holdfast.checkpoint.derived_starts import read_records
from holdfast.checkpoint.format.event_row import CommitEvents, RestEvents, pack_events, unpack_events
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.store import Depth, EventRow, Head, Store
from holdfast.errors import CheckpointCorrupt

EVENTS_TRIMMED = 256
"""Old events are dropped when the seq of a run passes a multiple of this."""


async def status_row(store: Store, head: Head) -> EventRow:
    """Return the row for a run that comes to rest with ``head`` though nobody drives it."""
    try:
        records = await read_records(store, head.run_id, head.seq, head.seq, Depth.HEADERS)
        superstep = applied_supersteps(read_header(records[-1])) if records else 0
    except CheckpointCorrupt:
        superstep = 0
    rest = RestEvents(head.status, head.waiting_for, head.by, error=head.reason)
    return EventRow(head.seq, pack_events(head.updated, superstep, False, (), rest))


async def has_moved(store: Store, head: Head) -> bool:
    """Return True if an event of the checkpoint on which a run stands tells that the run moved."""
    told = [_unpack(row, head) for row in await store.events(head.run_id, head.seq, 1)]
    return any(events.is_moving for events in told if events is not None)


async def find_oldest_kept(store: Store, head: Head, kept_from: int, oldest: int) -> int:
    """Return the first seq whose events are kept: not before ``kept_from``, or not older than ``oldest``."""
    first = 0
    while rows := await store.events(head.run_id, first, EVENTS_TRIMMED if first else 1):
        for row in rows:
            if row.seq >= kept_from or time_of_row(row, head) >= oldest:
                return row.seq
        first = rows[-1].seq + 1
    return first


def time_of_row(row: EventRow, head: Head) -> int:
    """Return the time of the commit that left a row, in microseconds; 0 for a damaged one."""
    told = _unpack(row, head)
    return 0 if told is None else told.time


def _unpack(row: EventRow, head: Head) -> CommitEvents | None:
    """Return the events of a row; None for a damaged one, which is no reason for a run to fail."""
    try:
        return unpack_events(head.run_id, head.workflow_name, row.data) if row.sound else None
    except Exception:
        return None
