"""FileStore: letters in commit files."""

import errno
import os

import ormsgpack
import pytest

from holdfast.checkpoint.store import Left, Letter
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import RunId
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    RUN,
    checkpoint_id,
    content,
    failing,
    head,
    keys_of,
    letters,
    recorded_reads,
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


# ---------------------------------------------------------------- what a person reads


async def test_letters_stand_in_every_commit_until_they_are_taken(store, path) -> None:
    await store.commit(step(RUN, 1, owner="host:1", status=RunStatus.WAITING))
    answer = ormsgpack.packb({"request": "q1", "answer": 42})
    await store.leave(RUN, 1, [Letter("a", b"\x00" + answer), Letter("b", answer)])
    await store.leave(RUN, 1, letters("c"))
    a = {"key": "a", "data": {"request": "q1", "answer": 42}}
    b = {"key": "b", "data_packed": {"request": "q1", "answer": 42}}
    c = {"key": "c", "data_base64": "bGV0dGVyIGM="}
    there = head(RUN, 1, owner="host:1", status=RunStatus.WAITING)
    first = content(path, "00000002-0")
    assert set(first) == {"head", "expected", "records", "letters"}
    assert first["head"] == content(path, "00000001-0")["head"]
    assert first["expected"] == {"checkpoint_id": checkpoint_id(RUN, 1), "token": 1}
    assert (first["records"], first["letters"]) == ([], [a, b])
    assert content(path, "00000002-1")["letters"] == [a, b, c]
    assert await store.head(RUN) == there
    await store.commit(stay(RUN, 1, taken=["b"]))
    await store.commit(step(RUN, 2)._replace(taken=("a",)))
    await store.commit(stay(RUN, 2, taken=["c"]))
    said = [content(path, name) for name in ("00000002-2", "00000002-3", "00000003-0")]
    assert [(one.get("letters"), one.get("taken")) for one in said] == [
        ([a, c], ["b"]),
        ([c], ["b", "a"]),  # also what was taken in files that will be emptied
        (None, ["c"]),
    ]


async def test_taking_what_is_not_there_says_nothing(store, path) -> None:
    await store.commit(step(RUN, 1)._replace(taken=("a",)))
    assert set(content(path, "00000001-0")) == {"head", "expected", "records"}
    assert await store.leave(RUN, 0, letters("a")) == Left(head(RUN, 1))


async def test_letters_for_nobody_make_nothing(store, path) -> None:
    assert await store.leave(RUN, 0, letters("a")) == Left(None)
    assert tree(path) == ["store.json"]
    assert sorted(os.listdir(path)) == ["store.json", "temp"]
    await write(store, RUN, 1)
    assert await store.leave(RUN, 0, []) == Left(head(RUN, 1))
    assert list(sizes(path)) == ["00000001-0"]


async def test_a_store_that_was_copied_without_its_empty_folders(store, path, other) -> None:
    await write(store, RUN, 1)
    (path / "temp").rmdir()
    assert await other.leave(RUN, 1, letters("a")) == Left(head(RUN, 1))


# ---------------------------------------------------------------- keys are used once


async def send_and_take(store: FileStore, steps: int) -> None:
    """A run that takes a letter at each checkpoint, without records and with them in turn."""
    for seq in range(1, steps + 1):
        await store.commit(step(RUN, seq))
        assert not (await store.leave(RUN, seq, letters(f"quiet {seq}", f"loud {seq}"))).refused
        await store.commit(stay(RUN, seq, "note", taken=[f"quiet {seq}"]))
        await store.commit(stay(RUN, seq, "note"))
        await store.commit(
            step(RUN, seq + 1)._replace(taken=(f"loud {seq}",))
            if seq == steps
            else stay(RUN, seq, taken=[f"loud {seq}"])
        )


async def test_a_key_stays_used_when_files_are_emptied(store, path, other) -> None:
    await send_and_take(store, 4)
    assert sum(not there for there in sizes(path).values()) == 12
    await store.commit(stay(RUN, 5))
    for reader in (store, other):
        for seq in range(4, 0, -1):
            for kind in ("quiet", "loud"):
                for since in (seq, seq - 1, 0):
                    left = await reader.leave(RUN, since, letters(f"{kind} {seq}", "new"))
                    assert left == Left(head(RUN, 5), (f"{kind} {seq}",))
    assert await store.inbox(RUN) == []


async def test_only_files_behind_the_checkpoint_are_looked_at_and_only_once(
    store, other, monkeypatch
) -> None:
    await send_and_take(store, 4)
    await other.head(RUN)
    reads = recorded_reads(monkeypatch)
    for since, names in [(5, []), (4, []), (3, ["4-4"]), (1, ["2-4", "3-4"]), (1, []), (2, []), (0, ["1-0"])]:
        reads.clear()
        await other.leave(RUN, since, letters("loud 4", "new"))
        assert reads == [f"r1/0000000{name}.json" for name in names]
    reads.clear()
    assert (await store.leave(RUN, 0, letters("quiet 1"))).refused == ("quiet 1",)
    assert reads == []


