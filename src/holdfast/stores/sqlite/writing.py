"""Commits become rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import TypeAlias

from holdfast.checkpoint.store import Blob, Commit, Head, Letter, Record
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.stores.common.head_check import check_head, check_needs
from holdfast.stores.common.seals import MODULUS, seal_head, seal_record_parts
from holdfast.stores.sqlite import mail
from holdfast.stores.sqlite.run_cache import LETTERS, NOTES, Standing, find_runs

# SQLite before 3.32 takes no more than 999 parameters.
TOGETHER = 512
"""How many commits are written together at most."""
ADD_RUN = (
    "INSERT INTO runs (namespace, run, created, wake_at, status, family, updated, workflow, checkpoint, seq, token, "
    "owner, takeovers, reason, retention, waiting_for, content, seal) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Not what is in indexes: naming a column there is to write one page more.
MOVE_RUN = (
    "UPDATE runs SET updated = ?, workflow = ?, checkpoint = ?, seq = ?, token = ?, "
    "owner = ?, takeovers = ?, reason = ?, retention = ?, waiting_for = ?, content = ?, seal = ? WHERE id = ?"
)
_SET_INDEXED = "UPDATE runs SET created = ?, wake_at = ?, status = ?, family = ? WHERE id = ?"
SET_STATUS = "UPDATE runs SET wake_at = ?, status = ? WHERE id = ?"
_SET_CONTENT = "UPDATE runs SET content = ?, seal = ? WHERE id = ?"
ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (run, seq, find, checkpoint, new_bytes, seal, header, changes, small_values) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SEVERAL = 8
"""How many rows of checkpoints one statement adds, where there are as many."""
# Not a step of SQLite for each row, which lets go of the interpreter's lock and takes it again twice. FAIL, because a
# statement that could be undone alone copies pages first; whoever writes gives up the whole transaction anyway.
_ADD_SEVERAL = ADD_CHECKPOINT.replace("INSERT", "INSERT OR FAIL") + ", (?, ?, ?, ?, ?, ?, ?, ?, ?)" * (
    _SEVERAL - 1
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


_NOTHING = bytearray()
_from_hex = bytearray.fromhex  # asking bytearray for it each time takes half as long as using it
_PREFIX = Struct(">q")
"""What ``prefix`` does to a name that is long enough, in a third of the time."""


def prefix(name: bytes | bytearray) -> int:
    """The first 8 bytes of a digest as SQLite's kind of integer."""
    return int.from_bytes(name[:8], "big", signed=True)


Written: TypeAlias = list[Letter] | HeadMoved | CheckpointNotFound | CheckpointCorrupt
"""What came of a commit: the letters that wait for its run, or why nothing of it was written."""


def write_commits(
    connection: sqlite3.Connection,
    namespace: str,
    commits: Sequence[Commit],
    big_blob: int,
    known: dict[RunId, Standing],
) -> list[Written]:
    """Write the rows of commits in the transaction that is open: at most ``TOGETHER``, no two of them of one run.

    Each is as if it were alone, but all of them take one statement to find their runs if those are not ``known``, and
    two to write what most have. ``known`` tells then where they stand.
    """
    strange = [commit.head.run_id for commit in commits if commit.head.run_id not in known]
    if strange:
        known.update(find_runs(connection, namespace, strange))
    rows: list[Row] = []
    moves: list[tuple[object, ...]] = []
    written: list[Written] = []
    for commit in commits:
        head, _, _, blobs, notes, taken, left, _ = commit
        found = known.get(head.run_id)
        try:
            run, content, letters = _enter(connection, namespace, commit, found)
        except (HeadMoved, CheckpointNotFound, CheckpointCorrupt) as error:
            written.append(error)
            continue
        content += _add_content(connection, run, commit, rows)
        if taken:
            content += mail.take_letters(connection, run, head.run_id, taken)
            used_up = frozenset(taken)
            letters = [letter for letter in letters if letter.key not in used_up]
        if blobs:
            add_blobs(connection, namespace, head.family, blobs, big_blob)
        content %= MODULUS
        moves.append((*moving(namespace, head, content), run))
        written.append(mail.waiting_letters(connection, run) if left else letters)
        if notes or taken or left or (found is not None and found[4]):
            known.pop(head.run_id, None)
        else:
            place = head.checkpoint_id, head.token
            indexed = head.created, head.wake_at, head.status._value_, head.family
            known[head.run_id] = run, place, content, indexed, 0
    _add_rows(connection, rows)
    connection.executemany(MOVE_RUN, moves)
    return written


