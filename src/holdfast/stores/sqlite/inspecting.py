"""What is wrong with a database: with its pages, its tables, and rows that no id covers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.store import Damage, Record
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.seals import MODULUS, seal_entry
from holdfast.stores.sqlite import mail
from holdfast.stores.sqlite.failures import any_text, storage_error
from holdfast.stores.sqlite.handle import Handle, Place
from holdfast.stores.sqlite.reading import HEAD_COLUMNS, checked_head
from holdfast.stores.sqlite.schema import ADDED_LATER, MAIL_TABLES, RUN_INDEXES, TABLES

_MOST_TOLD = 20
_NO_ROWS = "SELECT 1 FROM runs LIMIT 1"
_EMPTIED = (
    "{!r} was there and had 0 bytes when it was opened: if there was a storage in it, all of it is lost; restore it "
    "from a backup together with its '-blobs' folder"
)
_ROWS = f"SELECT id, namespace, {HEAD_COLUMNS} FROM runs"
KEYED = {mail.NOTE: "notes", mail.LETTER: "letters"}
_NO_RUN = (
    "SELECT run FROM checkpoints WHERE run NOT IN (SELECT id FROM runs) "
    "UNION SELECT run FROM letters WHERE run NOT IN (SELECT id FROM runs) "
    "UNION SELECT run FROM notes WHERE run NOT IN (SELECT id FROM runs)"
)
_HEADERS = "SELECT checkpoint, seq, header FROM checkpoints WHERE run = ? ORDER BY seq"


def inspect(place: Place, namespace: str, run_id: RunId | None = None) -> list[Damage]:
    """All that is wrong with what belongs to a namespace, and with what may belong to it; or to a run that is there."""
    handle = Handle(place, reads_only=True)
    found: list[Damage] = []
    try:
        with handle.gate:
            connection = handle.connection()
            connection.text_factory = any_text
            connection.execute("BEGIN")  # what others write meanwhile is not seen
            try:
                checks: list[_Check] = [_pages, _definitions, _rows, _without_run]
                if run_id is not None and mail.find_run(connection, namespace, run_id) is not None:
                    checks = [_definitions, partial(_run, run_id=run_id)]
                for check in checks:
                    found += _told(partial(check, connection, namespace), place)
                if place.was_empty and connection.execute(_NO_ROWS).fetchone() is None:
                    found.append(Damage(None, _EMPTIED.format(str(place.path))))
            finally:
                connection.execute("ROLLBACK")
    except Exception as error:
        found.append(Damage(None, str(storage_error(error, place.path, "inspecting", place.busy_seconds))))
    finally:
        handle.close()
    return found


_Check: TypeAlias = Callable[[sqlite3.Connection, str], Iterable[Damage]]


def _told(check: Callable[[], Iterable[Damage]], place: Place) -> list[Damage]:
    """What a check finds; what keeps it from looking is found, too."""
    found: list[Damage] = []
    try:
        found.extend(check())
    except Exception as error:
        found.append(Damage(None, str(storage_error(error, place.path, "inspecting", place.busy_seconds))))
    return found


def _pages(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Whether the file is what SQLite left: its pages, and each index against its table."""
    for (told,) in connection.execute(f"PRAGMA integrity_check({_MOST_TOLD})"):
        if told != "ok":
            yield Damage(None, f"the database is damaged: {told}")


