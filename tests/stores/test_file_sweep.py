"""FileStore: blobs that are swept beside processes that bring them, sleep or die."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Blob, Depth, Expected, Removal, RunQuery
from holdfast.errors import StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    EVERYTHING,
    RUN,
    checkpoint_id,
    child,
    head,
    record,
    standing,
    step,
    tree,
)
from tests.support import modules
from tests.support.modules import blobs
from tests.support.parts import Disk
from tests.support.store_parts import Locks


@pytest.fixture
def directory(on_disk):
    return on_disk / "store"


@pytest.fixture
def path(directory):
    return directory


@pytest.fixture
def store(files):
    return files


@pytest.fixture
def other(others):
    return others


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """No test waits for a process that it stopped itself."""
    monkeypatch.setattr(blobs, "_PATIENCE", 0.05)


def before_syncing(*actions: Callable[[], object]) -> None:
    """Let something happen when a file or a line is written and is about to be synced, each time another."""
    rest = list(actions)
    for name in ("sync", "sync_data"):
        genuine = getattr(Disk, name)

        def slow_sync(disk: Disk, handle: int, genuine: Callable[[Disk, int], None] = genuine) -> None:
            if rest and os.path.isfile(f"/proc/self/fd/{handle}"):
                rest.pop(0)()
            genuine(disk, handle)

        setattr(Disk, name, slow_sync)


def blob(number: int) -> Blob:
    return Blob(Digest(number.to_bytes(32, "big")), b"%d " % number * 50)


def naming(run: RunId, seq: int, *numbers: int, **fields: object):
    """A commit whose record names blobs, and that brings them."""
    values = b"\x00" + b"".join(blob(number).digest for number in numbers)
    return step(run, seq, **fields)._replace(
        records=(record(run, seq, values=values),), blobs=tuple(map(blob, numbers))
    )


async def named(store: FileStore, family: RunId) -> set[Digest]:
    found = set()
    for found_head in await store.runs(RunQuery(family=family)):
        for one in await store.records(found_head.run_id, 1, EVERYTHING, Depth.ALL):
            found |= {Digest(one.values[i : i + 32]) for i in range(1, len(one.values), 32)}
    return found


async def sweep(store: FileStore, family: RunId = RUN) -> int:
    mark, sizes = await store.mark(family)
    keep = await named(store, family)
    return await store.discard(family, mark, [digest for digest in sizes if digest not in keep])


def there(path: Path, run: str = "r1") -> list[int]:
    return sorted(int(name, 16) for name in os.listdir(path / "blobs" / run))


# ---------------------------------------------------------------- what is freed


async def test_what_nobody_names_is_freed(store, path, other) -> None:
    await store.commit(naming(RUN, 1, 1, 2))
    await store.commit(naming(RUN, 2, 2, 3))
    assert await sweep(other) == 0
    await store.remove(Removal(RUN, standing(RUN, 2), (1,)))
    before = sum((path / "blobs/r1" / name).stat().st_size for name in os.listdir(path / "blobs/r1"))
    freed = await sweep(other)
    after = sum((path / "blobs/r1" / name).stat().st_size for name in os.listdir(path / "blobs/r1"))
    assert freed == before - after == len(blob(1).data)
    assert there(path) == [2, 3]
    assert tree(path / "temp") == []


async def test_files_of_other_people_are_left_alone(store, path) -> None:
    await store.commit(naming(RUN, 1, 1))
    (path / "blobs/r1/README").write_text("mine")
    assert (await store.mark(RUN)).sizes.keys() == {blob(1).digest}
    await sweep(store)
    assert (path / "blobs/r1/README").exists()


@pytest.mark.parametrize("offset", [-(10**6), 0, 10**6])
async def test_clocks_do_not_matter(store, path, other, monkeypatch, offset) -> None:
    """Neither that of who brings a blob, nor the times that a copy of the store has."""
    await store.commit(naming(RUN, 1, 1, 2))
    for name in os.listdir(path / "blobs/r1"):
        os.utime(path / "blobs/r1" / name, (4e9, 4e9))
    mark, _ = await other.mark(RUN)
    monkeypatch.setattr(time, "time", lambda: 2e9 + offset)
    await store.commit(naming(RUN, 2, 1, 3))
    digests = [blob(number).digest for number in (1, 2, 3)]
    assert await other.discard(RUN, mark, digests) == len(blob(2).data)
    assert there(path) == [1, 3]


async def test_marks_of_several_sweeps(store, path, other) -> None:
    await store.commit(naming(RUN, 1, 1))
    first, _ = await store.mark(RUN)
    await store.commit(naming(RUN, 2, 1, 2))
    second, _ = await other.mark(RUN)
    assert second > first
    assert await store.discard(RUN, first, [blob(1).digest, blob(2).digest]) == 0
    await store.commit(naming(RUN, 3, 2))
    assert await other.discard(RUN, second, [blob(1).digest, blob(2).digest]) == len(blob(1).data)


# ---------------------------------------------------------------- commits under way


async def test_a_commit_under_way_is_waited_for(store, path, other, monkeypatch) -> None:
    """It has brought its blob, but no record names it yet: the mark comes after it is published."""
    monkeypatch.setattr(blobs, "_PATIENCE", 60.0)
    await store.commit(naming(RUN, 1, 1))
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(60)

    monkeypatch.setattr(Disk, "sync", Disk.sync)  # to be put back
    monkeypatch.setattr(Disk, "sync_data", Disk.sync_data)
    before_syncing(lambda: None, wait)  # the blob, then the line
    writing = asyncio.create_task(store.commit(naming(RUN, 2, 2)))
    await asyncio.to_thread(begun.wait, 60)
    sweeping = asyncio.create_task(sweep(other))
    await asyncio.sleep(0.05)
    assert not sweeping.done()
    go_on.set()
    await writing
    assert await sweeping == 0
    assert there(path) == [1, 2]


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.readline()  # the thread that sends the signal is not the first to be stopped


def bring_and_sleep(path: str, when: int) -> None:
    """Stop this whole process over a commit: before its blob is synced, or before its line is."""

    async def main() -> None:
        store = FileStore(path)
        await store.head(RUN)
        before_syncing(*([stand_still] if not when else [lambda: None, stand_still]))
        await store.commit(naming(RUN, 2, 2))
        print("done")
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("when", [0, 1])
async def test_a_process_that_stands_still_over_its_commit(store, path, when) -> None:
    """Nothing is swept before it is gone or goes on, and what it brought is there."""
    await store.commit(naming(RUN, 1, 1, 7))
    process = child("test_file_sweep", "bring_and_sleep", str(path), when)
    try:
        _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert await store.mark(RUN) == (0, {})
        assert await store.discard(RUN, 10**10, [blob(1).digest, blob(2).digest]) == 0
        process.send_signal(signal.SIGCONT)
        assert (await asyncio.to_thread(process.communicate, "\n", 150))[0] == "done\n"
    finally:
        process.kill()
        process.communicate()
    assert there(path) == [1, 2, 7]
    await store.remove(Removal(RUN, standing(RUN, 2), (1,)))
    assert await sweep(store) == len(blob(1).data) + len(blob(7).data)
    assert there(path) == [2]


@pytest.mark.parametrize("when", [0, 1])
async def test_a_process_that_dies_over_its_commit(store, path, when) -> None:
    """Its commit happened or not, and its blob stays or goes with it; what was only brought is freed."""
    await store.commit(naming(RUN, 1, 1))
    await store.add_blobs(RUN, [blob(3)])
    process = child("test_file_sweep", "bring_and_sleep", str(path), when)
    try:
        await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
    finally:
        process.kill()
        process.communicate()
    assert await store.head(RUN) == head(RUN, 1 + when)
    assert await sweep(store) == len(blob(3).data)
    assert there(path) == ([1, 2] if when else [1])


@pytest.mark.parametrize("planted", ["", "no lock", "no touch"])
async def test_a_blob_that_is_brought_again_between_mark_and_discard(
    store, path, other, monkeypatch, planted
) -> None:
    """With a bug in its place this would lose the blob: so the test can tell."""
    await store.commit(naming(RUN, 1, 1))
    await store.commit(naming(RUN, 2, 2))
    await store.remove(Removal(RUN, standing(RUN, 2), (1,)))
    if planted == "no lock":
        monkeypatch.setattr(Locks, "hold_shared", lambda self, name: contextlib.nullcontext())
    elif planted == "no touch":
        monkeypatch.setattr(os, "utime", lambda *args: None)
    mark, _ = await other.mark(RUN)
    await store.commit(naming(RUN, 3, 1))
    await other.discard(RUN, mark, [blob(1).digest])
    assert (there(path) == [1, 2]) is (not planted)


# ---------------------------------------------------------------- many processes


def write_with_blobs(path: str, run: str, steps: int, seed: int) -> None:
    """Commits that bring the same few blobs again and again, and keep only the latest."""

    async def main() -> None:
        store, chance = FileStore(path), random.Random(seed)
        for seq in range(1, steps + 1):
            numbers = [chance.randrange(6) for _ in range(3)]
            await store.commit(naming(RunId(run), seq, *numbers, family=RUN))
            expected = Expected(checkpoint_id(run, seq), 1)
            await store.remove(Removal(RunId(run), expected, tuple(range(1, seq))))
            missing = [number for number in numbers if not await store.blobs(RUN, [blob(number).digest])]
            print(seq, missing, flush=True)
        await store.close()

    asyncio.run(main())


def sweep_for_ever(path: str) -> None:
    blobs._PATIENCE = 10.0

    async def main() -> None:
        store = FileStore(path)
        freed = 0
        while True:
            freed += await sweep(store)
            print(freed, flush=True)

    asyncio.run(main())


async def test_sweeps_beside_writers_of_one_family(path) -> None:
    """Sweepers are killed at any moment; no run ever misses a blob that it names."""
    chance = random.Random(7)
    writers = [child("test_file_sweep", "write_with_blobs", str(path), f"w{n}", 40, n) for n in range(3)]
    freed = 0
    try:
        while any(writer.poll() is None for writer in writers):
            sweeper = child("test_file_sweep", "sweep_for_ever", str(path))
            assert sweeper.stdout is not None
            try:
                for _ in range(chance.randrange(1, 5)):
                    freed = max(freed, int(await asyncio.to_thread(sweeper.stdout.readline)))
                await asyncio.sleep(chance.random() / 100)
            finally:
                sweeper.kill()
                sweeper.communicate()
        outputs = [writer.communicate(timeout=150)[0].splitlines() for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert [output[-1:] for output in outputs] == [["40 []"]] * 3
    assert all(line.endswith("[]") for output in outputs for line in output)
    assert freed
    store = FileStore(path)
    keep = await named(store, RUN)
    assert len(await store.blobs(RUN, list(keep))) == len(keep)
    await sweep(store)
    assert set(there(path)) == {int.from_bytes(digest, "big") for digest in keep}
    await store.close()


async def test_writers_that_overlap_do_not_keep_a_sweep_waiting(path, store, other, monkeypatch) -> None:
    monkeypatch.setattr(blobs, "_PATIENCE", 60.0)
    done = False

    async def write(run: RunId) -> None:
        seq = 0
        while not done:
            seq += 1
            await store.commit(naming(run, seq, seq % 9, family=RUN))

    await store.commit(naming(RunId("before"), 1, 1, family=RUN))  # there is something to sweep
    writers = [asyncio.create_task(write(RunId(f"w{n}"))) for n in range(8)]
    try:
        marks = [(await other.mark(RUN)).mark for _ in range(20)]
    finally:
        done = True
        await asyncio.gather(*writers)
    assert marks == sorted(set(marks))
    assert marks[0]


# ---------------------------------------------------------------- locks


async def test_a_lock_that_is_never_free_is_an_error(store, path, monkeypatch) -> None:
    monkeypatch.setattr(modules.locks, "_PATIENCE", 0.05)
    await store.commit(naming(RUN, 1, 1))
    with Locks(path / "locks").try_alone("r1.blobs") as held:
        assert held is not None
        with pytest.raises(StorageError, match="another process holds it, which seems to stand still"):
            await store.commit(naming(RUN, 2, 2))
    await store.commit(naming(RUN, 2, 2))
