"""The rows that our W2 writes, written again without our engine: through the same hop, bare, or to a plain file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.contestants import Job, Outcome, Prepare, Run, make
from bench.contestants.holdfast import RUN, consume
from bench.contestants.holdfast.plain import chain
from bench.scripts import Params
from holdfast import SqliteCheckpointStorage
from holdfast.stores.sqlite.handle import WAL_PAGES
from holdfast.stores.sqlite.lane import Call, Lane, settle
from holdfast.stores.sqlite.schema import PAGE_SIZE, create

Row: TypeAlias = tuple[Any, ...]

_MOVE = "UPDATE runs SET checkpoint = ?, seq = ?, updated = ? WHERE id = ?"


@dataclass
class Written:
    """One commit: the rows of its checkpoints and keyframes."""

    rows: list[Row]
    keyframes: list[Row]

    @property
    def size(self) -> int:
        """The bytes of what the rows hold."""
        held = (value for row in (*self.rows, *self.keyframes) for value in row)
        return sum(len(value) for value in held if isinstance(value, bytes))


async def commits_of(params: Params, folder: Path) -> tuple[Row, list[Written]]:
    """Run our W2, and read from its database the row of the run and what each commit wrote."""
    make(folder)
    async with SqliteCheckpointStorage(folder / "runs.db") as storage:
        await consume(chain(params).with_checkpointing(storage).build(), RUN)
    connection = sqlite3.connect(folder / "runs.db")
    (run,) = connection.execute("SELECT * FROM runs").fetchall()
    rows = connection.execute("SELECT * FROM checkpoints ORDER BY id").fetchall()
    keyframes = {row[0]: row for row in connection.execute("SELECT * FROM keyframes")}
    connection.close()
    shutil.rmtree(folder)
    # The first commit has the input and the start of superstep 1; each other one the end of a superstep and the
    # start of the next.
    count = params["supersteps"]
    first = len(rows) - 2 * count + 1
    groups = [rows[:first], *(rows[index : index + 2] for index in range(first, len(rows), 2))]
    return run, [
        Written(group, [keyframes[row[0]] for row in group if row[0] in keyframes]) for group in groups
    ]


def database(path: Path) -> sqlite3.Connection:
    """A connection as our store has it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    return connection


def _insert(table: str, row: Row) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})"


def through_the_hop() -> Prepare:
    """The same rows in the same tables, by the same kind of thread, with nothing else around them."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        run_row, commits = await commits_of(job.params, job.folder / "source")
        connection = database(job.folder / "runs.db")
        create(connection)
        connection.execute(_insert("runs", run_row), run_row)
        add = _insert("checkpoints", commits[0].rows[0])
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(checkpoints)")]
        checkpoint, seq = columns.index("checkpoint"), columns.index("seq")

        def write(calls: list[Call[Written]]) -> None:
            for call in calls:
                last = call.task.rows[-1]
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_MOVE, (last[checkpoint], last[seq], last[0], run_row[0]))
                connection.executemany(add, call.task.rows)
                for keyframe in call.task.keyframes:
                    connection.execute(_insert("keyframes", keyframe), keyframe)
                connection.execute("COMMIT")
            settle(calls)

        lane: Lane[Written] = Lane("bench-writes", write, connection.close)

        async def run() -> Outcome:
            for commit in commits:
                await lane.call(commit)
            return Outcome(job.params["supersteps"], len(commits) - 1)

        yield run
        await lane.close()

    return prepare


def in_place(begin: Callable[[Path], tuple[Callable[[int], None], Callable[[], None]]]) -> Prepare:
    """As many bytes for each superstep, by a function that is called in the event loop's own thread."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        _, commits = await commits_of(job.params, job.folder / "source")
        sizes = [commit.size for commit in commits[1:]]
        write, close = begin(job.folder)

        async def run() -> Outcome:
            for size in sizes:
                write(size)
            return Outcome(job.params["supersteps"], len(sizes))

        yield run
        close()

    return prepare


def appended(folder: Path) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Append to a file, and fdatasync it."""
    file = os.open(folder / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)

    def write(size: int) -> None:
        os.write(file, os.urandom(size))
        sync(file)

    return write, lambda: os.close(file)


def transaction(folder: Path) -> tuple[Callable[[int], None], Callable[[], None]]:
    """One row in one table, in one transaction."""
    connection = database(folder / "bare.db")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def write(size: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows (data) VALUES (?)", (os.urandom(size),))
        connection.execute("COMMIT")

    return write, connection.close
