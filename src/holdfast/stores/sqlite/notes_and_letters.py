"""Reads and writes the rows of notes (the journal) and letters (the inbox), which belong to a run.

The functions that change rows return by how much the sum of the seals of the run changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.store import Letter, Note
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.common.seals import seal_entry

NOTE, LETTER = "note", "letter"
"""The kinds of entries, as they are sealed."""

_SEALS = "SELECT seal FROM notes WHERE run = ?"
_CLEAR = "DELETE FROM notes WHERE run = ?"
_FIND_NOTE = "SELECT id, seal FROM notes WHERE run = ? AND key = ?"
_NEXT_ID = "SELECT coalesce(max(id), 0) + 1 FROM "
# An update in place: the row keeps its id, by which notes are ordered.
_ADD_NOTE = (
    "INSERT INTO notes (id, run, key, seal, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, key) DO UPDATE SET seal = excluded.seal, data = excluded.data"
)
_ADD_LETTER = "INSERT INTO letters (id, run, key, seal, data) VALUES (?, ?, ?, ?, ?)"
_FIND_LETTER = "SELECT id, seal, data IS NULL FROM letters WHERE run = ? AND key = ?"
_TAKE = "UPDATE letters SET seal = ?, data = NULL WHERE id = ?"
_COUNT_WAITING = "SELECT count(*) FROM letters WHERE run = ? AND data IS NOT NULL"
_WAITING = "SELECT key, data FROM letters WHERE run = ? AND data IS NOT NULL ORDER BY id"
_NOTES = "SELECT key, data FROM notes WHERE run = ? ORDER BY id"
_FIND_RUN = "SELECT id FROM runs WHERE namespace = ? AND run = ?"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def clear_notes(connection: sqlite3.Connection, run: int) -> int:
    """Empty the journal of a run that moved to another checkpoint."""
    seals = [read_number(seal) for (seal,) in connection.execute(_SEALS, (run,))]
    if seals:
        connection.execute(_CLEAR, (run,))
    return -sum(seals)


def add_notes(connection: sqlite3.Connection, run: int, run_id: RunId, notes: Iterable[Note]) -> int:
    """Add notes to the journal of a run; a note whose key exists replaces the data of that key."""
    change = 0
    for key, data in notes:
        before = connection.execute(_FIND_NOTE, (run, _encode_key(key))).fetchone()
        order, old = before or (*connection.execute(_NEXT_ID + "notes").fetchone(), 0)
        seal = seal_entry(run_id, NOTE, key, data, order)
        connection.execute(_ADD_NOTE, (order, run, _encode_key(key), seal, data))
        change += seal - read_number(old)
    return change


def take_letters(connection: sqlite3.Connection, run: int, run_id: RunId, keys: Iterable[str]) -> int:
    """Remove the data of letters; their keys stay, so that none is left twice."""
    change = 0
    for key in keys:
        before = connection.execute(_FIND_LETTER, (run, _encode_key(key))).fetchone()
        if before is not None and not before[2]:
            seal = seal_entry(run_id, LETTER, key, None, before[0])
            connection.execute(_TAKE, (seal, before[0]))
            change += seal - read_number(before[1])
    return change


def read_waiting_letters(connection: sqlite3.Connection, run: int) -> list[Letter]:
    """Return the letters that nobody took yet."""
    return [Letter(_decode_key(key), read_data(data)) for key, data in connection.execute(_WAITING, (run,))]


def count_waiting_letters(connection: sqlite3.Connection, run: int) -> int:
    """Return the number of letters that nobody took yet."""
    (count,) = connection.execute(_COUNT_WAITING, (run,)).fetchone()
    return int(count)


def find_known_keys(connection: sqlite3.Connection, run: int, keys: Iterable[str]) -> tuple[str, ...]:
    """Return those of the keys that were used before."""
    return tuple(
        key
        for key in keys
        if connection.execute(_FIND_LETTER, (run, _encode_key(key))).fetchone() is not None
    )


def add_letters(
    connection: sqlite3.Connection, run: int, run_id: RunId, letters: Mapping[str, bytes | None]
) -> int:
    """Add letters whose keys are new to the inbox of a run; one without data is used up at once."""
    (first,) = connection.execute(_NEXT_ID + "letters").fetchone()
    rows = [
        (order, run, _encode_key(key), seal_entry(run_id, LETTER, key, data, order), data)
        for order, (key, data) in enumerate(letters.items(), first)
    ]
    connection.executemany(_ADD_LETTER, rows)
    return sum(row[3] for row in rows)


def find_run(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> int | None:
    """Return the number of a run in this database."""
    row: tuple[int] | None = connection.execute(_FIND_RUN, (namespace, run_id)).fetchone()
    return row[0] if row is not None else None


def read_notes(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> list[Note]:
    """Return the journal of a run."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "notes"):
        return []
    return [Note(_decode_key(key), read_data(data)) for key, data in connection.execute(_NOTES, (run,))]


def read_inbox(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> list[Letter]:
    """Return the letters that wait for a run."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "letters"):
        return []
    return read_waiting_letters(connection, run)


def find_taken_keys(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, keys: Sequence[str]
) -> list[str]:
    """Return those of the keys whose letters were left and taken."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "letters"):
        return []
    rows = {key: connection.execute(_FIND_LETTER, (run, _encode_key(key))).fetchone() for key in keys}
    return [key for key, row in rows.items() if row is not None and row[2]]


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return True if the database has a table: connections that only read add none to an old database."""
    return connection.execute(_HAS_TABLE, (name,)).fetchone() is not None


def _encode_key(key: str) -> bytes:
    """Encode a key, which may hold half a character and then is no text to SQLite."""
    return key.encode("utf-8", "surrogatepass")


def _decode_key(stored: Any) -> str:
    try:
        return str(read_data(stored), "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"the key {stored!r} of a note or letter is damaged: {error}") from error


def read_data(stored: Any) -> bytes:
    """Return the bytes from a column, or raise ``CheckpointCorrupt``: SQLite returns whatever is there."""
    if not isinstance(stored, bytes):
        raise CheckpointCorrupt(f"where the bytes of a note or letter should be, there is {stored!r:.50}")
    return stored


def read_number(stored: Any) -> int:
    """Return a seal or size from a column, or 0 for a damaged one: then a sum of seals stays wrong, as it should."""
    return stored if isinstance(stored, int) else 0
