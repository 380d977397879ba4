"""What waits to be written, in one transaction: commits, letters and blobs of many runs."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.store import Commit, Left, Letter
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import mail
from holdfast.stores.sqlite.failures import patiently, storage_error
from holdfast.stores.sqlite.handle import LONGEST_LOG, Handle, Place, set_log
from holdfast.stores.sqlite.reading import read_head
from holdfast.stores.sqlite.run_cache import Known
from holdfast.stores.sqlite.wal import Room
from holdfast.stores.sqlite.worker_thread import Call, settle
from holdfast.stores.sqlite.writing import TOGETHER, change_content, write_commits

# What is written in the thread of an event loop: commits with not much more in them than supersteps have as a rule.
_FEW_RECORDS = 2
_FEW_BYTES = 64 * 1024
# How long such a transaction may take, and how much longer for each commit in it; if it took longer, so many are left
# to the thread.
_LONG_SECONDS = 0.005
_EACH_SECONDS = 0.0002
_LEFT_TO_THE_THREAD = 100

_DOUBTFUL_COMMIT = ". The commit may have happened or not: read the head again before anything else"
_DOUBTFUL_MAIL = ". The letters may be there or not: leave them again, and keys that are refused were left"
_DOUBTFUL_UPKEEP = ". It may have happened or not: do it again"


class Refused(StorageError):
    """What was asked for must not be done; nothing was written."""


class Mail(NamedTuple):
    """Letters for a run."""

    run_id: RunId
    letters: tuple[Letter, ...]


Upkeep: TypeAlias = Callable[[sqlite3.Connection], Any]
"""Something else to be done in a transaction: all of it, or nothing if it raises."""

Task: TypeAlias = Commit | Mail | Upkeep


class Writer:
    """Writes what waits, in one transaction if it can."""

    def __init__(self, place: Place, handle: Handle, namespace: str, big_blob: int) -> None:
        self.transactions = 0
        self.room = Room(place.path, LONGEST_LOG)
        self._place = place
        self._handle = handle
        self._namespace = namespace
        self._big_blob = big_blob
        self._known = Known()
        self._small_log: sqlite3.Connection | None = None
        """The connection whose log is kept small, if it is."""
        self._left = 0
        """How many transactions are left to the thread, because the disk was slow."""

    def work(self, calls: list[Call[Task]]) -> None:
        """Write, and tell those who wait for it."""
        with self._handle.gate:
            self._write(calls)
        settle(calls)

    def work_at_once(self, calls: list[Call[Task]]) -> bool:
        """Write in the thread of the caller, if that is quick and nobody is in the way; if not, nothing was done.

        What goes wrong before the commit is not told either: whoever tries again will find it, and can wait. The thread
        may be amid a transaction that is as quick: that is waited for, so that those who wait for it go on together
        with those who wait for this.
        """
        if self._left > 0:
            self._left -= 1
            return False
        patience = _LONG_SECONDS + len(calls) * _EACH_SECONDS
        if not all(map(_is_small, calls)):
            return False
        begin = 0.0
        if not self._handle.gate.acquire(timeout=patience):
            return False
        try:
            begin = time.monotonic()
            return self._handle.is_open and self._written_at_once(calls)
        finally:
            self._handle.gate.release()
            if time.monotonic() - begin > patience:
                self._left = _LEFT_TO_THE_THREAD

    def _written_at_once(self, calls: list[Call[Task]]) -> bool:
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
                self._place.distrust()
            if connection is not None or not expected:
                self._handle.drop()
            if filled or not expected:  # signals are told to the thread of an event loop, whatever it does
                raise
            return False

    def _write(self, calls: list[Call[Task]]) -> None:
        try:
            connection = self._begin(calls, self._place.busy_seconds)
        except Exception as error:
            self._fail(calls, error, "writing to")
            return
        try:
            self._fill(connection, calls)
        except Exception as error:
            self._handle.drop()
            if len(calls) == 1:
                self._fail(calls, error, "writing to")
            else:  # one of them cannot be written: each alone, so that the others can
                for call in calls:
                    self._write([call])
            return
        if not self._finish(connection, calls):
            self._write(calls)

    def _begin(self, calls: list[Call[Task]], patience: float) -> sqlite3.Connection:
        connection = self._handle.connection()
        self._set_log(connection, calls)
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), patience)
        return connection

    def _fill(self, connection: sqlite3.Connection, calls: list[Call[Task]]) -> None:
        """Write what is asked for in the transaction that is open."""
        if self._small_log is not connection:
            self.room.make(len(calls))
        self._apply(connection, calls)

    def _set_log(self, connection: sqlite3.Connection, calls: list[Call[Task]]) -> None:
        """Keep the log small while runs are written of which not everything is kept, and only then."""
        retentions = [call.task.head.retention for call in calls if isinstance(call.task, Commit)]
        small = any(retentions)
        if retentions and small != (self._small_log is connection):
            set_log(connection, small)
            self._small_log = connection if small else None

    def _apply(self, connection: sqlite3.Connection, calls: list[Call[Task]]) -> None:
        """Do what is asked for in the order in which it was, but for commits of different runs: those together."""
        together: dict[RunId, tuple[Call[Task], Commit]] = {}
        for call in calls:
            call.error = None
            task = call.task
            if not isinstance(task, Commit):
                self._commit(connection, together)
                self._do(connection, call, task)
                continue
            if call.doubtful and self._was_done(connection, call, task):
                continue
            run_id = task.head.run_id
            if run_id in together or len(together) == TOGETHER:
                self._commit(connection, together)
            together[run_id] = call, task
        self._commit(connection, together)

    def _was_done(self, connection: sqlite3.Connection, call: Call[Task], commit: Commit) -> bool:
        """Whether a commit is in the store already; then the call has its result."""
        head = commit.head
        if read_head(connection, self._namespace, head.run_id) != head:
            return False
        run = mail.find_run(connection, self._namespace, head.run_id)
        assert run is not None
        call.result = mail.waiting_letters(connection, run)
        return True

    def _commit(
        self, connection: sqlite3.Connection, together: dict[RunId, tuple[Call[Task], Commit]]
    ) -> None:
        """Write commits, of which none is left then."""
        if not together:
            return
        commits = [commit for _, commit in together.values()]
        written = write_commits(
            connection, self._namespace, commits, self._big_blob, self._known.runs(connection)
        )
        for (call, _), result in zip(together.values(), written, strict=True):
            if isinstance(result, list):
                call.result = result
            else:
                call.error = result
        together.clear()

    def _do(self, connection: sqlite3.Connection, call: Call[Task], task: Mail | Upkeep) -> None:
        self._known.forget()
        try:
            if isinstance(task, Mail):
                call.result = _leave(connection, self._namespace, task)
            else:
                call.result = task(connection)
        except (
            HeadMoved,
            CheckpointCorrupt,
            CheckpointNotFound,
            Refused,
        ) as error:  # before anything of it was written
            call.error = error

    def _finish(self, connection: sqlite3.Connection, calls: list[Call[Task]]) -> bool:
        """Commit; false if a fork in a signal handler has undone the transaction before that."""
        try:
            connection.execute("COMMIT")
        except sqlite3.ProgrammingError:  # it is closed
            return False
        except sqlite3.Error as error:
            # After a failed sync nobody knows what is on the disk, and a second try would not find out.
            self._place.distrust()
            self._handle.drop()
            for call in calls:
                if call.error is None:
                    self._fail([call], error, "committing to", _doubt(call.task))
        else:
            self.transactions += 1
        return True

    def _fail(self, calls: list[Call[Task]], error: BaseException, doing: str, doubt: str = "") -> None:
        for call in calls:
            call.error = storage_error(error, self._place.path, doing, self._place.busy_seconds, doubt)


def _is_small(call: Call[Task]) -> bool:
    """Whether writing it takes about as long as the sync behind it, or less."""
    task = call.task
    if not isinstance(task, Commit) or len(task.records) > _FEW_RECORDS:
        return False
    return not task.blobs or sum([len(blob.data) for blob in task.blobs]) <= _FEW_BYTES


def _doubt(task: Task) -> str:
    if isinstance(task, Commit):
        return _DOUBTFUL_COMMIT
    return _DOUBTFUL_MAIL if isinstance(task, Mail) else _DOUBTFUL_UPKEEP


def _leave(connection: sqlite3.Connection, namespace: str, task: Mail) -> Left:
    """Leave letters in the transaction that is open; raises ``CheckpointCorrupt`` before it writes any."""
    head = read_head(connection, namespace, task.run_id)
    run = mail.find_run(connection, namespace, task.run_id)
    if head is None or run is None:
        return Left(None)
    refused = mail.known_keys(connection, run, task.letters)
    if not refused and task.letters:
        change = mail.leave_letters(connection, run, task.run_id, task.letters)
        change_content(connection, namespace, run, head, change)
    return Left(head, refused)
