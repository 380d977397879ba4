"""SqliteStore: several processes, forks, and processes that are killed."""

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

from holdfast.checkpoint.store import RunQuery
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute, finish, start
from tests.support.store_parts import (
    LARGE,
    begin,
    read_run,
    sample_blob,
    sample_head,
    sample_id,
    sample_record,
)


async def test_several_processes_write_one_file(database: Path) -> None:
    processes = [start("write_runs", database, f"p{number}", 5, 10) for number in range(4)]
    for process in processes:
        finish(process)
    store = SqliteStore(database)
    assert len(await store.runs(RunQuery())) == 20
    for process_number in range(4):
        for number in range(5):
            run = f"p{process_number}-{number}"
            records = [sample_record(run, seq) for seq in range(1, 11)]
            assert await read_run(store, run) == (sample_head(run, 10), records)
    await store.close()
    assert execute(database, "PRAGMA integrity_check") == [("ok",)]


async def test_a_store_may_be_made_by_many_at_once(tmp_path: Path) -> None:
    """Each has connections of its own, which are in each other's way like those of several processes."""
    for number in range(5):
        stores = [SqliteStore(tmp_path / f"{number}.db") for _ in range(10)]
        await asyncio.gather(*(begin(store, f"r{number}") for number, store in enumerate(stores)))
        assert len({(await store.open()).store_id for store in stores}) == 1
        assert len(await stores[0].runs(RunQuery())) == 10
        await asyncio.gather(*(store.close() for store in stores))
        assert execute(tmp_path / f"{number}.db", "PRAGMA journal_mode") == [("wal",)]


async def test_the_switch_to_the_log_waits_for_others(database: Path) -> None:
    """A process that dies between making the tables and the switch leaves a database that has no log yet."""
    store = SqliteStore(database)
    await store.open()
    await store.close()
    execute(database, "PRAGMA journal_mode = DELETE")
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store = SqliteStore(database)
    waiting = asyncio.ensure_future(begin(store, "r"))
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    await waiting
    await store.close()
    assert execute(database, "PRAGMA journal_mode") == [("wal",)]


async def test_what_was_acknowledged_survives_a_kill(database: Path) -> None:
    pause = random.Random(2)
    store = SqliteStore(database)
    for _ in range(10):
        process = start("write_until_killed", database, "r")
        assert process.stdout is not None
        acknowledged = int(process.stdout.readline())
        await asyncio.sleep(pause.uniform(0, 0.05))
        process.kill()
        out, _ = process.communicate()
        # A line may be torn; one before it is whole.
        acknowledged = max([acknowledged, *map(int, out.split("\n")[:-1])])
        head, records = await read_run(store, "r")
        assert head is not None
        assert head.seq >= acknowledged
        assert records == [sample_record("r", seq) for seq in range(1, head.seq + 1)]
        assert await store.find(sample_id("r", head.seq)) == ("r", head.seq)
        blobs = [sample_blob(LARGE if seq % 5 == 0 else b"small", seq) for seq in range(1, head.seq)]
        assert await store.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
    await store.close()
    assert execute(database, "PRAGMA integrity_check") == [("ok",)]


async def test_a_store_that_is_left_open_does_not_hold_the_process(database: Path) -> None:
    assert finish(start("leave_open", database)) == "True\n"
    assert not database.with_name("runs.db-owners").exists()
    store = SqliteStore(database)
    assert await store.head(RunId("r")) == sample_head("r")
    await store.close()


def test_a_store_that_is_dropped_ends_its_threads_and_connections(database: Path) -> None:
    assert finish(start("drop", database)) == "4\n['runs.db']\n"


def test_a_signal_handler_may_fork_amid_a_commit(database: Path) -> None:
    assert finish(start("fork_amid_commits", database)) == "True {0} True\n"
    assert execute(database, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    ("program", "printed", "runs"), [("fork", "0\n0\n0\n", 123), ("fork_while_busy", "0\n", 21)]
)
async def test_parent_and_child_use_a_store_after_a_fork(
    database: Path, program: str, printed: str, runs: int
) -> None:
    assert finish(start(program, database)) == printed
    store = SqliteStore(database)
    assert len(await store.runs(RunQuery())) == runs
    if program == "fork_while_busy":
        for head in await store.runs(RunQuery()):
            assert head.seq == 20
    await store.close()
    assert execute(database, "PRAGMA integrity_check") == [("ok",)]
