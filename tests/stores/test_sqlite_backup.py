"""Copies of a SQLite store that is in use: complete, or not there."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import (
    CheckpointCorrupt,
    RunStatus,
    SqliteCheckpointStorage,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from holdfast.checkpoint.store import RunQuery
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.durable import die_after_link, die_at_report, killed_by_itself, run_alone
from tests.support.modules import backup
from tests.support.runs import soon
from tests.support.store_parts import (
    LARGE,
    DatabaseLocation,
    back_up,
    begin,
    move_on,
    read_run,
    sample_blob,
    sample_letters,
)
from tests.support.transfer import noise

RUNS = 10


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SqliteCheckpointStorage]:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        yield storage


class Writers:
    """A workflow that goes on until it is told to stop; its output does not depend on when that is."""

    def __init__(self) -> None:
        self.enough = asyncio.Event()
        self.steps: dict[str, int] = {}
        self.moved = asyncio.Condition()

    def workflow(self, storage: SqliteCheckpointStorage) -> Workflow:
        @executor
        async def step(number: int, ctx: WorkflowContext[int, int]) -> None:
            large = number % 4 == 1
            await ctx.append_state(
                "line", noise(300_000 if large else 50, (ctx.run_id, number)), scope_name="Line"
            )
            async with self.moved:
                self.steps[ctx.run_id] = number
                self.moved.notify_all()
            if self.enough.is_set():
                await ctx.yield_output(len(await ctx.read_state("line", scope_name="Line")) - number)
            else:
                await ctx.send_message(number + 1)

        builder = WorkflowBuilder(name="Write", max_iterations=100_000).set_start_executor(step)
        return builder.add_edge(step, step).with_checkpointing(storage).build()

    async def all_move(self, steps: int = 2) -> None:
        """Wait until each run has taken so many more steps."""
        async with self.moved:
            before = dict(self.steps)
            await soon(
                self.moved.wait_for(
                    lambda: (
                        len(self.steps) == RUNS
                        and all(number >= before.get(run, 0) + steps for run, number in self.steps.items())
                    )
                )
            )


async def test_a_store_is_copied_while_ten_runs_write(
    storage: SqliteCheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_STEP", 2)  # so that they write between many steps of it
    writers = Writers()
    workflow = writers.workflow(storage)
    runs = [await workflow.start(1, run_id=f"r{number}") for number in range(RUNS)]
    await writers.all_move()
    before = dict(writers.steps)
    backups = [asyncio.ensure_future(storage.backup(tmp_path / f"copy{number}.db")) for number in range(2)]
    await writers.all_move()
    await soon(asyncio.gather(*backups))
    writers.enough.set()
    for run in runs:
        assert (await soon(run.wait_for_completion())).outputs == [0]

    for number in range(2):
        async with SqliteCheckpointStorage(tmp_path / f"copy{number}.db") as copy:
            assert (await copy.verify()).problems == []
            found = await copy.list_runs(interrupted=True)
            assert {run.run_id for run in found} == set(before)
            assert all(run.seq >= 2 * before[run.run_id] - 1 for run in found)
            for one in found:
                # At once: nobody drives it there, whoever drives it here.
                resumed = await writers.workflow(copy).resume(run_id=one.run_id)
                assert (await soon(resumed.wait_for_completion())).outputs == [0]
            assert (await copy.verify()).problems == []


async def test_a_copy_is_that_of_one_moment(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of others between its steps do not let it begin anew, and nothing of them is in it."""
    monkeypatch.setattr(backup, "_STEP", 4)
    head = await begin(store, "r", [sample_blob(b"x" * 10_000, number) for number in range(20)])
    writer = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    done: list[int] = []

    def commit(copied: int, total: int) -> None:
        done.append(copied)
        assert len(done) < 500
        writer.execute("INSERT INTO meta VALUES (?, 'later')", (f"{len(done)}",))
        writer.execute("UPDATE runs SET seq = seq + 1")

    await asyncio.to_thread(back_up, DatabaseLocation(store.path, 60), tmp_path / "copy.db", commit)
    writer.close()
    assert len(done) > 10
    assert all(one < other for one, other in pairwise(done))
    assert execute(tmp_path / "copy.db", "SELECT * FROM meta WHERE value = 'later'") == []
    assert execute(tmp_path / "copy.db", "SELECT seq FROM runs") == [(head.seq,)]
    assert execute(tmp_path / "copy.db", "PRAGMA integrity_check") == [("ok",)]


