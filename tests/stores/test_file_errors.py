"""FileStore: what the person at 3 a.m. gets to read."""

import errno
import json
import os
import re
import shutil

import pytest

from holdfast.checkpoint.store import Commit, Depth, RunQuery
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import RunId
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from tests.stores.file_commits import RUN, at, checkpoint_id, failing, head, record, seqs, step, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


async def message(store: FileStore) -> str:
    with pytest.raises(StorageError) as caught:
        await store.open()
    await store.close()
    return str(caught.value)


async def test_a_file_in_the_way(path) -> None:
    path.write_text("mine")
    assert await message(FileStore(path)) == (
        f"file store {path}: a file lies there; a file store needs a directory of its own"
    )
    below = await message(FileStore(path / "below"))
    assert f"{path}" in below
    assert "a part of the path is a file, where a folder is needed" in below


async def test_a_directory_of_someone_else(path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("mine")
    assert await message(FileStore(path)) == (
        f"file store {path}: the directory is not empty (it has 'thesis.tex') and has no store.json, so it is no "
        f"store; give an empty directory or one that does not exist, or put store.json back if it was lost"
    )
    assert os.listdir(path) == ["thesis.tex"]


async def test_an_empty_directory_or_a_fresh_volume_will_do(path) -> None:
    (path / "lost+found").mkdir(parents=True)
    store = FileStore(path)
    info = await store.open()
    assert re.fullmatch("[0-9a-f]{32}", info.store_id)
    await store.close()
    again = FileStore(path)
    assert await again.open() == info
    await again.close()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"major": 2},
            "the store has format 2.0, this version of Holdfast reads format 1; use the version that",
        ),
        ({"features": ["b", "a"]}, "the store needs 'a', 'b', which this version of Holdfast does not know"),
        ({"major": "x"}, "store.json is damaged: ValueError"),
    ],
)
async def test_other_formats(path, change, complaint) -> None:
    store = FileStore(path)
    await store.open()
    await store.close()
    marker = path / "store.json"
    changed = json.dumps({**json.loads(marker.read_text()), **change})
    marker.write_text(changed)
    text = await message(FileStore(path))
    assert complaint in text
    assert str(marker) in text
    assert marker.read_text() == changed


async def test_a_newer_minor_format_is_read(path) -> None:
    store = FileStore(path)
    await store.open()
    await store.close()
    marker = path / "store.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "minor": 7, "news": 1}))
    newer = FileStore(path)
    assert (await newer.open()).minor == 7
    await newer.close()


@pytest.mark.parametrize("function", ["write", "fsync", "open", "link"])
async def test_a_full_disk(store, path, monkeypatch, function) -> None:
    await write(store, RUN, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(errno.ENOSPC))
        with pytest.raises(StorageError, match="the disk is full: make room, then resume the run") as caught:
            await store.commit(step(RUN, 3))
    assert f"file store {path}: cannot commit to run 'r1': " in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert os.listdir(path / "temp") == []
    assert (await store.head(RUN)) == head(RUN, 2)
    await store.commit(step(RUN, 3))
    assert await seqs(store, RUN) == [1, 2, 3]


async def test_a_short_write_is_continued(store, monkeypatch) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: original(handle, data[:100]))
    await write(store, RUN, 2)
    assert await seqs(store, RUN) == [1, 2]


async def test_no_rights(path, monkeypatch) -> None:
    store = FileStore(path)
    monkeypatch.setattr(os, "mkdir", failing(errno.EACCES))
    text = await message(store)
    assert text.startswith(f"file store {path}: cannot open it: ")
    assert "check owner and mode of the path" in text


