"""Commits become rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from holdfast.checkpoint.store import Blob, Commit, Head, Letter, Record
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.stores.compare import Place, check_head, check_needs
from holdfast.stores.seals import MODULUS, head_seal, seal_of_parts
from holdfast.stores.sqlite import mail

# SQLite before 3.32 takes no more than 999 parameters.
TOGETHER = 512
"""How many commits are written together at most."""
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

# Not ``bytes``: before sqlite3 binds those it looks whether someone adapts them, and catches an error that says no.
Row: TypeAlias = tuple[int, int, int, bytearray, int, int, bytearray, bytearray, bytearray]
"""What ``ADD_CHECKPOINT`` wants of a record."""


def prefix(name: bytes | bytearray) -> int:
    """The first 8 bytes of a digest as SQLite's kind of integer."""
    return int.from_bytes(name[:8], "big", signed=True)


_Found: TypeAlias = tuple[RunId, int, bytes, int, int, int, int | None, int, int]
"""A run: its id and number, its checkpoint, token, content, created, wake_at, whether it has notes and letters."""
Written: TypeAlias = list[Letter] | HeadMoved | CheckpointNotFound | CheckpointCorrupt
"""What came of a commit: the letters that wait for its run, or why nothing of it was written."""


def write_commits(
    connection: sqlite3.Connection, namespace: str, commits: Sequence[Commit], big_blob: int
) -> list[Written]:
    """Write the rows of commits in the transaction that is open: at most ``TOGETHER``, no two of them of one run.

    Each is as if it were alone, but all of them take one statement to find their runs, and two to write what most have.
    """
    found = _find_runs(connection, namespace, [commit.head.run_id for commit in commits])
    rows: list[Row] = []
    moves: list[tuple[object, ...]] = []
    written: list[Written] = []
    for commit in commits:
        try:
            run, content, letters = _enter(connection, namespace, commit, found.get(commit.head.run_id))
        except (HeadMoved, CheckpointNotFound, CheckpointCorrupt) as error:
            written.append(error)
            continue
        content += _add_content(connection, run, commit, rows)
        if commit.taken:
            content += mail.take_letters(connection, run, commit.head.run_id, commit.taken)
            letters = [letter for letter in letters if letter.key not in commit.taken]
        if commit.blobs:
            add_blobs(connection, namespace, commit.head.family, commit.blobs, big_blob)
        moves.append((*moving(namespace, commit.head, content % MODULUS), run))
        written.append(mail.waiting_letters(connection, run) if commit.letters else letters)
    connection.executemany(ADD_CHECKPOINT, rows)
    connection.executemany(MOVE_RUN, moves)
    return written


def _find_runs(connection: sqlite3.Connection, namespace: str, run_ids: list[RunId]) -> dict[RunId, _Found]:
    """What commits have to know of their runs; nothing of those that are not there."""
    # Some more of the same, so that there are few different statements.
    count = 1 << (len(run_ids) - 1).bit_length()
    names = (namespace, *run_ids, *run_ids[:1] * (count - len(run_ids)))
    return {row[0]: row for row in connection.execute(_find_statement(count), names)}


@cache
def _find_statement(count: int) -> str:
    # Whether it has notes, and whether letters wait, is asked here: statements of their own take three times as long.
    return (
        "SELECT run, id, checkpoint, token, content, created, wake_at, "
        "EXISTS (SELECT 1 FROM notes WHERE run = runs.id), "
        "EXISTS (SELECT 1 FROM letters WHERE run = runs.id AND data IS NOT NULL) "
        f"FROM runs WHERE namespace = ? AND run IN ({', '.join('?' * count)})"
    )


def _enter(
    connection: sqlite3.Connection, namespace: str, commit: Commit, found: _Found | None
) -> tuple[int, int, list[Letter]]:
    """The number of the run, the sum of the seals of what it has, and the letters that wait for it.

    Raises what may be wrong with a commit before it writes anything; then the journal is that of the new checkpoint.
    """
    check_head(commit, _place(found))
    letters = mail.waiting_letters(connection, found[1]) if found is not None and found[-1] else []
    if commit.needs:
        _bring_needed(connection, namespace, commit)
    head = commit.head
    if found is None:
        return add_run(connection, namespace, head), 0, letters
    _, run, _, _, content, created, wake_at, has_notes, _ = found
    if created != head.created or wake_at != head.wake_at:
        connection.execute(_SET_TIMES, (head.created, head.wake_at, run))
    if has_notes and commit.expected and commit.expected.checkpoint_id != head.checkpoint_id:
        content += mail.clear_notes(connection, run)
    return run, content, letters


def _place(found: _Found | None) -> Place | None:
    """Where the run stands."""
    return None if found is None else (found[2].hex(), found[3])


def _add_content(connection: sqlite3.Connection, run: int, commit: Commit, rows: list[Row]) -> int:
    """Add records, notes and letters; the sum of their seals. Records that are just a row come to ``rows``."""
    run_id = commit.head.run_id
    content = _add_records(connection, run, commit.records, rows) if commit.records else 0
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
    found = _find_runs(connection, namespace, [commit.head.run_id]).get(commit.head.run_id)
    check_head(commit, _place(found))
    run = add_run(connection, namespace, commit.head) if found is None else found[1]
    for statement in OF_RUN:
        connection.execute(statement, (run,))
    rows: list[Row] = []
    content = _add_content(connection, run, commit, rows)
    connection.executemany(ADD_CHECKPOINT, rows)
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
        bytearray.fromhex(head.checkpoint_id),
        head.seq,
        head.token,
        head.status.value,
        head.owner,
        head.takeovers,
        # The text of an error may hold half a character, say of a file name that is no Unicode.
        bytearray(head.reason, "utf-8", "surrogatepass"),
        head.retention,
        content,
        head_seal(namespace, head, content),
    )


def _add_records(connection: sqlite3.Connection, run: int, records: Sequence[Record], rows: list[Row]) -> int:
    """Add the rows of records, or leave that to who adds ``rows``; the sum of their seals."""
    own = [row_of(run, record) for record in records]
    for record in records:
        if record.keyframe is not None or record.tags:
            _add_with_more(connection, records, own)
            break
    else:
        rows += own
    return sum([row[5] for row in own])


def _add_with_more(connection: sqlite3.Connection, records: Sequence[Record], rows: list[Row]) -> None:
    """Add the rows of records, and those that belong to them."""
    for record, row in zip(records, rows, strict=True):
        added = connection.execute(ADD_CHECKPOINT, row).lastrowid
        if (keyframe := record.keyframe) is not None:
            connection.execute(ADD_KEYFRAME, (added, keyframe.cut, keyframe.changes, keyframe.values))
        for tag in record.tags:
            connection.execute(_ADD_TAG, (added, tag.encode("utf-8", "surrogatepass")))


def row_of(run: int, record: Record) -> Row:
    """A record as ``ADD_CHECKPOINT`` wants it."""
    checkpoint_id, _, seq, header, changes, values, new_bytes, keyframe, tags, _ = record
    checkpoint = bytearray.fromhex(checkpoint_id)
    seal = seal_of_parts(checkpoint_id, seq, new_bytes, tags, None if keyframe is None else keyframe.cut)
    large = bytearray(header), bytearray(changes), bytearray(values)
    return (run, seq, prefix(checkpoint), checkpoint, new_bytes, seal, *large)


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
