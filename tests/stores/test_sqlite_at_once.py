"""Commits in the thread of an event loop that has nothing else to do, and in no other."""

import asyncio
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import SqliteCheckpointStorage, WorkflowBuilder, executor
from holdfast.checkpoint.store import Head
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.support.modules import connection, transaction
from tests.support.seeded_loop import SeededLoop
from tests.support.store_parts import (
    LoopIdle,
    begin,
    check_idle,
    first_commit,
    move_on,
    next_commit,
    sample_blob,
)


class Watched(sqlite3.Connection):
    """Says in which thread each transaction was committed, and does ``before`` first, and ``after`` then."""

    threads: list[str]
    before: Callable[[], None]
    after: Callable[[], None]

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        commits = sql == "COMMIT" and self.in_transaction
        if commits:
            Watched.before()
            Watched.threads.append(threading.current_thread().name)
        result = super().execute(sql, *parameters)
        if commits:
            Watched.after()
        return result


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that committed; however slow this machine is, it is not found to be."""
    monkeypatch.setattr(transaction, "_LONG_SECONDS", 30.0)
    Watched.threads, Watched.before, Watched.after = [], lambda: None, lambda: None
    monkeypatch.setattr(connection, "CONNECTION_CLASS", Watched)
    return Watched.threads


HERE, THERE = "MainThread", "holdfast-sqlite-writes"


async def several(store: SqliteStore, head: Head, count: int = 3) -> Head:
    for _ in range(count):
        head = await move_on(store, head)
    return head


async def test_who_is_alone_is_served_in_its_own_thread(store: SqliteStore, threads: list[str]) -> None:
    head = await begin(store, "r")
    threads.clear()  # opening the file is left to the thread
    head = await several(store, head)
    assert threads == [HERE] * 3
    assert await store.head(RunId("r")) == head
    assert store.transactions == 4


@contextmanager
def _connection(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    reading, writing = os.pipe()
    loop.add_reader(reading, lambda: None)
    try:
        yield
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)


@contextmanager
def _timer(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    timers = [loop.call_later(0.001 * number, lambda: None) for number in range(60_000)]
    yield
    for timer in timers:
        timer.cancel()


@contextmanager
def _others(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    ready: list[asyncio.Handle] = []

    def go_round() -> None:
        ready[:] = [loop.call_soon(go_round)]

    go_round()
    yield
    ready[0].cancel()


@pytest.mark.parametrize("something", [_connection, _timer, _others])
async def test_an_event_loop_with_something_else_to_do_is_not_held_up(
    something: Callable[[asyncio.AbstractEventLoop], Any], store: SqliteStore, threads: list[str]
) -> None:
    head = await begin(store, "r")
    threads.clear()
    with something(asyncio.get_running_loop()):
        head = await several(store, head)
    assert threads == [THERE] * 3
    await asyncio.sleep(0)
    gc.collect()
    await several(store, head)
    if something is not _timer:  # the last of those may still be there, cancelled
        assert threads == [THERE] * 3 + [HERE] * 3


async def _many(store: SqliteStore, count: int = 20) -> list[Head]:
    return [await begin(store, f"r{number}") for number in range(count)]


async def test_what_all_runs_call_for_is_done_together_in_their_own_thread(
    store: SqliteStore, threads: list[str]
) -> None:
    heads = await _many(store)
    threads.clear()
    moved = await asyncio.gather(*(several(store, head) for head in heads))
    assert threads == [HERE] * 3
    assert [await store.head(head.run_id) for head in moved] == moved


@pytest.mark.parametrize("something", [_connection, _timer, _others])
async def test_what_several_call_for_in_a_busy_event_loop_is_done_by_the_thread_together(
    something: Callable[[asyncio.AbstractEventLoop], Any], store: SqliteStore, threads: list[str]
) -> None:
    heads = await _many(store)
    threads.clear()
    with something(asyncio.get_running_loop()):
        moved = await asyncio.gather(*(several(store, head) for head in heads))
    assert set(threads) == {THERE}
    assert len(threads) < 40  # of 60 commits
    assert [await store.head(head.run_id) for head in moved] == moved


async def test_one_of_several_that_is_not_small_is_left_to_the_thread_with_the_others(
    store: SqliteStore, threads: list[str]
) -> None:
    heads = await _many(store)
    threads.clear()
    blob = sample_blob(b"x" * (transaction._FEW_BYTES + 1))
    await asyncio.gather(*(move_on(store, head, [blob] if head is heads[3] else []) for head in heads))
    assert threads == [THERE]


async def test_of_several_only_that_which_others_moved_is_refused(
    store: SqliteStore, threads: list[str]
) -> None:
    heads = await _many(store)
    await move_on(store, heads[3])
    threads.clear()
    found = await asyncio.gather(*(move_on(store, head) for head in heads), return_exceptions=True)
    assert [isinstance(one, HeadMoved) for one in found] == [number == 3 for number in range(20)]
    assert threads == [HERE]


@pytest.mark.parametrize("patient", [True, False])
async def test_a_transaction_of_the_thread_is_waited_for_a_moment(
    patient: bool, store: SqliteStore, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = await begin(store, "r")
    threads.clear()
    assert store._session is not None
    gate = store._session.writer._connection.gate
    loop, taken, turned = asyncio.get_running_loop(), threading.Event(), threading.Event()

    def hold() -> None:
        with gate:
            taken.set()
            if patient:
                time.sleep(0.02)
            else:
                assert turned.wait(30), "the event loop stands still"

    if not patient:
        monkeypatch.setattr(transaction, "_LONG_SECONDS", 0.0)
        loop.call_later(0.2, turned.set)
    holding = threading.Thread(target=hold)
    holding.start()
    taken.wait()
    await move_on(store, head)
    holding.join()
    assert threads == [HERE if patient else THERE]


def test_idle_is_only_a_loop_of_which_it_can_be_told() -> None:
    assert check_idle(SeededLoop(1)) is LoopIdle.NO
    loop = asyncio.SelectorEventLoop()
    assert check_idle(loop) is LoopIdle.NOW
    later = loop.call_later(60, lambda: None)
    assert check_idle(loop) is LoopIdle.NOW
    assert check_idle(loop, 1_000_000) is LoopIdle.NO
    ready = loop.call_soon(lambda: None)
    assert check_idle(loop) is LoopIdle.SOON
    soon = loop.call_later(0, lambda: None)
    assert check_idle(loop) is LoopIdle.NO
    for waiting in (soon, later, ready):
        waiting.cancel()
    loop.close()
    assert check_idle(loop) is LoopIdle.NO


async def test_a_lock_of_another_process_does_not_hold_the_event_loop_up(
    store: SqliteStore, tmp_path: Path, threads: list[str]
) -> None:
    head = await begin(store, "r")
    threads.clear()
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    loop, turned = asyncio.get_running_loop(), threading.Event()

    def let_go() -> None:
        assert turned.wait(30), "the event loop stands still"
        other.execute("ROLLBACK")

    loop.call_later(0.2, turned.set)
    letting = threading.Thread(target=let_go)
    letting.start()
    head = await move_on(store, head)
    letting.join()
    other.close()
    assert turned.is_set()
    assert threads == [THERE]
    assert await store.head(RunId("r")) == head


async def test_a_slow_disk_is_left_to_the_thread_for_a_while(
    store: SqliteStore, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_LEFT_TO_THE_THREAD", 3)
    head = await begin(store, "r")
    threads.clear()
    head = await several(store, head, 2)
    monkeypatch.setattr(transaction, "_LONG_SECONDS", 0.01)
    Watched.before = lambda: time.sleep(0.05)
    head = await move_on(store, head)
    monkeypatch.setattr(transaction, "_LONG_SECONDS", 30.0)
    Watched.before = lambda: None
    await several(store, head, 5)
    assert threads == [HERE] * 3 + [THERE] * 3 + [HERE] * 2


@pytest.mark.parametrize("size", [transaction._FEW_BYTES, transaction._FEW_BYTES + 1])
async def test_many_bytes_are_left_to_the_thread(size: int, store: SqliteStore, threads: list[str]) -> None:
    head = await begin(store, "r")
    threads.clear()
    await move_on(store, head, [sample_blob(b"x" * size)])
    assert threads == [HERE if size == transaction._FEW_BYTES else THERE]


async def test_what_others_moved_is_refused_there_too(store: SqliteStore, threads: list[str]) -> None:
    head = await begin(store, "r")
    moved = await move_on(store, head)
    threads.clear()
    with pytest.raises(HeadMoved):
        await store.commit(next_commit(head))
    assert await store.head(RunId("r")) == moved
    assert threads == [HERE]


class Full(Watched):
    """Cannot take rows while ``fails``; what is in the transaction then is lost."""

    fails = 0

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if Full.fails:
            Full.fails -= 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = 13, "SQLITE_FULL"
            raise error
        return super().executemany(sql, *parameters)


@pytest.mark.parametrize("fails", [1, 2])
async def test_what_fails_there_is_tried_by_the_thread_and_told(
    fails: int, store: SqliteStore, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTION_CLASS", Full)
    head = await begin(store, "r")
    threads.clear()
    Full.fails = fails
    if fails == 2:
        with pytest.raises(StorageError, match="no room is left on its disk"):
            await move_on(store, head)
        assert await store.head(RunId("r")) == head
    else:
        await move_on(store, head)
    assert Full.fails == 0
    assert set(threads) <= {THERE}


def interrupt() -> None:
    Watched.before = Watched.after = lambda: None
    raise KeyboardInterrupt


async def test_an_interrupt_amid_a_transaction_undoes_it(store: SqliteStore, threads: list[str]) -> None:
    head = await begin(store, "r")
    Watched.before = interrupt
    commit = store.commit(next_commit(head))
    with pytest.raises(KeyboardInterrupt):
        commit.send(None)
    assert await store.head(RunId("r")) == head
    await move_on(store, head)


def _interrupted(folder: Path, threads: list[str], plan: Callable[[], object]) -> None:
    """Several commit, and are interrupted as planned; all that they are told is in the store."""

    async def moving() -> list[Head]:
        return await asyncio.gather(*(move_on(store, head) for head in heads))

    loop = asyncio.SelectorEventLoop()
    try:
        store = SqliteStore(folder / "runs.db")
        heads = loop.run_until_complete(_many(store))
        threads.clear()
        plan()
        committing = loop.create_task(moving())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(committing)
        moved = loop.run_until_complete(committing)
        assert [loop.run_until_complete(store.head(head.run_id)) for head in moved] == moved
        loop.run_until_complete(store.close())
    finally:
        loop.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_amid_what_several_commit_loses_nothing(
    moment: str, tmp_path: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread looks whether it was committed, and commits it if it was not."""
    _interrupted(tmp_path, threads, lambda: monkeypatch.setattr(Watched, moment, interrupt))
    here = 0 if moment == "before" else 1
    assert threads[:here] == [HERE] * here
    assert set(threads[here:]) == {THERE}


