"""Sessions in a SQLite database.

Each call opens the file anew: that costs less than a sync, and no connection can be carried into a forked process.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.agents.sessions.entry import (
    EntryLink,
    PlaceEntry,
    SessionEntry,
    StoredEntry,
    ThreadInfo,
    check_session_id,
    check_thread,
    choose_after,
    damaged_session,
    leads_back,
    pack_entry,
    unpack_entry,
)
from holdfast.agents.sessions.memory import entry_not_found, in_order_of_time
from holdfast.agents.sessions.sealed_entries import (
    KEY_SESSION,
    EntrySeals,
    check_not_keys,
    open_entries,
    publish_placed,
    seal_entry,
)
from holdfast.agents.sessions.store import MAIN
from holdfast.checkpoint.threads import Threads
from holdfast.errors import InvalidArgument, StorageError, StoreDamaged
from holdfast.stores.sqlite.database_file import check_file, make_new_file
from holdfast.stores.sqlite.sqlite_errors import decode_any_text, make_storage_error, retry_while_busy

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.keyring import Keyring

T = TypeVar("T")

_THREADS = Threads("holdfast-sessions-sqlite", 8)
_APPLICATION_ID = 0x48465353
_SCHEMA_VERSION = 1
_BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE threads (
    session TEXT NOT NULL, thread TEXT NOT NULL, origin TEXT, tip TEXT, count INTEGER NOT NULL,
    PRIMARY KEY (session, thread)) WITHOUT ROWID;
CREATE TABLE entries (
    session TEXT NOT NULL, entry TEXT NOT NULL, thread TEXT NOT NULL, after TEXT, run TEXT NOT NULL,
    published INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (session, entry));
CREATE INDEX staged ON entries (session) WHERE NOT published;
"""
# With UNION, rows that lead back to each other are found once each, and with ids alone, so that they take little room.
_LINE = """
WITH RECURSIVE line (entry, after) AS (
    SELECT entry, after FROM entries WHERE session = :session AND entry = :entry
    UNION
    SELECT found.entry, found.after FROM entries AS found, line
    WHERE found.session = :session AND found.entry = line.after)
SELECT found.entry, found.after, found.run, found.published, {body} FROM line CROSS JOIN entries AS found
WHERE found.session = :session AND found.entry = line.entry
"""


class _LineRow(NamedTuple):
    """An entry as far as a line depends on it, with its body if that was asked for."""

    entry_id: str
    after: str | None
    run_id: str
    is_published: int
    body: bytes


