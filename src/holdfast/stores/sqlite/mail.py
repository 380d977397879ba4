"""Journals and inboxes: the rows of notes and letters, which belong to a run and to no checkpoint of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from holdfast.checkpoint.store import Letter, Note
from holdfast.ids import RunId

_CLEAR = "DELETE FROM notes WHERE run = ?"
# In its place: the row keeps its id, by which notes are ordered.
_ADD_NOTE = (
    "INSERT INTO notes (run, key, data) VALUES (?, ?, ?) "
    "ON CONFLICT (run, key) DO UPDATE SET data = excluded.data"
)
_ADD_LETTER = "INSERT INTO letters (run, key, data) VALUES (?, ?, ?)"
_IS_KNOWN = "SELECT 1 FROM letters WHERE run = ? AND key = ?"
_TAKE = "UPDATE letters SET data = NULL WHERE run = ? AND key = ?"
_WAITING = "SELECT key, data FROM letters WHERE run = ? AND data IS NOT NULL ORDER BY id"
_NOTES = "SELECT key, data FROM notes WHERE run = ? ORDER BY id"
_FIND_RUN = "SELECT id FROM runs WHERE namespace = ? AND run = ?"
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


def clear_notes(connection: sqlite3.Connection, run: int) -> None:
    """Empty the journal of a run, which has moved on."""
    connection.execute(_CLEAR, (run,))


def add_notes(connection: sqlite3.Connection, run: int, notes: Iterable[Note]) -> None:
    """Add to the journal of a run; a key that is there gets other data."""
    connection.executemany(_ADD_NOTE, [(run, _stored(key), data) for key, data in notes])


def take_letters(connection: sqlite3.Connection, run: int, keys: Iterable[str]) -> None:
    """Use letters up; the keys stay, for they are used once."""
    connection.executemany(_TAKE, [(run, _stored(key)) for key in keys])


def waiting_letters(connection: sqlite3.Connection, run: int) -> list[Letter]:
    """The letters that nobody took."""
    return [Letter(_key(key), data) for key, data in connection.execute(_WAITING, (run,))]


def leave_letters(connection: sqlite3.Connection, run: int, letters: Sequence[Letter]) -> tuple[str, ...]:
    """Leave all of them or none, because of the keys that are returned."""
    known = [
        key for key, _ in letters if connection.execute(_IS_KNOWN, (run, _stored(key))).fetchone() is not None
    ]
    if not known:
        by_key = dict(letters)
        connection.executemany(_ADD_LETTER, [(run, _stored(key), data) for key, data in by_key.items()])
    return tuple(known)


def find_run(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> int | None:
    """The number of a run in this database."""
    row: tuple[int] | None = connection.execute(_FIND_RUN, (namespace, run_id)).fetchone()
    return row[0] if row is not None else None


def read_notes(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> list[Note]:
    """The journal of a run."""
    run = find_run(connection, namespace, run_id)
    if run is None or not has_table(connection, "notes"):
        return []
    return [Note(_key(key), data) for key, data in connection.execute(_NOTES, (run,))]


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


def _key(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")
