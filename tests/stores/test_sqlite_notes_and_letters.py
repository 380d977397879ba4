"""SqliteStore: journals and inboxes, as far as they are rows of a database that several processes use."""

import asyncio
from pathlib import Path

import pytest

from holdfast.checkpoint.store import LeaveResult, Letter, Note
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.golden import make
from tests.stores.sqlite_programs import execute
from tests.support.modules import notes_and_letters
from tests.support.store_parts import begin, next_commit, sample_head

R = RunId("r")


async def test_letters_share_transactions_with_commits(store: SqliteStore) -> None:
    heads = [await begin(store, f"r{number}") for number in range(20)]
    before = store.transactions
    leaving = [store.leave(head.run_id, 1, [Letter("k", b"")]) for head in heads]
    commits = [store.commit(next_commit(head)) for head in heads]
    left, waiting = await asyncio.gather(asyncio.gather(*leaving), asyncio.gather(*commits))
    assert left == [LeaveResult(head) for head in heads]
    assert waiting == [[Letter("k", b"")]] * 20  # they were left before
    assert store.transactions - before < 20


async def test_letters_that_cannot_be_left_disturb_nobody(database: Path, store: SqliteStore) -> None:
    heads = {name: await begin(store, name) for name in ("fine", "known", "damaged", "unfit", "moved")}
    await store.leave(RunId("known"), 1, [Letter("k", b"first")])
    execute(database, "UPDATE runs SET status = 'gone' WHERE run = 'damaged'")
    no_bytes = Letter("k", ["no bytes"])  # type: ignore[arg-type]
    outcomes = await asyncio.gather(
        store.leave(RunId("fine"), 1, [Letter("k", b"data")]),
        store.leave(RunId("known"), 1, [Letter("other", b""), Letter("k", b"again")]),
        store.leave(RunId("nobody"), 1, [Letter("k", b"data")]),
        store.leave(RunId("damaged"), 1, [Letter("k", b"data")]),
        store.leave(RunId("unfit"), 1, [Letter("fine", b""), no_bytes]),
        store.commit(next_commit(heads["moved"])._replace(expected=None)),
        return_exceptions=True,
    )
    assert list(outcomes[:3]) == [
        LeaveResult(heads["fine"]),
        LeaveResult(heads["known"], ("k",)),
        LeaveResult(None),
    ]
    assert isinstance(outcomes[3], CheckpointCorrupt)
    assert "restore the database" in str(outcomes[3])
    assert type(outcomes[4]) is StorageError
    assert "writing to" in str(outcomes[4])
    assert isinstance(outcomes[5], StorageError)
    inboxes = {name: await store.inbox(RunId(name)) for name in heads}
    assert inboxes == {
        "fine": [Letter("k", b"data")],
        "known": [Letter("k", b"first")],
        "damaged": [],
        "unfit": [],
        "moved": [],
    }


async def test_what_waits_is_found_without_reading_what_was_taken(database: Path, store: SqliteStore) -> None:
    await begin(store, "r")
    for statement in (notes_and_letters._WAITING, notes_and_letters._NOTES, notes_and_letters._CLEAR):
        (*_, plan), *more = execute(database, "EXPLAIN QUERY PLAN " + statement.replace("?", "1"))
        index = "letters_waiting" if statement == notes_and_letters._WAITING else "notes_by_key"
        assert f"USING INDEX {index}" in plan or f"USING COVERING INDEX {index}" in plan
        assert len(more) == (statement == notes_and_letters._NOTES)  # it alone is sorted, and has few rows


async def test_a_letter_that_was_taken_gives_its_room_back(database: Path, store: SqliteStore) -> None:
    head = await begin(store, "r")
    await store.leave(R, 1, [Letter("k\udc80", b"x" * 1000)])
    await store.commit(next_commit(head)._replace(taken=("k\udc80",)))
    assert execute(database, "SELECT key, data FROM letters") == [(b"k\xed\xb2\x80", None)]


async def without_mail(path: Path) -> None:
    """A store of the days before there were journals and inboxes, with a run."""
    store = SqliteStore(path)
    await begin(store, "r")
    await store.close()
    execute(path, "DROP TABLE notes", "DROP TABLE letters")


def tables_of(path: Path) -> set[str]:
    return {name for (name,) in execute(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


async def test_a_store_without_inboxes_is_read_as_it_is(database: Path, store: SqliteStore) -> None:
    await without_mail(database)
    assert list(await store.notes(R)) == []
    assert list(await store.inbox(R)) == []
    assert list(await store.inbox(RunId("nobody"))) == []
    assert not tables_of(database) & {"notes", "letters"}


@pytest.mark.parametrize("read_first", [False, True])
async def test_a_store_without_inboxes_gets_them_when_somebody_writes(
    database: Path, store: SqliteStore, read_first: bool
) -> None:
    await without_mail(database)
    if read_first:
        assert list(await store.inbox(R)) == []
    assert await store.leave(R, 1, [Letter("k", b"data")]) == LeaveResult(sample_head("r"))
    assert list(await store.inbox(R)) == [Letter("k", b"data")]
    commit = next_commit(sample_head("r"))._replace(notes=(Note("n", b"noted"),))
    assert list(await store.commit(commit)) == [Letter("k", b"data")]
    assert list(await store.notes(R)) == [Note("n", b"noted")]
    names = {name for (name,) in execute(database, "SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert {"notes_by_key", "letters_by_key", "letters_waiting"} <= names


async def test_many_may_add_inboxes_at_once(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.db"
        await without_mail(path)
        stores = [SqliteStore(path) for _ in range(8)]
        left = await asyncio.gather(
            *(store.leave(R, 1, [Letter(f"{key}", b"")]) for key, store in enumerate(stores))
        )
        assert left == [LeaveResult(sample_head("r"))] * 8
        assert len(await stores[0].inbox(R)) == 8
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_golden_store_gets_inboxes(tmp_path: Path) -> None:
    path, _ = make.copied(tmp_path)
    run_id = RunId(execute(path, "SELECT run FROM runs WHERE namespace = '' LIMIT 1")[0][0])
    store = SqliteStore(path)
    head = await store.head(run_id)
    assert head is not None
    assert list(await store.notes(run_id)) == []
    assert list(await store.inbox(run_id)) == []
    assert await store.leave(run_id, head.seq, [Letter("k", b"")]) == LeaveResult(head)
    assert list(await store.inbox(run_id)) == [Letter("k", b"")]
    await store.close()
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
