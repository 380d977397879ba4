"""The tables of a database, and the check that this version can read them."""

from __future__ import annotations

import json
import secrets
import sqlite3
from pathlib import Path

from holdfast.checkpoint.store import FORMAT_MAJOR, FORMAT_MINOR, StoreInfo
from holdfast.errors import StorageError
from holdfast.stores.common.features import check_features, new_features

APPLICATION_ID = 0x486F6C64
"""'Hold', in the header of the file."""

# Of 4096, 2048 and 1024: a commit of two small records dirties five or six pages, so that 4096 writes 22 KB for
# it and 2048 writes 13 KB in the same time; with 1024 a header next to large values no longer lies in the row.
PAGE_SIZE = 2048

# Rows of checkpoints are only ever added, at the end. The large columns are last and a keyframe has a row of its
# own: SQLite reads a row from the front, so that listing headers touches none of them. `find` is the first 8
# bytes of an id as an integer: an index of whole ids would be three times as large. A `seal` covers the columns that no
# id covers (see ``seals``), `content` is the sum of the seals of all rows of a run: it shows that a row was lost.
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, run TEXT NOT NULL, created INTEGER NOT NULL,
        updated INTEGER NOT NULL, workflow TEXT NOT NULL, family TEXT NOT NULL, checkpoint BLOB NOT NULL,
        seq INTEGER NOT NULL, token INTEGER NOT NULL, status TEXT NOT NULL, owner TEXT NOT NULL,
        wake_at INTEGER, takeovers INTEGER NOT NULL, reason BLOB NOT NULL, retention TEXT NOT NULL,
        waiting_for TEXT NOT NULL, letters_known INTEGER NOT NULL, fingerprint TEXT NOT NULL, by BLOB NOT NULL,
        traceback BLOB NOT NULL, origin TEXT NOT NULL, restored INTEGER NOT NULL, content INTEGER NOT NULL,
        seal INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX runs_by_name ON runs (namespace, run)",
    "CREATE INDEX runs_by_age ON runs (namespace, created, run)",
    "CREATE INDEX runs_by_waking ON runs (namespace, wake_at) WHERE wake_at IS NOT NULL",
    """CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, seq INTEGER NOT NULL, find INTEGER NOT NULL,
        checkpoint BLOB NOT NULL, new_bytes INTEGER NOT NULL, seal INTEGER NOT NULL, header BLOB NOT NULL,
        events BLOB NOT NULL, changes BLOB NOT NULL, small_values BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX checkpoints_by_seq ON checkpoints (run, seq)",
    "CREATE INDEX checkpoints_by_id ON checkpoints (find)",
    """CREATE TABLE keyframes (
        checkpoint INTEGER PRIMARY KEY, cut INTEGER NOT NULL, changes BLOB NOT NULL,
        small_values BLOB NOT NULL)""",
    "CREATE TABLE families (id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, family TEXT NOT NULL)",
    "CREATE UNIQUE INDEX families_by_name ON families (namespace, family)",
    # A blob without data is a file. `mark` is how many sweeps had begun when a commit last wrote or needed it.
    """CREATE TABLE blobs (
        id INTEGER PRIMARY KEY, family INTEGER NOT NULL, find INTEGER NOT NULL, digest BLOB NOT NULL,
        size INTEGER NOT NULL, mark INTEGER NOT NULL, data BLOB)""",
    "CREATE INDEX blobs_by_digest ON blobs (family, find)",
    "CREATE TABLE marks (count INTEGER NOT NULL)",
    "INSERT INTO marks VALUES (0)",
    "CREATE TABLE tags (checkpoint INTEGER NOT NULL, tag BLOB NOT NULL, by BLOB NOT NULL)",
    "CREATE INDEX tags_by_checkpoint ON tags (checkpoint)",
    # Events that no row of a checkpoint holds: of changes of the head, and of checkpoints that were removed, which have
    # the part 0. In a table of their own for all, events would cost a page more in every commit.
    """CREATE TABLE events (
        run INTEGER NOT NULL, seq INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (run, seq, part)) WITHOUT ROWID""",
)

# The oldest databases lack these; the first connection that writes adds them. A letter without data was taken. Waiting
# letters have an index of their own, because every commit reads them and a run may have taken thousands.
MAIL_TABLES = (
    """CREATE TABLE IF NOT EXISTS notes (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, key BLOB NOT NULL, seal INTEGER NOT NULL,
        data BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS notes_by_key ON notes (run, key)",
    """CREATE TABLE IF NOT EXISTS letters (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, key BLOB NOT NULL, seal INTEGER NOT NULL, data BLOB)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS letters_by_key ON letters (run, key)",
    "CREATE INDEX IF NOT EXISTS letters_waiting ON letters (run) WHERE data IS NOT NULL",
    # Hints, for a moment: how a run stood when a host said that it is about to go on with it.
    """CREATE TABLE IF NOT EXISTS claims (
        run INTEGER PRIMARY KEY, checkpoint BLOB NOT NULL, token INTEGER NOT NULL, letters INTEGER NOT NULL,
        until INTEGER NOT NULL, process TEXT NOT NULL)""",
)

# Later databases lack these: without them queries read every run. Nearly all runs are COMPLETED in the end, and need
# no index of that. A run that is no fork is alone in its family, or the first of it. The index by change leaves out
# driven runs, so that commits amid a run do not write it; by its last columns filters skip rows without reading them.
# The index by status has the owner, so that hosts find processes that drive runs without reading these.
_BY_STATUS = "runs (namespace, status, created, run, owner) WHERE status <> 'completed'"
_BY_CHANGE = "runs (namespace, updated DESC, run, workflow, status) WHERE status <> 'running'"
RUN_INDEXES = (
    f"CREATE INDEX IF NOT EXISTS runs_by_status ON {_BY_STATUS}",
    f"CREATE INDEX IF NOT EXISTS runs_by_change ON {_BY_CHANGE}",
    "CREATE INDEX IF NOT EXISTS forks_by_family ON runs (namespace, family) WHERE family <> run",
)
ADDED_LATER = (*MAIL_TABLES, *RUN_INDEXES)
"""The statements for tables and indexes that a database may lack until somebody writes to it."""
_NAMES_ADDED_LATER = [statement.partition(" EXISTS ")[2].split()[0] for statement in ADDED_LATER]


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return True if the database was never used."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not application_id and not tables


def create(connection: sqlite3.Connection, keyed: bool = False) -> None:
    """Make the tables, unless another process was faster."""
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_empty(connection):
            for statement in (*TABLES, *ADDED_LATER):
                connection.execute(statement)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", _new_meta(keyed).items())
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_MAJOR}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def add_missing(connection: sqlite3.Connection) -> None:
    """Make the tables and indexes that the database does not have yet."""
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if there.issuperset(_NAMES_ADDED_LATER):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in ADDED_LATER:
            connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _new_meta(keyed: bool) -> dict[str, str]:
    return {
        "store_id": secrets.token_hex(16),
        "format_major": str(FORMAT_MAJOR),
        "format_minor": str(FORMAT_MINOR),
        "features": json.dumps(new_features(keyed)),
    }


def read_info(connection: sqlite3.Connection, path: Path, keyed: bool = False) -> StoreInfo:
    """Return the id and format of the store; raise ``StorageError`` if this version cannot read it."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise StorageError(
            f"{str(path)!r} is a database of another program{_name_tables(connection)}; nothing was changed. "
            "Give the store another path"
        )
    (major,) = connection.execute("PRAGMA user_version").fetchone()
    if major != FORMAT_MAJOR:
        raise StorageError(
            f"{str(path)!r} is a store of format {major}, but this version of Holdfast reads format {FORMAT_MAJOR}; "
            f"nothing was changed. Use {'a newer' if major > FORMAT_MAJOR else 'an older'} version of Holdfast"
        )
    try:
        meta = _read_meta(connection)
        if not isinstance(meta["store_id"], str):
            raise TypeError("the id of the store is no text")
        info = StoreInfo(
            meta["store_id"], major, int(meta["format_minor"]), frozenset(json.loads(meta["features"]))
        )
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise StorageError(
            f"{str(path)!r} bears the mark of a Holdfast store, but what it says of itself (table 'meta') is "
            f"missing or unreadable: {error!r}; nothing was changed. Restore it from a backup"
        ) from error
    check_features(repr(str(path)), info.features, keyed)
    return info


def _read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return {}
    return dict(connection.execute("SELECT key, value FROM meta"))


def read_key_box(connection: sqlite3.Connection) -> str:
    """Return the key box of the store; empty if it has none."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'key_box'").fetchone()
    return str(row[0]) if row is not None else ""


def replace_key_box(connection: sqlite3.Connection, box: str, expected: str) -> bool:
    """Replace the key box in the open transaction; return False if another one is there than expected."""
    if read_key_box(connection) != expected:
        return False
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('key_box', ?)", (box,))
    return True


def _name_tables(connection: sqlite3.Connection) -> str:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name LIMIT 3"
    names = [repr(name) for (name,) in connection.execute(query)]
    return f" (it has the table {', '.join(names)})" if names else ""
