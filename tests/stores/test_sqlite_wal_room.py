"""The room at the end of the log: commits find it, readers do not see it, and it has bounds."""

import os
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Head
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.modules import database_file, schema
from tests.support.store_parts import begin, move_on


async def moved(store: SqliteStore, head: Head, commits: int) -> tuple[Head, int]:
    """A run that has moved on, and how many of its commits made the log longer."""
    log = store.path.with_name(store.path.name + "-wal")
    longer = 0
    for _ in range(commits):
        before, made = log.stat().st_size, store.log_room
        head = await move_on(store, head)
        longer += log.stat().st_size - before > store.log_room - made
    return head, longer


async def test_few_commits_make_the_log_longer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    _, longer = await moved(store, await begin(store, "r"), 200)
    assert database_file.LEAST_ROOM <= store.log_room <= (tmp_path / "runs.db-wal").stat().st_size
    await store.close()
    assert longer < 50


async def test_without_room_each_commit_makes_the_log_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file.WalRoom, "make", lambda *_: None)
    store = SqliteStore(tmp_path / "runs.db")
    _, longer = await moved(store, await begin(store, "r"), 50)
    await store.close()
    assert longer == 50


async def test_a_process_with_few_commits_makes_no_room(store: SqliteStore) -> None:
    await moved(store, await begin(store, "r"), 2)
    assert store.log_room == 0


async def test_few_commits_get_a_small_portion(store: SqliteStore) -> None:
    """A run of a few supersteps writes no more than 64 KB of zeros, and a log that goes on gets more at a time."""
    head, _ = await moved(store, await begin(store, "r"), 6)
    assert store.log_room == database_file.LEAST_ROOM == 64 * 1024
    await moved(store, head, 100)
    assert store.log_room > 4 * database_file.LEAST_ROOM


async def test_what_is_in_front_of_the_room_is_read_after_a_crash(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    head, _ = await moved(store, await begin(store, "r"), 30)
    assert store.log_room > 0
    left = tmp_path / "left"
    left.mkdir()
    for name in (
        "runs.db",
        "runs.db-wal",
    ):  # what a power cut leaves; the index of the log is not written to disk
        shutil.copy(tmp_path / name, left / name)
    await store.close()
    again = SqliteStore(left / "runs.db")
    assert await again.head(RunId("r")) == head
    head, longer = await moved(again, head, 1)
    assert longer == 0  # in the room that the other one made
    await again.close()
    assert execute(left / "runs.db", "PRAGMA integrity_check") == [("ok",)]


async def test_the_log_becomes_no_longer_than_it_would_be(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    head = await begin(store, "r")
    for _ in range(40):
        head, _ = await moved(store, head, 40)
    log = (tmp_path / "runs.db-wal").stat().st_size
    await store.close()
    # The commit that comes to the end of it writes its own pages first.
    assert database_file.LONGEST_LOG <= log < database_file.LONGEST_LOG + 20 * schema.PAGE_SIZE


async def test_a_log_that_begins_anew_gets_room_anew(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    head, _ = await moved(store, await begin(store, "r"), 30)
    made = store.log_room
    assert execute(tmp_path / "runs.db", "PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]
    _, longer = await moved(store, head, 30)
    assert store.log_room > made
    await store.close()
    assert longer < 15


async def test_commits_go_on_where_no_room_can_be_made(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    head = await begin(store, "r")
    monkeypatch.setattr(os, "write", full)
    head, longer = await moved(store, head, 20)
    monkeypatch.undo()
    assert longer == 20
    assert store.log_room == 0
    assert await store.head(RunId("r")) == head
