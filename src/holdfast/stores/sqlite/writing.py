"""Commits become rows: those of many runs in one transaction."""

from __future__ import annotations

import sqlite3

from holdfast.checkpoint.store import Blob, Commit, Expected, Head, Record
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import CheckpointId
from holdfast.stores.compare import check_head
from holdfast.stores.sqlite.failures import patiently, storage_error
from holdfast.stores.sqlite.handle import Handle, Place
from holdfast.stores.sqlite.lane import Call, settle

_FIND_RUN = "SELECT id, checkpoint, token, created FROM runs WHERE namespace = ? AND run = ?"
_ADD_RUN = (
    "INSERT INTO runs (namespace, run, created, updated, workflow, family, checkpoint, seq, token, status, owner, "
    "wake_at, takeovers, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# Not `created`, which is in an index and would make one page more to write.
_MOVE_RUN = (
    "UPDATE runs SET updated = ?, workflow = ?, family = ?, checkpoint = ?, seq = ?, token = ?, status = ?, "
    "owner = ?, wake_at = ?, takeovers = ?, reason = ? WHERE id = ?"
)
_SET_CREATED = "UPDATE runs SET created = ? WHERE id = ?"
_ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (run, seq, find, checkpoint, new_bytes, header, changes, small_values) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_KEYFRAME = "INSERT INTO keyframes (checkpoint, cut, changes, small_values) VALUES (?, ?, ?, ?)"
FIND_FAMILY = "SELECT id FROM families WHERE namespace = ? AND family = ?"
_ADD_FAMILY = "INSERT INTO families (namespace, family) VALUES (?, ?)"
_HAS_BLOB = "SELECT 1 FROM blobs WHERE family = ? AND find = ? AND digest = ?"
_ADD_BLOB = "INSERT INTO blobs (family, find, digest, size, data) VALUES (?, ?, ?, ?, ?)"

_DOUBT = ". The commit may have happened or not: read the head again before anything else"


def prefix(name: bytes) -> int:
    """The first 8 bytes of a digest as SQLite's kind of integer."""
    return int.from_bytes(name[:8], "big", signed=True)


class Writer:
    """Writes what waits, in one transaction if it can."""

    def __init__(self, place: Place, handle: Handle, namespace: str, big_blob: int) -> None:
        self.transactions = 0
        self._place = place
        self._handle = handle
        self._namespace = namespace
        self._big_blob = big_blob

    def work(self, calls: list[Call[Commit]]) -> None:
        """Write commits and tell those who wait for them."""
        with self._handle.gate:
            self._write(calls)
        settle(calls)

    def _write(self, calls: list[Call[Commit]]) -> None:
        try:
            connection = self._handle.connection()
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._place.busy_seconds)
        except (sqlite3.Error, StorageError) as error:
            self._fail(calls, error, "writing to")
            return
        try:
            for call in calls:
                self._apply(connection, call)
        except Exception as error:
            self._handle.drop()
            if len(calls) == 1:
                self._fail(calls, error, "writing to")
            else:  # one of them cannot be written: each alone, so that the others can
                for call in calls:
                    self._write([call])
            return
        self._finish(connection, calls)

    def _apply(self, connection: sqlite3.Connection, call: Call[Commit]) -> None:
        call.error = None
        try:
            write_commit(connection, self._namespace, call.task, self._big_blob)
        except HeadMoved as error:  # before anything of it was written
            call.error = error

    def _finish(self, connection: sqlite3.Connection, calls: list[Call[Commit]]) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # After a failed sync nobody knows what is on the disk, and a second try would not find out.
            self._place.epoch += 1
            self._handle.drop()
            self._fail([call for call in calls if call.error is None], error, "committing to", _DOUBT)
        else:
            self.transactions += 1

    def _fail(self, calls: list[Call[Commit]], error: BaseException, doing: str, doubt: str = "") -> None:
        for call in calls:
            call.error = storage_error(error, self._place.path, doing, self._place.busy_seconds, doubt)


def write_commit(connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int) -> None:
    """Write the rows of a commit in the transaction that is open; raises ``HeadMoved`` before it writes any."""
    head = commit.head
    row = connection.execute(_FIND_RUN, (namespace, head.run_id)).fetchone()
    if row is None:
        check_head(commit, None)
        run = connection.execute(_ADD_RUN, (namespace, head.run_id, head.created, *_moving(head))).lastrowid
        assert run is not None
    else:
        run, checkpoint, token, created = row
        check_head(commit, Expected(CheckpointId(checkpoint.hex()), token))
        connection.execute(_MOVE_RUN, (*_moving(head), run))
        if created != head.created:
            connection.execute(_SET_CREATED, (head.created, run))
    for record in commit.records:
        _add_record(connection, run, record)
    if commit.blobs:
        _add_blobs(connection, namespace, commit, big_blob)


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


def _add_blobs(connection: sqlite3.Connection, namespace: str, commit: Commit, big_blob: int) -> None:
    name = namespace, commit.head.family
    row = connection.execute(FIND_FAMILY, name).fetchone()
    family = row[0] if row is not None else connection.execute(_ADD_FAMILY, name).lastrowid
    for blob in commit.blobs:
        key = family, prefix(blob.digest), blob.digest
        if connection.execute(_HAS_BLOB, key).fetchone() is None:
            connection.execute(
                _ADD_BLOB, (*key, len(blob.data), None if is_big(blob, big_blob) else blob.data)
            )


def is_big(blob: Blob, big_blob: int) -> bool:
    """Whether a blob is a file of its own."""
    return len(blob.data) >= big_blob
