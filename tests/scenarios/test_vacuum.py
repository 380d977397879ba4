"""Unused room is given back to the file system, also beside others, and whatever happens meanwhile."""

import asyncio
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    SqliteCheckpointStorage,
    StorageError,
)
from holdfast.errors import WrongType
from tests.support.durable import ON_DISK, Place, child, die, killed_by_itself, run_alone, storage_at
from tests.support.modules import sqlite_vacuum
from tests.support.parts import Blob, RunId, digest_of
from tests.support.runs import soon
from tests.support.transfer import asking, counting, listed, make_completed, noise

NOW = timedelta(0)


async def fill(storage: CheckpointStorage, runs: int = 8) -> None:
    """Make runs that are over, and one that waits and is to stay."""
    await soon(asking(storage).run(7, run_id="stays"))
    for number in range(runs):
        await soon(counting(storage).run(1, run_id=f"goes-{number}"))


@pytest.fixture(params=ON_DISK)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def folders(folder: Path, beginning: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_dir() and path.name.startswith(beginning)]


async def test_removed_runs_leave_no_room_behind(place: Place) -> None:
    storage = place.storage
    await fill(storage)
    expected = await listed(storage, "stays")
    await storage.prune_runs(NOW)
    report = await storage.vacuum()
    assert report.after <= report.before
    if place.kind == "sqlite":  # the files of removed runs in a directory are gone already
        assert report.after < report.before / 4
    assert not folders(place.folder, "goes")
    assert report.freed == report.before - report.after
    assert await listed(storage, "stays") == expected
    assert (await storage.verify()).problems == []
    run = await asking(storage).resume(run_id="stays", responses={"q": True})
    assert (await soon(run.wait_for_completion())).outputs == ["is 7 right? True 5000"]

    storage = await place.reopened()
    assert (await storage.verify()).problems == []
    again = await storage.vacuum()
    assert again.after <= again.before
    await storage.close()


async def test_lines_that_no_longer_count_leave_the_files_of_runs(tmp_path: Path) -> None:
    place = Place("file", tmp_path)
    await make_completed(place.storage)
    await place.storage.prune(Retention.latest_only())
    (file,) = (tmp_path / "runs" / "runs").glob("*.jsonl")
    before, expected = file.stat().st_size, await listed(place.storage)
    report = await place.storage.vacuum()
    assert file.stat().st_size < before
    assert report.freed >= before - file.stat().st_size
    assert await listed(place.storage) == expected
    assert (await place.storage.verify()).problems == []
    await place.storage.close()


async def test_values_of_families_without_a_run_go(place: Place) -> None:
    storage = place.storage
    await fill(storage, runs=1)
    blobs = [Blob(digest_of(data), b"\x00" + data) for data in (noise(3000), noise(400_000))]
    for family in (
        "nobody",
        "Nobody ...",
    ):  # as a process leaves them that is killed amid an import or a prune
        await storage.store.add_blobs(RunId(family), blobs)
    report = await storage.vacuum()
    assert report.freed >= 800_000
    for family in ("nobody", "Nobody ..."):
        assert not await storage.store.blobs(RunId(family), [blob.digest for blob in blobs])
    assert not folders(place.folder, "nobody")
    assert (await storage.verify()).problems == []
    run = await counting(storage).resume(run_id="goes-0")
    await soon(run.wait_for_completion())
    await storage.close()


async def test_memory_has_nothing_to_give() -> None:
    storage = InMemoryCheckpointStorage()
    await fill(storage, runs=1)
    report = await storage.vacuum()
    assert (report.before, report.after, report.freed) == (0, 0, 0)
    with pytest.raises(WrongType, match="progress=1"):
        await storage.vacuum(progress=1)  # type: ignore[arg-type]


async def test_progress_is_told_and_may_end_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_vacuum, "_STEPS_BETWEEN_LOOKS", 100)
    await fill(place.storage)
    await place.storage.prune(Retention.latest_only())
    for number in range(4):
        await place.storage.delete_run(f"goes-{number}")
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        raise KeyError("enough")

    with pytest.raises(KeyError):
        await place.storage.vacuum(progress=stop)
    assert told
    assert all(0 <= done <= total for done, total in told)
    assert (await place.storage.verify()).problems == []
    assert (await place.storage.vacuum()).after
    assert (await place.storage.verify()).problems == []
    await place.storage.close()


