"""Hints about all runs of a namespace, so that lists and searches need not read every file.

They lie in a small SQLite database that is never the truth: a row counts only while the file of its run has not changed
since, and a database that is missing, damaged or in use by others costs time, nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast.checkpoint.store import Head
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId

_T = TypeVar("_T")
_VERSION = 2
_BUSY_SECONDS = 2.0
# Fewer changed runs than this are not worth a transaction: they are read again by the next process.
_WORTH_WRITING = 64
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, head TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, tags TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (name TEXT PRIMARY KEY, stamp TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ids (checkpoint BLOB PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
"""


class FileStamp(NamedTuple):
    """Changes whenever the file does."""

    inode: int
    size: int
    modified: int

    @property
    def text(self) -> str:
        """As it stands in the database."""
        return f"{self.inode}-{self.size}-{self.modified}"


def list_files(folder: Path, suffix: str) -> dict[str, FileStamp]:
    """Return the stamp of each file in a folder, by its name without the suffix."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        name = entry.name.removesuffix(suffix)
                        found[name] = FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        pass
    return found


class RunIndex:
    """The heads and ids that were read before, in memory and in a database. Not safe for several threads at a time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        """The database; None if nothing may be written, and it is not used."""
        self._heads: dict[str, tuple[str, Head | None]] = {}
        """By the name of a run's file: its stamp, and the head that it said then."""
        self._loaded = False
        self._tags: dict[str, tuple[str, list[str]]] | None = None
        """By the name of a run's file: its stamp, and the tags that it had then; None before they are asked for."""
        self._read_tags: dict[str, tuple[str, list[str]]] = {}
        """Those that the database does not have yet."""

    def heads(
        self, files: dict[str, FileStamp], read: Callable[[str], tuple[Head | None, bool]]
    ) -> Iterable[tuple[str, Head]]:
        """Return the head of each run; ``read`` reads it from the file, and says if it is what the file says now."""
        if not self._loaded and len(files) >= _WORTH_WRITING:
            self._loaded = True
            self._heads = {**self._with_database(self._load_heads, {}), **self._heads}
        changed: dict[str, tuple[str, Head | None]] = {}
        found = []
        for name, stamp in files.items():
            known = self._heads.get(name)
            if known is None or known[0] != stamp.text:
                head, is_current = read(name)
                known = (stamp.text, head)
                if is_current:
                    changed[name] = known
            if known[1] is not None:
                found.append((name, known[1]))
        self._heads.update(changed)
        if len(self._heads) > len(files):
            self._heads = {name: known for name, known in self._heads.items() if name in files}
        if len(changed) >= _WORTH_WRITING:
            self._with_database(lambda database: _store_heads(database, changed), None)
        return found

    def tags(self, name: str, files: dict[str, FileStamp], read: Callable[[str], list[str]]) -> list[str]:
        """Return the tags of a run; ``read`` reads them from its file."""
        if self._tags is None:
            nothing: dict[str, tuple[str, list[str]]] = {}
            self._tags = self._with_database(_load_tags, nothing)
        stamp = files[name].text if name in files else ""
        known = self._tags.get(name)
        if known is None or known[0] != stamp:
            known = self._tags[name] = self._read_tags[name] = (stamp, read(name))
        return known[1]

    def store_tags(self) -> None:
        """Let the database have the tags that were read since, if they are many."""
        if len(self._read_tags) >= _WORTH_WRITING:
            fresh, self._read_tags = self._read_tags, {}
            self._with_database(lambda database: _store_tags(database, fresh), None)

    def find(
        self,
        checkpoint_id: CheckpointId,
        files: dict[str, FileStamp],
        read_ids: Callable[[str], list[CheckpointId]],
    ) -> str | None:
        """Return the name of the run that has a checkpoint; ``read_ids`` reads the ids of a run."""
        key = checkpoint_id.encode("utf-8", "surrogatepass")
        indexed: dict[str, str] = self._with_database(_load_indexed, {})
        name = self._with_database(lambda database: _find(database, key), None)
        if name is not None and name in files and checkpoint_id in read_ids(name):
            return name
        found, fresh = None, {}
        for name, stamp in files.items():
            if indexed.get(name) != stamp.text:  # else its ids are all in the database
                ids = fresh[name] = read_ids(name)
                if checkpoint_id in ids:
                    found = name
                    break
        if len(fresh) >= _WORTH_WRITING:
            stamps = {name: files[name].text for name in fresh}
            self._with_database(lambda database: _store_ids(database, fresh, stamps), None)
        return found

    def forget(self) -> None:
        """Remove the database; the next one who needs it makes it anew."""
        self._heads, self._loaded = {}, False
        self._tags, self._read_tags = None, {}
        for suffix in ("", "-wal", "-shm") if self._path is not None else ():
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")

    @staticmethod
    def _load_heads(database: sqlite3.Connection) -> dict[str, tuple[str, Head | None]]:
        return {
            name: (stamp, _read_head(json.loads(head)))
            for name, stamp, head in database.execute("SELECT name, stamp, head FROM runs")
        }

    def _with_database(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """Do something with the database; where it cannot be used, return ``otherwise``."""
        if self._path is None:
            return otherwise
        try:
            database = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error:
            return otherwise
        try:
            if database.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_TABLES)
                database.execute(f"PRAGMA user_version = {_VERSION}")
                os.chmod(self._path, 0o600)
            database.execute("PRAGMA synchronous = NORMAL")
            return work(database)
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError, OSError) as error:
            if not isinstance(error, sqlite3.OperationalError | OSError):  # it is damaged
                self.forget()
            return otherwise
        finally:
            with suppress(sqlite3.Error):
                database.close()


def _store_heads(database: sqlite3.Connection, changed: dict[str, tuple[str, Head | None]]) -> None:
    rows = [(name, stamp, json.dumps(head and _plain(head))) for name, (stamp, head) in changed.items()]
    _write(database, "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", rows)


def _load_tags(database: sqlite3.Connection) -> dict[str, tuple[str, list[str]]]:
    rows = database.execute("SELECT name, stamp, tags FROM tags")
    return {name: (stamp, list(map(str, json.loads(tags)))) for name, stamp, tags in rows}


def _store_tags(database: sqlite3.Connection, read: dict[str, tuple[str, list[str]]]) -> None:
    rows = [(name, stamp, json.dumps(tags)) for name, (stamp, tags) in read.items()]
    _write(database, "INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", rows)


def _store_ids(
    database: sqlite3.Connection, ids: dict[str, list[CheckpointId]], stamps: dict[str, str]
) -> None:
    rows = [(one.encode("utf-8", "surrogatepass"), name) for name, its in ids.items() for one in its]
    _write(database, "INSERT OR REPLACE INTO ids VALUES (?, ?)", rows)
    _write(database, "INSERT OR REPLACE INTO indexed VALUES (?, ?)", list(stamps.items()))


def _write(database: sqlite3.Connection, statement: str, rows: list[Any]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        database.executemany(statement, rows)
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _load_indexed(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT name, stamp FROM indexed").fetchall())


def _find(database: sqlite3.Connection, key: bytes) -> str | None:
    row = database.execute("SELECT name FROM ids WHERE checkpoint = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def _plain(head: Head) -> list[Any]:
    return [*head._replace(status=head.status.value)]  # type: ignore[arg-type]


def _read_head(fields: list[Any] | None) -> Head | None:
    if fields is None:
        return None
    head = Head(*fields)
    return head._replace(status=RunStatus(head.status))
