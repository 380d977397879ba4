"""FileStore: several processes on one directory, the death of some, and which of them live."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.checkpoint.store import Blob, Depth, RunQuery
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    EVERYTHING,
    RUN,
    child,
    doing,
    head,
    keys_of,
    letters,
    record,
    run_path,
    seqs,
    stay,
    step,
    write,
)
from tests.support import modules
from tests.support.parts import Disk, this_process

# -- one winner ------------------------------------------------------------------------------------


def contend(directory: str, owner: str, run: str, goal: int) -> None:
    """Try to be the one who takes each next step until the run reached its goal; print the steps won."""

    async def main(store: FileStore) -> None:
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

    doing(directory, main)


async def test_processes_on_one_run_and_on_one_directory(files, directory) -> None:
    tasks = [("shared", n) for n in range(3)] + [("own", 3)]
    processes = [
        child("test_file_processes", "contend", str(directory), f"p{n}", run, 60) for run, n in tasks
    ]
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    wins = [[int(line) for line in output.split()] for output in outputs]
    assert wins[3] == list(range(1, 61))
    assert sorted(wins[0] + wins[1] + wins[2]) == list(range(1, 61))
    for run in ("shared", "own"):
        assert await seqs(files, RunId(run)) == list(range(1, 61))
    assert set(os.listdir(directory)) == {"store.json", "runs", "temp", "locks", "waking"}
    assert await files.inspect() == []


# -- letters ---------------------------------------------------------------------------------------


async def drive(store: FileStore, total: int) -> list[str]:
    """Go on from checkpoint 1, and take at each commit what the one before returned; all that was taken, in order."""
    taken: list[str] = []
    waiting: list[str] = []
    seq = 1
    while len(taken) < total:
        moves = len(taken) % 2 == 0
        commit = step(RUN, seq + 1) if moves else stay(RUN, seq, f"note {seq}")
        found = keys_of(await store.commit(commit._replace(taken=tuple(waiting))))
        taken += waiting
        waiting, seq = found, seq + moves
        await asyncio.sleep(0)
    return taken


async def check_each_once(directory: Path, taken: list[str], senders: int, each: int) -> None:
    """Every letter was taken once, those of one sender in their order, and none can be left again."""
    assert len(taken) == len(set(taken)) == senders * each
    for sender in range(senders):
        own = [key for key in taken if key.startswith(f"{sender}/")]
        assert own == [f"{sender}/{number}" for number in range(each)]
    fresh = FileStore(directory)
    assert await fresh.inbox(RUN) == []
    assert (await fresh.leave(RUN, 0, letters(*taken))).refused == tuple(taken)
    there = await fresh.head(RUN)
    assert there is not None
    assert await seqs(fresh) == list(range(1, there.seq + 1))
    await fresh.close()


async def send(store: FileStore, sender: int, each: int, says: bool = False) -> None:
    for number in range(each):
        assert (await store.leave(RUN, 1, letters(f"{sender}/{number}"))).refused == ()
        if says:
            print(f"{sender}/{number}", flush=True)


async def test_letters_and_commits_of_many_threads(files, others, directory) -> None:
    await files.commit(step(RUN, 1))
    sending = [send((files, others)[n % 2], n, 9) for n in range(5)]
    taken, _ = await asyncio.gather(drive(files, 45), asyncio.gather(*sending))
    await check_each_once(directory, taken, 5, 9)


def send_letters(directory: str, sender: int, each: int) -> None:
    """Wait for the word, then leave letters; print each key once it is there."""
    print("ready", flush=True)
    sys.stdin.readline()
    doing(directory, lambda store: send(store, sender, each, says=True))


async def begin_sending(directory: Path, sender: int, each: int) -> Any:
    process = child("test_file_processes", "send_letters", str(directory), sender, each)
    assert process.stdout is not None
    assert process.stdin is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    print(file=process.stdin, flush=True)
    return process


async def test_letters_and_commits_of_many_processes(files, directory) -> None:
    await files.commit(step(RUN, 1))
    processes = [await begin_sending(directory, sender, 20) for sender in range(3)]
    try:
        taken = await asyncio.wait_for(drive(files, 60), 150)
        for process in processes:
            process.communicate(timeout=150)
        assert [process.returncode for process in processes] == [0] * 3
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    await check_each_once(directory, taken, 3, 20)


async def test_senders_that_are_killed(files, directory) -> None:
    """What they were told to be there is there, once and in order; what they were not told is there or not."""
    await files.commit(step(RUN, 1))
    for sender in range(5):
        process = await begin_sending(directory, sender, 10**6)
        told = [await asyncio.to_thread(process.stdout.readline) for _ in range(3 * sender + 1)]
        process.kill()
        told += process.stdout.readlines()  # not by communicate, which does not see what was read ahead
        process.communicate()
        told = [line.strip() for line in told]
        found = keys_of(await files.inbox(RUN))
        assert found[: len(told)] == told == [f"{sender}/{number}" for number in range(len(told))]
        assert len(found) - len(told) <= 1
        assert keys_of(await files.commit(stay(RUN, 1, taken=found))) == []


# -- death -----------------------------------------------------------------------------------------


def acknowledge(directory: str) -> None:
    """Go on with the run for ever, with a blob at each step; print each seq once it is committed."""

    async def main(store: FileStore) -> None:
        there = await store.head(RUN)
        seq = there.seq if there is not None else 0
        while True:
            seq += 1
            blob = Blob(Digest(seq.to_bytes(32, "big")), b"%d" % seq)
            await store.commit(step(RUN, seq)._replace(blobs=(blob,) if seq % 2 else ()))
            print(seq, flush=True)

    doing(directory, main)


async def test_killed_at_any_moment(directory) -> None:
    chance = random.Random()
    last = 0
    for _ in range(8):
        process = child("test_file_processes", "acknowledge", str(directory))
        assert process.stdout is not None
        for _ in range(chance.randint(1, 30)):
            last = int(process.stdout.readline())
        await asyncio.sleep(chance.random() / 100)
        process.kill()
        rest = process.stdout.read().split()
        process.communicate()
        last = int(rest[-1]) if rest else last
        await check_all_there(directory, last)


async def check_all_there(directory: Path, last: int) -> None:
    store = FileStore(directory)
    there = await store.head(RUN)
    assert there is not None
    assert there.seq in (last, last + 1)
    records = await store.records(RUN, 1, EVERYTHING, Depth.ALL)
    assert records == [record(RUN, n) for n in range(1, there.seq + 1)]
    digests = [Digest(seq.to_bytes(32, "big")) for seq in range(1, there.seq + 1, 2)]
    assert set(await store.blobs(RUN, digests)) == set(digests)
    assert await store.inspect() == []
    await store.close()


def stop_over_a_line(directory: str, what: str) -> None:
    """Stop this whole process while it holds the lock of the run: before its line is written, or before the sync."""
    genuine = getattr(os, what)

    def stop(handle: int, *args: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".jsonl"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return genuine(handle, *args)

    setattr(os, what, stop)
    doing(directory, lambda store: store.commit(step(RUN, 2, owner="stopped")))


@pytest.mark.parametrize("what", ["pwrite", "fdatasync"])
async def test_the_lock_of_a_stopped_process_ends_with_it(files, directory, monkeypatch, what) -> None:
    monkeypatch.setattr(modules.run_lock, "_PATIENCE_SECONDS", 0.1)
    await write(files, RUN, 1)
    process = child("test_file_processes", "stop_over_a_line", str(directory), what)
    try:
        _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with pytest.raises(StorageError, match=r"another process holds this lock .* seems to stand still"):
            await files.commit(step(RUN, 2))
    finally:
        process.kill()
        process.communicate()
    if what == "pwrite":
        await files.commit(step(RUN, 2))
    assert await files.head(RUN) == head(RUN, 2, owner="" if what == "pwrite" else "stopped")
    await files.commit(step(RUN, 3))
    assert await seqs(files) == [1, 2, 3]


async def test_a_process_that_goes_on_after_a_stop_finishes_its_commit(files, directory) -> None:
    await write(files, RUN, 1)
    process = child("test_file_processes", "stop_over_a_line", str(directory), "pwrite")
    try:
        await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        process.send_signal(signal.SIGCONT)
        with pytest.raises(HeadMoved):
            await files.commit(step(RUN, 2))
        process.communicate(timeout=150)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert await files.head(RUN) == head(RUN, 2, owner="stopped")
    assert run_path(directory).read_bytes().count(b"\n") == 3


# -- forks -----------------------------------------------------------------------------------------


def fork_amid_a_sync(directory: str) -> None:
    """Fork at each line of a sync; each child writes a file. Prints how many of them ended well, and all syncs."""
    disk = Disk(Path(directory))
    endings: list[int] = []

    def fork(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is not Disk.sync.__code__:
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


def use_after_fork(directory: str) -> None:
    """Commit, fork while the store has threads, and commit in the child."""
    store = FileStore(directory)
    asyncio.run(store.commit(step(RUN, 1)._replace(blobs=(Blob(Digest(b"1" * 32), b"x"),))))
    if os.fork():
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    else:
        asyncio.run(store.commit(step(RUN, 2)))
    asyncio.run(store.close())


def join_and_fork(directory: str) -> None:
    """Join, fork, and tell in both processes who lives."""
    store = FileStore(directory)
    asyncio.run(store.join())
    parent = this_process()
    if pid := os.fork():
        os.waitpid(pid, 0)
        print("parent", bool(asyncio.run(store.living([parent]))))
        asyncio.run(store.close())
    else:
        print(
            "child",
            bool(asyncio.run(store.living([parent]))),
            bool(asyncio.run(store.living([this_process()]))),
        )
        asyncio.run(store.join())
        print("joined", bool(asyncio.run(store.living([this_process()]))))
        asyncio.run(store.close())
        print("closed", bool(asyncio.run(FileStore(directory).living([parent]))), flush=True)
        os._exit(0)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("fork_amid_a_sync", ["True {0} 1"]),
        ("use_after_fork", ["0"]),
        ("join_and_fork", ["child True False", "joined True", "closed True", "parent True"]),
    ],
)
def test_forks(tmp_path, program, said) -> None:
    process = child("test_file_processes", program, str(tmp_path))
    assert process.communicate(timeout=150)[0].splitlines() == said
    assert process.returncode == 0


# -- who lives -------------------------------------------------------------------------------------


async def test_owners_lie_beside_the_runs_for_all_namespaces(files, directory) -> None:
    tenant = FileStore(directory, "Tenant 1")
    assert not await tenant.living([this_process()])
    assert "owners" not in os.listdir(directory)
    await files.join()
    assert await tenant.living([this_process()])
    assert len(os.listdir(directory / "owners")) == 1
    assert await files.runs(RunQuery()) == []
    await write(files, RUN, 1)
    assert await files.runs(RunQuery()) == [head(RUN, 1)]
    await tenant.close()
    assert await files.living([this_process()])
    await files.close()
    assert not (directory / "owners").exists()


async def test_an_owners_folder_that_cannot_be_made(files, directory) -> None:
    await files.open()
    (directory / "owners").write_text("mine")
    with pytest.raises(StorageError, match=r"cannot let others see this process: .*owners"):
        await files.join()
