"""Commits become rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.checkpoint.store import Blob, Commit, Expected, Head, Letter, Record
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.compare import check_head, check_needs
from holdfast.stores.sqlite import mail

_FIND_RUN = "SELECT id, checkpoint, token, created FROM runs WHERE namespace = ? AND run = ?"
_ADD_RUN = (
    "INSERT INTO runs (namespace, run, created, updated, workflow, family, checkpoint, seq, token, status, owner, "
    "wake_at, takeovers, reason, retention) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Not `created`, which is in an index and would make one page more to write.
_MOVE_RUN = (
    "UPDATE runs SET updated = ?, workflow = ?, family = ?, checkpoint = ?, seq = ?, token = ?, status = ?, "
    "owner = ?, wake_at = ?, takeovers = ?, reason = ?, retention = ? WHERE id = ?"
)
_SET_CREATED = "UPDATE runs SET created = ? WHERE id = ?"
_ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (run, seq, find, checkpoint, new_bytes, header, changes, small_values) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_KEYFRAME = "INSERT INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
FIND_FAMILY = "SELECT id FROM families WHERE namespace = ? AND family = ?"
_ADD_FAMILY = "INSERT INTO families (namespace, family) VALUES (?, ?)"
_HAS_BLOB = "SELECT id, mark FROM blobs WHERE family = ? AND find = ? AND digest = ?"
_ADD_BLOB = "INSERT INTO blobs (family, find, digest, size, mark, data) VALUES (?, ?, ?, ?, ?, ?)"
_BRING_AGAIN = "UPDATE blobs SET mark = ? WHERE id = ?"
_MARKS = "SELECT count FROM marks"


def prefix(name: bytes) -> int:
    """The first 8 bytes of a digest as SQLite's kind of integer."""
    return int.from_bytes(name[:8], "big", signed=True)


def write_commit(
    connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int
) -> list[Letter]:
    """Write the rows of a commit in the transaction that is open, and say which letters wait for the run.

    Raises ``HeadMoved`` or ``CheckpointNotFound`` before it writes any.
    """
    head = commit.head
    row = connection.execute(_FIND_RUN, (namespace, head.run_id)).fetchone()
    check_head(commit, None if row is None else Expected(CheckpointId(row[1].hex()), row[2]))
    if commit.needs:
        _bring_needed(connection, namespace, commit)
    if row is None:
        run = connection.execute(_ADD_RUN, (namespace, head.run_id, head.created, *_moving(head))).lastrowid
        assert run is not None
    else:
        run, checkpoint, _, created = row
        connection.execute(_MOVE_RUN, (*_moving(head), run))
        if created != head.created:
            connection.execute(_SET_CREATED, (head.created, run))
        if checkpoint.hex() != head.checkpoint_id:
            mail.clear_notes(connection, run)
    for record in commit.records:
        _add_record(connection, run, record)
    if commit.blobs:
        add_blobs(connection, namespace, head.family, commit.blobs, big_blob)
    if commit.notes:
        mail.add_notes(connection, run, commit.notes)
    if commit.letters:
        mail.leave_letters(connection, run, commit.letters)
    if commit.taken:
        mail.take_letters(connection, run, commit.taken)
    return mail.waiting_letters(connection, run)


def _moving(head: Head) -> tuple[object, ...]:
    return (
        head.updated,
        head.workflow_name,
        head.family,
        bytes.fromhex(head.checkpoint_id),
        head.seq,
        head.token,
        head.status.value,
        head.owner,
        head.wake_at,
        head.takeovers,
        # The text of an error may hold half a character, say of a file name that is no Unicode.
        head.reason.encode("utf-8", "surrogatepass"),
        head.retention,
    )


def _add_record(connection: sqlite3.Connection, run: int, record: Record) -> None:
    checkpoint = bytes.fromhex(record.checkpoint_id)
    added = connection.execute(
        _ADD_CHECKPOINT,
        (
            run,
            record.seq,
            prefix(checkpoint),
            checkpoint,
            record.new_bytes,
            record.header,
            record.changes,
            record.values,
        ),
    )
    if (keyframe := record.keyframe) is not None:
        connection.execute(_ADD_KEYFRAME, (added.lastrowid, keyframe.cut, keyframe.changes, keyframe.values))
    if record.tags:
        assert added.lastrowid is not None
        add_tags(connection, added.lastrowid, record.tags)


def add_tags(connection: sqlite3.Connection, checkpoint: int, tags: Sequence[str]) -> None:
    """Give tags to the row of a record that has none."""
    given = [(checkpoint, text.encode("utf-8", "surrogatepass")) for text in tags]
    connection.executemany("INSERT INTO tags VALUES (?, ?)", given)


def _bring_needed(connection: sqlite3.Connection, namespace: str, commit: Commit) -> None:
    """Let blobs that are there count as brought; raises ``CheckpointNotFound`` before it writes if one is not."""
    family = connection.execute(FIND_FAMILY, (namespace, commit.head.family)).fetchone() or (None,)
    rows = {
        digest: row
        for digest in commit.needs
        if (row := connection.execute(_HAS_BLOB, (*family, prefix(digest), digest)).fetchone()) is not None
    }
    check_needs(commit, rows)
    (marks,) = connection.execute(_MARKS).fetchone()
    for number, mark in rows.values():
        if mark != marks:
            connection.execute(_BRING_AGAIN, (marks, number))


def add_blobs(
    connection: sqlite3.Connection, namespace: str, of: RunId, blobs: Sequence[Blob], big_blob: int
) -> None:
    """Write the rows of blobs that a family does not have yet; those that it has are known to be wanted."""
    name = namespace, of
    (marks,) = connection.execute(_MARKS).fetchone()
    row = connection.execute(FIND_FAMILY, name).fetchone()
    family = row[0] if row is not None else connection.execute(_ADD_FAMILY, name).lastrowid
    for blob in blobs:
        key = family, prefix(blob.digest), blob.digest
        known = connection.execute(_HAS_BLOB, key).fetchone()
        if known is None:
            connection.execute(
                _ADD_BLOB, (*key, len(blob.data), marks, None if is_big(blob, big_blob) else blob.data)
            )
        elif known[1] != marks:
            connection.execute(_BRING_AGAIN, (marks, known[0]))


def is_big(blob: Blob, big_blob: int) -> bool:
    """Whether a blob is a file of its own."""
    return len(blob.data) >= big_blob
