"""FileStore: what the person at 3 a.m. gets to read."""

import errno
import json
import os
import re

import pytest

from holdfast import FileCheckpointStorage
from holdfast.checkpoint.store import Commit
from holdfast.errors import StorageError
from holdfast.stores.file import FileStore
from tests.stores.file_commits import RUN, at, failing, head, record, write

DEEP_JSON = b"[" * 100_000 + b"]" * 100_000


async def message(store: FileStore) -> str:
    with pytest.raises(StorageError) as caught:
        await store.open()
    await store.close()
    return str(caught.value)


async def test_a_file_in_the_way(directory) -> None:
    directory.write_text("mine")
    assert await message(FileStore(directory)) == (
        f"file store {directory}: a file lies there; a file store needs a directory of its own"
    )
    below = await message(FileStore(directory / "below"))
    assert f"{directory}" in below
    assert "a part of the path is a file, where a folder is needed" in below


async def test_a_directory_of_someone_else(directory) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("mine")
    assert await message(FileStore(directory)) == (
        f"file store {directory}: the directory is not empty (it has 'thesis.tex') and has no store.json, so it is no "
        f"store; give an empty directory or one that does not exist, or put store.json back if it was lost"
    )
    assert os.listdir(directory) == ["thesis.tex"]


async def test_an_empty_directory_or_a_fresh_volume_will_do(directory) -> None:
    (directory / "lost+found").mkdir(parents=True)
    store = FileStore(directory)
    info = await store.open()
    assert re.fullmatch("[0-9a-f]{32}", info.store_id)
    await store.close()
    again = FileStore(directory)
    assert await again.open() == info
    await again.close()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"major": 2},
            "the store has format 2.0, this version of Holdfast reads format 1; use the version that",
        ),
        ({"features": ["b", "a"]}, "needs what this version of Holdfast does not know: a, b"),
        ({"major": "x"}, "store.json is damaged: ValueError"),
    ],
)
async def test_other_formats(directory, change, complaint) -> None:
    store = FileStore(directory)
    await store.open()
    await store.close()
    marker = directory / "store.json"
    changed = json.dumps({**json.loads(marker.read_text()), **change})
    marker.write_text(changed)
    text = await message(FileStore(directory))
    assert complaint in text
    assert str(marker) in text
    assert marker.read_text() == changed


async def test_a_marker_that_is_nested_too_deeply_is_damaged(directory) -> None:
    store = FileStore(directory)
    await store.open()
    await store.close()
    marker = directory / "store.json"
    marker.write_bytes(DEEP_JSON)
    text = await message(FileStore(directory))
    assert text.startswith(f"{marker} is damaged: RecursionError: ")
    assert "Put back a copy from a backup" in text
    storage = FileCheckpointStorage(directory)
    assert [problem.what for problem in (await storage.verify()).problems] == [text]


async def test_a_newer_minor_format_is_read(directory) -> None:
    store = FileStore(directory)
    await store.open()
    await store.close()
    marker = directory / "store.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "minor": 7, "news": 1}))
    newer = FileStore(directory)
    assert (await newer.open()).minor == 7
    await newer.close()


async def test_no_rights(directory, monkeypatch) -> None:
    store = FileStore(directory)
    monkeypatch.setattr(os, "mkdir", failing(errno.EACCES))
    text = await message(store)
    assert text.startswith(f"file store {directory}: cannot open it: ")
    assert "check owner and mode of the path" in text


async def test_seqs_only_grow(files) -> None:
    await write(files, RUN, 2)
    with pytest.raises(StorageError, match="run 'r1': a new checkpoint has seq 2, but the next one is 3"):
        await files.commit(Commit(head(RUN, 2), at(RUN, 2), (record(RUN, 2),)))


async def test_a_closed_store(directory) -> None:
    store = FileStore(directory)
    await write(store, RUN, 1)
    await store.close()
    await store.close()
    with pytest.raises(StorageError, match="is closed; open another one on the same directory"):
        await store.head(RUN)