async def test_a_copy_holds_everything(tmp_path: Path) -> None:
    """Every namespace, blobs of every size, the journal, letters that wait and keys that were used."""
    store, other = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db", "Team B")
    blobs = [sample_blob(b"small"), sample_blob(LARGE), sample_blob(LARGE + b"!"), sample_blob(b"")]
    for each in (store, other):
        head = await begin(each, "A run", blobs, status=RunStatus.WAITING, owner="")
        await move_on(each, head)
        await each.leave(RunId("A run"), 1, sample_letters("a", "b"))
    await store.backup(tmp_path / "copy.db")
    for namespace, each in (("", store), ("Team B", other)):
        copy = SqliteStore(tmp_path / "copy.db", namespace)
        assert await read_run(copy, "A run") == await read_run(each, "A run")
        assert await copy.blobs(RunId("A run"), [blob.digest for blob in blobs]) == dict(blobs)
        assert tuple(await copy.inbox(RunId("A run"))) == sample_letters("a", "b")
        assert await copy.open() == await each.open()
        await copy.close()
        await each.close()
    assert execute(tmp_path / "copy.db", "PRAGMA integrity_check") == [("ok",)]


async def test_a_copy_is_for_its_owner_only_and_leaves_nothing_else(
    storage: SqliteCheckpointStorage, tmp_path: Path
) -> None:
    await storage.backup(tmp_path / "empty.db")
    await begin(storage.store, "r", [sample_blob(LARGE)])
    await storage.backup(tmp_path / "copy.db")
    made = {name for name in os.listdir(tmp_path) if not name.startswith("runs.db")}
    assert made == {"empty.db", "copy.db", "copy.db-blobs"}
    for path in [tmp_path / name for name in made] + list((tmp_path / "copy.db-blobs").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "copy.db-blobs" / ".temp").exists()


async def test_nothing_is_written_over(storage: SqliteCheckpointStorage, tmp_path: Path) -> None:
    await begin(storage.store, "r")
    for name in ("there.db", "log.db-wal", "log2.db-journal"):
        (tmp_path / name).write_text("mine")
    for name in ("runs.db", "there.db", "log.db", "log2.db", "."):
        with pytest.raises(StorageError, match="already, which is not written over"):
            await storage.backup(tmp_path / name)
    assert (tmp_path / "there.db").read_text() == (tmp_path / "log.db-wal").read_text() == "mine"
    assert not (tmp_path / "log.db").exists()
    assert [head.run_id for head in await storage.store.runs(RunQuery())] == ["r"]


async def test_a_folder_is_made_for_the_copy(storage: SqliteCheckpointStorage, tmp_path: Path) -> None:
    await begin(storage.store, "r")
    await storage.backup(tmp_path / "deep" / "down" / "copy.db")
    async with SqliteCheckpointStorage(tmp_path / "deep" / "down" / "copy.db") as copy:
        assert len(await copy.list_runs()) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"backing up .* failed"):
        await storage.backup(tmp_path / "file" / "copy.db")


# ---------------------------------------------------------------- interruptions


class Enough(Exception):
    pass


async def fill(store: SqliteStore, blobs: int = 3) -> None:
    blobs_within = [sample_blob(b"x" * 200_000, number) for number in range(30)]
    head = await begin(store, "r", blobs_within, status=RunStatus.WAITING, owner="")
    await move_on(store, head, [sample_blob(LARGE, number, "large") for number in range(blobs)])