def test_an_interrupt_amid_a_commit_that_failed_is_not_told_as_a_commit(
    tmp_path: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has undone the transaction by then, as it would have ended it if it had committed."""

    def fail() -> None:
        Watched.before = lambda: None
        monkeypatch.setattr(connection.DatabaseConnection, "drop", drop)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = 778, "SQLITE_IOERR_WRITE"
        raise error

    dropped = connection.DatabaseConnection.drop

    def drop(its: connection.DatabaseConnection) -> None:
        monkeypatch.setattr(connection.DatabaseConnection, "drop", dropped)
        dropped(its)
        raise KeyboardInterrupt

    _interrupted(tmp_path, threads, lambda: monkeypatch.setattr(Watched, "before", fail))
    assert set(threads) == {THERE}


async def test_a_store_that_was_used_only_in_the_own_thread_since_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await several(store, await begin(store, "r"))
    await store.close()
    assert os.listdir(tmp_path) == ["runs.db"]
    with pytest.raises(StorageError, match="closed"):
        await store.commit(first_commit("other"))


async def test_a_run_alone_needs_no_thread_for_its_supersteps(tmp_path: Path, threads: list[str]) -> None:
    async def add_one(number: int) -> int:
        return number + 1

    steps = [executor(id=f"step-{number}")(add_one) for number in range(10)]
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        builder = WorkflowBuilder(name="Chain").set_start_executor(steps[0]).add_chain(steps)
        result = await builder.with_checkpointing(storage).build().run(0)
    assert result.outputs == [10]
    assert threads.count(HERE) >= 9
