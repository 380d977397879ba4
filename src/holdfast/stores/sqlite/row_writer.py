"""Writes commits as rows, and remembers the runs that it wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from struct import Struct
from typing import TypeAlias

from holdfast.checkpoint.store import Blob, Commit, EventRow, Head, Letter, Record
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.stores.common.head_check import HeadPosition, check_head, check_needs
from holdfast.stores.common.seals import MODULUS, seal_head, seal_record_parts, seal_tags
from holdfast.stores.sqlite import notes_and_letters
from holdfast.stores.sqlite.event_table import (
    add_event_rows,
    cut_events,
    keep_events,
    seal_event_row,
    trim_events,
)

# SQLite before 3.32 takes no more than 999 parameters.
MOST_TOGETHER = 512
"""The largest number of commits that are written together."""
ADD_RUN = (
    "INSERT INTO runs (namespace, run, created, wake_at, status, owner, family, updated, workflow, checkpoint, seq, "
    "token, takeovers, reason, retention, waiting_for, letters_known, fingerprint, by, traceback, origin, "
    "restored, content, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Without the columns that are in indexes: naming such a column writes one page more.
MOVE_RUN = (
    "UPDATE runs SET updated = ?, workflow = ?, checkpoint = ?, seq = ?, token = ?, "
    "takeovers = ?, reason = ?, retention = ?, waiting_for = ?, letters_known = ?, fingerprint = ?, by = ?, "
    "traceback = ?, origin = ?, restored = ?, content = ?, seal = ? WHERE id = ?"
)
_SET_INDEXED = "UPDATE runs SET created = ?, wake_at = ?, status = ?, owner = ?, family = ? WHERE id = ?"
SET_STATUS = "UPDATE runs SET wake_at = ?, status = ?, owner = ? WHERE id = ?"
_SET_CONTENT = "UPDATE runs SET content = ?, seal = ? WHERE id = ?"
ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (run, seq, find, checkpoint, new_bytes, seal, header, events, changes, small_values) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SEVERAL = 8
"""The number of rows of checkpoints that one statement adds, if there are as many."""
# One step of SQLite for each row would release and take the interpreter's lock twice. FAIL, because a statement that
# could be undone alone copies pages first; after an error the writer gives up the whole transaction anyway.
_ADD_SEVERAL = ADD_CHECKPOINT.replace("INSERT", "INSERT OR FAIL") + ", (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" * (
    _SEVERAL - 1
)
ADD_KEYFRAME = "INSERT INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
_ADD_TAG = "INSERT INTO tags VALUES (?, ?, ?)"
FIND_FAMILY = "SELECT id FROM families WHERE namespace = ? AND family = ?"
ADD_FAMILY = "INSERT INTO families (namespace, family) VALUES (?, ?)"
_FIND_BLOB = "SELECT id, mark FROM blobs WHERE family = ? AND find = ? AND digest = ?"
ADD_BLOB = "INSERT INTO blobs (family, find, digest, size, mark, data) VALUES (?, ?, ?, ?, ?, ?)"
_SET_MARK = "UPDATE blobs SET mark = ? WHERE id = ?"
_COUNT_MARKS = "SELECT count FROM marks"
DELETE_ROWS_OF_RUN = (
    "DELETE FROM keyframes WHERE checkpoint IN (SELECT id FROM checkpoints WHERE run = ?)",
    "DELETE FROM tags WHERE checkpoint IN (SELECT id FROM checkpoints WHERE run = ?)",
    "DELETE FROM checkpoints WHERE run = ?",
    "DELETE FROM notes WHERE run = ?",
    "DELETE FROM letters WHERE run = ?",
    "DELETE FROM claims WHERE run = ?",
)
"""The statements that remove all rows of a run but the one in ``runs`` and its events."""

# Not ``bytes``: before sqlite3 binds those it looks for an adapter, and catches an error that says there is none.
CheckpointRow: TypeAlias = tuple[
    int, int, int, bytearray, int, int, bytearray, bytearray, bytearray, bytearray
]
"""The parameters of ``ADD_CHECKPOINT``."""

_NOTHING = bytearray()
_from_hex = bytearray.fromhex  # looking it up each time takes half as long as calling it
_PREFIX = Struct(">q")
"""Does what ``get_prefix`` does, in a third of the time, for an id that is long enough."""


def get_prefix(digest: bytes | bytearray) -> int:
    """Return the first 8 bytes of a digest as an integer for SQLite."""
    return int.from_bytes(digest[:8], "big", signed=True)


IndexedColumns: TypeAlias = tuple[int, int | None, str, str, str]
"""The columns of a run that are in indexes: created, wake_at, status, owner and family."""

KnownRun: TypeAlias = tuple[int, HeadPosition, int, IndexedColumns, int]
"""A run: its number, its head, the sum of its seals, its indexed columns, and ``HAS_NOTES`` plus ``HAS_LETTERS``."""

HAS_NOTES, HAS_LETTERS = 1, 2

_MOST_KNOWN = 4096
"""The largest number of runs that are remembered."""


class RunCache:
    """Remembers the runs that the writing thread wrote, as long as no other connection writes.

    SQLite trusts the pages in its own cache just as long. Runs that have letters are not remembered.
    """

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._runs: dict[RunId, KnownRun] = {}

    def clear(self) -> None:
        """Forget all runs: a task other than a commit is written."""
        self._runs.clear()

    def get_valid(self, connection: sqlite3.Connection) -> dict[RunId, KnownRun]:
        """Return the runs that are valid in the open transaction; the code that writes in it keeps them up to date.

        A transaction that fails closes its connection, and all runs are forgotten then.
        """
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or connection is not self._connection or len(self._runs) > _MOST_KNOWN:
            self._runs.clear()
            self._connection, self._version = connection, version
        return self._runs


def find_runs(connection: sqlite3.Connection, namespace: str, run_ids: list[RunId]) -> dict[RunId, KnownRun]:
    """Read what commits have to know of their runs; a run that is not in the store is left out."""
    # Ids are repeated up to a power of two, so that there are few different statements.
    count = 1 << (len(run_ids) - 1).bit_length()
    names = (namespace, *run_ids, *run_ids[:1] * (count - len(run_ids)))
    return {
        run_id: (run, (checkpoint.hex(), token), content, tuple(indexed), has)
        for run_id, run, checkpoint, token, content, has, *indexed in connection.execute(
            _make_find_statement(count), names
        )
    }


@cache
def _make_find_statement(count: int) -> str:
    # Notes and letters are looked for here: statements of their own take three times as long.
    return (
        "SELECT run, id, checkpoint, token, content, "
        f"EXISTS (SELECT 1 FROM notes WHERE run = runs.id) * {HAS_NOTES} + "
        f"EXISTS (SELECT 1 FROM letters WHERE run = runs.id AND data IS NOT NULL) * {HAS_LETTERS}, "
        f"created, wake_at, status, owner, family FROM runs WHERE namespace = ? AND run IN ({', '.join('?' * count)})"
    )


CommitOutcome: TypeAlias = list[Letter] | HeadMoved | CheckpointNotFound | CheckpointCorrupt
"""The letters that wait for the run of a commit, or the error because of which nothing of it was written."""


def write_commits(
    connection: sqlite3.Connection,
    namespace: str,
    commits: Sequence[Commit],
    big_blob: int,
    known: dict[RunId, KnownRun],
) -> list[CommitOutcome]:
    """Write the rows of commits in the open transaction: at most ``MOST_TOGETHER``, no two of them of one run.

    Each is written as if it were alone, but all share one statement that finds the runs that are not ``known``, and
    two that write the rows that nearly all commits have. Afterwards ``known`` holds where the runs stand.
    """
    unknown = [commit.head.run_id for commit in commits if commit.head.run_id not in known]
    if unknown:
        known.update(find_runs(connection, namespace, unknown))
    rows: list[CheckpointRow] = []
    moves: list[tuple[object, ...]] = []
    outcomes: list[CommitOutcome] = []
    for commit in commits:
        head, _, _, blobs, notes, taken, left, _, _, events_from = commit
        found = known.get(head.run_id)
        try:
            run, content, letters = _prepare_run(connection, namespace, commit, found)
        except (HeadMoved, CheckpointNotFound, CheckpointCorrupt) as error:
            outcomes.append(error)
            continue
        content += _add_content(connection, run, commit, rows)
        if taken:
            content += notes_and_letters.take_letters(connection, run, head.run_id, taken)
            used_up = frozenset(taken)
            letters = [letter for letter in letters if letter.key not in used_up]
        if blobs:
            add_blobs(connection, namespace, head.family, blobs, big_blob)
        if events_from:
            trim_events(connection, run, events_from)
        content %= MODULUS
        moves.append((*get_moving_columns(namespace, head, content), run))
        outcomes.append(notes_and_letters.read_waiting_letters(connection, run) if left else letters)
        if taken or left or (found is not None and found[4] & HAS_LETTERS):
            known.pop(head.run_id, None)
        else:
            position = head.checkpoint_id, head.token
            indexed = get_indexed_columns(head)
            stays = found is not None and found[1][0] == head.checkpoint_id
            has = HAS_NOTES if notes or (found is not None and stays and found[4]) else 0
            known[head.run_id] = run, position, content, indexed, has
    _add_rows(connection, rows)
    connection.executemany(MOVE_RUN, moves)
    return outcomes


def _prepare_run(
    connection: sqlite3.Connection, namespace: str, commit: Commit, found: KnownRun | None
) -> tuple[int, int, list[Letter]]:
    """Return the number of the run, the sum of the seals of its rows, and the letters that wait for it.

    Raises an error that prevents the commit before it writes anything. Then it adds a new run, sets indexed columns,
    and empties the journal if the run moves to another checkpoint.
    """
    if found is None:
        check_head(commit, None)
        if commit.needs:
            _mark_needed_blobs(connection, namespace, commit)
        return add_run(connection, namespace, commit.head), 0, []
    run, position, content, before, has = found
    check_head(commit, position)
    letters = notes_and_letters.read_waiting_letters(connection, run) if has & HAS_LETTERS else []
    if commit.needs:
        _mark_needed_blobs(connection, namespace, commit)
    head = commit.head
    if before != (indexed := get_indexed_columns(head)):
        # The others never change, unless the run was removed and begun again.
        if (before[0], before[4]) == (head.created, head.family):
            connection.execute(SET_STATUS, (*indexed[1:4], run))
        else:
            connection.execute(_SET_INDEXED, (*indexed, run))
    if has & HAS_NOTES and position[0] != head.checkpoint_id:
        content += notes_and_letters.clear_notes(connection, run)
    return run, content, letters


def _add_content(connection: sqlite3.Connection, run: int, commit: Commit, rows: list[CheckpointRow]) -> int:
    """Add records, notes and letters, and return the sum of their seals.

    Records without keyframe and tags are only appended to ``rows``: the caller writes those of several runs together.
    """
    head, records, notes, letters = commit.head, commit.records, commit.notes, commit.letters
    content = 0
    before = len(rows)
    more = False
    of_records, others = split_events(commit)
    for record in records:
        row = make_checkpoint_row(run, record, of_records.get(record.seq, _NOTHING))
        rows.append(row)
        content += row[5]
        more = more or record.keyframe is not None or bool(record.tags)
    if more:
        _add_with_keyframes_and_tags(connection, records, rows[before:])
        del rows[before:]
    if others:
        add_event_rows(connection, run, head.run_id, others)
    if notes:
        content += notes_and_letters.add_notes(connection, run, head.run_id, notes)
    if letters:
        known = notes_and_letters.find_known_keys(connection, run, [letter.key for letter in letters])
        new = {letter.key: letter.data for letter in letters if letter.key not in known}
        content += notes_and_letters.add_letters(connection, run, head.run_id, new)
    return content


def split_events(commit: Commit) -> tuple[dict[int, bytearray], list[EventRow]]:
    """Return the events that stand in the rows of new records, by seq, and the others."""
    rows, records, run_id = commit.events, commit.records, commit.head.run_id
    if len(rows) == 1 and records and rows[0].seq == records[-1].seq:  # as nearly always
        return {rows[0].seq: seal_event_row(run_id, rows[0])}, []
    seqs = {record.seq for record in records}
    of_records: dict[int, bytearray] = {}
    others: list[EventRow] = []
    for row in rows:
        if row.seq in seqs and row.seq not in of_records:
            of_records[row.seq] = seal_event_row(run_id, row)
        else:
            others.append(row)
    return of_records, others


def add_run(connection: sqlite3.Connection, namespace: str, head: Head) -> int:
    """Add the row of a new run, and return its number; ``move_run`` completes it."""
    row = (namespace, head.run_id, *get_indexed_columns(head), *get_moving_columns(namespace, head, 0))
    run = connection.execute(ADD_RUN, row).lastrowid
    assert run is not None
    return run


def move_run(connection: sqlite3.Connection, namespace: str, run: int, head: Head, content: int) -> None:
    """Write all columns of the row of a run; ``content`` is the sum of the seals of its other rows."""
    connection.execute(_SET_INDEXED, (*get_indexed_columns(head), run))
    connection.execute(MOVE_RUN, (*get_moving_columns(namespace, head, content % MODULUS), run))


def change_content(connection: sqlite3.Connection, namespace: str, run: int, head: Head, change: int) -> None:
    """Add ``change`` to the sum of the seals of a run, whose head stays where it is."""
    (content,) = connection.execute("SELECT content FROM runs WHERE id = ?", (run,)).fetchone()
    content = (content + change) % MODULUS
    connection.execute(_SET_CONTENT, (content, seal_head(namespace, head, content), run))


def replace_run(connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int) -> None:
    """Replace all rows of a run by those of a commit, in the open transaction."""
    found = find_runs(connection, namespace, [commit.head.run_id]).get(commit.head.run_id)
    check_head(commit, None if found is None else found[1])
    run = add_run(connection, namespace, commit.head) if found is None else found[0]
    keep_events(connection, run, 1, commit.head.seq)
    cut_events(connection, run, commit.head.seq)
    for statement in DELETE_ROWS_OF_RUN:
        connection.execute(statement, (run,))
    rows: list[CheckpointRow] = []
    content = _add_content(connection, run, commit, rows)
    content += notes_and_letters.take_letters(connection, run, commit.head.run_id, commit.taken)
    _add_rows(connection, rows)
    if commit.blobs:
        add_blobs(connection, namespace, commit.head.family, commit.blobs, big_blob)
    move_run(connection, namespace, run, commit.head, content)


def get_indexed_columns(head: Head) -> IndexedColumns:
    """Return the columns of a run that are in indexes: created, wake_at, status, owner, family."""
    return head.created, head.wake_at, head.status._value_, head.owner, head.family


def get_moving_columns(namespace: str, head: Head, content: int) -> tuple[object, ...]:
    """Return the columns of a run that change from commit to commit, in the order of ``MOVE_RUN``."""
    _, workflow, _, checkpoint, seq, token, _, _, updated, _, _, takeovers, reason, kept = head[:14]
    waits, letters, fingerprint, by, traceback, origin, restored = head[14:]
    return (
        updated,
        workflow,
        _from_hex(checkpoint),
        seq,
        token,
        takeovers,
        # The text of an error may hold half a character, say of a file name that is no Unicode.
        bytearray(reason, "utf-8", "surrogatepass"),
        kept,
        waits,
        letters,
        fingerprint,
        bytearray(by, "utf-8", "surrogatepass"),
        bytearray(traceback, "utf-8", "surrogatepass"),
        origin,
        restored,
        content,
        seal_head(namespace, head, content),
    )


def _add_rows(connection: sqlite3.Connection, rows: list[CheckpointRow]) -> None:
    """Add rows of checkpoints, ``_SEVERAL`` at a time."""
    whole = len(rows) - len(rows) % _SEVERAL
    if whole:
        groups = [rows[first : first + _SEVERAL] for first in range(0, whole, _SEVERAL)]
        connection.executemany(_ADD_SEVERAL, [tuple(chain.from_iterable(group)) for group in groups])
    connection.executemany(ADD_CHECKPOINT, rows[whole:])


def _add_with_keyframes_and_tags(
    connection: sqlite3.Connection, records: Sequence[Record], rows: list[CheckpointRow]
) -> None:
    for record, row in zip(records, rows, strict=True):
        added = connection.execute(ADD_CHECKPOINT, row).lastrowid
        if (keyframe := record.keyframe) is not None:
            connection.execute(ADD_KEYFRAME, (added, keyframe.cut, keyframe.changes, keyframe.values))
        add_tags(connection, added, record)


def add_tags(connection: sqlite3.Connection, row: int | None, record: Record) -> None:
    """Add the tags of a record to its row, with who gave them."""
    texts = [(tag, record.tagged_by.get(tag, "")) for tag in record.tags]
    rows = [
        (row, tag.encode("utf-8", "surrogatepass"), by.encode("utf-8", "surrogatepass")) for tag, by in texts
    ]
    connection.executemany(_ADD_TAG, rows)


def make_checkpoint_row(run: int, record: Record, events: bytearray = _NOTHING) -> CheckpointRow:
    """Return a record and its events as the parameters of ``ADD_CHECKPOINT``."""
    checkpoint_id, _, seq, header, changes, values, new_bytes, keyframe, tags, _, _ = record
    checkpoint = _from_hex(checkpoint_id)
    (find,) = _PREFIX.unpack_from(checkpoint)
    cut = None if keyframe is None else keyframe.cut
    seal = seal_record_parts(checkpoint_id, seq, new_bytes, seal_tags(record) if tags else (), cut)
    return (
        run,
        seq,
        find,
        checkpoint,
        new_bytes,
        seal,
        bytearray(header),
        events,
        # The start of a superstep has neither.
        bytearray(changes) if changes else _NOTHING,
        bytearray(values) if values else _NOTHING,
    )


def _mark_needed_blobs(connection: sqlite3.Connection, namespace: str, commit: Commit) -> None:
    """Mark the blobs that a commit needs as in use; raise ``CheckpointNotFound`` before writing if one is missing."""
    family = connection.execute(FIND_FAMILY, (namespace, commit.head.family)).fetchone() or (None,)
    rows = {
        digest: row
        for digest in commit.needs
        if (row := connection.execute(_FIND_BLOB, (*family, get_prefix(digest), digest)).fetchone())
        is not None
    }
    check_needs(commit, rows)
    (marks,) = connection.execute(_COUNT_MARKS).fetchone()
    for number, mark in rows.values():
        if mark != marks:
            connection.execute(_SET_MARK, (marks, number))


def add_blobs(
    connection: sqlite3.Connection, namespace: str, of: RunId, blobs: Sequence[Blob], big_blob: int
) -> None:
    """Write the rows of blobs that a family does not have yet, and mark those that it has as in use."""
    name = namespace, of
    (marks,) = connection.execute(_COUNT_MARKS).fetchone()
    row = connection.execute(FIND_FAMILY, name).fetchone()
    family = row[0] if row is not None else connection.execute(ADD_FAMILY, name).lastrowid
    for blob in blobs:
        key = family, get_prefix(blob.digest), blob.digest
        known = connection.execute(_FIND_BLOB, key).fetchone()
        if known is None:
            connection.execute(
                ADD_BLOB, (*key, len(blob.data), marks, None if is_big(blob, big_blob) else blob.data)
            )
        elif known[1] != marks:
            connection.execute(_SET_MARK, (marks, known[0]))


def is_big(blob: Blob, big_blob: int) -> bool:
    """Return True if a blob is stored as a file of its own."""
    return len(blob.data) >= big_blob