def _enter(
    connection: sqlite3.Connection, namespace: str, commit: Commit, found: Standing | None
) -> tuple[int, int, list[Letter]]:
    """The number of the run, the sum of the seals of what it has, and the letters that wait for it.

    Raises what may be wrong with a commit before it writes anything; then the journal is that of the new checkpoint.
    """
    if found is None:
        check_head(commit, None)
        if commit.needs:
            _bring_needed(connection, namespace, commit)
        return add_run(connection, namespace, commit.head), 0, []
    run, place, content, before, has = found
    check_head(commit, place)
    letters = mail.waiting_letters(connection, run) if has & LETTERS else []
    if commit.needs:
        _bring_needed(connection, namespace, commit)
    head = commit.head
    if before != (indexed := indexed_of(head)):
        # Created and family are so for ever, unless the run is another.
        if (before[0], before[3]) == (head.created, head.family):
            connection.execute(SET_STATUS, (*indexed[1:3], run))
        else:
            connection.execute(_SET_INDEXED, (*indexed, run))
    if has & NOTES and place[0] != head.checkpoint_id:
        content += mail.clear_notes(connection, run)
    return run, content, letters


def _add_content(connection: sqlite3.Connection, run: int, commit: Commit, rows: list[Row]) -> int:
    """Add records, notes and letters; the sum of their seals. Records that are just a row come to ``rows``."""
    head, _, records, _, notes, _, letters, _ = commit
    content = 0
    before = len(rows)
    more = False
    for record in records:
        row = row_of(run, record)
        rows.append(row)
        content += row[5]
        more = more or record.keyframe is not None or bool(record.tags)
    if more:
        _add_with_more(connection, records, rows[before:])
        del rows[before:]
    if notes:
        content += mail.add_notes(connection, run, head.run_id, notes)
    if letters:
        content += mail.leave_letters(connection, run, head.run_id, letters)
    return content


def add_run(connection: sqlite3.Connection, namespace: str, head: Head) -> int:
    """A row for a run that has none; ``move_run`` completes it."""
    row = (namespace, head.run_id, *indexed_of(head), *moving(namespace, head, 0))
    run = connection.execute(ADD_RUN, row).lastrowid
    assert run is not None
    return run


def move_run(connection: sqlite3.Connection, namespace: str, run: int, head: Head, content: int) -> None:
    """Let a run stand here, whatever its row said; ``content`` is the sum of the seals of its rows."""
    connection.execute(_SET_INDEXED, (*indexed_of(head), run))
    connection.execute(MOVE_RUN, (*moving(namespace, head, content % MODULUS), run))


def change_content(connection: sqlite3.Connection, namespace: str, run: int, head: Head, change: int) -> None:
    """Let the sum of the seals of a run be another, where it stands."""
    (content,) = connection.execute("SELECT content FROM runs WHERE id = ?", (run,)).fetchone()
    content = (content + change) % MODULUS
    connection.execute(_SET_CONTENT, (content, seal_head(namespace, head, content), run))


def replace_run(connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int) -> None:
    """Let a run be what a commit says and nothing else, in the transaction that is open."""
    found = find_runs(connection, namespace, [commit.head.run_id]).get(commit.head.run_id)
    check_head(commit, None if found is None else found[1])
    run = add_run(connection, namespace, commit.head) if found is None else found[0]
    for statement in OF_RUN:
        connection.execute(statement, (run,))
    rows: list[Row] = []
    content = _add_content(connection, run, commit, rows)
    _add_rows(connection, rows)
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


def indexed_of(head: Head) -> tuple[int, int | None, str, RunId]:
    """Give the columns of a run that are in indexes: created, wake_at, status, family."""
    return head.created, head.wake_at, head.status._value_, head.family


def moving(namespace: str, head: Head, content: int) -> tuple[object, ...]:
    """What of a head changes from commit to commit, as ``MOVE_RUN`` wants it."""
    _, workflow, _, checkpoint, seq, token, _, _, updated, owner, _, takeovers, reason, kept, waits = head
    return (
        updated,
        workflow,
        _from_hex(checkpoint),
        seq,
        token,
        owner,
        takeovers,
        # The text of an error may hold half a character, say of a file name that is no Unicode.
        bytearray(reason, "utf-8", "surrogatepass"),
        kept,
        waits,
        content,
        seal_head(namespace, head, content),
    )


def _add_rows(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Add rows of checkpoints."""
    whole = len(rows) - len(rows) % _SEVERAL
    if whole:
        groups = [rows[first : first + _SEVERAL] for first in range(0, whole, _SEVERAL)]
        connection.executemany(_ADD_SEVERAL, [tuple(chain.from_iterable(group)) for group in groups])
    connection.executemany(ADD_CHECKPOINT, rows[whole:])


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
    checkpoint = _from_hex(checkpoint_id)
    (find,) = _PREFIX.unpack_from(checkpoint)
    seal = seal_record_parts(checkpoint_id, seq, new_bytes, tags, None if keyframe is None else keyframe.cut)
    return (
        run,
        seq,
        find,
        checkpoint,
        new_bytes,
        seal,
        bytearray(header),
        # The start of a superstep has neither.
        bytearray(changes) if changes else _NOTHING,
        bytearray(values) if values else _NOTHING,
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
