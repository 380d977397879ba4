"""FileStore: what is synced and when, and who wins."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Blob, Commit
from holdfast.errors import HeadMoved
from holdfast.ids import Digest, RunId
from holdfast.stores.common import disk as disk_module
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from tests.stores.file_commits import NOON, RUN, at, checkpoint_id, failing, head, seqs, step, tree, write


@pytest.fixture
def path(on_disk):
    return on_disk / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


# ---------------------------------------------------------------- durability


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the operating system, in order: (what, path)."""
    seen: list[tuple[str, str]] = []
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def recorded_fsync(handle):
        seen.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def recorded_link(source, target):
        seen.append(("link", f"{source} {target}"))
        link(source, target)

    def recorded_mkdir(folder, mode):
        seen.append(("mkdir", str(folder)))
        mkdir(folder, mode)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)
    monkeypatch.setattr(os, "mkdir", recorded_mkdir)
    return seen


def check_order(calls: list[tuple[str, str]]) -> None:
    """Each file is synced before its name appears, each folder after; blobs and folders before any commit.

    What is in temp, ids and locks need not survive.
    """
    unsynced: set[str] = set()
    synced: set[str] = set()
    for what, where in calls:
        if what == "sync":
            synced.add(where)
            unsynced.discard(where)
        elif what == "mkdir":
            if not {"temp", "ids", "locks"}.intersection(where.split("/")):
                unsynced.add(str(Path(where).parent))
        else:
            temp, place = where.split(" ")
            assert temp in synced, f"{place} appears before its content is durable"
            folder = str(Path(place).parent)
            if place.endswith(".json"):
                assert not unsynced, f"{place} appears before names in {unsynced} are durable"
            unsynced.add(folder)
    assert not unsynced, f"names in {unsynced} are not durable"


async def work(store: FileStore) -> None:
    await write(store, RUN, 2)
    blobs = (Blob(Digest(b"1" * 32), b"x"), Blob(Digest(b"2" * 32), b"y"))
    await store.commit(step(RUN, 3)._replace(blobs=blobs))
    await store.commit(Commit(head(RUN, 3), at(RUN, 3)))


@pytest.mark.parametrize("namespace", ["", "ns"])
async def test_the_order_of_syncs(path, calls, namespace) -> None:
    store = FileStore(path, namespace)
    await work(store)
    await store.close()
    assert {what for what, _ in calls} == {"sync", "link", "mkdir"}
    check_order(calls)
    assert store.fsyncs == sum(what == "sync" for what, _ in calls)


@pytest.mark.parametrize("lost", ["file", "folder"])
async def test_a_missing_sync_is_noticed(store, calls, monkeypatch, lost) -> None:
    original = Disk._sync

    def forgetful(self, handle):
        is_folder = os.path.isdir(f"/proc/self/fd/{handle}")
        if is_folder != (lost == "folder"):
            original(self, handle)

    monkeypatch.setattr(Disk, "_sync", forgetful)
    await work(store)
    with pytest.raises(AssertionError, match="durable"):
        check_order(calls)


async def test_how_many_syncs(store, path) -> None:
    await store.open()

    async def cost(commit: Commit, store: FileStore = store) -> int:
        before = store.fsyncs
        await store.commit(commit)
        return store.fsyncs - before

    assert await cost(step(RUN, 1)) == 2 + 3  # and the names of runs/, runs/r1/ and waking/
    assert await cost(step(RUN, 2)) == 2
    assert await cost(Commit(head(RUN, 2), at(RUN, 2))) == 2
    assert await cost(step(RunId("r2"), 1)) == 2 + 1
    other = FileStore(path)
    assert await cost(step(RUN, 3), other) == 2
    await other.close()
    blob = Blob(Digest(b"1" * 32), b"x")
    assert (
        await cost(step(RUN, 4)._replace(blobs=(blob,))) == 2 + 4
    )  # the blob, its folder, the names of blobs/ and blobs/r1/
    assert await cost(step(RUN, 5)._replace(blobs=(blob,))) == 2 + 1
    assert await cost(step(RUN, 6)._replace(blobs=(Blob(Digest(b"2" * 32), b"x"),))) == 2 + 2


async def test_a_lost_race_leaves_nothing(store, path) -> None:
    await write(store, RUN, 2)
    with pytest.raises(HeadMoved, match="Another writer moved it on"):
        await store.commit(step(RUN, 2)._replace(blobs=(Blob(Digest(b"1" * 32), b"x"),)))
    assert os.listdir(path / "temp") == []
    assert not (path / "blobs").exists()
    assert len(tree(path)) == 8


async def test_temporary_files_of_those_who_died_are_swept_up(path) -> None:
    store = FileStore(path)
    await store.open()
    await store.close()
    (path / "temp" / "dead.tmp").write_bytes(b"half")
    (path / "temp" / "folder.tmp").mkdir()
    (path / "temp" / "folder.tmp" / "half").write_bytes(b"half")
    living = Disk(path / "temp")
    written, folder = living.write(b"whole"), living.new_folder()
    again = FileStore(path)
    await again.commit(step(RUN, 1))
    assert sorted(os.listdir(path / "temp")) == sorted([written.name, folder.name])
    living.publish(written, path / "temp" / "published")
    living.remove(folder)
    assert os.listdir(path / "temp") == ["published"]
    await again.close()


