"""Finds damage in a database (pages, tables, and rows that no id covers), and mends heads and indexes.

Few processes need this, so the store imports it when it is used.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint_info import Header, end_id
from holdfast.checkpoint.derived_starts import expand
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.store import Damage, Head, Mended, Record, SealedForms
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.lost_head import WHAT_IS_LOST, rebuild_head
from holdfast.stores.common.seals import MODULUS, seal_entry
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.notes_and_letters import LETTER, NOTE, find_run, has_table, read_number
from holdfast.stores.sqlite.row_reader import HEAD_COLUMNS, check_head_row
from holdfast.stores.sqlite.row_writer import change_content, move_run
from holdfast.stores.sqlite.schema import ADDED_LATER, MAIL_TABLES, RUN_INDEXES, TABLES
from holdfast.stores.sqlite.sqlite_errors import decode_any_text, make_storage_error
from holdfast.stores.sqlite.transaction import ChangeRefused

_MOST_REPORTED = 20
_ANY_RUN = "SELECT 1 FROM runs LIMIT 1"
_EMPTIED = (
    "{!r} was there and had 0 bytes when it was opened: if there was a storage in it, all of it is lost; restore it "
    "from a backup together with its '-blobs' folder"
)
_RUNS = f"SELECT id, namespace, {HEAD_COLUMNS} FROM runs"
_TABLES_OF_ENTRIES = {NOTE: "notes", LETTER: "letters"}
_NUMBERS_WITHOUT_RUN = (
    "SELECT run FROM checkpoints WHERE run NOT IN (SELECT id FROM runs) "
    "UNION SELECT run FROM letters WHERE run NOT IN (SELECT id FROM runs) "
    "UNION SELECT run FROM notes WHERE run NOT IN (SELECT id FROM runs)"
)
_HEADERS = "SELECT checkpoint, seq, header, new_bytes FROM checkpoints WHERE run = ? ORDER BY seq"
_SUMS = "SELECT id, run, content FROM runs WHERE namespace = ?"
_ADD_EMPTY_RUN = (
    "INSERT INTO runs (id, namespace, run, created, updated, workflow, family, checkpoint, seq, token, status, owner, "
    "takeovers, reason, retention, waiting_for, letters_known, fingerprint, by, traceback, origin, restored, "
    "content, seal) "
    "VALUES (?, ?, ?, ?, 0, '', '', x'', 0, 0, '', '', 0, x'', '', '', 0, '', x'', x'', '', 0, 0, 0)"
)
_HAS_FAMILY = "SELECT 1 FROM families WHERE namespace = ? AND family = ?"
_NAMESPACES = "SELECT namespace FROM families WHERE family = ?"
_ORIGIN = HEAD_COLUMNS.split(", ").index("origin")
_RUN_OF_PARENT = "SELECT run FROM runs WHERE id = (SELECT run FROM checkpoints WHERE checkpoint = ?)"
_FAMILY_OF_PARENT = "SELECT family FROM runs WHERE id = (SELECT run FROM checkpoints WHERE checkpoint = ?)"

_Check: TypeAlias = Callable[[sqlite3.Connection, str], Iterable[Damage]]


# Finding damage.


def find_damage(location: DatabaseLocation, namespace: str, run_id: RunId | None = None) -> list[Damage]:
    """Return all damage of a namespace, and damage that may concern it; or that of one run, if it is in the store."""
    reader = DatabaseConnection(location, reads_only=True)
    found: list[Damage] = []
    try:
        with reader.gate:
            connection = reader.open()
            connection.text_factory = decode_any_text
            connection.execute("BEGIN")  # changes that others make meanwhile are not seen
            try:
                checks: list[_Check] = [_check_pages, _check_definitions, _check_runs, _find_rows_without_run]
                if run_id is not None and find_run(connection, namespace, run_id) is not None:
                    checks = [_check_definitions, partial(_check_run, run_id=run_id)]
                for check in checks:
                    found += _run_check(partial(check, connection, namespace), location)
                if location.was_empty and connection.execute(_ANY_RUN).fetchone() is None:
                    found.append(Damage(None, _EMPTIED.format(str(location.path))))
            finally:
                connection.execute("ROLLBACK")
    except Exception as error:
        found.append(_make_damage(error, location))
    finally:
        reader.close()
    return found


def _run_check(check: Callable[[], Iterable[Damage]], location: DatabaseLocation) -> list[Damage]:
    """Return what a check finds; an error that stops it is damage, too."""
    found: list[Damage] = []
    try:
        found.extend(check())
    except Exception as error:
        found.append(_make_damage(error, location))
    return found


def _make_damage(error: Exception, location: DatabaseLocation) -> Damage:
    return Damage(None, str(make_storage_error(error, location.path, "inspecting", location.busy_seconds)))


def _check_pages(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Check that the file is as SQLite left it: its pages, and each index against its table."""
    for (report,) in connection.execute(f"PRAGMA integrity_check({_MOST_REPORTED})"):
        if report != "ok":
            yield Damage(None, f"the database is damaged: {report}")


