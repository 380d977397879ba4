"""Journals and inboxes: the rows of notes and letters, which belong to a run and to no checkpoint of it.

What changes rows says by how much the sum of the seals of the run changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.checkpoint.store import Letter, Note
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.common.seals import seal_entry

NOTE, LETTER = "note", "letter"
"""What seals call them."""

_SEALS = "SELECT seal FROM notes WHERE run = ?"
_CLEAR = "DELETE FROM notes WHERE run = ?"
_NOTED = "SELECT id, seal FROM notes WHERE run = ? AND key = ?"
_NEXT = "SELECT coalesce(max(id), 0) + 1 FROM "
# In its place: the row keeps its id, by which notes are ordered.
_ADD_NOTE = (
    "INSERT INTO notes (id, run, key, seal, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, key) DO UPDATE SET seal = excluded.seal, data = excluded.data"
)
_ADD_LETTER = "INSERT INTO letters (id, run, key, seal, data) VALUES (?, ?, ?, ?, ?)"
_LEFT = "SELECT id, seal, data IS NULL FROM letters WHERE run = ? AND key = ?"
_TAKE = "UPDATE letters SET seal = ?, data = NULL WHERE id = ?"
_WAITING = "SELECT key, data FROM letters WHERE run = ? AND data IS NOT NULL ORDER BY id"
_NOTES = "SELECT key, data FROM notes WHERE run = ? ORDER BY id"
_FIND_RUN = "SELECT id FROM runs WHERE namespace = ? AND run = ?"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def clear_notes(connection: sqlite3.Connection, run: int) -> int:
    """Empty the journal of a run, which has moved on."""
    seals = [number(seal) for (seal,) in connection.execute(_SEALS, (run,))]
    if seals:
        connection.execute(_CLEAR, (run,))
    return -sum(seals)


def add_notes(connection: sqlite3.Connection, run: int, run_id: RunId, notes: Iterable[Note]) -> int:
    """Add to the journal of a run; a key that is there gets other data."""
    change = 0
    for key, data in notes:
        before = connection.execute(_NOTED, (run, _stored(key))).fetchone()
        order, old = before or (*connection.execute(_NEXT + "notes").fetchone(), 0)
        seal = seal_entry(run_id, NOTE, key, data, order)
        connection.execute(_ADD_NOTE, (order, run, _stored(key), seal, data))
        change += seal - number(old)
    return change


def take_letters(connection: sqlite3.Connection, run: int, run_id: RunId, keys: Iterable[str]) -> int:
    """Use letters up; the keys stay, for they are used once."""
    change = 0
    for key in keys:
        before = connection.execute(_LEFT, (run, _stored(key))).fetchone()
        if before is not None and not before[2]:
            seal = seal_entry(run_id, LETTER, key, None, before[0])
            connection.execute(_TAKE, (seal, before[0]))
            change += seal - number(before[1])
    return change


def waiting_letters(connection: sqlite3.Connection, run: int) -> list[Letter]:
    """The letters that nobody took."""
    return [Letter(_key(key), content(data)) for key, data in connection.execute(_WAITING, (run,))]


def known_keys(connection: sqlite3.Connection, run: int, letters: Sequence[Letter]) -> tuple[str, ...]:
    """The keys of those letters that were left before."""
    return tuple(
        key for key, _ in letters if connection.execute(_LEFT, (run, _stored(key))).fetchone() is not None
    )


def leave_letters(connection: sqlite3.Connection, run: int, run_id: RunId, letters: Sequence[Letter]) -> int:
    """Leave letters whose keys are new."""
    (first,) = connection.execute(_NEXT + "letters").fetchone()
    rows = [
        (order, run, _stored(key), seal_entry(run_id, LETTER, key, data, order), data)
        for order, (key, data) in enumerate(dict(letters).items(), first)
    ]
    connection.executemany(_ADD_LETTER, rows)
    return sum(row[3] for row in rows)


def find_run(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> int | None:
    """The number of a run in this database."""
    row: tuple[int] | None = connection.execute(_FIND_RUN, (namespace, run_id)).fetchone()
    return row[0] if row is not None else None


def read_notes(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> list[Note]:
    """The journal of a run."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "notes"):
        return []
    return [Note(_key(key), content(data)) for key, data in connection.execute(_NOTES, (run,))]


def read_inbox(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> list[Letter]:
    """The inbox of a run."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "letters"):
        return []
    return waiting_letters(connection, run)


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Those who only read add no tables to a database that was made before there were these."""
    return connection.execute(_HAS_TABLE, (name,)).fetchone() is not None


def _stored(key: str) -> bytes:
    """Keys are any text, also with half a character, which is no text to SQLite."""
    return key.encode("utf-8", "surrogatepass")


def _key(stored: Any) -> str:
    try:
        return str(content(stored), "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"the key {stored!r} of a note or letter is damaged: {error}") from error


def content(stored: Any) -> bytes:
    """Bytes from a column; SQLite gives back whatever is there."""
    if not isinstance(stored, bytes):
        raise CheckpointCorrupt(f"where the bytes of a note or letter should be, there is {stored!r:.50}")
    return stored


def number(stored: Any) -> int:
    """A seal from a column; one that is damaged is no number, and then the sum is wrong for ever, as it should be."""
    return stored if isinstance(stored, int) else 0
