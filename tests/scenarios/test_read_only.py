"""Storages that are opened read-only: all can be seen, nothing is written, and what would write is refused."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    RunStatus,
    SqliteCheckpointStorage,
    StorageError,
)
from holdfast.errors import WrongType
from tests.support.durable import ON_DISK, child, in_child, run_alone
from tests.support.parts import MemoryStore, ReadOnlyStore, Store
from tests.support.places import forbid_writing
from tests.support.runs import soon
from tests.support.transfer import asking, counting, listed, make_fork, make_waiting, noise

Verb = Callable[[CheckpointStorage, str], Awaitable[Any]]


def opened(kind: str, folder: Path, read_only: bool = True) -> CheckpointStorage:
    if kind == "sqlite":
        return SqliteCheckpointStorage(folder / "runs.db", read_only=read_only)
    return FileCheckpointStorage(folder / "runs", read_only=read_only)


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """All files and folders, with their inode, size and time of change: also one that came and went leaves a trace."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.stat()
        found[str(path)] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


@pytest.fixture(params=ON_DISK)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with a fork, its origin and a run that waits; nobody uses it."""
    async with opened(request.param, tmp_path, read_only=False) as storage:
        await make_fork(storage)
        await soon(asking(storage).run(7, run_id="w"))
        await storage.tag((await storage.list_checkpoints(run_id="r"))[0], "first")
    return str(request.param)


LOOKS = {
    *("open", "head", "runs", "count_runs", "damaged", "inspect", "find", "records", "blobs", "notes"),
    *("inbox", "taken", "events", "key_box", "living", "close"),
}


@pytest.mark.parametrize(
    "method", sorted(name for name in {*vars(Store)} - LOOKS if not name.startswith("_"))
)
def test_every_method_of_the_port_that_does_not_just_look_is_refused(method: str) -> None:
    store = ReadOnlyStore(MemoryStore(), "it")
    with pytest.raises(StorageError, match=r"it is opened with read_only=True, so .* is refused"):
        getattr(store, method)


async def look_at_all(storage: CheckpointStorage, folder: Path) -> list[Any]:
    """Everything that can be seen without writing."""
    runs = await storage.list_runs()
    made = await storage.list_checkpoints(run_id="r")
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    loaded = await storage.load(latest)
    await storage.export_run("r", folder / "exported")
    (folder / "exported").unlink()
    return [
        [run.run_id for run in runs],
        [run.run_id for run in await storage.list_runs(status="waiting", newest_first=True)],
        await storage.list_runs(interrupted=True),
        await listed(storage),
        len(loaded.scopes["Shared"]["large"]),
        str(await storage.diff(made[0], made[-1])),
        await storage.draw_tree("r"),
        (await storage.verify()).ok,
        await storage.statistics(),
        [request.request_id for request in await storage.list_requests()],
        await storage.count_runs(),
        str((await storage.load(latest, plain=True)).scopes["Shared"]["small"]),
    ]


async def test_everything_can_be_seen_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    async with opened(kind, tmp_path, read_only=False) as storage:
        expected = await look_at_all(storage, outside)
    before = tree(tmp_path)
    async with opened(kind, tmp_path) as storage:
        assert storage.read_only
        assert await look_at_all(storage, outside) == expected
        memory = InMemoryCheckpointStorage()
        assert (await storage.copy_to(memory)).copied == 3
    assert tree(tmp_path) == before
    assert await listed(memory) == expected[3]


VERBS: dict[str, Verb] = {
    "tag": lambda s, c: s.tag(c, "x"),
    "untag": lambda s, c: s.untag(c),
    "respond": lambda s, c: s.respond("w", {"q": True}),
    "cancel": lambda s, c: s.cancel("w"),
    "prune": lambda s, c: s.prune(Retention.latest_only()),
    "prune_runs": lambda s, c: s.prune_runs(timedelta(0)),
    "delete": lambda s, c: s.delete(c),
    "delete_run": lambda s, c: s.delete_run("w"),
    "vacuum": lambda s, c: s.vacuum(),
    "send": lambda s, c: s.send("w", 1),
    "repair": lambda s, c: s.repair(),
    "import_run": lambda s, c: s.import_run("anything"),
    "copy_to": lambda s, c: InMemoryCheckpointStorage().copy_to(s),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_what_would_write_is_refused_by_its_name(kind: str, verb: str, tmp_path: Path) -> None:
    before = tree(tmp_path)
    async with opened(kind, tmp_path) as storage:
        (first, *_) = await storage.list_checkpoints(run_id="r")
        with pytest.raises(StorageError, match=f"is opened with read_only=True, so '{verb}' is refused"):
            await VERBS[verb](storage, first.checkpoint_id)
    assert tree(tmp_path) == before


async def test_a_workflow_cannot_drive_runs_in_it(kind: str, tmp_path: Path) -> None:
    before = tree(tmp_path)
    async with opened(kind, tmp_path) as storage:
        with pytest.raises(StorageError, match="a run, resume or fork of a workflow is refused"):
            await asking(storage).run(1)
        with pytest.raises(StorageError, match="a run, resume or fork of a workflow is refused"):
            await counting(storage).resume(run_id="r")
        with pytest.raises(StorageError, match="an answer to a run is refused"):
            await asking(storage).resume(run_id="w", responses={"q": True})
    assert tree(tmp_path) == before


async def test_a_backup_of_it_is_refused(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await make_waiting(storage)
    async with SqliteCheckpointStorage(tmp_path / "runs.db", read_only=True) as storage:
        with pytest.raises(StorageError, match="'backup' is refused"):
            await storage.backup(tmp_path / "copy.db")


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_store_that_is_not_there_is_not_made(kind: str, tmp_path: Path) -> None:
    before = tree(tmp_path)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StorageError, match="opened with read_only=True is not made"):
            await opened(kind, folder).list_runs()
    assert tree(tmp_path) == before


async def test_an_empty_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    with pytest.raises(StorageError, match="holds no store: it is empty"):
        await SqliteCheckpointStorage(tmp_path / "runs.db", read_only=True).open()
    assert (tmp_path / "runs.db").stat().st_size == 0


def test_what_is_no_flag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongType, match="read_only=1"):
        SqliteCheckpointStorage(tmp_path / "x.db", read_only=1)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="read_only=1"):
        FileCheckpointStorage(tmp_path / "x", read_only=1)  # type: ignore[arg-type]


async def test_it_sees_what_others_write_meanwhile(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as looking:
        assert len(await looking.list_runs()) == 3
        for number in range(3):  # the writer comes and goes, and its log with it
            async with opened(kind, tmp_path, read_only=False) as writing:
                await soon(asking(writing).run(1, run_id=f"during-{number}"))
                assert f"during-{number}" in [run.run_id for run in await looking.list_runs()]
                await writing.respond(f"during-{number}", {"q": True})
                run = await asking(writing).resume(run_id=f"during-{number}")
                await soon(run.wait_for_completion())
                assert await listed(looking, f"during-{number}") == await listed(writing, f"during-{number}")
            assert await listed(looking, f"during-{number}")
        assert (await looking.verify()).ok


async def test_it_reads_a_run_that_is_driven(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, read_only=False) as writing, opened(kind, tmp_path) as looking:
        run = await counting(writing).start(1, run_id="moving")
        while True:
            seen = [one for one in await looking.list_runs() if one.run_id == "moving"]
            if seen and seen[0].status is RunStatus.COMPLETED:
                break
            assert (await looking.verify("moving")).ok if seen else True
            await asyncio.sleep(0)
        await run.wait_for_completion()
        assert await listed(looking, "moving") == await listed(writing, "moving")


def _write_on(kind: str, folder: str) -> None:
    async def main() -> None:
        storage = opened(kind, Path(folder), read_only=False)
        for number in range(10_000):
            await asking(storage).run(number, run_id=f"n{number}")
            if number % 5 == 4:  # the last one who closes it removes the log
                await storage.close()
                storage = opened(kind, Path(folder), read_only=False)

    run_alone(main())


async def test_it_is_right_beside_a_process_that_writes_and_is_killed(kind: str, tmp_path: Path) -> None:
    writer = child(_write_on, kind, str(tmp_path))
    try:
        async with opened(kind, tmp_path) as looking:
            seen = 0
            while seen < 40:
                assert writer.poll() is None, writer.communicate()
                runs = await looking.list_runs(limit=None)
                assert len(runs) >= seen
                seen = len(runs)
                assert (await looking.verify(runs[-1].run_id)).problems == []
            writer.kill()
            writer.communicate()
            before = tree(tmp_path)
            after = await looking.list_runs(limit=None)
            assert len(after) >= seen
            assert (await looking.verify()).problems == []
            assert tree(tmp_path) == before
    finally:
        if writer.poll() is None:
            writer.kill()
            writer.communicate()


async def test_a_copy_of_a_database_in_use_is_read_with_its_log(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await make_waiting(storage)
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(tmp_path / name, copy / name)
        expected = await listed(storage)
    assert (copy / "runs.db-wal").stat().st_size
    before = tree(copy)
    async with SqliteCheckpointStorage(copy / "runs.db", read_only=True) as looking:
        assert await listed(looking) == expected
        assert (await looking.verify()).ok
    assert tree(copy) == before


def _look_as_nobody(kind: str, folder: str) -> None:
    async def look(where: Path) -> int:
        async with opened(kind, where) as storage:
            await storage.list_runs(interrupted=True)
            latest = await storage.get_latest(run_id="r")
            assert latest is not None
            assert (await storage.load(latest)).scopes["Shared"]["large"] == noise(300_000)
            assert (await storage.verify()).ok
            await storage.statistics()
            await storage.draw_tree("r")
            await storage.diff(latest, latest)
            return len(await storage.list_runs())

    run_alone(look(Path(folder)))  # so that all modules are there
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        (Path(folder) / "probe").touch()
    except OSError:
        print(run_alone(look(Path(folder))))
    else:
        raise AssertionError("this user may write")


@pytest.mark.parametrize("kind", ON_DISK)
async def test_another_user_can_look_at_a_folder_that_cannot_be_written(
    kind: str, public_folder: Path
) -> None:
    async with opened(kind, public_folder, read_only=False) as storage:
        await make_fork(storage)
    forbid_writing(public_folder)
    before = tree(public_folder)
    assert in_child(_look_as_nobody, kind, str(public_folder)) == "2\n"
    assert tree(public_folder) == before