@pytest.fixture
async def emptied(tmp_path: Path) -> SqliteCheckpointStorage:
    """A database with free pages."""
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    await fill(storage)
    await storage.prune_runs(NOW)
    return storage


async def test_a_disk_without_room_is_told_before_anything_is_done(
    emptied: SqliteCheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(StorageError, match=r"was not vacuumed: that needs [\d,]+ bytes in .* 1,000 are free"):
        await emptied.vacuum()
    monkeypatch.undo()
    assert (await emptied.verify()).problems == []
    assert (await emptied.vacuum()).freed
    await emptied.close()


def _drive(folder: str) -> None:
    """Drive runs until it is killed; each superstep is a commit."""

    async def main() -> None:
        storage = storage_at("sqlite", Path(folder))
        for number in range(100_000):
            await asking(storage).run(number, run_id=f"w{number}")
            print(number, flush=True)

    run_alone(main())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that drives runs beside."""
    process = child(_drive, str(tmp_path))
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


async def test_a_process_that_drives_runs_goes_on(
    emptied: SqliteCheckpointStorage, writer: "subprocess.Popen[str]"
) -> None:
    before = len(await emptied.list_runs(limit=None))
    report = await emptied.vacuum()
    assert report.after < report.before
    while len(await emptied.list_runs(limit=None)) < before + 5:
        assert writer.poll() is None, writer.communicate()
        await asyncio.sleep(0)
    assert (await emptied.verify()).problems == []
    await emptied.close()


async def test_what_would_keep_others_waiting_too_long_is_given_up(
    emptied: SqliteCheckpointStorage,
    writer: "subprocess.Popen[str]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_vacuum, "_STEPS_BETWEEN_LOOKS", 10)
    monkeypatch.setattr(sqlite_vacuum, "_PART_OF_PATIENCE", float("inf"))
    with pytest.raises(StorageError, match=r"would take longer than other writers wait \(60 s\)"):
        await emptied.vacuum()
    writer.kill()
    writer.communicate()
    assert (await emptied.vacuum()).freed  # alone it may take its time
    assert (await emptied.verify()).problems == []
    await emptied.close()


def _vacuum_and_die(folder: str, kind: str, looks: int) -> None:
    seen = 0

    def die_while_it_runs(*_: Any) -> int:
        nonlocal seen
        seen += 1
        if seen == looks:
            die()
        return 0

    sqlite_vacuum.log_size = die_while_it_runs  # type: ignore[assignment]
    sqlite_vacuum._STEPS_BETWEEN_LOOKS = 50
    storage = storage_at(kind, Path(folder))
    run_alone(storage.vacuum(progress=die_while_it_runs if kind == "file" else None))


@pytest.mark.parametrize("looks", [1, 4])
async def test_a_process_that_is_killed_amid_it_loses_nothing(place: Place, looks: int) -> None:
    storage = place.storage
    await fill(storage)
    for number in range(4):
        await storage.delete_run(f"goes-{number}")
    expected = {run.run_id: await listed(storage, run.run_id) for run in await storage.list_runs()}
    await storage.close()
    killed_by_itself(_vacuum_and_die, str(place.folder), place.kind, looks)
    storage = await place.reopened()
    assert {run.run_id: await listed(storage, run.run_id) for run in await storage.list_runs()} == expected
    assert (await storage.verify()).problems == []
    report = await storage.vacuum()
    assert report.after <= report.before
    assert (await storage.verify()).problems == []
    assert {run.run_id: await listed(storage, run.run_id) for run in await storage.list_runs()} == expected
    await storage.close()


async def test_a_reader_of_old_pages_delays_the_end_and_breaks_nothing(
    emptied: SqliteCheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vacuum, "_READER_SECONDS", 0.0)
    async with SqliteCheckpointStorage(tmp_path / "runs.db", read_only=True) as looking:
        expected = await listed(looking, "stays")
        await emptied.vacuum()
        assert await listed(looking, "stays") == expected
        assert (await looking.verify()).problems == []
    await emptied.close()
    assert files(tmp_path) < 200_000