async def test_a_temporary_file_that_is_swept_up_before_it_is_locked_is_made_again(path, monkeypatch) -> None:
    path.mkdir()
    disk, other = Disk(path), Disk(path)
    straight, made = disk_module._try_lock, []

    def late(handle: int) -> bool | None:
        made.append(handle)
        if len(made) == 1:
            other.sweep()
        return straight(handle)

    monkeypatch.setattr(disk_module, "_try_lock", late)
    temp = disk.write(b"whole")
    assert len(made) == 3  # two of its own, and that of the sweep
    assert [name.read_bytes() for name in path.iterdir()] == [b"whole"]
    disk.remove(temp)


async def test_a_temporary_folder_that_is_swept_up_before_it_is_open_is_made_again(path, monkeypatch) -> None:
    path.mkdir()
    disk, other = Disk(path), Disk(path)
    straight, made = os.mkdir, []

    def swept(name: Path, mode: int) -> None:
        straight(name, mode)
        made.append(name)
        if len(made) == 1:
            other.sweep()

    monkeypatch.setattr(os, "mkdir", swept)
    temp = disk.new_folder()
    assert made == [made[0], temp]
    assert list(path.iterdir()) == [temp]
    disk.remove(temp)


async def test_where_there_are_no_locks_old_temporary_files_are_swept_up(path, monkeypatch) -> None:
    monkeypatch.setattr(disk_module, "_try_lock", lambda handle: None)
    store = FileStore(path)
    await store.open()
    await store.close()
    for name, age in (("old.tmp", 25 * 3600), ("young.tmp", 23 * 3600)):
        (path / "temp" / name).write_bytes(b"half")
        os.utime(path / "temp" / name, (time.time() - age,) * 2)
    again = FileStore(path)
    await again.commit(step(RUN, 1))
    assert os.listdir(path / "temp") == ["young.tmp"]
    await again.close()


# ---------------------------------------------------------------- one winner


async def test_a_commit_that_changes_nothing_that_matters_loses_nobody(store, path) -> None:
    """Another writer's commit that keeps checkpoint and token does not stop the one that expects them."""
    other = FileStore(path)
    await write(store, RUN, 1)
    await other.commit(Commit(head(RUN, 1, wake_at=NOON), at(RUN, 1)))
    await store.commit(step(RUN, 2))
    assert await other.head(RUN) == head(RUN, 2)
    assert await store.find(checkpoint_id(RUN, 2)) == (RUN, 2)
    assert tree(path / "runs") == ["r1/00000001-0.json", "r1/00000002-0.json", "r1/00000002-1.json"]
    await other.close()


async def race(stores: list[FileStore], rounds: int) -> None:
    """In each round all try to follow the same commit."""
    for seq in range(1, rounds + 1):
        commits = [store.commit(step(RUN, seq, owner=str(n))) for n, store in enumerate(stores)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        (winner,) = [str(n) for n, outcome in enumerate(outcomes) if outcome == []]
        assert all(isinstance(outcome, HeadMoved) for outcome in outcomes if outcome != [])
        assert {await store.head(RUN) for store in stores} == {head(RUN, seq, owner=winner)}
    assert await seqs(stores[0], RUN) == list(range(1, rounds + 1))


async def test_one_winner(path) -> None:
    stores = [FileStore(path) for _ in range(4)]
    await race(stores, 20)
    assert os.listdir(path / "temp") == []
    for store in stores:
        await store.close()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
async def test_one_winner_without_hard_links(path, monkeypatch, number) -> None:
    monkeypatch.setattr(os, "link", failing(number))
    stores = [FileStore(path) for _ in range(4)]
    await race(stores, 20)
    for store in stores:
        await store.close()


async def test_a_link_whose_answer_was_lost(store, monkeypatch) -> None:
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    await write(store, RUN, 3)
    assert await seqs(store, RUN) == [1, 2, 3]


async def test_runs_go_in_parallel(store, monkeypatch) -> None:
    """Two commits of different runs sync at the same time: each waits for the other there."""
    await write(store, RUN, 1)
    await write(store, RunId("r2"), 1)
    both = threading.Barrier(2, timeout=60)
    fsync = os.fsync

    def met_fsync(handle):
        both.wait()
        fsync(handle)

    monkeypatch.setattr(os, "fsync", met_fsync)
    await asyncio.gather(store.commit(step(RUN, 2)), store.commit(step(RunId("r2"), 2)))


async def test_a_cancelled_commit_happens_wholly(store, monkeypatch) -> None:
    await write(store, RUN, 1)
    begun, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_fsync(handle):
        begun.set()
        assert go_on.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow_fsync)
    commit = asyncio.create_task(store.commit(step(RUN, 2)))
    await asyncio.to_thread(begun.wait)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    go_on.set()
    assert await store.head(RUN) == head(RUN, 2)  # behind the commit, in the order of the run
    assert await seqs(store, RUN) == [1, 2]


def test_one_event_loop_after_another(path) -> None:
    store = FileStore(path)
    for seq in range(1, 5):
        asyncio.run(store.commit(step(RUN, seq)))
    assert asyncio.run(seqs(store, RUN)) == [1, 2, 3, 4]
    asyncio.run(store.close())
