"""Reads and writes the events of runs: in the row of their checkpoint, or in a table where there is no such row.

No sum of seals counts them: the loss of an event is no damage of its run. What is stored begins with a seal.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.format.record import hash_bytes
from holdfast.checkpoint.store import EventRow
from holdfast.ids import RunId
from holdfast.stores.sqlite.notes_and_letters import find_run

_SEAL_BYTES = 6
_ADD = (
    "INSERT INTO events (run, seq, part, data) "
    "VALUES (?1, ?2, (SELECT coalesce(max(part), 0) + 1 FROM events WHERE run = ?1 AND seq = ?2), ?3)"
)
_KEEP = (
    "INSERT OR IGNORE INTO events (run, seq, part, data) "
    "SELECT run, seq, 0, events FROM checkpoints WHERE run = ? AND seq BETWEEN ? AND ? AND events <> x''"
)
_TRIM = (
    "DELETE FROM events WHERE run = ? AND seq < ?",
    "UPDATE checkpoints SET events = x'' WHERE run = ? AND seq < ? AND events <> x''",
)
_CUT = "DELETE FROM events WHERE run = ? AND seq > ?"
_READ = (
    "SELECT seq, 0 AS part, events FROM checkpoints WHERE run = ?1 AND seq BETWEEN ?2 AND ?3 AND events <> x'' "
    "UNION ALL SELECT seq, part, data FROM events WHERE run = ?1 AND seq BETWEEN ?2 AND ?3 "
    "ORDER BY seq, part LIMIT ?4"
)
_LAST = (1 << 63) - 1


def seal_event_row(run_id: RunId, row: EventRow) -> bytearray:
    """Return the data of a row as it is stored."""
    return bytearray(_seal(run_id, row.seq, row.data) + row.data)


def _seal(run_id: RunId, seq: int, data: bytes) -> bytes:
    return hash_bytes(seq.to_bytes(8, "big") + run_id.encode() + data, _SEAL_BYTES)


def add_event_rows(connection: sqlite3.Connection, run: int, run_id: RunId, rows: Sequence[EventRow]) -> None:
    """Add rows that belong to no new checkpoint, behind those of the same seq."""
    for row in rows:
        connection.execute(_ADD, (run, row.seq, seal_event_row(run_id, row)))


def keep_events(connection: sqlite3.Connection, run: int, first: int, last: int) -> None:
    """Keep the events of checkpoints from ``first`` to ``last`` whose rows are about to be removed."""
    connection.execute(_KEEP, (run, first, last))


def trim_events(connection: sqlite3.Connection, run: int, first: int) -> None:
    """Remove the events of a run before a seq."""
    for statement in _TRIM:
        connection.execute(statement, (run, first))


def cut_events(connection: sqlite3.Connection, run: int, last: int) -> None:
    """Remove the events of a run behind a seq, but for those in rows of checkpoints."""
    connection.execute(_CUT, (run, last))


def read_events(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, first: int, limit: int
) -> list[EventRow]:
    """Return the rows of a run from a seq on, about ``limit`` of them and all of each seq."""
    run = find_run(connection, namespace, run_id)
    if run is None:
        return []
    found = connection.execute(_READ, (run, first, _LAST, max(limit, 1))).fetchall()
    if len(found) >= limit and found:  # the last seq may have more
        last = found[-1][0]
        rest = connection.execute(_READ, (run, last, last, -1)).fetchall()
        found = [row for row in found if row[0] != last] + rest
    return [_read_row(run_id, seq, stored) for seq, _, stored in found]


def _read_row(run_id: RunId, seq: int, stored: Any) -> EventRow:
    if not isinstance(stored, bytes):
        return EventRow(seq, b"", False)
    data = stored[_SEAL_BYTES:]
    return EventRow(seq, data, stored[:_SEAL_BYTES] == _seal(run_id, seq, data))
