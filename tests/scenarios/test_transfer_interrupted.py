"""Moving a run is interrupted: by an error, by cancelling, by kill -9, by a disk that fails."""

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import InMemoryCheckpointStorage, SqliteCheckpointStorage, StorageError
from tests.support.durable import Failing, die_after_link, die_at_report, killed_by_itself, run_alone, wrapped
from tests.support.parts import Disk, RunQuery
from tests.support.runs import soon
from tests.support.transfer import (
    KINDS,
    Storages,
    listed,
    make_answered,
    make_completed,
    make_waiting,
    storage_of,
    take_the_answer,
)


@pytest_asyncio.fixture
async def storages(tmp_path: Path) -> AsyncIterator[Storages]:
    made = Storages(tmp_path)
    yield made
    await made.close()


class Enough(Exception):
    pass


class Watch:
    """Progress that is looked at, and perhaps comes to an end."""

    def __init__(self, last: int | None = None) -> None:
        self.seen: list[tuple[int, int]] = []
        self._last = last

    def __call__(self, done: int, total: int) -> None:
        self.seen.append((done, total))
        if len(self.seen) == self._last:
            raise Enough


async def test_progress_grows_to_its_end(tmp_path: Path) -> None:
    here, there = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
    await make_completed(here)
    out, back, nothing = Watch(), Watch(), Watch()
    await here.export_run("r", tmp_path / "run", out)
    await there.import_run(tmp_path / "run", progress=back)
    await there.import_run(tmp_path / "run", progress=nothing)
    for watch in (out, back, nothing):
        assert len(watch.seen) > 4
        assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(watch.seen))
        assert watch.seen[-1][0] == watch.seen[-1][1]
    assert len({total for _, total in back.seen}) == 1


async def test_an_export_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    await make_completed(storage)
    whole = Watch()
    await storage.export_run("r", tmp_path / "whole", whole)
    # The last of them is told when the file is there.
    for last in range(1, len(whole.seen)):
        with pytest.raises(Enough):
            await storage.export_run("r", tmp_path / "run", Watch(last))
        assert os.listdir(tmp_path) == ["whole"]


async def test_an_import_that_is_interrupted_leaves_no_run_and_can_be_done_again(
    storages: Storages, tmp_path: Path
) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_completed(here)
    await here.export_run("r", tmp_path / "run")
    whole = Watch()
    await storages("memory").import_run(tmp_path / "run", progress=whole)
    for last in range(1, len(whole.seen)):
        with pytest.raises(Enough):
            await there.import_run(tmp_path / "run", progress=Watch(last))
        assert list(await there.store.runs(RunQuery())) == []
    await there.import_run(tmp_path / "run")
    assert await listed(there) == await listed(here)
    assert (await there.verify()).problems == []


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_leaves_nothing_behind(kind: str, storages: Storages, tmp_path: Path) -> None:
    """At any of its awaits: each time a few turns of the event loop later."""
    here, there = storages("memory"), storages(kind)
    await make_waiting(here)
    await here.export_run("r", tmp_path / "run")
    turns = 0
    while True:
        task = asyncio.ensure_future(here.export_run("r", tmp_path / "cancelled"))
        back = asyncio.ensure_future(there.import_run(tmp_path / "run"))
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = [task.done(), back.done()]
        for each in (task, back):
            each.cancel()
        results = await soon(asyncio.gather(task, back, return_exceptions=True))
        left = set(os.listdir(tmp_path)) - {"run", "storage-0", "storage-1"}
        assert left <= {"cancelled"}, left
        if not isinstance(results[0], BaseException):
            assert (tmp_path / "cancelled").read_bytes() == (tmp_path / "run").read_bytes()
        for path in left:
            (tmp_path / path).unlink()
        if all(ended):
            break
        turns = turns * 5 // 4 + 1
    assert (await there.verify()).problems == []
    assert (await there.import_run(tmp_path / "run")).run_id == "r"


def export_and_die(folder: str, when: str) -> None:
    storage = SqliteCheckpointStorage(Path(folder) / "runs.db")

    async def main() -> None:
        await make_completed(storage)
        if when == "after the link":
            die_after_link()
        progress = die_at_report(int(when) if when.isdigit() else 0)
        await storage.export_run("r", Path(folder) / "run", progress)

    run_alone(main())


async def test_a_process_that_is_killed_while_it_exports_leaves_no_file(tmp_path: Path) -> None:
    killed_by_itself(export_and_die, str(tmp_path), "4")
    assert not (tmp_path / "run").exists()
    (left,) = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    with pytest.raises(StorageError):  # also to someone who takes it for an export
        await InMemoryCheckpointStorage().import_run(tmp_path / left)


async def test_a_process_that_is_killed_after_it_exported_leaves_a_whole_file(tmp_path: Path) -> None:
    killed_by_itself(export_and_die, str(tmp_path), "after the link")
    storage = InMemoryCheckpointStorage()
    await storage.import_run(tmp_path / "run")
    assert (await storage.verify()).problems == []


def import_and_die(folder: str, kind: str, when: int) -> None:
    storage = storage_of(kind, Path(folder))
    run_alone(storage.import_run(Path(folder) / "run", progress=die_at_report(when)))


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_process_that_is_killed_imports_all_or_nothing(
    kind: str, storages: Storages, tmp_path: Path
) -> None:
    here = storages("memory")
    await make_completed(here)
    await here.export_run("r", tmp_path / "run")
    whole = Watch()
    await storages("memory").import_run(tmp_path / "run", progress=whole)
    killed_by_itself(import_and_die, str(tmp_path), kind, len(whole.seen) - 1)
    there = storage_of(kind, tmp_path)
    assert await there.list_runs() == []
    await there.import_run(tmp_path / "run")
    assert await listed(there) == await listed(here)
    await there.close()


async def test_what_a_killed_import_left_is_swept_up(tmp_path: Path) -> None:
    """A run of many checkpoints is a folder before it is renamed; nobody has locked that of a process that died."""
    temp = tmp_path / "file.store" / "temp"
    (temp / "dead.tmp").mkdir(parents=True)
    (temp / "dead.tmp" / "r.jsonl").write_text("{}")
    living = Disk(temp)
    folder = living.new_folder()
    storage = storage_of("file", tmp_path)
    await make_waiting(storage)
    assert os.listdir(temp) == [folder.name]
    living.remove(folder)
    await storage.close()


@pytest.mark.parametrize("happens", [True, False])
async def test_a_commit_that_may_have_happened_is_looked_for(
    happens: bool, storages: Storages, tmp_path: Path
) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_answered(here)
    await here.export_run("r", tmp_path / "run")
    failing = wrapped(there, lambda store: Failing(store, 1, happens))
    if happens:
        await failing.import_run(tmp_path / "run")
        assert await take_the_answer(there) == await take_the_answer(here)
    else:
        with pytest.raises(StorageError, match="the disk failed"):
            await failing.import_run(tmp_path / "run")
        assert await there.list_runs() == []
