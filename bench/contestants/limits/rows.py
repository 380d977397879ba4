"""The rows that our W2 and W7 write, written again without our engine: by the same hop, bare, or to a plain file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from bench.contestants import Job, Outcome, Prepare, Run, make
from bench.contestants.holdfast import RUN, consume, play_many
from bench.contestants.holdfast.plain import chain as plain_chain
from bench.scripts import Params
from holdfast import CheckpointStorage
from holdfast.checkpoint.store import Commit, Letter
from holdfast.stores.common.seals import MODULUS
from holdfast.stores.common.worker_thread import PendingCall, WorkerThread, settle_calls
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import LONGEST_LOG, WAL_PAGES, DatabaseLocation, WalRoom
from holdfast.stores.sqlite.row_writer import (
    ADD_BLOB,
    ADD_CHECKPOINT,
    ADD_FAMILY,
    ADD_KEYFRAME,
    ADD_RUN,
    MOVE_RUN,
    SET_STATUS,
    get_indexed_columns,
    get_moving_columns,
    get_prefix,
    make_checkpoint_row,
    split_events,
)
from holdfast.stores.sqlite.schema import PAGE_SIZE

# The rows of a run are fewer, so that the keyframes of several runs do not meet.
_MOST_ROWS = 10_000

Statement: TypeAlias = tuple[str, Sequence[tuple[Any, ...]]]
"""What is executed, for each of some rows."""


class Recording(MemoryStore):
    """Keeps what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.commits.append(commit)
        return await super().commit(commit)


async def commits_of(params: Params) -> list[Commit]:
    """What our W2 gives to its store."""
    store = Recording()
    await consume(plain_chain(params).with_checkpointing(CheckpointStorage(store)).build(), RUN)
    return store.commits


async def commits_of_many(job: Job) -> list[list[Commit]]:
    """What each run of our W7 gives to its store."""
    store = Recording()
    await play_many(CheckpointStorage(store), "sync", job)
    runs: dict[str, list[Commit]] = {}
    for commit in store.commits:
        runs.setdefault(commit.head.run_id, []).append(commit)
    return list(runs.values())


def statements_of(commits: Sequence[Commit], run: int = 1) -> Iterator[list[Statement]]:
    """For each commit of one run, which has that number, what our store executes to write it, with all it binds."""
    content = written = 0
    for number, commit in enumerate(commits):
        head = commit.head
        events, _ = split_events(commit)  # every row of a run that goes on belongs to a record
        rows = [make_checkpoint_row(run, one, events.get(one.seq, bytearray())) for one in commit.records]
        keyframes = [
            (run * _MOST_ROWS + place, keyframe.cut, keyframe.changes, keyframe.values)
            for place, record in enumerate(commit.records, written + 1)
            if (keyframe := record.keyframe) is not None
        ]
        content = (content + sum(row[5] for row in rows)) % MODULUS
        written += len(rows)
        blobs = [
            (run, get_prefix(blob.digest), blob.digest, len(blob.data), 0, blob.data) for blob in commit.blobs
        ]
        if number == 0:
            statements: list[Statement] = [
                (ADD_RUN, [("", head.run_id, *get_indexed_columns(head), *get_moving_columns("", head, 0))]),
                (ADD_FAMILY, [("", head.family)]),
            ]
        elif (indexed := get_indexed_columns(head)) != get_indexed_columns(commits[number - 1].head):
            statements = [(SET_STATUS, [(*indexed[1:4], run)])]
        else:
            statements = []
        statements += [(ADD_CHECKPOINT, rows), (ADD_KEYFRAME, keyframes), (ADD_BLOB, blobs)]
        statements.append((MOVE_RUN, [(*get_moving_columns("", head, content), run)]))
        yield [statement for statement in statements if statement[1]]


def same_rows(hop: bool) -> Prepare:
    """The same rows in the same tables, on the same kind of connection, with nothing else around them.

    By the same kind of thread, or with no hop in the event loop's own.
    """

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        commits = list(statements_of(await commits_of(job.params)))
        make(job.folder)
        place = DatabaseLocation(job.folder / "runs.db", 60.0)
        handle, room = DatabaseConnection(place, reads_only=False), WalRoom(place.path, LONGEST_LOG)
        connection = handle.open()

        def write(commit: list[Statement]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            room.make(1)
            for sql, rows in commit:
                connection.executemany(sql, rows)
            connection.execute("COMMIT")

        def work(calls: list[PendingCall[list[Statement]]]) -> None:
            for call in calls:
                write(call.task)
            settle_calls(calls)

        lane: WorkerThread[list[Statement]] = WorkerThread("bench-writes", work)

        async def run() -> Outcome:
            for commit in commits:
                if hop:
                    await lane.call(commit)
                else:
                    write(commit)
            return Outcome(job.params["supersteps"], len(commits) - 1)

        yield run
        await lane.close()
        handle.close()

    return prepare


@asynccontextmanager
async def grouped_rows(job: Job) -> AsyncIterator[Run]:
    """The rows of many runs: what all of them commit at a time, in one transaction, in the event loop's own thread."""
    runs = await commits_of_many(job)
    groups = list(groups_of(runs))
    make(job.folder)
    place = DatabaseLocation(job.folder / "runs.db", 60.0)
    handle, room = DatabaseConnection(place, reads_only=False), WalRoom(place.path, LONGEST_LOG)
    connection = handle.open()

    async def run() -> Outcome:
        for group in groups:
            connection.execute("BEGIN IMMEDIATE")
            room.make(len(runs))
            for sql, rows in group:
                connection.executemany(sql, rows)
            connection.execute("COMMIT")
        return Outcome(len(runs), sum(map(len, runs)) - len(runs))

    yield run
    handle.close()


def groups_of(runs: Sequence[Sequence[Commit]]) -> Iterator[list[Statement]]:
    """For each commit of all runs what our store executes to write them together: each statement once for all."""
    written = (statements_of(commits, number) for number, commits in enumerate(runs, 1))
    for commits in zip_longest(*written, fillvalue=[]):
        merged: dict[str, list[tuple[Any, ...]]] = {}
        for sql, rows in chain.from_iterable(commits):
            merged.setdefault(sql, []).extend(rows)
        yield list(merged.items())


Writer: TypeAlias = tuple[Callable[[bytes], None], Callable[[], None]]
"""Writes bytes durably; closes."""


def in_place(begin: Callable[[Path], Writer]) -> Prepare:
    """As many bytes for each superstep, by a function that is called in the event loop's own thread."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        _, *commits = statements_of(await commits_of(job.params))
        held = [b"".join(_bytes(commit)) for commit in commits]
        make(job.folder)
        write, close = begin(job.folder)

        async def run() -> Outcome:
            for data in held:
                write(data)
            return Outcome(job.params["supersteps"], len(held))

        yield run
        close()

    return prepare


def _bytes(commit: list[Statement]) -> Iterator[bytes | bytearray]:
    """What the rows hold, but for the row of the run."""
    for sql, rows in commit:
        if sql != MOVE_RUN:
            yield from (value for row in rows for value in row if isinstance(value, bytes | bytearray))


def appended(folder: Path) -> Writer:
    """Append to a file, and fdatasync it."""
    file = os.open(folder / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)

    def write(data: bytes) -> None:
        os.write(file, data)
        sync(file)

    return write, lambda: os.close(file)


def transaction(folder: Path) -> Writer:
    """One row in one table, in one transaction."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def write(data: bytes) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows (data) VALUES (?)", (data,))
        connection.execute("COMMIT")

    return write, connection.close
