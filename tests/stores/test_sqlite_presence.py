"""SqliteStore: which processes use it."""

import gc
import threading
from pathlib import Path

import pytest

from holdfast.checkpoint.owner import this_process
from holdfast.errors import StorageError
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.lane import Lane
from holdfast.testing.store_suite.samples import begin
from tests.stores.sqlite_programs import finish, start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def test_a_process_lives_until_it_closes_its_last_store(path: Path) -> None:
    stores = [SqliteStore(path), SqliteStore(path, "other")]
    watching = SqliteStore(path)
    assert not await watching.lives(this_process())
    for store in stores:
        await store.join()
        await store.join()
    for store in stores:
        assert await watching.lives(this_process())
        assert [file.name for file in path.parent.iterdir() if file.is_dir()] == ["runs.db-owners"]
        await store.close()
    assert not await watching.lives(this_process())
    await watching.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


async def test_a_store_that_only_joined_is_closed(path: Path) -> None:
    store = SqliteStore(path)
    await store.join()
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]
    with pytest.raises(StorageError, match="is closed"):
        await store.join()
    with pytest.raises(StorageError, match="is closed"):
        await store.lives(this_process())


async def test_joining_again_asks_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.join()
    with monkeypatch.context() as asked:
        asked.delattr(Lane, "call")
        await store.join()
        with pytest.raises(AttributeError):
            await store.lives(this_process())
    await store.close()


async def test_a_store_that_is_dropped_leaves(path: Path) -> None:
    store = SqliteStore(path)
    await store.join()
    lanes = [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-")]
    del store
    gc.collect()
    for thread in lanes:
        thread.join(60)
    assert not path.with_name("runs.db-owners").exists()


async def test_what_is_in_the_way_is_told(path: Path) -> None:
    store = SqliteStore(path)
    path.with_name("runs.db-owners").write_text("in the way")
    with pytest.raises(StorageError, match=r"joining those who use .*runs.db' failed: .*runs.db-owners"):
        await store.join()
    with pytest.raises(StorageError, match=r"looking who uses .*runs.db' failed: .*runs.db-owners"):
        await store.lives("other:1:1")
    await begin(store, "r")
    await store.close()


async def test_a_killed_process_lives_no_longer(path: Path) -> None:
    process = start("join_and_wait", path)
    assert process.stdout is not None
    name = process.stdout.readline()[:-1]
    store = SqliteStore(path)
    assert await store.lives(name)
    process.kill()
    process.communicate()
    assert not await store.lives(name)
    await store.close()


def test_a_forked_child_joins_for_itself(path: Path) -> None:
    assert finish(start("fork_and_join", path)) == "True False\nTrue True\n0\nTrue False\n"