def _check_definitions(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Check that the tables are those that were made: another type of a column changes what is read."""
    there = {
        _normalize(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")
    }
    made = [_normalize(statement) for statement in (*TABLES, *ADDED_LATER) if statement.startswith("CREATE")]
    for statement in made:
        name = statement.split()[2]
        optional = name in _OPTIONAL or (name in _OPTIONAL_TABLES and not has_table(connection, "letters"))
        if statement not in there and not optional:
            yield Damage(None, f"the database is damaged: it lacks what was made by: {statement}")


def _normalize(statement: Any) -> str:
    return " ".join(str(statement).replace("IF NOT EXISTS ", "").split())


_OPTIONAL_TABLES = frozenset(_normalize(statement).split()[2] for statement in MAIL_TABLES)
# Each may be missing by itself: indexes, and claims, which are hints.
_OPTIONAL = frozenset({"claims", *(_normalize(statement).split()[2] for statement in RUN_INDEXES)})


def _check_runs(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Check that the row of each run is what was written, and that the run has all other rows that it had."""
    for number, its_namespace, *row in connection.execute(_RUNS).fetchall():
        mine = its_namespace == namespace
        try:
            check_head_row(namespace, tuple(row))
        except CheckpointCorrupt as error:
            if mine:
                named = RunId(row[0]) if isinstance(row[0], str) else None
                yield Damage(_find_run_of_rows(connection, number) or named, str(error))
        else:
            if not mine:  # sealed in this namespace, but another name stands there
                yield Damage(
                    row[0], f"the row of run {row[0]!r} is damaged: its namespace is not what it was"
                )
            elif not isinstance(row[0], str):
                yield Damage(None, f"the row of run {row[0]!r} is damaged")
            else:
                yield from _check_content(connection, number, RunId(row[0]), row[-2])


def _check_run(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> Iterator[Damage]:
    """Check the row of one run and the rows that belong to it; read nothing of others."""
    for number, _, *row in connection.execute(
        _RUNS + " WHERE namespace = ? AND run = ?", (namespace, run_id)
    ):
        try:
            check_head_row(namespace, tuple(row))
        except CheckpointCorrupt as error:
            yield Damage(run_id, str(error))
        else:
            yield from _check_content(connection, number, run_id, row[-2])


def _check_content(connection: sqlite3.Connection, number: int, run_id: RunId, content: int) -> list[Damage]:
    """Check the rows of a run; an error of SQLite in them does not hide damage of other runs."""
    found: list[Damage] = []
    try:
        found.extend(_find_foreign_checkpoints(connection, number, run_id))
        found.extend(_check_seals(connection, number, run_id, content))
    except sqlite3.Error as error:
        found.append(Damage(run_id, f"not all rows of run {run_id!r} can be read: {error}"))
    return found


def _find_foreign_checkpoints(connection: sqlite3.Connection, number: int, run_id: RunId) -> Iterator[Damage]:
    """Find checkpoints that lie with a run although their header names another run."""
    for record, header in _read_headers(connection, number):
        if header.run_id != run_id:
            yield Damage(
                header.run_id, f"checkpoint {record.checkpoint_id} lies with run {run_id!r}", header.seq
            )


def _check_seals(
    connection: sqlite3.Connection, number: int, run_id: RunId, content: int
) -> Iterator[Damage]:
    seals = [seal for (seal,) in connection.execute("SELECT seal FROM checkpoints WHERE run = ?", (number,))]
    for kind, table in _TABLES_OF_ENTRIES.items():
        if not has_table(connection, table):
            continue
        for order, key, seal, data in connection.execute(
            f"SELECT id, key, seal, data FROM {table} WHERE run = ?", (number,)
        ):
            seals.append(seal)
            if not _is_sealed_entry(run_id, kind, key, seal, data, order):
                yield Damage(run_id, f"the {kind} {key!r:.100} of run {run_id!r} is not what was left")
    if sum(map(read_number, seals)) % MODULUS != content:
        yield Damage(
            run_id,
            f"run {run_id!r} has not all checkpoints, notes and letters that it had, or others beside them",
        )


def _is_sealed_entry(run_id: RunId, kind: str, key: Any, seal: Any, data: Any, order: int) -> bool:
    """Return True if a note or letter is what was written."""
    try:
        return bool(seal_entry(run_id, kind, str(key, "utf-8", "surrogatepass"), data, order) == seal)
    except (TypeError, ValueError):
        return False


def _find_rows_without_run(connection: sqlite3.Connection, namespace: str) -> Iterator[Damage]:
    """Find rows whose run has lost its row."""
    for (number,) in connection.execute(_NUMBERS_WITHOUT_RUN).fetchall():
        run_id = _find_run_of_rows(connection, number)
        yield Damage(
            run_id, f"the row of run {run_id or '(its name is lost)'} is missing, but not all that it had"
        )


def _find_run_of_rows(connection: sqlite3.Connection, number: int) -> RunId | None:
    """Return the run that the checkpoints with a run number name in their headers."""
    for _, header in _read_headers(connection, number):
        return header.run_id
    return None


def _read_headers(
    connection: sqlite3.Connection, number: int, forms: SealedForms | None = None, run_id: Any = None
) -> Iterator[tuple[Record, Header]]:
    """Read the checkpoints of a run in their order, without contents; pass over those whose header is damaged.

    Headers under keys are opened with ``forms``, for which the name of the run has to be known.
    """
    for checkpoint, seq, packed, new_bytes in connection.execute(_HEADERS, (number,)):
        try:
            record = Record(CheckpointId(checkpoint.hex()), RunId(""), seq, packed, b"", b"", new_bytes)
            if forms is not None:
                record = forms.open_record(record._replace(run_id=RunId(str(run_id))))
            header = read_header(record)
        except (AttributeError, HoldfastError):
            continue
        yield record, header


# Mending it.


def mend(
    connection: sqlite3.Connection, namespace: str, run_id: RunId | None, forms: SealedForms | None
) -> list[Mended]:
    """Make rows of runs anew and remove damaged notes and letters, in the open transaction."""
    connection.text_factory = decode_any_text
    try:
        return _mend_all(connection, namespace, run_id, forms)
    finally:
        connection.text_factory = str


def _mend_all(
    connection: sqlite3.Connection, namespace: str, run_id: RunId | None, forms: SealedForms | None
) -> list[Mended]:
    done = list(_mend_indexes(connection))
    done += _return_rows(connection, namespace, run_id)
    for number, its_namespace, *row in connection.execute(_RUNS).fetchall():
        try:
            head = check_head_row(namespace, tuple(row))
            if forms is not None and its_namespace == namespace:
                forms.open_head(head)
        except CheckpointCorrupt:
            if its_namespace == namespace:
                done += _rebuild_run(connection, namespace, number, row, run_id, forms)
            continue
        if run_id not in (None, head.run_id):
            continue
        if its_namespace != namespace:
            done.append(Mended(head.run_id, "it is in its namespace again"))
            connection.execute("UPDATE runs SET namespace = ? WHERE id = ?", (namespace, number))
        done += _drop_damaged_entries(connection, namespace, number, head)
    for (number,) in connection.execute(_NUMBERS_WITHOUT_RUN).fetchall():
        done += _rebuild_run(connection, namespace, number, None, run_id, forms)
    return done


def _mend_indexes(connection: sqlite3.Connection) -> Iterator[Mended]:
    """Make the indexes anew if one does not fit its table; raise ``ChangeRefused`` if pages are damaged."""
    reports = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    if not all(_OF_INDEX.search(text) for text in reports):
        raise ChangeRefused(
            "pages of the database are damaged, so nothing was written to it: restore it from a backup together with "
            "its '-blobs' folder, or rescue what is readable with: sqlite3 FILE .recover"
        )
    if reports:
        connection.execute("REINDEX")
        yield Mended(None, f"the indexes of the database were made anew: {reports[0]}")


_OF_INDEX = re.compile(r"missing from index|wrong # of entries in index")


def _return_rows(connection: sqlite3.Connection, namespace: str, wanted: RunId | None) -> Iterator[Mended]:
    """Give a row back to its run, if the sum of the seals proves that the run lacks exactly this row."""
    for number, run_id, content in connection.execute(_SUMS, (namespace,)).fetchall():
        if wanted not in (None, run_id):
            continue
        lacking = (content - _sum_seals(connection, number)) % MODULUS if isinstance(content, int) else 0
        if not lacking:
            continue
        for table in ("checkpoints", *_TABLES_OF_ENTRIES.values()):
            row = connection.execute(
                f"SELECT id FROM {table} WHERE seal = ? AND run <> ?", (lacking, number)
            ).fetchone()
            if row is None:
                continue
            connection.execute(f"UPDATE {table} SET run = ? WHERE id = ?", (number, *row))
            yield Mended(run_id, f"row {row[0]} of {table} belongs to it again")
            break


class _ReadableCheckpoints(NamedTuple):
    """The first and the last checkpoint of a run whose header can be read."""

    first: Header
    last: Header
    last_id: CheckpointId
    restored: int
    """The seq of the last one by which the run was taken back; 0 if there is none."""


def _find_readable_checkpoints(
    connection: sqlite3.Connection, number: int, forms: SealedForms | None, run_id: Any
) -> _ReadableCheckpoints | None:
    found: _ReadableCheckpoints | None = None
    for record, header in _read_headers(connection, number, forms, run_id):
        if header.seq == record.seq:
            first = found.first if found is not None else header
            newest = expand([record])[-1]  # perhaps a start that is derived from it
            earlier = 0 if found is None else found.restored
            restored = header.seq if header.cause == "restore" else earlier
            found = _ReadableCheckpoints(first, read_header(newest), newest.checkpoint_id, restored)
    return found


def _rebuild_run(
    connection: sqlite3.Connection,
    namespace: str,
    number: int,
    row: list[Any] | None,
    wanted: RunId | None,
    forms: SealedForms | None,
) -> Iterator[Mended]:
    """Make the row of a run anew from its checkpoints; of a damaged ``row`` only token, family and origin are used."""
    left = _find_readable_checkpoints(connection, number, forms, None if row is None else row[0])
    if left is None:
        if wanted is None:
            yield Mended(None, "", f"run number {number}: no checkpoint of it can be read")
        return
    run_id = left.last.run_id
    if wanted not in (None, run_id) or (
        row is None and _is_of_another_namespace(connection, namespace, run_id)
    ):
        return
    other = find_run(connection, namespace, run_id)
    if other not in (None, number):
        yield Mended(
            run_id, "", f"there is another run {run_id!r}; what is left of the first cannot be reached"
        )
        return
    token = row[5] if row is not None and isinstance(row[5], int) else 0
    head = rebuild_head(
        left.last_id,
        left.last,
        _find_family(connection, namespace, left, row),
        left.first.time,
        token if 0 <= token < 1 << 40 else 0,
        _find_origin(connection, left, row),
    )._replace(restored=left.restored)
    connection.execute("DELETE FROM runs WHERE id = ?", (number,))
    connection.execute(_ADD_EMPTY_RUN, (number, namespace, run_id, head.created))
    stored = head if forms is None else forms.close_head(head)
    move_run(connection, namespace, number, stored, _sum_seals(connection, number))
    yield Mended(
        run_id, f"its head was made anew: it stands on checkpoint {head.checkpoint_id}", WHAT_IS_LOST
    )


def _is_of_another_namespace(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> bool:
    """Return True if the blobs of a run without a row say that it was one of another namespace."""
    known = {name for (name,) in connection.execute(_NAMESPACES, (run_id,))}
    return bool(known) and namespace not in known


def _find_family(
    connection: sqlite3.Connection, namespace: str, left: _ReadableCheckpoints, row: list[Any] | None
) -> RunId:
    """Return the family whose blobs a run uses: a fork uses those of the run that it was forked from."""
    in_row = row[2] if row is not None else None
    parent = left.first.parent_id
    of_parent = None
    if left.first.cause == "fork" and parent is not None:
        of_parent = connection.execute(_FAMILY_OF_PARENT, (bytes.fromhex(end_id(parent)),)).fetchone()
    for family in (of_parent[0] if of_parent else None, in_row, left.last.run_id):
        if isinstance(family, str) and connection.execute(_HAS_FAMILY, (namespace, family)).fetchone():
            return RunId(family)
    return left.last.run_id


def _find_origin(connection: sqlite3.Connection, left: _ReadableCheckpoints, row: list[Any] | None) -> str:
    """Return where a fork began: its first checkpoint names that checkpoint, whose run may be gone."""
    parent = left.first.parent_id
    if left.first.cause != "fork" or parent is None:
        return ""
    found = connection.execute(_RUN_OF_PARENT, (bytes.fromhex(end_id(parent)),)).fetchone()
    if found is not None and isinstance(found[0], str):
        return f"{parent} {found[0]}"
    in_row = row[_ORIGIN] if row is not None else None
    return in_row if isinstance(in_row, str) and in_row.startswith(f"{parent} ") else ""


def _sum_seals(connection: sqlite3.Connection, number: int) -> int:
    tables = (
        "checkpoints",
        *(table for table in _TABLES_OF_ENTRIES.values() if has_table(connection, table)),
    )
    seals = [
        read_number(seal)
        for table in tables
        for (seal,) in connection.execute(f"SELECT seal FROM {table} WHERE run = ?", (number,))
    ]
    return sum(seals) % MODULUS


def _drop_damaged_entries(
    connection: sqlite3.Connection, namespace: str, number: int, head: Head
) -> Iterator[Mended]:
    for kind, table in _TABLES_OF_ENTRIES.items():
        if not has_table(connection, table):
            continue
        rows = connection.execute(
            f"SELECT id, key, seal, data FROM {table} WHERE run = ?", (number,)
        ).fetchall()
        for order, key, seal, data in rows:
            if _is_sealed_entry(head.run_id, kind, key, seal, data, order):
                continue
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (order,))
            change_content(connection, namespace, number, head, -read_number(seal))
            yield Mended(head.run_id, f"the {kind} {key!r:.100} was dropped", _LOST_WITH[kind])


_LOST_WITH = {
    NOTE: "what was done already in the superstep that is under way; it is done again",
    LETTER: "what somebody left for the run; it has to be left again",
}
"""By the kind of a dropped entry, what is lost with it."""
