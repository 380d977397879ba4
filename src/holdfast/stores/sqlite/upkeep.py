"""Rows that go: records, whole runs, blobs that nobody needs; and tags, which keep some of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.checkpoint.store import Depth, Expected, Head, Marked, Record, Removal
from holdfast.errors import StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.head_check import change_tags, check_expected, check_removal
from holdfast.stores.common.seals import seal_record
from holdfast.stores.sqlite import mail
from holdfast.stores.sqlite.reading import known_blobs, read_head, read_records
from holdfast.stores.sqlite.writer import Refused
from holdfast.stores.sqlite.writing import FIND_FAMILY, OF_RUN, add_blobs, change_content, prefix

_FIND = "SELECT id FROM checkpoints WHERE run = ? AND seq = ?"
_OF_CHECKPOINT = ("DELETE FROM keyframes WHERE checkpoint = ?", "DELETE FROM tags WHERE checkpoint = ?")
_REMOVE = "DELETE FROM checkpoints WHERE id = ?"
_SET_KEYFRAME = (
    "INSERT OR REPLACE INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
)
_SET_SEAL = "UPDATE checkpoints SET seal = ? WHERE id = ?"
_SEAL = "SELECT seal FROM checkpoints WHERE id = ?"
_REMOVE_RUN = (*OF_RUN, "DELETE FROM runs WHERE id = ?")
_TAGGED = "SELECT seq FROM checkpoints WHERE run = ? AND EXISTS (SELECT 1 FROM tags WHERE checkpoint = checkpoints.id)"
_BEGIN_SWEEP = "UPDATE marks SET count = count + 1"
_MARKS = "SELECT count FROM marks"
_BLOBS = "SELECT digest, size FROM blobs WHERE family = ?"
_UNUSED = "SELECT id, size, data IS NULL FROM blobs WHERE family = ? AND find = ? AND digest = ? AND mark < ?"
_DISCARD = "DELETE FROM blobs WHERE id = ?"


def _stands(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, expected: Expected
) -> tuple[Head, int]:
    """The run as it stands, if it is where it is expected to be; raises ``HeadMoved``."""
    head = read_head(connection, namespace, run_id)
    check_expected(run_id, expected, head)
    run = mail.find_run(connection, namespace, run_id)
    assert head is not None
    assert run is not None
    return head, run


def remove(connection: sqlite3.Connection, namespace: str, removal: Removal, big_blob: int) -> bool:
    """Give records keyframes and remove others, in the transaction that is open; false if one of those has tags."""
    head, run = _stands(connection, namespace, removal.run_id, removal.expected)
    try:
        check_removal(head, removal)
    except StorageError as error:
        raise Refused(str(error)) from None
    if _any_tagged(connection, run, removal.seqs):
        return False
    if removal.blobs:
        add_blobs(connection, namespace, head.family, removal.blobs, big_blob)
    change = 0
    for seq, keyframe in removal.keyframes:
        for (row,) in connection.execute(_FIND, (run, seq)).fetchall():
            before = _at(connection, namespace, removal.run_id, seq)
            connection.execute(_SET_KEYFRAME, (row, keyframe.cut, keyframe.changes, keyframe.values))
            change += _sealed(connection, row, before, before._replace(keyframe=keyframe))
    for seq in removal.seqs:
        for found in connection.execute(_FIND, (run, seq)).fetchall():
            change -= mail.number(connection.execute(_SEAL, found).fetchone()[0])
            for statement in (*_OF_CHECKPOINT, _REMOVE):
                connection.execute(statement, found)
    change_content(connection, namespace, run, head, change)
    return True


def _any_tagged(connection: sqlite3.Connection, run: int, seqs: Sequence[int]) -> bool:
    return not set(seqs).isdisjoint(seq for (seq,) in connection.execute(_TAGGED, (run,)))


def _at(connection: sqlite3.Connection, namespace: str, run_id: RunId, seq: int) -> Record:
    (record,) = read_records(connection, namespace, run_id, seq, seq, Depth.ALL)
    return record


def _sealed(connection: sqlite3.Connection, row: int, before: Record, after: Record) -> int:
    """Seal a record that got something, and say by how much its seal changes; one that is damaged stays so."""
    if not before.sound:
        return 0
    (old,) = connection.execute(_SEAL, (row,)).fetchone()
    new = seal_record(after)
    connection.execute(_SET_SEAL, (new, row))
    return new - mail.number(old)


def remove_run(connection: sqlite3.Connection, namespace: str, run_id: RunId, expected: Expected) -> None:
    """Remove all rows of a run but its blobs, in the transaction that is open."""
    _, run = _stands(connection, namespace, run_id, expected)
    for statement in _REMOVE_RUN:  # run numbers may be used again, so nothing of it may stay
        connection.execute(statement, (run,))


def tag(
    connection: sqlite3.Connection,
    namespace: str,
    run_id: RunId,
    seq: int,
    tags: Sequence[str],
    drop: Sequence[str] | None,
) -> bool:
    """Take tags from a record and add others, in the transaction that is open."""
    head, run = read_head(connection, namespace, run_id), mail.find_run(connection, namespace, run_id)
    row = None if run is None else connection.execute(_FIND, (run, seq)).fetchone()
    if head is None or run is None or row is None:
        return False
    before = _at(connection, namespace, run_id, seq)
    after = before._replace(tags=change_tags(before.tags, tags, drop))
    connection.execute(_OF_CHECKPOINT[1], row)
    given = [(*row, text.encode("utf-8", "surrogatepass")) for text in after.tags]
    connection.executemany("INSERT INTO tags VALUES (?, ?)", given)
    change = _sealed(connection, row[0], before, after)
    change_content(connection, namespace, run, head, change)
    return True


def mark(connection: sqlite3.Connection, namespace: str, family: RunId) -> Marked:
    """Begin a sweep: blobs that are brought from now on can be told from the others."""
    connection.execute(_BEGIN_SWEEP)
    (marks,) = connection.execute(_MARKS).fetchone()
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    blobs = [] if row is None else connection.execute(_BLOBS, row).fetchall()
    # A row that is damaged is named by no record: nobody asks for it, and it stays.
    sizes = {Digest(digest): mail.number(size) for digest, size in blobs if isinstance(digest, bytes)}
    return Marked(marks, sizes)


def discard(
    connection: sqlite3.Connection,
    namespace: str,
    family: RunId,
    marked: int,
    digests: Sequence[Digest],
    files: bool,
) -> int:
    """Remove rows of blobs that nobody brought since; the bytes that they took, without those that are files.

    Without ``files`` the rows of those stay, too.
    """
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    freed = 0
    for digest in digests if row is not None else ():
        found = connection.execute(_UNUSED, (*row, prefix(digest), digest, marked)).fetchone()
        if found is not None and (files or not found[2]):
            number, size, is_file = found
            connection.execute(_DISCARD, (number,))
            freed += 0 if is_file else mail.number(size)
    return freed


def remove_files(
    connection: sqlite3.Connection, namespace: str, files: BlobFiles, family: RunId, digests: Sequence[Digest]
) -> int:
    """Remove the files of blobs without a row, also those that a crash left; the bytes that they took."""
    known = known_blobs(connection, namespace, family, digests)
    return files.remove(family, [digest for digest in digests if digest not in known])