def _definitions(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Whether the tables are those that were made: another type of a column changes what is read."""
    there = {_words(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    made = [_words(statement) for statement in (*TABLES, *ADDED_LATER) if statement.startswith("CREATE")]
    for statement in made:
        name = statement.split()[2]
        optional = name in _INDEXES or (name in _OPTIONAL and not mail.has_table(connection, "letters"))
        if statement not in there and not optional:
            yield Damage(None, f"the database is damaged: it lacks what was made by: {statement}")


def _words(statement: Any) -> str:
    return " ".join(str(statement).replace("IF NOT EXISTS ", "").split())


_OPTIONAL = frozenset(_words(statement).split()[2] for statement in MAIL_TABLES)
_INDEXES = frozenset(_words(statement).split()[2] for statement in RUN_INDEXES)


def _rows(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Whether each run stands where it was left, and whether it has all that it had."""
    for number, its_namespace, *row in connection.execute(_ROWS).fetchall():
        mine = its_namespace == namespace
        try:
            checked_head(namespace, tuple(row))
        except CheckpointCorrupt as error:
            if mine:
                yield Damage(run_of_rows(connection, number) or _named(row[0]), str(error))
        else:
            if not mine:  # sealed as one of this namespace, but the name that stands there is another
                yield Damage(
                    row[0], f"the row of run {row[0]!r} is damaged: its namespace is not what it was"
                )
            elif not isinstance(row[0], str):
                yield Damage(None, f"the row of run {row[0]!r} is damaged")
            else:
                yield from _content_told(connection, number, RunId(row[0]), row[-2])


def _run(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> Iterator[Damage]:
    """Find damage in the row of a run and in the rows that belong to it; reads nothing of others."""
    for number, _, *row in connection.execute(
        _ROWS + " WHERE namespace = ? AND run = ?", (namespace, run_id)
    ):
        try:
            checked_head(namespace, tuple(row))
        except CheckpointCorrupt as error:
            yield Damage(run_id, str(error))
        else:
            yield from _content_told(connection, number, run_id, row[-2])


def _content_told(connection: sqlite3.Connection, number: int, run_id: RunId, content: int) -> list[Damage]:
    """What is wrong with the rows of a run; what keeps SQLite from reading them does not hide other runs."""
    found: list[Damage] = []
    try:
        found.extend(_strangers(connection, number, run_id))
        found.extend(_content(connection, number, run_id, content))
    except sqlite3.Error as error:
        found.append(Damage(run_id, f"not all rows of run {run_id!r} can be read: {error}"))
    return found


def _strangers(connection: sqlite3.Connection, number: int, run_id: RunId) -> Iterator[Damage]:
    """Checkpoints that lie with a run and say that they are those of another."""
    for checkpoint, seq, header in connection.execute(_HEADERS, (number,)):
        try:
            said = read_header(Record(CheckpointId(checkpoint.hex()), run_id, seq, header, b"", b"", 0))
        except (AttributeError, HoldfastError):
            continue
        if said.run_id != run_id:
            yield Damage(said.run_id, f"checkpoint {checkpoint.hex()} lies with run {run_id!r}", said.seq)


def _named(run: Any) -> RunId | None:
    return RunId(run) if isinstance(run, str) else None


def _content(connection: sqlite3.Connection, number: int, run_id: RunId, content: int) -> Iterator[Damage]:
    seals = [seal for (seal,) in connection.execute("SELECT seal FROM checkpoints WHERE run = ?", (number,))]
    for kind, table in KEYED.items():
        if not mail.has_table(connection, table):
            continue
        for order, key, seal, data in connection.execute(
            f"SELECT id, key, seal, data FROM {table} WHERE run = ?", (number,)
        ):
            seals.append(seal)
            if not is_keyed(run_id, kind, key, seal, data, order):
                yield Damage(run_id, f"the {kind} {key!r:.100} of run {run_id!r} is not what was left")
    if sum(map(mail.number, seals)) % MODULUS != content:
        yield Damage(
            run_id,
            f"run {run_id!r} has not all checkpoints, notes and letters that it had, or others beside them",
        )


def is_keyed(run_id: RunId, kind: str, key: Any, seal: Any, data: Any, order: int) -> bool:
    """Whether a note or a letter is what was left."""
    try:
        return bool(seal_entry(run_id, kind, str(key, "utf-8", "surrogatepass"), data, order) == seal)
    except (TypeError, ValueError):
        return False


def _without_run(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Rows that belong to no run: that of their run was lost."""
    for number in numbers_without_run(connection):
        run_id = run_of_rows(connection, number)
        yield Damage(
            run_id, f"the row of run {run_id or '(its name is lost)'} is missing, but not all that it had"
        )


def numbers_without_run(connection: sqlite3.Connection) -> list[int]:
    """The numbers of runs of which the row is lost."""
    return [number for (number,) in connection.execute(_NO_RUN)]


def run_of_rows(connection: sqlite3.Connection, number: int) -> RunId | None:
    """The run that the checkpoints with a run number say they belong to."""
    for checkpoint, seq, header in connection.execute(_HEADERS, (number,)):
        try:
            record = Record(CheckpointId(checkpoint.hex()), RunId(""), seq, header, b"", b"", 0)
            return read_header(record).run_id
        except (AttributeError, HoldfastError):
            continue
    return None
