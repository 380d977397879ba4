"""Removes rows of records, runs and unused blobs, and changes tags, which keep records."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.checkpoint.store import Depth, Expected, Head, KnownMarks, MarkedBlobs, Record, Removal
from holdfast.errors import StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.head_check import (
    TagChange,
    check_expected,
    check_removal,
    marks_allow,
    select_givers,
    tags_allow,
)
from holdfast.stores.common.seals import seal_record
from holdfast.stores.sqlite.event_table import keep_events
from holdfast.stores.sqlite.notes_and_letters import count_waiting_letters, find_run, read_number
from holdfast.stores.sqlite.row_reader import find_known_blobs, read_head, read_records, read_tags
from holdfast.stores.sqlite.row_writer import (
    DELETE_ROWS_OF_RUN,
    FIND_FAMILY,
    add_blobs,
    add_tags,
    change_content,
    get_prefix,
)
from holdfast.stores.sqlite.transaction import ChangeRefused

_FIND = "SELECT id FROM checkpoints WHERE run = ? AND seq = ?"
_DELETE_KEYFRAME = "DELETE FROM keyframes WHERE checkpoint = ?"
_DELETE_TAGS = "DELETE FROM tags WHERE checkpoint = ?"
_DELETE_CHECKPOINT = "DELETE FROM checkpoints WHERE id = ?"
_SET_KEYFRAME = (
    "INSERT OR REPLACE INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
)
_SET_SEAL = "UPDATE checkpoints SET seal = ? WHERE id = ?"
_SEAL = "SELECT seal FROM checkpoints WHERE id = ?"
_DELETE_RUN = (*DELETE_ROWS_OF_RUN, "DELETE FROM events WHERE run = ?", "DELETE FROM runs WHERE id = ?")
_BEGIN_SWEEP = "UPDATE marks SET count = count + 1"
_MARKS = "SELECT count FROM marks"
_BLOBS = "SELECT digest, size FROM blobs WHERE family = ?"
_UNUSED = "SELECT id, size, data IS NULL FROM blobs WHERE family = ? AND find = ? AND digest = ? AND mark < ?"
_DELETE_BLOB = "DELETE FROM blobs WHERE id = ?"


def _read_expected_run(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, expected: Expected
) -> tuple[Head, int]:
    """Return the head and number of a run; raise ``HeadMoved`` if it is not where it is expected to be."""
    head = read_head(connection, namespace, run_id)
    check_expected(run_id, expected, head)
    run = find_run(connection, namespace, run_id)
    assert head is not None
    assert run is not None
    return head, run


def remove_records(connection: sqlite3.Connection, namespace: str, removal: Removal, big_blob: int) -> bool:
    """Give records keyframes and tags and remove others, in the open transaction; False if tags forbid it."""
    head, run = _read_expected_run(connection, namespace, removal.run_id, removal.expected)
    try:
        check_removal(head, removal)
    except StorageError as error:
        raise ChangeRefused(str(error)) from None
    rows = {seq: connection.execute(_FIND, (run, seq)).fetchone() for seq, _, _ in removal.tags}
    tags: dict[int, tuple[str, ...]] = {seq: () for seq, row in rows.items() if row is not None}
    tags |= _read_tags(connection, namespace, head)
    if not tags_allow(removal, tags):
        return False
    if removal.blobs:
        add_blobs(connection, namespace, head.family, removal.blobs, big_blob)
    change = 0
    for seq, keyframe in removal.keyframes:
        for (row,) in connection.execute(_FIND, (run, seq)).fetchall():
            before = _read_record(connection, namespace, removal.run_id, seq)
            connection.execute(_SET_KEYFRAME, (row, keyframe.cut, keyframe.changes, keyframe.values))
            change += _change_seal(connection, row, before, before._replace(keyframe=keyframe))
    for seq, _, after in removal.tags:
        before = _read_record(connection, namespace, removal.run_id, seq)
        now = before._replace(tags=after, tagged_by=select_givers(before.tagged_by, after))
        change += _replace_tags(connection, rows[seq], before, now)
    for seq in removal.seqs:
        keep_events(connection, run, seq, seq)
        for found in connection.execute(_FIND, (run, seq)).fetchall():
            change -= read_number(connection.execute(_SEAL, found).fetchone()[0])
            for statement in (_DELETE_KEYFRAME, _DELETE_TAGS, _DELETE_CHECKPOINT):
                connection.execute(statement, found)
    change_content(connection, namespace, run, head, change)
    return True


def _read_record(connection: sqlite3.Connection, namespace: str, run_id: RunId, seq: int) -> Record:
    (record,) = read_records(connection, namespace, run_id, seq, seq, Depth.ALL)
    return record


def _change_seal(connection: sqlite3.Connection, row: int, before: Record, after: Record) -> int:
    """Seal a changed record anew, and return by how much its seal changes; a damaged record stays as it is."""
    if not before.sound:
        return 0
    (old,) = connection.execute(_SEAL, (row,)).fetchone()
    new = seal_record(after)
    connection.execute(_SET_SEAL, (new, row))
    return new - read_number(old)


def _read_tags(connection: sqlite3.Connection, namespace: str, head: Head) -> dict[int, tuple[str, ...]]:
    return {
        seq: tuple(tags) for seq, tags in read_tags(connection, namespace, head.run_id, 0, head.seq).items()
    }


def remove_run(
    connection: sqlite3.Connection,
    namespace: str,
    run_id: RunId,
    expected: Expected,
    known: KnownMarks | None,
) -> bool:
    """Remove all rows of a run but its blobs, in the open transaction; False if letters or tags forbid it."""
    head, run = _read_expected_run(connection, namespace, run_id, expected)
    if not marks_allow(
        known, count_waiting_letters(connection, run), _read_tags(connection, namespace, head)
    ):
        return False
    for statement in _DELETE_RUN:  # run numbers may be used again, so no row of it may stay
        connection.execute(statement, (run,))
    return True


def set_tags(
    connection: sqlite3.Connection,
    namespace: str,
    run_id: RunId,
    seq: int,
    tag_change: TagChange,
) -> bool:
    """Take tags from a record and add others, in the open transaction; False if there is no such record."""
    head, run = read_head(connection, namespace, run_id), find_run(connection, namespace, run_id)
    row = None if run is None else connection.execute(_FIND, (run, seq)).fetchone()
    if head is None or run is None or row is None:
        return False
    before = _read_record(connection, namespace, run_id, seq)
    tags, givers = tag_change.apply(before.tags, before.tagged_by)
    change = _replace_tags(connection, row, before, before._replace(tags=tags, tagged_by=givers))
    change_content(connection, namespace, run, head, change)
    return True


def _replace_tags(connection: sqlite3.Connection, row: tuple[int], before: Record, after: Record) -> int:
    """Give a record the tags that it has ``after``, and no others; return by how much its seal changes."""
    connection.execute(_DELETE_TAGS, row)
    add_tags(connection, row[0], after)
    return _change_seal(connection, row[0], before, after)


def begin_sweep(connection: sqlite3.Connection, namespace: str, family: RunId) -> MarkedBlobs:
    """Begin a sweep: blobs that are written or used from now on get a higher mark than the others."""
    connection.execute(_BEGIN_SWEEP)
    (marks,) = connection.execute(_MARKS).fetchone()
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    blobs = [] if row is None else connection.execute(_BLOBS, row).fetchall()
    # No record names a blob whose row is damaged: nobody asks for it, and it stays.
    sizes = {Digest(digest): read_number(size) for digest, size in blobs if isinstance(digest, bytes)}
    return MarkedBlobs(marks, sizes)


def remove_blobs(
    connection: sqlite3.Connection,
    namespace: str,
    family: RunId,
    mark: int,
    digests: Sequence[Digest],
    files: bool,
) -> int:
    """Remove rows of blobs that nobody used since the mark; return the bytes that were stored in the rows.

    The rows of blobs that are files are removed only if ``files`` is set.
    """
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    freed = 0
    for digest in digests if row is not None else ():
        found = connection.execute(_UNUSED, (*row, get_prefix(digest), digest, mark)).fetchone()
        if found is not None and (files or not found[2]):
            number, size, is_file = found
            connection.execute(_DELETE_BLOB, (number,))
            freed += 0 if is_file else read_number(size)
    return freed


def remove_files(
    connection: sqlite3.Connection, namespace: str, files: BlobFiles, family: RunId, digests: Sequence[Digest]
) -> int:
    """Remove the files of blobs without a row, also those that a crash left; return their bytes."""
    known = find_known_blobs(connection, namespace, family, digests)
    return files.remove(family, [digest for digest in digests if digest not in known])
