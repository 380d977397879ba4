"""FileStore: several processes on one directory, and the death of some."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.checkpoint.store import Blob, Depth
from holdfast.errors import HeadMoved
from holdfast.ids import Digest, RunId
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from tests.stores.file_commits import EVERYTHING, RUN, checkpoint_id, child, record, seqs, step


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


def contend(path: str, owner: str, run: str, goal: int) -> None:
    """Try to be the one who takes each next step until the run reached its goal; print the steps won."""

    async def main() -> None:
        store = FileStore(path)
        while True:
            there = await store.head(RunId(run))
            seq = there.seq if there is not None else 0
            if seq >= goal:
                break
            try:
                await store.commit(step(RunId(run), seq + 1, owner=owner))
                print(seq + 1)
            except HeadMoved:
                pass
        await store.close()

    asyncio.run(main())


async def test_processes_on_one_run_and_on_one_directory(path) -> None:
    processes = [child("test_file_processes", "contend", str(path), f"p{n}", "shared", 60) for n in range(3)]
    processes.append(child("test_file_processes", "contend", str(path), "p3", "own", 60))
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    wins = [[int(line) for line in output.split()] for output in outputs]
    assert wins[3] == list(range(1, 61))
    assert sorted(wins[0] + wins[1] + wins[2]) == list(range(1, 61))
    store = FileStore(path)
    for run in ("shared", "own"):
        assert await seqs(store, RunId(run)) == list(range(1, 61))
    assert set(os.listdir(path)) == {"store.json", "runs", "ids", "temp", "locks", "waking"}
    await store.close()


def fork_amid_a_sync(path: str) -> None:
    """Fork at each line of a sync; each child writes a file. Prints how many of them ended well, and all syncs."""
    disk = Disk(Path(path))
    endings: list[int] = []

    def fork(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is not Disk._sync.__code__:
            return None
        if event == "line":
            if (process := os.fork()) == 0:
                sys.settrace(None)
                signal.alarm(60)
                disk.write(b"child")
                os._exit(0)
            endings.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        return fork

    sys.settrace(fork)
    disk.write(b"parent")
    sys.settrace(None)
    print(len(endings) > 2, set(endings), disk.fsyncs)


def test_a_fork_amid_a_sync_can_use_the_disk(tmp_path: Path) -> None:
    process = child("test_file_processes", "fork_amid_a_sync", str(tmp_path))
    assert process.communicate(timeout=150)[0] == "True {0} 1\n"


def use_after_fork(path: str) -> None:
    """Commit, fork while the store has threads, and commit in the child."""
    store = FileStore(path)
    asyncio.run(store.commit(step(RUN, 1)))
    if os.fork():
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    else:
        asyncio.run(store.commit(step(RUN, 2)))
    asyncio.run(store.close())


async def test_a_fork_can_use_the_store(store, path) -> None:
    process = child("test_file_processes", "use_after_fork", str(path))
    assert process.communicate(timeout=150)[0] == "0\n"
    assert await seqs(store, RUN) == [1, 2]


def acknowledge(path: str) -> None:
    """Go on with the run for ever, with a blob at each step; print each seq once it is committed."""

    async def main() -> None:
        store = FileStore(path)
        there = await store.head(RUN)
        seq = there.seq if there is not None else 0
        while True:
            seq += 1
            digest = Digest(seq.to_bytes(32, "big"))
            await store.commit(step(RUN, seq)._replace(blobs=(Blob(digest, b"%d" % seq),)))
            print(seq, flush=True)

    asyncio.run(main())


async def test_killed_at_any_moment(path) -> None:
    chance = random.Random()
    last = 0
    for _ in range(10):
        process = child("test_file_processes", "acknowledge", str(path))
        assert process.stdout is not None
        for _ in range(chance.randint(1, 30)):
            last = int(process.stdout.readline())
        await asyncio.sleep(chance.random() / 100)
        process.kill()
        rest = process.stdout.read().split()  # not by communicate, which does not see what was read ahead
        process.communicate()
        last = int(rest[-1]) if rest else last
        await check_all_there(path, last)


async def check_all_there(path: Path, last: int) -> None:
    store = FileStore(path)
    there = await store.head(RUN)
    assert there is not None
    assert there.seq in (last, last + 1)
    assert await store.records(RUN, 1, EVERYTHING, Depth.ALL) == [
        record(RUN, n) for n in range(1, there.seq + 1)
    ]
    digests = [Digest(seq.to_bytes(32, "big")) for seq in range(1, there.seq + 1)]
    assert set(await store.blobs(RUN, digests)) == set(digests)
    hints = {file.name for file in (path / "ids").rglob("*") if file.is_file()}
    assert hints >= {checkpoint_id(RUN, seq) for seq in range(1, there.seq + 1)}
    await store.close()
