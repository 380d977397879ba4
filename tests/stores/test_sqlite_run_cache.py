"""SqliteStore: where runs stand is remembered between commits, and looked for again when it may be another place."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.support.modules import connection, row_writer
from tests.support.store_parts import (
    begin,
    first_commit,
    move_on,
    sample_head,
    sample_notes,
    staying_commit,
)

RUN = RunId("r")


class Watched(sqlite3.Connection):
    """Counts how often runs were looked for; its next COMMIT fails if it is told to."""

    searches = 0
    fails = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        Watched.searches += sql.startswith("SELECT run, id")
        if sql == "COMMIT" and Watched.fails:
            Watched.fails = False
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


@pytest.fixture
async def store(database: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(connection, "CONNECTION_CLASS", Watched)
    Watched.searches, Watched.fails = 0, False
    store = SqliteStore(database)
    yield store
    assert await store.inspect() == []
    await store.close()


async def test_a_run_that_goes_on_is_not_looked_for(store: SqliteStore) -> None:
    head = await begin(store, RUN)
    for _ in range(5):
        head = await move_on(store, head)
    assert Watched.searches == 1
    assert await store.head(RUN) == head


async def test_a_run_with_a_journal_is_not_looked_for(store: SqliteStore) -> None:
    head = await begin(store, RUN)
    for number in range(3):
        await store.commit(staying_commit(head, sample_notes(f"n{number}")))
    assert Watched.searches == 1
    assert [note.key for note in await store.notes(RUN)] == ["n0", "n1", "n2"]
    head = await move_on(store, head)
    assert await store.notes(RUN) == []
    await store.commit(staying_commit(head, sample_notes("later")))
    assert [note.key for note in await store.notes(RUN)] == ["later"]
    assert Watched.searches == 1


async def test_what_did_not_come_to_its_end_is_forgotten(store: SqliteStore) -> None:
    head = await move_on(store, await begin(store, RUN))
    Watched.fails = True
    with pytest.raises(StorageError, match="may have happened or not"):
        await move_on(store, head)
    assert await store.head(RUN) == head
    assert await move_on(store, head) == await store.head(RUN)


async def test_not_more_are_remembered_than_a_process_can_hold(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "_MOST_KNOWN", 3)
    for number in range(20):
        await store.commit(first_commit(f"r{number}"))
    session = store._session
    assert session is not None
    assert len(session.writer._cache._runs) <= 4
    for number in range(20):
        await move_on(store, sample_head(f"r{number}"))
