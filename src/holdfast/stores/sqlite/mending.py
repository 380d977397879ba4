"""Heads and indexes of a damaged database, made anew from what is left."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.info import Header
from holdfast.checkpoint.maintenance.lost_head import WHAT_IS_LOST, rebuilt_head
from holdfast.checkpoint.store import Head, Mended, Record
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.seals import MODULUS
from holdfast.stores.sqlite import mail
from holdfast.stores.sqlite.failures import any_text
from holdfast.stores.sqlite.inspecting import KEYED, is_keyed, numbers_without_run
from holdfast.stores.sqlite.reading import HEAD_COLUMNS, checked_head
from holdfast.stores.sqlite.writer import Refused
from holdfast.stores.sqlite.writing import change_content, move_run

_ROWS = f"SELECT id, namespace, {HEAD_COLUMNS} FROM runs"
_HEADERS = "SELECT checkpoint, seq, header FROM checkpoints WHERE run = ? ORDER BY seq"
_SET_NAME = (
    "INSERT INTO runs (id, namespace, run, created, updated, workflow, family, checkpoint, seq, token, status, owner, "
    "takeovers, reason, retention, waiting_for, content, seal) "
    "VALUES (?, ?, ?, ?, 0, '', '', x'', 0, 0, '', '', 0, x'', '', '', 0, 0)"
)
_FAMILIES = "SELECT 1 FROM families WHERE namespace = ? AND family = ?"
_NAMESPACES = "SELECT namespace FROM families WHERE family = ?"
_FAMILY_OF_PARENT = "SELECT family FROM runs WHERE id = (SELECT run FROM checkpoints WHERE checkpoint = ?)"


def mend(connection: sqlite3.Connection, namespace: str, run_id: RunId | None) -> list[Mended]:
    """Make rows of runs that can be read and remove notes and letters that cannot, in the transaction that is open."""
    connection.text_factory = any_text
    try:
        return _mended(connection, namespace, run_id)
    finally:
        connection.text_factory = str


def _mended(connection: sqlite3.Connection, namespace: str, run_id: RunId | None) -> list[Mended]:
    done = list(_reindexed(connection))
    done += _returned(connection, namespace, run_id)
    for number, its_namespace, *row in connection.execute(_ROWS).fetchall():
        try:
            head = checked_head(namespace, tuple(row))
        except CheckpointCorrupt:
            if its_namespace == namespace:
                done += _rebuilt(connection, namespace, number, row, run_id)
            continue
        if run_id not in (None, head.run_id):
            continue
        if its_namespace != namespace:
            done.append(Mended(head.run_id, "it is in its namespace again"))
            connection.execute("UPDATE runs SET namespace = ? WHERE id = ?", (namespace, number))
        done += _without_damaged_mail(connection, namespace, number, head)
    for number in numbers_without_run(connection):
        done += _rebuilt(connection, namespace, number, None, run_id)
    return done


def _reindexed(connection: sqlite3.Connection) -> Iterator[Mended]:
    """Make the indexes anew if any does not fit its table; raises where pages are damaged, which nothing must touch."""
    told = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    if not all(_OF_INDEX.search(text) for text in told):
        raise Refused(
            "pages of the database are damaged, so nothing was written to it: restore it from a backup together with "
            "its '-blobs' folder, or rescue what is readable with: sqlite3 FILE .recover"
        )
    if told:
        connection.execute("REINDEX")
        yield Mended(None, f"the indexes of the database were made anew: {told[0]}")


_OF_INDEX = re.compile(r"missing from index|wrong # of entries in index")


def _returned(connection: sqlite3.Connection, namespace: str, wanted: RunId | None) -> Iterator[Mended]:
    """Give rows back to the run to which they say that they belong, if the seals prove that it lacks just them."""
    for number, run_id, content in connection.execute(_SUMS, (namespace,)).fetchall():
        if wanted not in (None, run_id):
            continue
        lacking = (content - _content(connection, number)) % MODULUS if isinstance(content, int) else 0
        if not lacking:
            continue
        for table in ("checkpoints", *KEYED.values()):
            row = connection.execute(
                f"SELECT id FROM {table} WHERE seal = ? AND run <> ?", (lacking, number)
            ).fetchone()
            if row is None:
                continue
            connection.execute(f"UPDATE {table} SET run = ? WHERE id = ?", (number, *row))
            yield Mended(run_id, f"row {row[0]} of {table} belongs to it again")
            break


_SUMS = "SELECT id, run, content FROM runs WHERE namespace = ?"


class _Left(NamedTuple):
    """What is left of a run: its checkpoints whose header can be read, the first and the last of them."""

    first: Header
    last: Header
    checkpoint_id: CheckpointId


def _left_of(connection: sqlite3.Connection, number: int) -> _Left | None:
    left: _Left | None = None
    for checkpoint, seq, packed in connection.execute(_HEADERS, (number,)):
        try:
            record = Record(CheckpointId(checkpoint.hex()), RunId(""), seq, packed, b"", b"", 0)
            header = read_header(record)
        except (AttributeError, HoldfastError):
            continue
        if header.seq == seq:
            left = _Left(left.first if left is not None else header, header, record.checkpoint_id)
    return left


def _rebuilt(
    connection: sqlite3.Connection, namespace: str, number: int, row: list[Any] | None, wanted: RunId | None
) -> Iterator[Mended]:
    """A row for a run, from its checkpoints; of an old row that is damaged nothing is believed."""
    left = _left_of(connection, number)
    if left is None:
        if wanted is None:
            yield Mended(None, "", f"run number {number}: no checkpoint of it can be read")
        return
    run_id = left.last.run_id
    if wanted not in (None, run_id) or (row is None and _is_elsewhere(connection, namespace, run_id)):
        return
    other = mail.find_run(connection, namespace, run_id)
    if other not in (None, number):
        yield Mended(
            run_id, "", f"there is another run {run_id!r}; what is left of the first cannot be reached"
        )
        return
    token = row[5] if row is not None and isinstance(row[5], int) else 0
    head = rebuilt_head(
        left.checkpoint_id,
        left.last,
        _family_of(connection, namespace, left, row),
        left.first.time,
        token if 0 <= token < 1 << 40 else 0,
    )
    connection.execute("DELETE FROM runs WHERE id = ?", (number,))
    connection.execute(_SET_NAME, (number, namespace, run_id, head.created))
    move_run(connection, namespace, number, head, _content(connection, number))
    yield Mended(
        run_id, f"its head was made anew: it stands on checkpoint {head.checkpoint_id}", WHAT_IS_LOST
    )


def _is_elsewhere(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> bool:
    """Whether a run whose row is lost was one of another namespace, as far as its blobs tell."""
    known = {name for (name,) in connection.execute(_NAMESPACES, (run_id,))}
    return bool(known) and namespace not in known


def _family_of(connection: sqlite3.Connection, namespace: str, left: _Left, row: list[Any] | None) -> RunId:
    """Whose blobs a run uses: a fork uses those of where it comes from."""
    told = row[2] if row is not None else None
    parent = left.first.parent_id
    of_parent = None
    if left.first.cause == "fork" and parent is not None:
        of_parent = connection.execute(_FAMILY_OF_PARENT, (bytes.fromhex(parent),)).fetchone()
    for family in (of_parent[0] if of_parent else None, told, left.last.run_id):
        if isinstance(family, str) and connection.execute(_FAMILIES, (namespace, family)).fetchone():
            return RunId(family)
    return left.last.run_id


def _content(connection: sqlite3.Connection, number: int) -> int:
    tables = ("checkpoints", *(table for table in KEYED.values() if mail.has_table(connection, table)))
    seals = [
        mail.number(seal)
        for table in tables
        for (seal,) in connection.execute(f"SELECT seal FROM {table} WHERE run = ?", (number,))
    ]
    return sum(seals) % MODULUS


def _without_damaged_mail(
    connection: sqlite3.Connection, namespace: str, number: int, head: Head
) -> Iterator[Mended]:
    for kind, table in KEYED.items():
        if not mail.has_table(connection, table):
            continue
        rows = connection.execute(
            f"SELECT id, key, seal, data FROM {table} WHERE run = ?", (number,)
        ).fetchall()
        for order, key, seal, data in rows:
            if is_keyed(head.run_id, kind, key, seal, data, order):
                continue
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (order,))
            change_content(connection, namespace, number, head, -mail.number(seal))
            yield Mended(head.run_id, f"the {kind} {key!r:.100} was dropped", _OF_MAIL[kind])


_OF_MAIL = {
    mail.NOTE: "what was done already in the superstep that is under way; it is done again",
    mail.LETTER: "what somebody left for the run; it has to be left again",
}
