"""SqliteStore: after a sync that failed nothing is believed that is not on the disk.

A failed sync leaves pages in the cache of the system that never reach the disk, though everybody can read them and the
next sync succeeds. The disk of these tests is what a power cut would leave: pages get there by a sync that succeeds, if
they were written since the last sync, whether that succeeded or not.
"""

import errno
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    HoldfastError,
    RunStatus,
    SqliteCheckpointStorage,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from holdfast.checkpoint.store import Letter, Note
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.support.modules import connection
from tests.support.store_parts import DatabaseLocation, begin, first_commit, next_commit

PAGE = 4096


class FailingDisk:
    """The database and its log as they are on the disk; ``failing`` syncs of the log are the next to fail."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path.with_name(path.name + "-wal")
        self.failing = 0
        # Closed at the end only: closing it would drop the locks that SQLite has on the file.
        self._database = os.open(path, os.O_RDONLY)
        self._database_on_disk = self._read_database()
        self._log_on_disk = bytearray()
        self._seen = b""
        self._written: set[int] = set()

    def sync(self) -> None:
        """Sync the log; what was written since the last time counts as written even if that fails."""
        data = self._read_log()
        pages = -(-max(len(data), len(self._seen)) // PAGE)
        dirty = {page for page in range(pages) if self._page(data, page) != self._page(self._seen, page)}
        dirty |= self._written
        self._seen, self._written = data, set()
        if self.failing > 0:
            self.failing -= 1
            raise OSError(errno.EIO, "Input/output error")
        on_disk = self._log_on_disk
        on_disk[len(data) :] = bytes(max(0, len(data) - len(on_disk)))
        for page in dirty:
            piece = self._page(data, page)
            on_disk[page * PAGE : page * PAGE + len(piece)] = piece

    def copied(self) -> None:
        """The pages of the log were copied to the database, which was synced."""
        self._database_on_disk = self._read_database()

    def written(self, begin: int, end: int) -> None:
        """Bytes of the log were written, whether they are other ones than before or not."""
        self._written.update(range(begin // PAGE, -(-end // PAGE)))

    def is_log(self, file: int) -> bool:
        """Return True if an open file is the log."""
        try:
            return os.path.samestat(os.fstat(file), self.log.stat())
        except FileNotFoundError:
            return False

    def after_power_cut(self, folder: Path) -> Path:
        """Copy what the disk holds to a folder, and return its path."""
        folder.mkdir()
        copy = folder / self.path.name
        copy.write_bytes(self._database_on_disk)
        copy.with_name(self.log.name).write_bytes(self._log_on_disk)
        return copy

    def close(self) -> None:
        os.close(self._database)

    def _read_log(self) -> bytes:
        try:
            return self.log.read_bytes()
        except FileNotFoundError:
            return b""

    def _read_database(self) -> bytes:
        return os.pread(self._database, os.fstat(self._database).st_size, 0)

    @staticmethod
    def _page(data: bytes, number: int) -> bytes:
        return data[number * PAGE : (number + 1) * PAGE]


def _connection_of(disk: FailingDisk) -> type[sqlite3.Connection]:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *parameters)
            if sql == "COMMIT" or "wal_checkpoint" in sql:
                try:
                    disk.sync()
                except OSError as error:
                    failure = sqlite3.OperationalError("disk I/O error")
                    failure.sqlite_errorcode, failure.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
                    raise failure from error
                if sql != "COMMIT":
                    disk.copied()
            return cursor

    return Connection


@pytest.fixture
async def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FailingDisk]:
    """A store of which someone else has a connection: what SQLite has seen of the log, it goes on to see."""
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    disk = FailingDisk(path)
    fsync, write = os.fsync, os.write

    def synced(file: int) -> None:
        disk.sync() if disk.is_log(file) else fsync(file)

    def written(file: int, data: bytes) -> int:
        if not disk.is_log(file):
            return write(file, data)
        position = os.lseek(file, 0, os.SEEK_CUR)
        count = write(file, data)
        disk.written(position, position + count)
        return count

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "write", written)
    monkeypatch.setattr(connection, "CONNECTION_CLASS", _connection_of(disk))
    other = sqlite3.connect(path)
    other.execute("SELECT count(*) FROM runs").fetchone()
    yield disk
    other.close()
    disk.close()


def counting() -> Workflow:
    @executor(id="count")
    async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
        await (ctx.send_message(number + 1) if number < 12 else ctx.yield_output(number))

    return WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count).build()


async def drive(storage: SqliteCheckpointStorage, disk: FailingDisk, failures: int) -> tuple[int, Any]:
    """Run with syncs that fail behind superstep 5; the last superstep that was told, and the result or the error."""
    told = 0
    try:
        run = await counting().start(1, run_id="r", storage=storage)
        async for event in run.watch_stream():
            if isinstance(event, SuperStepCompletedEvent):
                told = event.superstep
                if told == 5:
                    disk.failing = failures
        return told, await run.wait_for_completion()
    except HoldfastError as error:
        return told, error


async def superstep_after_power_cut(disk: FailingDisk, folder: Path) -> int:
    async with SqliteCheckpointStorage(disk.after_power_cut(folder)) as storage:
        assert (await storage.verify()).ok
        latest = await storage.get_latest(run_id="r")
        assert latest is not None
        return latest.superstep


async def judge_run(disk: FailingDisk, folder: Path) -> None:
    """No superstep is lost that was told after a sync failed once."""
    async with SqliteCheckpointStorage(disk.path) as storage:
        told, result = await drive(storage, disk, failures=1)
        assert result.status is RunStatus.COMPLETED
        assert await superstep_after_power_cut(disk, folder / "cut") == told == 12


async def test_a_run_that_goes_on_after_a_failed_sync_is_on_the_disk(
    disk: FailingDisk, tmp_path: Path
) -> None:
    await judge_run(disk, tmp_path)
    assert not disk.path.with_name("runs.db-unsynced").exists()


def _only_fence(connection: sqlite3.Connection, place: DatabaseLocation) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('fence', hex(randomblob(8)))")
    connection.execute("COMMIT")


async def test_planted_store_that_believes_what_it_sees(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "secure_log", _only_fence)
    with pytest.raises(AssertionError):
        await judge_run(disk, tmp_path)


async def test_a_run_on_a_disk_that_stays_ill_fails_and_can_be_resumed(
    disk: FailingDisk, tmp_path: Path
) -> None:
    async with SqliteCheckpointStorage(disk.path) as storage:
        told, error = await drive(storage, disk, failures=1_000_000)
        assert type(error) is StorageError
        assert "when it is well again, resume the runs" in str(error)
        assert "copy the file together with its '-wal' file" in error.__notes__[0]
        assert await superstep_after_power_cut(disk, tmp_path / "cut") >= told
        # Nobody believes what can be seen: neither this storage nor one that is opened later, nor a copy.
        later = SqliteCheckpointStorage(disk.path)
        for look in (
            storage.list_runs(),
            later.get_latest(run_id="r"),
            storage.backup(tmp_path / "copy.db"),
            later.list_checkpoints(run_id="r"),
        ):
            with pytest.raises(StorageError, match="until one succeeds nothing of it is believed"):
                await look
        disk.failing = 0
        # Who looks first makes it durable.
        latest = await later.get_latest(run_id="r")
        assert latest is not None
        assert await superstep_after_power_cut(disk, tmp_path / "later") == latest.superstep >= told
        await later.close()
        run = await counting().resume(run_id="r", storage=storage)
        assert (await run.wait_for_completion()).outputs == [12]
        assert await superstep_after_power_cut(disk, tmp_path / "end") == 12


async def test_letters_and_notes_in_doubt_are_durable_when_they_are_told(
    disk: FailingDisk, tmp_path: Path
) -> None:
    store = SqliteStore(disk.path)
    head = await begin(store, "r")
    disk.failing = 1
    with pytest.raises(StorageError):
        await store.leave(RunId("r"), 1, [Letter("k", b"1")])
    assert (await store.leave(RunId("r"), 1, [Letter("k", b"1")])).refused == ("k",)
    disk.failing = 1
    with pytest.raises(StorageError):
        await store.commit(next_commit(head)._replace(notes=(Note("n", b"2"),)))
    seen = await store.head(RunId("r")), await store.notes(RunId("r")), await store.inbox(RunId("r"))
    after = SqliteStore(disk.after_power_cut(tmp_path / "cut"))
    on_disk = await after.head(RunId("r")), await after.notes(RunId("r")), await after.inbox(RunId("r"))
    assert on_disk == seen
    await after.close()
    await store.close()


async def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_read(
    disk: FailingDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = SqliteStore(disk.path)
    await killed.open()
    with monkeypatch.context() as without_sync:
        without_sync.setattr(disk, "sync", lambda: None)
        await killed.commit(first_commit("r"))
    store = SqliteStore(disk.path)
    disk.failing = 1
    with pytest.raises(StorageError, match=r"opening .*runs.db' failed: the disk or file system"):
        await store.head(RunId("r"))
    assert (seen := await store.head(RunId("r"))) is not None
    after = SqliteStore(disk.after_power_cut(tmp_path / "cut"))
    assert await after.head(RunId("r")) == seen
    for one in (after, store, killed):
        await one.close()


async def test_nothing_is_told_before_the_name_of_a_new_log_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite syncs the folder of a new log with its first commit, and passes over an error of that."""
    fsync, failing = os.fsync, [True]

    def synced(file: int) -> None:
        if failing and os.path.samestat(os.fstat(file), tmp_path.stat()):
            failing.pop()
            raise OSError(errno.EIO, "Input/output error", str(tmp_path))
        fsync(file)

    monkeypatch.setattr(os, "fsync", synced)
    store = SqliteStore(tmp_path / "runs.db")
    with pytest.raises(StorageError, match=r"opening .*runs.db' failed: the disk or file system"):
        await store.commit(first_commit("r"))
    await store.commit(first_commit("r"))
    assert await store.head(RunId("r")) is not None
    await store.close()
