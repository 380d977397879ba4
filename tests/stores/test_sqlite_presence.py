"""SqliteStore: which processes use it."""

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest

from holdfast.errors import StorageError
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import finish, start
from tests.support.parts import this_process
from tests.support.store_parts import Presence, WorkerThread, begin


async def test_a_store_that_only_joined_is_closed(database: Path) -> None:
    store = SqliteStore(database)
    await store.join()
    await store.close()
    assert [file.name for file in database.parent.iterdir()] == ["runs.db"]
    with pytest.raises(StorageError, match="is closed"):
        await store.join()
    with pytest.raises(StorageError, match="is closed"):
        await store.living([this_process()])


async def test_joining_again_asks_no_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.join()
    with monkeypatch.context() as asked:
        asked.delattr(WorkerThread, "call")
        await store.join()
        with pytest.raises(AttributeError):
            await store.living([this_process()])


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Functions that run before the next calls of ``Presence.join``, one for each."""
    join = Presence.join
    instead: list[Callable[[], None]] = []

    def joining(presence: Presence) -> None:
        if instead:
            instead.pop(0)()
        join(presence)

    monkeypatch.setattr(Presence, "join", joining)
    return instead


async def test_many_who_join_at_once_join_once(store: SqliteStore, joins: list[Callable[[], None]]) -> None:
    called: list[int] = []
    joins += [lambda: called.append(1)] * 50
    await asyncio.gather(*(store.join() for _ in range(50)))
    assert len(called) == 1
    assert await store.living([this_process()])


async def test_that_joining_failed_is_told_to_all_and_tried_again(
    store: SqliteStore, joins: list[Callable[[], None]]
) -> None:
    def fail() -> None:
        raise OSError(13, "not today")

    joins.append(fail)
    found = await asyncio.gather(*(store.join() for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in found} == {StorageError}
    assert len({id(error) for error in found}) == 20
    assert all(isinstance(error, StorageError) and isinstance(error.__cause__, OSError) for error in found)
    await store.join()
    assert await store.living([this_process()])


async def test_who_gives_up_joining_does_not_keep_others_from_it(
    store: SqliteStore, joins: list[Callable[[], None]]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        assert go_on.wait(60)

    joins.append(slowly)
    joining = [asyncio.create_task(store.join()) for _ in range(3)]
    assert await asyncio.to_thread(begun.wait, 60)
    joining[0].cancel()
    await asyncio.wait(joining[:1])
    go_on.set()
    assert await asyncio.gather(*joining, return_exceptions=True) == [ANY, None, None]
    assert joining[0].cancelled()
    assert await store.living([this_process()])


async def test_a_store_that_is_dropped_leaves(database: Path) -> None:
    others = set(threading.enumerate())
    store = SqliteStore(database)
    await store.join()
    threads = set(threading.enumerate()) - others
    del store
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not database.with_name("runs.db-owners").exists()


async def test_what_is_in_the_way_is_told(store: SqliteStore, database: Path) -> None:
    database.with_name("runs.db-owners").write_text("in the way")
    with pytest.raises(StorageError, match=r"joining those who use .*runs.db' failed: .*runs.db-owners"):
        await store.join()
    with pytest.raises(StorageError, match=r"looking who uses .*runs.db' failed: .*runs.db-owners"):
        await store.living(["other:1:1"])
    await begin(store, "r")


def test_a_forked_child_joins_for_itself(database: Path) -> None:
    assert finish(start("fork_and_join", database)) == "True False\nTrue True\n0\nTrue False\n"