async def test_a_key_that_waits_or_was_taken_elsewhere_is_refused(store, other) -> None:
    await write(store, RUN, 1)
    await write(store, RunId("r2"), 1)
    await store.leave(RUN, 1, letters("a"))
    assert await other.leave(RUN, 1, letters("b", "a")) == Left(head(RUN, 1), ("a",))
    assert keys_of(await other.inbox(RUN)) == ["a"]
    await other.commit(stay(RUN, 1, taken=["a"]))
    assert await store.leave(RUN, 1, letters("a", "b")) == Left(head(RUN, 1), ("a",))
    assert await store.leave(RunId("r2"), 1, letters("a")) == Left(head(RunId("r2"), 1))


# ---------------------------------------------------------------- damage


async def test_a_damaged_newest_letter_file(store, path, other) -> None:
    await write(store, RUN, 2)
    await store.leave(RUN, 2, letters("a"))
    await store.leave(RUN, 2, letters("b"))
    newest = path / "runs/r1/00000003-1.json"
    newest.write_bytes(newest.read_bytes().replace(b'"key"', b'"kee"'))
    for asking in (
        lambda: other.head(RUN),
        lambda: other.inbox(RUN),
        lambda: other.leave(RUN, 2, letters("c")),
        lambda: other.commit(step(RUN, 3)),
    ):
        with pytest.raises(CheckpointCorrupt, match=f"{newest} is damaged: KeyError"):
            await asking()
    assert await seqs(other, RUN, 1, 2) == [1, 2]
    newest.unlink()
    assert keys_of(await other.inbox(RUN)) == ["a"]
    assert keys_of(await other.commit(step(RUN, 3))) == ["a"]


DAMAGE = [b"", b"{", b'{"head": {}}', b"\x00" * 50]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
async def test_a_damaged_letter_file_in_the_middle(store, path, other, damage) -> None:
    """What it told is told again by the files behind it, so it stops nobody."""
    await write(store, RUN, 2)
    await other.leave(RUN, 2, letters("a"))
    await other.leave(RUN, 2, letters("b"))
    await other.leave(RUN, 2, letters("c"))
    (path / "runs/r1/00000003-1.json").write_bytes(damage)
    cold = FileStore(path)
    for reader in (store, cold):
        assert keys_of(await reader.inbox(RUN)) == ["a", "b", "c"]
        assert (await reader.leave(RUN, 0, letters("b"))).refused == ("b",)
    assert keys_of(await store.commit(step(RUN, 3)._replace(taken=("b",)))) == ["a", "c"]
    assert await seqs(cold, RUN) == [1, 2, 3]
    await cold.close()


async def test_keys_that_cannot_be_known_are_not_taken_for_unused(store, path, other) -> None:
    await send_and_take(store, 3)
    damaged = path / "runs/r1/00000003-4.json"
    damaged.write_bytes(b"{")
    with pytest.raises(CheckpointCorrupt, match=f"{damaged} is damaged"):
        await other.leave(RUN, 1, letters("quiet 2"))
    assert await other.leave(RUN, 3, letters("new")) == Left(head(RUN, 4))


@pytest.mark.parametrize("taken", ['"taken": "b"', '"taken": [1]', '"taken": [{"base64": "%"}]'])
async def test_letters_that_were_changed_by_hand(store, path, other, taken) -> None:
    await write(store, RUN, 1)
    await store.leave(RUN, 1, letters("b"))
    await store.commit(stay(RUN, 1, taken=["b"]))
    file = path / "runs/r1/00000002-1.json"
    text = file.read_text()
    assert '"taken": ["b"]' in text
    file.write_text(text.replace('"taken": ["b"]', taken))
    with pytest.raises(CheckpointCorrupt, match=f"{file} is damaged"):
        await other.inbox(RUN)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("function", ["write", "fsync", "open", "link"])
async def test_a_full_disk(store, path, monkeypatch, function) -> None:
    await write(store, RUN, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(errno.ENOSPC))
        with pytest.raises(StorageError, match="the disk is full: make room") as caught:
            await store.leave(RUN, 1, letters("a"))
    assert f"file store {path}: cannot leave letters for run 'r1': " in str(caught.value)
    assert os.listdir(path / "temp") == []
    assert await store.inbox(RUN) == []
    assert await store.leave(RUN, 1, letters("a")) == Left(head(RUN, 1))


async def test_a_folder_that_cannot_be_synced(store, monkeypatch) -> None:
    await write(store, RUN, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        with pytest.raises(
            StorageError, match=r"run 'r1': .* No letter was left: check the disk, then leave them again"
        ):
            await store.leave(RUN, 1, letters("a"))
    assert await store.inbox(RUN) == []
    assert await store.leave(RUN, 1, letters("a")) == Left(head(RUN, 1))


async def test_a_run_that_was_removed_by_hand(store, path) -> None:
    await write(store, RUN, 1)
    await store.leave(RUN, 1, letters("a"))
    for file in (path / "runs/r1").iterdir():
        file.unlink()
    assert await store.leave(RUN, 1, letters("a")) == Left(None)
    await store.commit(step(RUN, 1))
    assert await store.leave(RUN, 0, letters("a")) == Left(head(RUN, 1))
