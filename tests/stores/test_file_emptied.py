"""FileStore: files that are emptied when nobody needs them, and writers that slept or died meanwhile."""

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Commit, Depth, Expected, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved, StorageError
from holdfast.stores.common.disk import Disk
from holdfast.stores.common.locks import Locks
from holdfast.stores.file import FileStore, document, emptying
from tests.stores.file_commits import (
    RUN,
    before_publishing,
    checkpoint_id,
    child,
    failing,
    fill,
    head,
    keys_of,
    note,
    seqs,
    sizes,
    stay,
    step,
    tree,
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


# ---------------------------------------------------------------- emptied files


async def test_files_are_emptied_one_checkpoint_later(store, path) -> None:
    await fill(store, 2)
    await store.commit(stay(RUN, 2, "c"))
    assert all(sizes(path).values())
    await store.commit(step(RUN, 3))
    assert sizes(path) == {
        "00000001-0": True,
        "00000002-0": False,
        "00000002-1": False,
        "00000002-2": True,
        "00000003-0": True,
        "00000003-1": True,
    }
    assert os.listdir(path / "temp") == []


async def test_nothing_is_emptied_before_the_next_commit_is_durable(store, path, monkeypatch) -> None:
    await fill(store, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        with pytest.raises(StorageError, match="It was taken back: check the disk"):
            await store.commit(step(RUN, 3))
    assert all(sizes(path).values())


async def test_readers_pass_over_emptied_files(store, path, other) -> None:
    """One that knows the run from its first commit on, one that knows nothing, and one that only lists."""
    await store.commit(step(RUN, 1))
    assert await other.notes(RUN) == []
    await store.commit(stay(RUN, 1, "1a"))
    await store.commit(stay(RUN, 1, "1b"))
    for seq in range(2, 6):
        await store.commit(step(RUN, seq))
        await store.commit(stay(RUN, seq, f"{seq}a"))
    assert sum(not there for there in sizes(path).values()) == 4
    cold = FileStore(path)
    for reader in (other, cold):
        assert await reader.head(RUN) == head(RUN, 5)
        assert keys_of(await reader.notes(RUN)) == ["5a"]
        assert await seqs(reader, RUN) == [1, 2, 3, 4, 5]
        assert await seqs(reader, RUN, 2, 2) == [2]
        assert await reader.runs(RunQuery()) == [head(RUN, 5)]
        assert await reader.damaged() == []
        for hint in (path / "ids").rglob("*"):
            if hint.is_symlink():
                hint.unlink()
        assert await reader.find(checkpoint_id(RUN, 2)) == (RUN, 2)
        assert await reader.find(checkpoint_id(RUN, 9)) is None
    await cold.close()


async def test_a_reader_whose_newest_file_is_emptied(store, path, other) -> None:
    await fill(store, 1)
    await store.commit(stay(RUN, 1, "a"))
    assert keys_of(await other.notes(RUN)) == ["a"]
    for seq in (2, 3):
        await store.commit(step(RUN, seq))
    assert not sizes(path)["00000002-0"]
    assert await other.head(RUN) == head(RUN, 3)
    assert await other.notes(RUN) == []


@pytest.mark.parametrize("reading", ["notes", "records"])
async def test_a_file_that_is_emptied_while_it_is_about_to_be_read(
    store, other, monkeypatch, reading
) -> None:
    await store.commit(step(RUN, 1))
    await store.commit(stay(RUN, 1, "a"))
    await store.commit(stay(RUN, 1, "b"))
    await other.notes(RUN)
    original, rest = document.content_of, [2, 3]

    def content_of(path):
        while path.name == "00000002-1.json" and rest:
            asyncio.run(store.commit(step(RUN, rest.pop(0))))
        return original(path)

    monkeypatch.setattr(document, "content_of", content_of)
    if reading == "notes":
        assert await other.notes(RUN) == []
    else:
        assert await seqs(other, RUN, 1) == [1]
    assert rest == []
    assert await other.head(RUN) == head(RUN, 3)


async def test_hard_links_to_commit_files_keep_their_content(store, path) -> None:
    await fill(store, 2)
    backup = path.parent / "backup"
    os.mkdir(backup)
    for file in (path / "runs/r1").iterdir():
        os.link(file, backup / file.name)
    await store.commit(step(RUN, 3))
    assert not sizes(path)["00000002-1"]
    assert all(json.loads(file.read_text())["head"] for file in backup.iterdir())


async def test_emptying_is_not_needed(store, path, monkeypatch) -> None:
    await fill(store, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(errno.EACCES))
        await store.commit(step(RUN, 3))
    assert all(sizes(path).values())
    assert os.listdir(path / "temp") == []
    assert await store.notes(RUN) == []


async def test_a_first_commit_without_records_is_never_emptied(store, path) -> None:
    """By its name it might hold a record with seq 0."""
    await store.commit(Commit(head(RUN, 0), None, notes=(note("a"),)))
    await store.commit(Commit(head(RUN, 0), Expected(checkpoint_id(RUN, 0), 1), notes=(note("b"),)))
    await store.commit(step(RUN, 1)._replace(expected=Expected(checkpoint_id(RUN, 0), 1)))
    await store.commit(step(RUN, 2))
    assert sizes(path) == {"00000001-0": True, "00000001-1": False, "00000001-2": True, "00000002-0": True}


# ---------------------------------------------------------------- writers that slept, writers that died


def taken_over(path: Path, steps: int) -> None:
    """Take the run at checkpoint 1 with the next token, and let it move on."""

    async def main() -> None:
        store = FileStore(path)
        await store.commit(stay(RUN, 1, "mine", token=2))
        for seq in range(2, steps + 1):
            commit = step(RUN, seq, token=2)
            await store.commit(commit._replace(expected=Expected(checkpoint_id(RUN, seq - 1), 2)))
        await store.close()

    asyncio.run(main())


LATE = {"commit": step(RUN, 2, status=RunStatus.COMPLETED), "notes": stay(RUN, 1, "late")}


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("late", LATE)
async def test_a_writer_that_slept_is_refused(store, path, late, steps) -> None:
    """It slept between writing its file and giving it a name, which was taken since, and may have been emptied."""
    await store.commit(step(RUN, 1))
    await store.commit(stay(RUN, 1, "early"))
    before_publishing(store, lambda: taken_over(path, steps))
    with pytest.raises(HeadMoved, match=r"token 2.*Another writer moved it on"):
        await store.commit(LATE[late])
    assert sizes(path)["00000002-1"] is (steps < 4)
    expected = head(RUN, steps, token=2)
    assert await store.head(RUN) == expected
    assert keys_of(await store.notes(RUN)) == (["early", "mine"] if steps == 1 else [])
    with pytest.raises(HeadMoved):
        await store.commit(LATE[late])
    assert await seqs(store, RUN) == list(range(1, steps + 1))
    assert len(tree(path / "runs")) == steps + 2


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.readline()  # the thread that sends the signal is not the first to be stopped


def sleep_before_publishing(path: str, late: str) -> None:
    """Stop this whole process before its commit gets a name; print what came of it."""

    async def main() -> None:
        store = FileStore(path)
        await store.notes(RUN)
        before_publishing(store, stand_still)
        try:
            await store.commit(LATE[late])
            print("committed")
        except HeadMoved:
            print("refused")
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("late", LATE)
async def test_a_process_that_stood_still_is_refused(store, path, late) -> None:
    await store.commit(step(RUN, 1))
    process = child("test_file_emptied", "sleep_before_publishing", str(path), late)
    try:
        _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        await asyncio.to_thread(taken_over, path, 4)
        assert not sizes(path)["00000002-0"]
        process.send_signal(signal.SIGCONT)
        assert process.communicate("\n", timeout=150)[0] == "refused\n"
    finally:
        process.kill()
        process.communicate()
    assert await store.head(RUN) == head(RUN, 4, token=2)
    assert await seqs(store, RUN) == [1, 2, 3, 4]


def die_before_emptying(path: str) -> None:
    def die(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    emptying.empty = die  # type: ignore[assignment]
    asyncio.run(FileStore(path).commit(step(RUN, 3)))


@pytest.mark.parametrize("noted", [False, True])
async def test_killed_before_files_are_emptied(store, path, other, noted) -> None:
    await fill(store, 2)
    await store.commit(stay(RUN, 2, "c"))
    process = child("test_file_emptied", "die_before_emptying", str(path))
    process.communicate(timeout=150)
    assert process.returncode == -signal.SIGKILL
    assert all(sizes(path).values())
    for reader in (store, other):
        assert await reader.head(RUN) == head(RUN, 3)
        assert await reader.notes(RUN) == []
        assert await seqs(reader, RUN) == [1, 2, 3]
    if noted:
        await other.commit(stay(RUN, 3, "d"))
    fresh = FileStore(path)
    await fresh.commit(step(RUN, 4))
    emptied = [name for name, there in sizes(path).items() if not there]
    assert emptied == ["00000002-0", "00000002-1", "00000003-0"]
    await fresh.close()


async def test_a_tag_stays_for_whoever_moves_a_damaged_newest_file_away(path) -> None:
    """One process after another makes a commit: each carries the tag out, and could think that nobody needs it."""
    store = FileStore(path)
    await write(store, RUN, 1)
    with Locks(path / "locks").try_alone("r1.tidy"):
        assert await store.tag(RUN, 1, ["gold"])
    for seq in (2, 3):
        await store.close()
        store = FileStore(path)
        await store.commit(step(RUN, seq))
        copy = path.parent / f"copy {seq}"
        shutil.copytree(path, copy, symlinks=True)
        max((copy / "runs/r1").iterdir()).unlink()
        moved = FileStore(copy)
        assert await moved.head(RUN) == head(RUN, seq - 1)
        assert (await moved.records(RUN, 1, 1, Depth.HEADERS))[0].tags == ("gold",)
        await moved.close()
    assert sizes(path)["00000002-0"]
    for seq in (4, 5):  # by the same process, which lists it no more
        await store.commit(step(RUN, seq))
    assert not sizes(path)["00000002-0"]
    await store.close()
