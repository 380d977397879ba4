"""FileStore: which processes live."""

import asyncio
import os

import pytest

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import RunQuery
from holdfast.errors import StorageError
from holdfast.stores.file import FileStore
from tests.stores.file_commits import RUN, child, head, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


async def test_owners_lie_beside_the_runs_for_all_namespaces(store, path) -> None:
    tenant = FileStore(path, "Tenant 1")
    assert not await tenant.lives(this_process())
    assert "owners" not in os.listdir(path)
    await store.join()
    assert await tenant.lives(this_process())
    assert len(os.listdir(path / "owners")) == 1
    assert await store.runs(RunQuery()) == []
    assert await store.damaged() == []
    await write(store, RUN, 1)
    assert await store.runs(RunQuery()) == [head(RUN, 1)]
    await tenant.close()
    assert await store.lives(this_process())
    await store.close()
    assert not (path / "owners").exists()


async def test_an_owners_folder_that_cannot_be_made(store, path) -> None:
    await store.open()
    (path / "owners").write_text("mine")
    with pytest.raises(StorageError, match=r"cannot let others see this process: .*owners"):
        await store.join()


def join_and_fork(path: str) -> None:
    """Join, fork, and tell in both processes who lives."""
    store = FileStore(path)
    asyncio.run(store.join())
    parent = this_process()
    if pid := os.fork():
        os.waitpid(pid, 0)
        print("parent", asyncio.run(store.lives(parent)))
        asyncio.run(store.close())
    else:
        print("child", asyncio.run(store.lives(parent)), asyncio.run(store.lives(this_process())))
        asyncio.run(store.join())
        print("joined", asyncio.run(store.lives(this_process())))
        asyncio.run(store.close())
        print("closed", asyncio.run(FileStore(path).lives(parent)), flush=True)
        os._exit(0)


async def test_a_fork_lives_by_itself(path) -> None:
    process = child("test_file_owners", "join_and_fork", str(path))
    said = process.communicate(timeout=150)[0].splitlines()
    assert said == ["child True False", "joined True", "closed True", "parent True"]
    assert process.returncode == 0
