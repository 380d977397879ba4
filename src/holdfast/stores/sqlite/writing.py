"""Commits become rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.checkpoint.store import Blob, Commit, Expected, Head, Letter, Record
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.compare import check_head, check_needs
from holdfast.stores.seals import MODULUS, head_seal, record_seal
from holdfast.stores.sqlite import mail

# Whether it has notes, and whether letters wait, is asked here: statements of their own take three times as long.
_FIND_RUN = (
    "SELECT id, checkpoint, token, content, created, wake_at, EXISTS (SELECT 1 FROM notes WHERE run = runs.id), "
    "EXISTS (SELECT 1 FROM letters WHERE run = runs.id AND data IS NOT NULL) "
    "FROM runs WHERE namespace = ? AND run = ?"
)
ADD_RUN = (
    "INSERT INTO runs (namespace, run, created, wake_at, updated, workflow, family, checkpoint, seq, token, status, "
    "owner, takeovers, reason, retention, content, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Not `created` and `wake_at`, which are in indexes: naming a column there is to write one page more.
MOVE_RUN = (
    "UPDATE runs SET updated = ?, workflow = ?, family = ?, checkpoint = ?, seq = ?, token = ?, status = ?, "
    "owner = ?, takeovers = ?, reason = ?, retention = ?, content = ?, seal = ? WHERE id = ?"
)
_SET_TIMES = "UPDATE runs SET created = ?, wake_at = ? WHERE id = ?"
_SET_CONTENT = "UPDATE runs SET content = ?, seal = ? WHERE id = ?"
ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (run, seq, find, checkpoint, new_bytes, seal, header, changes, small_values) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ADD_KEYFRAME = "INSERT INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
_ADD_TAG = "INSERT INTO tags VALUES (?, ?)"
FIND_FAMILY = "SELECT id FROM families WHERE namespace = ? AND family = ?"
ADD_FAMILY = "INSERT INTO families (namespace, family) VALUES (?, ?)"
_HAS_BLOB = "SELECT id, mark FROM blobs WHERE family = ? AND find = ? AND digest = ?"
ADD_BLOB = "INSERT INTO blobs (family, find, digest, size, mark, data) VALUES (?, ?, ?, ?, ?, ?)"
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
        run = add_run(connection, namespace, head)
        content = has_letters = 0
    else:
        run, _, _, content, created, wake_at, has_notes, has_letters = row
        if created != head.created or wake_at != head.wake_at:
            connection.execute(_SET_TIMES, (head.created, head.wake_at, run))
        if has_notes and commit.expected and commit.expected.checkpoint_id != head.checkpoint_id:
            content += mail.clear_notes(connection, run)
    content += _add_content(connection, run, commit)
    if commit.taken:
        content += mail.take_letters(connection, run, head.run_id, commit.taken)
    if commit.blobs:
        add_blobs(connection, namespace, head.family, commit.blobs, big_blob)
    connection.execute(MOVE_RUN, (*moving(namespace, head, content % MODULUS), run))
    return mail.waiting_letters(connection, run) if has_letters or commit.letters else []


def _add_content(connection: sqlite3.Connection, run: int, commit: Commit) -> int:
    """Add records, notes and letters; the sum of their seals."""
    run_id = commit.head.run_id
    content = _add_records(connection, run, commit.records) if commit.records else 0
    if commit.notes:
        content += mail.add_notes(connection, run, run_id, commit.notes)
    if commit.letters:
        content += mail.leave_letters(connection, run, run_id, commit.letters)
    return content


def add_run(connection: sqlite3.Connection, namespace: str, head: Head) -> int:
    """A row for a run that has none; ``move_run`` completes it."""
    row = (namespace, head.run_id, head.created, head.wake_at, *moving(namespace, head, 0))
    run = connection.execute(ADD_RUN, row).lastrowid
    assert run is not None
    return run


def move_run(connection: sqlite3.Connection, namespace: str, run: int, head: Head, content: int) -> None:
    """Let a run stand here, whatever its row said; ``content`` is the sum of the seals of its rows."""
    connection.execute(_SET_TIMES, (head.created, head.wake_at, run))
    connection.execute(MOVE_RUN, (*moving(namespace, head, content % MODULUS), run))


def change_content(connection: sqlite3.Connection, namespace: str, run: int, head: Head, change: int) -> None:
    """Let the sum of the seals of a run be another, where it stands."""
    (content,) = connection.execute("SELECT content FROM runs WHERE id = ?", (run,)).fetchone()
    content = (content + change) % MODULUS
    connection.execute(_SET_CONTENT, (content, head_seal(namespace, head, content), run))


def replace_run(connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int) -> None:
    """Let a run be what a commit says and nothing else, in the transaction that is open."""
    row = connection.execute(_FIND_RUN, (namespace, commit.head.run_id)).fetchone()
    check_head(commit, None if row is None else Expected(CheckpointId(row[1].hex()), row[2]))
    run = add_run(connection, namespace, commit.head) if row is None else row[0]
    for statement in OF_RUN:
        connection.execute(statement, (run,))
    content = _add_content(connection, run, commit)
    if commit.blobs:
        add_blobs(connection, namespace, commit.head.family, commit.blobs, big_blob)
    move_run(connection, namespace, run, commit.head, content)


OF_RUN = (
    "DELETE FROM keyframes WHERE checkpoint IN (SELECT id FROM checkpoints WHERE run = ?)",
    "DELETE FROM tags WHERE checkpoint IN (SELECT id FROM checkpoints WHERE run = ?)",
    "DELETE FROM checkpoints WHERE run = ?",
    "DELETE FROM notes WHERE run = ?",
    "DELETE FROM letters WHERE run = ?",
)
"""What removes all that belongs to a run, but for its row."""


def moving(namespace: str, head: Head, content: int) -> tuple[object, ...]:
    """What of a head changes from commit to commit, as ``MOVE_RUN`` wants it."""
    return (
        head.updated,
        head.workflow_name,
        head.family,
        bytes.fromhex(head.checkpoint_id),
        head.seq,
        head.token,
        head.status.value,
        head.owner,
        head.takeovers,
        # The text of an error may hold half a character, say of a file name that is no Unicode.
        head.reason.encode("utf-8", "surrogatepass"),
        head.retention,
        content,
        head_seal(namespace, head, content),
    )


def _add_records(connection: sqlite3.Connection, run: int, records: Sequence[Record]) -> int:
    """Add the rows of records; the sum of their seals."""
    rows = [row_of(run, record) for record in records]
    if all(record.keyframe is None and not record.tags for record in records):
        connection.executemany(ADD_CHECKPOINT, rows)
    else:
        for record, row in zip(records, rows, strict=True):
            added = connection.execute(ADD_CHECKPOINT, row).lastrowid
            if (keyframe := record.keyframe) is not None:
                connection.execute(ADD_KEYFRAME, (added, keyframe.cut, keyframe.changes, keyframe.values))
            for tag in record.tags:
                connection.execute(_ADD_TAG, (added, tag.encode("utf-8", "surrogatepass")))
    return sum(row[5] for row in rows)


def row_of(run: int, record: Record) -> tuple[int, int, int, bytes, int, int, bytes, bytes, bytes]:
    """A record as ``ADD_CHECKPOINT`` wants it."""
    checkpoint = bytes.fromhex(record.checkpoint_id)
    return (
        run,
        record.seq,
        prefix(checkpoint),
        checkpoint,
        record.new_bytes,
        record_seal(record),
        record.header,
        record.changes,
        record.values,
    )


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
    family = row[0] if row is not None else connection.execute(ADD_FAMILY, name).lastrowid
    for blob in blobs:
        key = family, prefix(blob.digest), blob.digest
        known = connection.execute(_HAS_BLOB, key).fetchone()
        if known is None:
            connection.execute(
                ADD_BLOB, (*key, len(blob.data), marks, None if is_big(blob, big_blob) else blob.data)
            )
        elif known[1] != marks:
            connection.execute(_BRING_AGAIN, (marks, known[0]))


def is_big(blob: Blob, big_blob: int) -> bool:
    """Whether a blob is a file of its own."""
    return len(blob.data) >= big_blob