async def test_a_folder_that_cannot_be_synced(store, monkeypatch) -> None:
    await write(store, RUN, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        with pytest.raises(
            StorageError, match=r"run 'r1': .* It was taken back: check the disk, then resume the run"
        ):
            await store.commit(step(RUN, 2))
    assert (await store.head(RUN)) == head(RUN, 1)
    await store.commit(step(RUN, 2))


DAMAGE = [b"", b"\x00" * 100, b"{}", b'{"head": {}}', b"[1]", b'"x"', b"[" * 5000]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
async def test_a_damaged_newest_file(store, path, damage) -> None:
    await write(store, RUN, 3)
    await write(store, RunId("r2"), 1)
    newest = path / "runs/r1/00000003-0.json"
    newest.write_bytes(damage)
    other = FileStore(path)
    for asking in (
        lambda: other.head(RUN),
        lambda: other.commit(step(RUN, 4)),
        lambda: other.records(RUN, 3, 3, Depth.ALL),
    ):
        with pytest.raises(CheckpointCorrupt) as caught:
            await asking()
        assert str(caught.value).startswith(f"{newest} is damaged: ")
        assert "move it out of the folder, and the run stands where it stood one commit earlier" in str(
            caught.value
        )
    assert await seqs(other, RUN, 1, 2) == [1, 2]
    assert await other.find(checkpoint_id(RUN, 2)) == (RUN, 2)
    assert await other.head(RunId("r2")) == head(RunId("r2"), 1)
    assert [h.run_id for h in await other.runs(RunQuery())] == ["r2"]
    (damaged,) = await other.damaged()
    assert damaged.what.startswith(f"{newest} is damaged: ")
    newest.unlink()
    assert await other.damaged() == []
    assert await other.head(RUN) == head(RUN, 2)
    await other.commit(step(RUN, 3))
    assert await seqs(other, RUN) == [1, 2, 3]
    await other.close()


async def test_a_damaged_file_in_the_middle(store, path) -> None:
    await write(store, RUN, 4)
    middle = path / "runs/r1/00000002-0.json"
    middle.write_bytes(middle.read_bytes()[:-20])
    assert await store.head(RUN) == head(RUN, 4)
    assert await seqs(store, RUN, 3) == [3, 4]
    with pytest.raises(CheckpointCorrupt, match=f"{middle} is damaged: JSONDecodeError"):
        await store.records(RUN, 1, 4, Depth.HEADERS)


async def test_parts_that_were_changed_by_hand(store, path) -> None:
    await write(store, RUN, 1)
    file = path / "runs/r1/00000001-0.json"
    file.write_text(file.read_text().replace('"changes": {"a": 1}', '"changes": {"$what": 1}'))
    assert await seqs(store, RUN) == [1]
    with pytest.raises(CheckpointCorrupt, match=f"{file} is damaged: KeyError"):
        await store.records(RUN, 1, 1, Depth.CHANGES)


async def test_other_files_do_no_harm(store, path) -> None:
    await write(store, RUN, 2)
    for name in ("runs/r1/notes.txt", "runs/r1/00000009-0.json~", "runs/r1/9.json", "runs/README"):
        (path / name).write_text("mine")
    (path / "runs/empty").mkdir()
    other = FileStore(path)
    shutil.copytree(path / "runs/r1", path / "runs/r1-copy")
    assert await other.runs(RunQuery()) == [head(RUN, 2)]
    assert await seqs(other, RUN) == [1, 2]
    assert await other.find(checkpoint_id(RUN, 3)) is None
    with pytest.raises(StorageError, match="r1-copy was copied or renamed: rename it back, or move it out"):
        await other.head(RunId("r1-copy"))
    await other.close()


async def test_seqs_only_grow(store) -> None:
    await write(store, RUN, 2)
    with pytest.raises(StorageError, match="run 'r1': a new checkpoint has seq 2, but the next one is 3"):
        await store.commit(Commit(head(RUN, 2), at(RUN, 2), (record(RUN, 2),)))


async def test_a_run_that_was_removed_by_hand(store, path) -> None:
    await write(store, RUN, 2)
    shutil.rmtree(path / "runs/r1")
    assert await store.head(RUN) is None
    assert await seqs(store, RUN) == []
    assert await store.find(checkpoint_id(RUN, 1)) is None
    await write(store, RUN, 1)
    assert await seqs(store, RUN) == [1]


async def test_a_closed_store(path) -> None:
    store = FileStore(path)
    await write(store, RUN, 1)
    await store.close()
    await store.close()
    with pytest.raises(StorageError, match="is closed; open another one on the same directory"):
        await store.head(RUN)