class SqliteSessionStore:
    """Sessions in one file of SQLite, for any number of processes of one machine.

    >>> import asyncio, tempfile
    >>> from holdfast.agents import AgentMessage, append_messages, read_messages
    >>> async def main(path: str) -> list[str]:
    ...     store = SqliteSessionStore(path)
    ...     await append_messages(store, "kim", [AgentMessage("user", "hello")])
    ...     return [message.text for message in await read_messages(store, "kim")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(f"{folder}/sessions.db"))
    ['hello']
    """

    def __init__(self, path: str | os.PathLike[str], *, keys: Keyring | None = None) -> None:
        self._seals = None if keys is None else EntrySeals(SqliteSessionStore(path), keys)
        self._path = Path(path)

    # The port.

    async def stage(self, entry: SessionEntry) -> None:
        """Keep an entry aside."""
        entry = await seal_entry(self._seals, entry)
        row = (
            entry.session_id,
            entry.entry_id,
            entry.thread,
            entry.after,
            entry.author.run_id,
            pack_entry(entry),
        )

        def put(database: sqlite3.Connection) -> None:
            database.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, 0, ?) ON CONFLICT (session, entry) DO UPDATE SET "
                "thread = excluded.thread, after = excluded.after, run = excluded.run, body = excluded.body "
                "WHERE NOT published",
                row,
            )

        await self._change(put)

    async def publish(self, session_id: str, entry_id: str) -> bool:
        """Put a staged entry at the end of its thread."""
        return await publish_placed(
            self._seals, lambda place: self._change(partial(self._publish, session_id, entry_id, place))
        )

    async def staged(self, session_id: str | None = None) -> list[SessionEntry]:
        """Return the entries that are staged only."""
        query = "SELECT session, entry, after, CAST(body AS BLOB) FROM entries WHERE NOT published"
        if session_id is not None:
            query += " AND session = ?"
        given = () if session_id is None else (session_id,)

        def find(database: sqlite3.Connection) -> list[SessionEntry]:
            return [self._unpack(*row) for row in database.execute(query, given)]

        found = in_order_of_time(await self._read(find))
        return await open_entries(self._seals, [StoredEntry(entry, False) for entry in found])

    async def entries(
        self, session_id: str, thread: str = MAIN, *, upto: str | None = None
    ) -> list[SessionEntry]:
        """Return the conversation of a thread, or up to an entry."""

        def find(database: sqlite3.Connection) -> list[StoredEntry]:
            last = _tip(database, session_id, thread) if upto is None else upto
            rows = [] if last is None else _line(database, session_id, last, "CAST(found.body AS BLOB)")
            if (last is not None and not rows) or (rows and rows[0].after is not None):
                raise entry_not_found(session_id, (rows[0].after if rows else last) or "")
            return [
                StoredEntry(
                    self._unpack(session_id, row.entry_id, row.after, row.body), bool(row.is_published)
                )
                for row in rows
            ]

        return await open_entries(self._seals, await self._read(find))

    async def fork(self, session_id: str, thread: str, at: str) -> ThreadInfo:
        """Make a thread that goes on after an entry."""
        check_thread(thread)

        def make(database: sqlite3.Connection) -> ThreadInfo:
            known = "SELECT 1 FROM entries WHERE session = ? AND entry = ? AND published"
            if database.execute(known, (session_id, at)).fetchone() is None:
                raise entry_not_found(session_id, at)
            row = "INSERT INTO threads VALUES (?, ?, ?, ?, 0) ON CONFLICT (session, thread) DO NOTHING"
            database.execute(row, (session_id, thread, at, at))
            info = next((one for one in _threads(database, session_id) if one.thread == thread), None)
            if info is None:
                raise damaged_session(session_id, f"thread {thread!r} cannot be found")
            if info.origin != at:
                raise InvalidArgument(
                    f"session {session_id!r} has a thread {thread!r} already, which begins elsewhere; choose another "
                    f"name"
                )
            return info

        return await self._change(make)

    async def threads(self, session_id: str) -> list[ThreadInfo]:
        """Return the threads of a session."""
        return await self._read(lambda database: _threads(database, session_id))

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the ids of sessions."""
        query = (
            "SELECT DISTINCT session FROM entries WHERE typeof(session) = 'text' AND session > ? AND session != ? "
            "ORDER BY session LIMIT ?"
        )
        given = (after, KEY_SESSION, limit)
        rows = await self._read(lambda database: database.execute(query, given).fetchall())
        return [session_id for (session_id,) in rows]

    async def delete(self, session_id: str) -> bool:
        """Remove a session; the file holds nothing of it afterwards."""
        check_session_id(session_id)
        check_not_keys(self._seals, session_id)

        def remove(database: sqlite3.Connection) -> bool:
            database.execute("DELETE FROM threads WHERE session = ?", (session_id,))
            return database.execute("DELETE FROM entries WHERE session = ?", (session_id,)).rowcount > 0

        return await self._change(remove)

    async def rekey(self, keys: Keyring) -> None:
        """Lock a store under keys with another keyring from now on; what was said before stays as it is."""
        if self._seals is None:
            raise InvalidArgument(
                "rekey: the session store is opened without keys=, so it has none to replace"
            )
        await self._seals.rekey(keys)

    async def close(self) -> None:
        """Do nothing: the file is open during calls only."""

    # In a thread.

    def _unpack(self, session_id: str, entry_id: str, after: str | None, body: bytes) -> SessionEntry:
        entry = unpack_entry(body, f"the session database {os.fspath(self._path)!r}")
        if (entry.session_id, entry.entry_id, entry.after) != (session_id, entry_id, after):
            raise damaged_session(session_id, f"the row of entry {entry_id!r} holds another one")
        return entry

    def _publish(
        self, session_id: str, entry_id: str, place: PlaceEntry, database: sqlite3.Connection
    ) -> bool:
        query = (
            "SELECT published, entry, after, CAST(body AS BLOB) FROM entries WHERE session = ? AND entry = ?"
        )
        waiting: dict[str, SessionEntry] = {}
        row = database.execute(query, (session_id, entry_id)).fetchone()
        known = row is not None
        while row is not None and not row[0]:
            entry = self._unpack(session_id, *row[1:])
            if entry.entry_id in waiting:
                raise leads_back(session_id, entry.entry_id)
            waiting[entry.entry_id] = entry
            row = database.execute(query, (session_id, entry.after)).fetchone()

        def links(entry_id: str | None) -> list[EntryLink]:
            rows = [] if entry_id is None else _line(database, session_id, entry_id)
            return [EntryLink(row.entry_id, row.run_id) for row in rows]

        for entry in reversed(waiting.values()):
            thread = (session_id, entry.thread)
            exists = database.execute(
                "SELECT 1 FROM threads WHERE session = ? AND thread = ?", thread
            ).fetchone()
            if exists is None:
                database.execute(
                    "INSERT INTO threads VALUES (?, ?, ?, ?, 0)", (*thread, entry.after, entry.after)
                )
            after = choose_after(entry, _tip(database, *thread), links)
            database.execute(
                "UPDATE entries SET published = 1, after = ?, body = ? WHERE session = ? AND entry = ?",
                (after, pack_entry(place(entry, after)), session_id, entry.entry_id),
            )
            database.execute(
                "UPDATE threads SET tip = ?, count = count + 1 WHERE session = ? AND thread = ?",
                (entry.entry_id, *thread),
            )
        return known

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._call(work, "BEGIN")

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._call(work, "BEGIN IMMEDIATE")

    async def _call(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        def call() -> T:
            try:
                with self._opened() as database:
                    return _in_transaction(database, begin, work)
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise make_storage_error(error, self._path, "using", _BUSY_SECONDS) from error

        return await _THREADS.call(call)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            check_file(self._path, self._path.stat())
        except FileNotFoundError:
            make_new_file(self._path)
        with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as database:
            # A row that is no UTF-8 would leave its query unfinished, and with it a lock that keeps others waiting.
            database.text_factory = decode_any_text
            database.execute("PRAGMA synchronous = EXTRA")
            database.execute("PRAGMA fullfsync = ON")
            database.execute("PRAGMA secure_delete = ON")
            self._prepare(database)
            yield database

    def _prepare(self, database: sqlite3.Connection) -> None:
        (kind,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if (kind, version) == (0, 0):

            def create(database: sqlite3.Connection) -> None:
                if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                    for statement in _SCHEMA.split(";"):
                        database.execute(statement)
                    database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

            _in_transaction(database, "BEGIN IMMEDIATE", create)
            self._check(database)
        elif (kind, version) != (_APPLICATION_ID, _SCHEMA_VERSION):
            self._check(database)
        self._check_definitions(database)

    def _check(self, database: sqlite3.Connection) -> None:
        (kind,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if kind != _APPLICATION_ID:
            raise StorageError(
                f"{os.fspath(self._path)!r} is a database of something else; nothing was changed. Give the session "
                f"store a path of its own"
            )
        if version != _SCHEMA_VERSION:
            raise StorageError(
                f"the session database {os.fspath(self._path)!r} has format {version}, and this version of holdfast "
                f"reads {_SCHEMA_VERSION}: install a newer one"
            )

    def _check_definitions(self, database: sqlite3.Connection) -> None:
        """Raise ``StoreDamaged`` for tables of another form: views and triggers can do anything, and need not end."""
        found, own = _definitions(database), _own_definitions()
        others = [sql for name, sql in found if (name, sql) not in own]
        if not own.issubset(found) or not all(sql.startswith("CREATE TABLE ") for sql in others):
            raise StoreDamaged(
                f"the tables of the session database {os.fspath(self._path)!r} are not as they were made: it is "
                f"damaged, or somebody changed them; restore it from a backup"
            )


@cache
def _own_definitions() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_SCHEMA)
        return frozenset(_definitions(database))


def _definitions(database: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return [(str(name), " ".join(str(sql).split())) for name, sql in rows]


def _in_transaction(database: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    retry_while_busy(lambda: database.execute(begin), _BUSY_SECONDS)
    try:
        result = work(database)
        retry_while_busy(lambda: database.execute("COMMIT"), _BUSY_SECONDS)
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return result


def _tip(database: sqlite3.Connection, session_id: str, thread: str) -> str | None:
    query = "SELECT tip FROM threads WHERE session = ? AND thread = ?"
    row = database.execute(query, (session_id, thread)).fetchone()
    if row is None or row[0] is None:
        return None
    if not isinstance(row[0], str):
        raise damaged_session(session_id, f"the end of thread {thread!r} is no text")
    return row[0]


def _line(database: sqlite3.Connection, session_id: str, entry_id: str, body: str = "NULL") -> list[_LineRow]:
    """Return the entries up to one, oldest first."""
    rows = database.execute(_LINE.format(body=body), {"session": session_id, "entry": entry_id})
    found = {row.entry_id: row for row in map(_LineRow._make, rows)}
    line: dict[str, _LineRow] = {}
    last: str | None = entry_id
    while last in found:
        if last in line:
            raise leads_back(session_id, last)
        line[last] = found[last]
        last = line[last].after
    return list(line.values())[::-1]


def _threads(database: sqlite3.Connection, session_id: str) -> list[ThreadInfo]:
    query = "SELECT session, thread, origin, tip, count FROM threads WHERE session = ? ORDER BY thread"
    rows: list[tuple[object, ...]] = database.execute(query, (session_id,)).fetchall()
    for _, thread, *ends, count in rows:
        texts = all(end is None or isinstance(end, str) for end in ends)
        if not (texts and isinstance(thread, str) and isinstance(count, int)):
            raise damaged_session(session_id, f"what stands of thread {thread!r} cannot be")
    if len({row[1] for row in rows}) < len(rows):
        raise damaged_session(session_id, "a thread is there twice")
    return [ThreadInfo(*row) for row in rows]  # type: ignore[arg-type]
