"""Writes commits, letters and other changes of many runs in one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.store import Commit, LeaveResult, Letter
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.common.worker_thread import PendingCall, settle_calls
from holdfast.stores.sqlite import notes_and_letters
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import LONGEST_LOG, DatabaseLocation, WalRoom, set_log_size
from holdfast.stores.sqlite.row_reader import read_head
from holdfast.stores.sqlite.row_writer import MOST_TOGETHER, RunCache, change_content, write_commits
from holdfast.stores.sqlite.sqlite_errors import make_storage_error, retry_while_busy

# Only commits of about the size of a superstep are written in the thread of an event loop.
_FEW_RECORDS = 2
_FEW_BYTES = 64 * 1024
# How long such a transaction may take, and how much longer for each commit in it. After a slower one, so many
# transactions are left to the thread.
_LONG_SECONDS = 0.005
_EACH_SECONDS = 0.0002
_LEFT_TO_THE_THREAD = 100

_DOUBTFUL_COMMIT = ". The commit may have happened or not: read the head again before anything else"
_DOUBTFUL_LETTERS = ". The letters may be there or not: leave them again, and keys that are refused were left"
_DOUBTFUL_CHANGE = ". It may have happened or not: do it again"


class ChangeRefused(StorageError):
    """A change was refused; nothing was written."""


class LettersForRun(NamedTuple):
    """Letters to leave in the inbox of a run."""

    run_id: RunId
    letters: tuple[Letter, ...]
    most: int | None
    """The largest number of letters that may wait then."""


Change: TypeAlias = Callable[[sqlite3.Connection], Any]
"""Any other work in a transaction: all of it is written, or nothing if it raises."""

WriteTask: TypeAlias = Commit | LettersForRun | Change


class TransactionWriter:
    """Writes the tasks that wait, in one transaction if possible."""

    def __init__(
        self, location: DatabaseLocation, connection: DatabaseConnection, namespace: str, big_blob: int
    ) -> None:
        self.transactions = 0
        self._wal_room = WalRoom(location.path, LONGEST_LOG)
        self._location = location
        self._connection = connection
        self._namespace = namespace
        self._big_blob = big_blob
        self._cache = RunCache()
        self._small_log: sqlite3.Connection | None = None
        """The connection whose log is kept small, if any."""
        self._left = 0
        """Counts the transactions that are still left to the thread, because the disk was slow."""

    @property
    def log_room(self) -> int:
        """Count the bytes by which the log was lengthened in advance."""
        return self._wal_room.added

    def work(self, calls: list[PendingCall[WriteTask]]) -> None:
        """Write, and give the callers their results."""
        with self._connection.gate:
            self._write(calls)
        settle_calls(calls)

    def work_at_once(self, calls: list[PendingCall[WriteTask]]) -> bool:
        """Write in the thread of the caller, if that is quick and nobody is in the way; False if nothing was done.

        An error before the commit also gives False: the thread tries again, finds it, and can wait. The thread may be
        amid a transaction that is as quick: this waits for it, so that its callers and these go on together.
        """
        if self._left > 0:
            self._left -= 1
            return False
        patience = _LONG_SECONDS + len(calls) * _EACH_SECONDS
        if not all(map(_is_small, calls)):
            return False
        begin = 0.0
        if not self._connection.gate.acquire(timeout=patience):
            return False
        try:
            begin = time.monotonic()
            return self._connection.is_open and self._write_at_once(calls)
        finally:
            self._connection.gate.release()
            if time.monotonic() - begin > patience:
                self._left = _LEFT_TO_THE_THREAD

    def _write_at_once(self, calls: list[PendingCall[WriteTask]]) -> bool:
        connection: sqlite3.Connection | None = None
        filled = False
        try:
            connection = self._begin(calls, patience=0)
            self._fill(connection, calls)
            filled = True
            return self._finish(connection, calls)
        except BaseException as error:
            expected = isinstance(error, Exception)
            if filled:  # the commit may have happened, or have failed and yet appear
                self._location.distrust()
            if connection is not None or not expected:
                self._connection.drop()
            if filled or not expected:  # Python runs signal handlers in this thread, whatever it does
                raise
            return False

    def _write(self, calls: list[PendingCall[WriteTask]]) -> None:
        try:
            connection = self._begin(calls, self._location.busy_seconds)
        except Exception as error:
            self._fail(calls, error, "writing to")
            return
        try:
            self._fill(connection, calls)
        except Exception as error:
            self._connection.drop()
            if len(calls) == 1:
                self._fail(calls, error, "writing to")
            else:  # one of them cannot be written: each alone, so that the others can
                for call in calls:
                    self._write([call])
            return
        if not self._finish(connection, calls):
            self._write(calls)

    def _begin(self, calls: list[PendingCall[WriteTask]], patience: float) -> sqlite3.Connection:
        connection = self._connection.open()
        self._set_log_size(connection, calls)
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), patience)
        return connection

    def _fill(self, connection: sqlite3.Connection, calls: list[PendingCall[WriteTask]]) -> None:
        """Write the tasks in the open transaction."""
        if self._small_log is not connection:
            self._wal_room.make(len(calls))
        self._do_tasks(connection, calls)

    def _set_log_size(self, connection: sqlite3.Connection, calls: list[PendingCall[WriteTask]]) -> None:
        """Keep the log small while runs with retention are written, and only then."""
        retentions = [call.task.head.retention for call in calls if isinstance(call.task, Commit)]
        small = any(retentions)
        if retentions and small != (self._small_log is connection):
            set_log_size(connection, small)
            self._small_log = connection if small else None

    def _do_tasks(self, connection: sqlite3.Connection, calls: list[PendingCall[WriteTask]]) -> None:
        """Do the tasks in their order, but write commits of different runs together."""
        together: dict[RunId, tuple[PendingCall[WriteTask], Commit]] = {}
        for call in calls:
            call.error = None
            task = call.task
            if not isinstance(task, Commit):
                self._commit(connection, together)
                self._change(connection, call, task)
                continue
            if call.doubtful and self._was_committed(connection, call, task):
                continue
            run_id = task.head.run_id
            if run_id in together or len(together) == MOST_TOGETHER:
                self._commit(connection, together)
            together[run_id] = call, task
        self._commit(connection, together)

    def _was_committed(
        self, connection: sqlite3.Connection, call: PendingCall[WriteTask], commit: Commit
    ) -> bool:
        """Return True if a commit is in the store already; then the call has its result."""
        head = commit.head
        if read_head(connection, self._namespace, head.run_id) != head:
            return False
        run = notes_and_letters.find_run(connection, self._namespace, head.run_id)
        assert run is not None
        call.result = notes_and_letters.read_waiting_letters(connection, run)
        return True

    def _commit(
        self, connection: sqlite3.Connection, together: dict[RunId, tuple[PendingCall[WriteTask], Commit]]
    ) -> None:
        """Write the collected commits, and empty the collection."""
        if not together:
            return
        commits = [commit for _, commit in together.values()]
        written = write_commits(
            connection, self._namespace, commits, self._big_blob, self._cache.get_valid(connection)
        )
        for (call, _), result in zip(together.values(), written, strict=True):
            if isinstance(result, list):
                call.result = result
            else:
                call.error = result
        together.clear()

    def _change(
        self, connection: sqlite3.Connection, call: PendingCall[WriteTask], task: LettersForRun | Change
    ) -> None:
        self._cache.clear()
        try:
            if isinstance(task, LettersForRun):
                call.result = _leave_letters(connection, self._namespace, task)
            else:
                call.result = task(connection)
        except (
            HeadMoved,
            CheckpointCorrupt,
            CheckpointNotFound,
            ChangeRefused,
        ) as error:  # before anything of it was written
            call.error = error

    def _finish(self, connection: sqlite3.Connection, calls: list[PendingCall[WriteTask]]) -> bool:
        """Commit the transaction; False if a fork in a signal handler has undone it before that."""
        try:
            connection.execute("COMMIT")
        except sqlite3.ProgrammingError:  # it is closed
            return False
        except sqlite3.Error as error:
            # After a failed sync nobody knows what is on the disk, and a second try would not find out.
            self._location.distrust()
            self._connection.drop()
            for call in calls:
                if call.error is None:
                    self._fail([call], error, "committing to", _explain_doubt(call.task))
        else:
            self.transactions += 1
        return True

    def _fail(
        self, calls: list[PendingCall[WriteTask]], error: BaseException, doing: str, doubt: str = ""
    ) -> None:
        for call in calls:
            call.error = make_storage_error(
                error, self._location.path, doing, self._location.busy_seconds, doubt
            )


def _is_small(call: PendingCall[WriteTask]) -> bool:
    """Return True if writing the task takes no longer than the sync behind it."""
    task = call.task
    if not isinstance(task, Commit) or len(task.records) > _FEW_RECORDS:
        return False
    return not task.blobs or sum([len(blob.data) for blob in task.blobs]) <= _FEW_BYTES


def _explain_doubt(task: WriteTask) -> str:
    if isinstance(task, Commit):
        return _DOUBTFUL_COMMIT
    return _DOUBTFUL_LETTERS if isinstance(task, LettersForRun) else _DOUBTFUL_CHANGE


def _leave_letters(connection: sqlite3.Connection, namespace: str, task: LettersForRun) -> LeaveResult:
    """Leave letters in the open transaction; raise ``CheckpointCorrupt`` before writing any."""
    head = read_head(connection, namespace, task.run_id)
    run = notes_and_letters.find_run(connection, namespace, task.run_id)
    if head is None or run is None:
        return LeaveResult(None)
    refused = notes_and_letters.find_known_keys(connection, run, [letter.key for letter in task.letters])
    if not refused and task.most is not None:
        waiting = notes_and_letters.count_waiting_letters(connection, run)
        if waiting + len(task.letters) > task.most:
            return LeaveResult(head, is_full=True)
    if not refused and task.letters:
        change = notes_and_letters.add_letters(connection, run, task.run_id, dict(task.letters))
        change_content(connection, namespace, run, head, change)
    return LeaveResult(head, refused)


def use_up_keys(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, keys: Sequence[str]
) -> LeaveResult:
    """Use up keys of letters in the open transaction, unless one of them was used before."""
    head = read_head(connection, namespace, run_id)
    run = notes_and_letters.find_run(connection, namespace, run_id)
    if head is None or run is None:
        return LeaveResult(None)
    refused = notes_and_letters.find_known_keys(connection, run, keys)
    if keys and not refused:
        change = notes_and_letters.add_letters(connection, run, run_id, dict.fromkeys(keys))
        change_content(connection, namespace, run, head, change)
    return LeaveResult(head, refused)