async def test_progress_grows_to_its_end_and_can_put_an_end_to_it(
    storage: SqliteCheckpointStorage, tmp_path: Path
) -> None:
    assert isinstance(storage.store, SqliteStore)
    await fill(storage.store)
    seen: list[tuple[int, int]] = []
    await storage.backup(tmp_path / "whole.db", lambda done, total: seen.append((done, total)))
    assert len(seen) > 4
    assert all(one[0] < other[0] and one[1] == other[1] for one, other in pairwise(seen))
    assert seen[-1][0] == seen[-1][1] > 6_000_000

    for last in (1, 2, len(seen) - 1):
        told: list[int] = []

        def progress(done: int, total: int, last: int = last, told: list[int] = told) -> None:
            told.append(done)
            if len(told) == last:
                raise Enough

        before = sorted(os.listdir(tmp_path))
        with pytest.raises(Enough):
            await storage.backup(tmp_path / "copy.db", progress)
        if last < len(seen) - 1:  # else it was complete before it was told
            assert sorted(os.listdir(tmp_path)) == before


async def test_a_backup_that_is_cancelled_leaves_nothing(
    storage: SqliteCheckpointStorage, tmp_path: Path
) -> None:
    assert isinstance(storage.store, SqliteStore)
    await fill(storage.store)
    before = sorted(os.listdir(tmp_path))
    begun = asyncio.Event()
    task = asyncio.ensure_future(storage.backup(tmp_path / "copy.db", lambda *_: begun.set()))
    await soon(begun.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    if sorted(os.listdir(tmp_path)) != before:  # it was complete when it was cancelled
        assert execute(tmp_path / "copy.db", "PRAGMA integrity_check") == [("ok",)]


def back_up_and_die(folder: str, when: str) -> None:
    """Die at a report, or when the copy has just got its name."""

    async def main() -> None:
        store = SqliteStore(Path(folder) / "runs.db")
        await store.open()
        if when == "after the link":
            die_after_link()
        report = die_at_report(int(when) if when.isdigit() else 0)
        back_up(DatabaseLocation(store.path, 60), Path(folder) / "copy.db", report)

    run_alone(main())


@pytest.mark.parametrize("when", ["2", "5", "after the link"])
async def test_a_backup_that_is_killed_is_complete_or_not_there(
    when: str, storage: SqliteCheckpointStorage, tmp_path: Path
) -> None:
    assert isinstance(storage.store, SqliteStore)
    await fill(storage.store)
    killed_by_itself(back_up_and_die, str(tmp_path), when)
    assert (tmp_path / "copy.db").exists() is (when == "after the link")
    if when != "after the link":
        await storage.backup(tmp_path / "copy.db")  # what the killed one left is not in the way
    copy = SqliteStore(tmp_path / "copy.db")
    assert await read_run(copy, "r") == await read_run(storage.store, "r")
    blobs = [sample_blob(LARGE, number, "large") for number in range(3)]
    assert await copy.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
    await copy.close()


@pytest.mark.parametrize("stays", [False, True])
async def test_a_backup_that_fails_when_it_has_its_name_is_complete_or_not_there(
    stays: bool, storage: SqliteCheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(storage.store, SqliteStore)
    await fill(storage.store)
    target = tmp_path / "copy.db"
    unlink = Path.unlink

    def sync(handle: int, fsync: Callable[[int], None] = os.fsync) -> None:
        if target.exists() and os.path.samestat(os.fstat(handle), tmp_path.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))
        fsync(handle)

    def keep(path: Path, missing_ok: bool = False) -> None:
        if path == target:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", sync)
        if stays:
            disk.setattr(Path, "unlink", keep)
        with pytest.raises(StorageError, match=r"backing up .* failed"):
            await storage.backup(target)
    assert target.exists() is stays
    assert target.with_name("copy.db-blobs").exists() is stays
    if not stays:
        await storage.backup(target)
    copy = SqliteStore(target)
    assert await read_run(copy, "r") == await read_run(storage.store, "r")
    blobs = [sample_blob(LARGE, number, "large") for number in range(3)]
    assert await copy.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
    await copy.close()


async def test_a_backup_does_not_fail_for_a_file_that_stays_behind(
    storage: SqliteCheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had its name by then, and was not durable."""
    unlink = Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith("-wal"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, missing_ok)

    await begin(storage.store, "r")
    monkeypatch.setattr(Path, "unlink", failing)
    await storage.backup(tmp_path / "copy.db")
    async with SqliteCheckpointStorage(tmp_path / "copy.db") as copy:
        assert await copy.catalog.head_or_none("r") is not None


async def test_two_backups_to_one_path_do_not_spoil_each_other(
    storage: SqliteCheckpointStorage, tmp_path: Path
) -> None:
    """The second fails, and takes nothing away that belongs to the first."""
    assert isinstance(storage.store, SqliteStore)
    await fill(storage.store)
    path, target = storage.store.path, tmp_path / "copy.db"
    refused: list[str] = []

    def beside(done: int, total: int) -> None:
        if not refused and target.with_name("copy.db-blobs").exists():
            with pytest.raises(StorageError) as caught:
                back_up(DatabaseLocation(path, 60), target, lambda done, total: None)
            refused.append(str(caught.value))

    await asyncio.to_thread(back_up, DatabaseLocation(path, 60), target, beside)
    assert "another backup to" in refused[0]
    copy = SqliteStore(target)
    blobs = [sample_blob(LARGE, number, "large") for number in range(3)]
    assert await copy.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
    await copy.close()


# ---------------------------------------------------------------- large values that are not there


def file_of(path: Path, number: int = 0) -> Path:
    (found,) = path.with_name(path.name + "-blobs").rglob(sample_blob(LARGE, number, "large").digest.hex())
    return found


async def test_a_missing_value_is_told(store: SqliteStore, tmp_path: Path) -> None:
    await fill(store)
    file_of(store.path).write_bytes(LARGE[:-1])
    with pytest.raises(CheckpointCorrupt, match=r"has 307199 bytes, not 307200, so .* cannot be backed up"):
        await store.backup(tmp_path / "copy.db")
    file_of(store.path).unlink()
    with pytest.raises(CheckpointCorrupt, match=r"is missing, so .* cannot be backed up"):
        await store.backup(tmp_path / "copy.db")
    assert [name for name in os.listdir(tmp_path) if name.startswith("copy")] == []


@pytest.mark.parametrize("always", [False, True])
async def test_values_that_are_removed_meanwhile_let_it_begin_anew(always: bool, tmp_path: Path) -> None:
    """Remove a large value as a sweep does: first the row, then the file."""
    store = SqliteStore(tmp_path / "runs.db")
    await fill(store, 8)
    await store.close()
    removed: list[int] = []
    last = 0

    def remove(done: int, total: int) -> None:
        nonlocal last
        begins, last = done < last or not removed, done
        if begins and (always or not removed):
            number = len(removed)
            gone = file_of(store.path, number)
            digest = sample_blob(LARGE, number, "large").digest
            connection = sqlite3.connect(store.path, isolation_level=None)
            connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
            connection.close()
            gone.unlink()
            removed.append(number)

    def work() -> None:
        back_up(DatabaseLocation(store.path, 60), tmp_path / "copy.db", remove)

    if always:
        with pytest.raises(StorageError, match="was pruned 5 times while it was copied"):
            await asyncio.to_thread(work)
        assert removed == [0, 1, 2, 3, 4]
        assert not (tmp_path / "copy.db").exists()
        assert not (tmp_path / "copy.db-blobs").exists()
        return
    await asyncio.to_thread(work)
    assert removed == [0]
    copy = SqliteStore(tmp_path / "copy.db")
    blobs = [sample_blob(LARGE, number, "large") for number in range(8)]
    assert await copy.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs[1:])
    await copy.close()
