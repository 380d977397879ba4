"""FileStore: what comes of races between letters and commits for the next name."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Left
from holdfast.errors import HeadMoved
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    RUN,
    before_publishing,
    checkpoint_id,
    child,
    head,
    keys_of,
    letters,
    seqs,
    sizes,
    stay,
    step,
    write,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


@pytest.fixture
async def other(path):
    """Another one on the same directory, which knows nothing yet."""
    other = FileStore(path)
    yield other
    await other.close()


def doing(path: Path, work) -> None:
    """Do something with a store of its own, from a thread that has no event loop."""

    async def main() -> None:
        store = FileStore(path)
        await work(store)
        await store.close()

    asyncio.run(main())


async def test_a_commit_that_meets_a_letter_takes_it_along(store, path) -> None:
    await write(store, RUN, 1)

    def leave(key: str):
        return lambda: doing(path, lambda other: other.leave(RUN, 1, letters(key)))

    before_publishing(store, leave("a"), leave("b"))
    before = store.fsyncs
    assert keys_of(await store.commit(step(RUN, 2))) == ["a", "b"]
    assert store.fsyncs - before == 4  # a file for each name that it tried
    assert list(sizes(path)) == ["00000001-0", "00000002-0", "00000002-1", "00000002-2"]
    assert keys_of(await store.inbox(RUN)) == ["a", "b"]
    assert await store.find(checkpoint_id(RUN, 2)) == (RUN, 2)
    assert os.listdir(path / "temp") == []


async def test_a_letter_that_was_left_before_costs_a_commit_nothing(store, other) -> None:
    await write(store, RUN, 1)
    await other.leave(RUN, 1, letters("a"))
    before = store.fsyncs
    assert keys_of(await store.commit(step(RUN, 2))) == ["a"]
    assert store.fsyncs - before == 2


async def test_a_letter_that_meets_a_commit_is_left_after_it(store, path) -> None:
    await write(store, RUN, 1)
    before_publishing(
        store,
        lambda: doing(path, lambda other: other.commit(step(RUN, 2, token=2))),
        lambda: doing(path, lambda other: other.leave(RUN, 1, letters("b"))),
    )
    assert await store.leave(RUN, 1, letters("a")) == Left(head(RUN, 2, token=2))
    assert keys_of(await store.inbox(RUN)) == ["b", "a"]
    assert list(sizes(path)) == ["00000001-0", "00000002-0", "00000003-0", "00000003-1"]


async def test_a_letter_that_meets_its_key_is_refused(store, path) -> None:
    """Also if it was taken and its file emptied, while the sender slept."""
    await write(store, RUN, 1)

    async def use(other: FileStore) -> None:
        await other.leave(RUN, 1, letters("a"))
        await other.commit(stay(RUN, 1, taken=["a"]))
        await other.commit(step(RUN, 2))
        await other.commit(step(RUN, 3))

    before_publishing(store, lambda: doing(path, use))
    assert await store.leave(RUN, 1, letters("a", "b")) == Left(head(RUN, 3), ("a",))
    assert not sizes(path)["00000002-0"]
    assert await store.inbox(RUN) == []
    assert os.listdir(path / "temp") == []


async def test_a_writer_that_lost_its_run_takes_no_letters(store, path) -> None:
    await write(store, RUN, 1)
    await store.leave(RUN, 1, letters("a"))
    before_publishing(store, lambda: doing(path, lambda other: other.commit(stay(RUN, 1, token=2))))
    with pytest.raises(HeadMoved):
        await store.commit(step(RUN, 2)._replace(taken=("a",)))
    assert keys_of(await store.inbox(RUN)) == ["a"]


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
    return taken


async def check_each_once(path: Path, taken: list[str], senders: int, each: int) -> None:
    """Every letter was taken once, those of one sender in their order, and none can be left again."""
    assert len(taken) == len(set(taken)) == senders * each
    for sender in range(senders):
        own = [key for key in taken if key.startswith(f"{sender}/")]
        assert own == [f"{sender}/{number}" for number in range(each)]
    fresh = FileStore(path)
    assert await fresh.inbox(RUN) == []
    assert (await fresh.leave(RUN, 0, letters(*taken))).refused == tuple(taken)
    there = await fresh.head(RUN)
    assert there is not None
    assert await seqs(fresh, RUN) == list(range(1, there.seq + 1))
    await fresh.close()


async def send(store: FileStore, sender: int, each: int) -> None:
    for number in range(each):
        assert (await store.leave(RUN, 1, letters(f"{sender}/{number}"))).refused == ()


async def test_letters_and_commits_of_many_threads(store, path) -> None:
    await store.commit(step(RUN, 1))
    others = [FileStore(path) for _ in range(3)]
    sending = [send((store, *others)[n % 4], n, 9) for n in range(5)]
    taken, _ = await asyncio.gather(drive(store, 45), asyncio.gather(*sending))
    await check_each_once(path, taken, 5, 9)
    for other in others:
        await other.close()


def send_from_process(path: str, sender: int, each: int) -> None:
    """Wait for the word, then leave letters."""
    print("ready", flush=True)
    sys.stdin.readline()
    doing(Path(path), lambda store: send(store, sender, each))


async def test_letters_and_commits_of_many_processes(store, path) -> None:
    await store.commit(step(RUN, 1))
    processes = [child("test_file_letters", "send_from_process", str(path), n, 20) for n in range(3)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        for process in processes:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        taken = await asyncio.wait_for(drive(store, 60), 150)
        for process in processes:
            process.communicate(timeout=150)
        assert [process.returncode for process in processes] == [0] * 3
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    await check_each_once(path, taken, 3, 20)


def send_for_ever(path: str, sender: int) -> None:
    """Leave one letter after the other; print each key once it is there."""

    async def main(store: FileStore) -> None:
        for number in range(10**6):
            await send_one(store, f"{sender}/{number}")
            print(f"{sender}/{number}", flush=True)

    doing(Path(path), main)


async def send_one(store: FileStore, key: str) -> None:
    assert (await store.leave(RUN, 1, letters(key))).refused == ()


async def test_senders_that_are_killed(store, path) -> None:
    """What they were told to be there is there, once and in order; what they were not told is there or not."""
    await store.commit(step(RUN, 1))
    for sender in range(6):
        process = child("test_file_letters", "send_for_ever", str(path), sender)
        assert process.stdout is not None
        told = [await asyncio.to_thread(process.stdout.readline) for _ in range(3 * sender + 1)]
        process.kill()
        told += process.stdout.readlines()  # not by communicate, which does not see what was read ahead
        process.communicate()
        told = [line.strip() for line in told]
        found = keys_of(await store.inbox(RUN))
        assert found[: len(told)] == told == [f"{sender}/{number}" for number in range(len(told))]
        assert len(found) - len(told) <= 1
        assert keys_of(await store.commit(stay(RUN, 1, taken=found))) == []
