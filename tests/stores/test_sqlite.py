"""SqliteStore: which commits share a transaction, and what happens when one fails."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunStatus
from holdfast.checkpoint.store import Commit, Depth, Letter, RunPosition, RunQuery
from holdfast.errors import CheckpointCorrupt, HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.modules import connection, session
from tests.support.store_parts import (
    ANYTHING,
    HOUR,
    NOON,
    Claim,
    begin,
    begin_waiting,
    claim_runs,
    first_commit,
    move_on,
    next_commit,
    read_run,
    sample_blob,
    sample_head,
    sample_record,
)


async def test_page_is_full_though_a_run_is_left_out(database: Path, store: SqliteStore) -> None:
    """One whose row is damaged is not listed; what comes behind it is."""
    for name in "abcdef":
        await begin(store, name)
    execute(database, "UPDATE runs SET seq = 99 WHERE run IN ('b', 'c')")
    for newest in (False, True):
        found = [head.run_id for head in await store.runs(RunQuery(limit=2, newest=newest))]
        assert found == ["a", "d"]
    behind = RunQuery(limit=2, after=RunPosition(NOON, RunId("d")))
    assert [head.run_id for head in await store.runs(behind)] == ["e", "f"]
    assert await store.runs(RunQuery(limit=0)) == []


async def test_damaged_text_makes_later_queries_no_slower(
    database: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that are no UTF-8 are read by a function in Python; no others are."""
    good, _ = await begin(store, "good"), await begin(store, "bad")
    execute(database, "UPDATE runs SET workflow = CAST(x'ff61' AS TEXT) WHERE run = 'bad'")
    decoded: list[bytes] = []

    def any_text(stored: bytes) -> str:
        decoded.append(stored)
        return stored.decode("utf-8", "replace")

    monkeypatch.setattr(session, "decode_any_text", any_text)
    with pytest.raises(CheckpointCorrupt):
        await store.head(RunId("bad"))
    assert b"\xffa" in decoded
    decoded.clear()
    assert await store.head(RunId("good")) == good
    assert decoded == []


async def test_indexes_of_later_days_come_when_somebody_writes(database: Path, store: SqliteStore) -> None:
    """Until then the same is found without them, and nothing is said to be damaged."""

    async def found() -> list[list[str]]:
        queries = (
            RunQuery(family=RunId("a")),
            RunQuery(statuses=frozenset([RunStatus.FAILED])),
            RunQuery(newest=True),
            RunQuery(statuses=frozenset([RunStatus.COMPLETED])),
            RunQuery(statuses=frozenset([RunStatus.COMPLETED, RunStatus.FAILED])),
        )
        return [[head.run_id for head in await store.runs(query)] for query in queries]

    head = await begin(store, "a")
    await begin(store, "fork", family=RunId("a"), status=RunStatus.FAILED)
    await begin(store, "c", status=RunStatus.COMPLETED)
    expected = [["a", "fork"], ["fork"], ["a", "c", "fork"], ["c"], ["c", "fork"]]
    assert await found() == expected
    await store.close()
    names = ("runs_by_status", "runs_by_change", "forks_by_family")
    execute(database, *(f"DROP INDEX {name}" for name in names))
    store = SqliteStore(database)
    assert await found() == expected
    assert await store.inspect() == []
    await move_on(store, head, status=RunStatus.FAILED)
    assert await found() == [["a", "fork"], ["a", "fork"], ["a", "c", "fork"], ["c"], ["a", "c", "fork"]]
    assert {name for (name,) in execute(database, "SELECT name FROM sqlite_master")}.issuperset(names)
    assert await store.inspect() == []
    await store.close()


async def test_commits_share_transactions(store: SqliteStore) -> None:
    await store.open()

    async def run(name: str) -> None:
        head = await begin(store, name)
        for _ in range(9):
            head = await move_on(store, head)

    await asyncio.gather(*(run(f"r{number}") for number in range(100)))
    assert 10 <= store.transactions < 100  # of 1000 commits


async def test_commits_of_one_run_that_wait_together_happen_in_order(store: SqliteStore) -> None:
    await store.open()
    commits = [first_commit("r")]
    for _ in range(9):
        commits.append(next_commit(commits[-1].head))
    await asyncio.gather(*(store.commit(commit) for commit in commits))
    assert await read_run(store, "r") == (commits[-1].head, [sample_record("r", seq) for seq in range(1, 11)])
    assert store.transactions < 10


async def test_a_commit_that_cannot_be_stored_fails_alone(store: SqliteStore) -> None:
    await store.open()
    unfit = {
        3: first_commit("r3", created=2**70),
        5: first_commit("r5", workflow_name="\udc80"),
        7: Commit(sample_head("r7"), None, (sample_record("r7", 1), sample_record("r7", 1))),
        9: first_commit("r9", checkpoint_id="no id"),
    }
    commits = [unfit.get(number, first_commit(f"r{number}")) for number in range(12)]
    outcomes = await asyncio.gather(*(store.commit(commit) for commit in commits), return_exceptions=True)
    assert {number for number, outcome in enumerate(outcomes) if outcome != []} == unfit.keys()
    for number in range(12):
        if number in unfit:
            outcome = outcomes[number]
            assert type(outcome) is StorageError
            assert "writing to" in str(outcome)
            assert outcome.__cause__ is not None
        expected = None if number in unfit else sample_head(f"r{number}")
        assert await store.head(RunId(f"r{number}")) == expected
        assert len(await store.records(RunId(f"r{number}"), *ANYTHING, Depth.ALL)) == (number not in unfit)


async def test_a_full_disk_is_told_and_nothing_is_written(database: Path, store: SqliteStore) -> None:
    head = await begin(store, "r")
    session = store._session
    assert session is not None
    writing = session.writer._connection.open()
    pages = writing.execute("PRAGMA page_count").fetchone()[0]
    writing.execute(f"PRAGMA max_page_count = {pages + 1}")
    blob = sample_blob(b"x" * 100_000)
    with pytest.raises(
        StorageError, match=r"writing to .*runs.db' failed: no room is left on its disk. Make room"
    ):
        await move_on(store, head, [blob])
    assert await read_run(store, "r") == (head, [sample_record("r", 1)])
    await move_on(store, head, [blob])  # there is room again


class FailingConnection(sqlite3.Connection):
    """Its COMMIT fails as that of a disk whose sync fails, if it is told to."""

    fails = False
    made = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.broken = False
        FailingConnection.made += 1

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        assert not self.broken, "a connection was used again after its COMMIT failed"
        if sql == "COMMIT" and FailingConnection.fails:
            FailingConnection.fails = False
            self.broken = True
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode, error.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
            raise error
        return super().execute(sql, *parameters)


async def test_a_failed_commit_poisons_its_connection(
    store: SqliteStore, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTION_CLASS", FailingConnection)
    moved = await begin(store, "moved")
    await move_on(store, moved)
    assert await store.head(RunId("moved")) is not None
    made, transactions = FailingConnection.made, store.transactions
    FailingConnection.fails = True
    with pytest.raises(StorageError, match=r"The letters may be there or not: leave them again"):
        await store.leave(RunId("moved"), 1, [Letter("k", b"")])
    assert (await store.leave(RunId("moved"), 1, [Letter("k", b"")])).refused == ()
    FailingConnection.fails = True
    late = next_commit(moved)._replace(expected=None)
    commits = [first_commit("a"), first_commit("b"), late]
    outcomes = await asyncio.gather(*(store.commit(commit) for commit in commits), return_exceptions=True)
    assert not FailingConnection.fails
    failed = [outcome for outcome in outcomes if type(outcome) is StorageError]
    assert failed
    for outcome in failed:
        assert "The commit may have happened or not: read the head again" in str(outcome)
        assert "the disk or file system reported an error" in str(outcome)
        assert "SQLITE_IOERR_FSYNC" in str(outcome)
    assert type(outcomes[2]) is HeadMoved
    for number, name in enumerate("ab"):
        there = await store.head(RunId(name))
        assert (there is None) == (type(outcomes[number]) is StorageError)
        await move_on(store, there or await begin(store, name))
    assert FailingConnection.made > made + 1  # that of the reads too: it may have seen what is not there
    assert store.transactions > transactions
    assert execute(database, "SELECT count(*) FROM meta WHERE key = 'fence'") == [(1,)]


async def test_another_process_that_holds_the_lock_is_told(database: Path) -> None:
    store = SqliteStore(database, busy_seconds=0.05)
    head = await begin(store, "r")
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError) as caught:
        await move_on(store, head)
    assert "another process has held it locked for more than 0.05 s" in str(caught.value)
    assert "database is locked" not in str(caught.value)
    assert await store.head(RunId("r")) == head  # reads wait for nobody
    other.execute("ROLLBACK")
    other.close()
    await move_on(store, head)
    await store.close()


async def test_a_process_that_holds_the_lock_for_a_while_is_waited_for(
    database: Path, store: SqliteStore
) -> None:
    head = await begin(store, "r")
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(move_on(store, head))
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    assert await waiting == await store.head(RunId("r"))


@pytest.mark.parametrize(
    "query",
    [
        RunQuery(newest=True, limit=5),
        RunQuery("Flow", newest=True, limit=5),
        RunQuery(statuses=frozenset([RunStatus.FAILED, RunStatus.RUNNING]), newest=True, limit=5),
        RunQuery(newest=True, limit=5, after=RunPosition(NOON, RunId("r")), updated_after=NOON - 5),
        RunQuery(newest=True, limit=5, text="a"),
    ],
)
async def test_newest_runs_are_read_in_the_order_of_an_index(
    database: Path, store: SqliteStore, query: RunQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that rest are never sorted, however many there are; those that are driven are, for they are few."""
    for number in range(30):
        await begin(store, f"r{number}", status=RunStatus.RUNNING if number % 10 == 0 else RunStatus.FAILED)
    plans: list[str] = []

    class Explaining(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if "updated DESC" in sql:
                plans.extend(row[-1] for row in super().execute(f"EXPLAIN QUERY PLAN {sql}", parameters))
            return super().execute(sql, parameters)

    monkeypatch.setattr(connection, "CONNECTION_CLASS", Explaining)
    explaining = SqliteStore(database)
    assert list(await explaining.runs(query)) == list(await store.runs(query))
    await explaining.close()
    resting = next(number for number, step in enumerate(plans) if "runs_by_change" in step)
    driven = next(step for step in plans if "runs_by_status" in step)
    assert plans[resting].startswith("SEARCH")
    assert driven.startswith("SEARCH")
    # What comes behind a scan of the page itself sorts no more than the page.
    page = next(number for number, step in enumerate(plans) if step.startswith("SCAN (subquery"))
    assert resting < page
    assert not [step for step in plans[resting:page] if "TEMP B-TREE" in step], plans


async def test_a_look_for_runs_to_claim_reads_no_rows_of_those_that_rest_or_are_driven(
    database: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that are driven are seen in an index alone, those that rest for longer not at all."""
    await store.join()
    held = Claim()
    for number in range(40):
        await begin_waiting(store, f"w{number}", NOON + HOUR)
        await begin(store, f"r{number}", owner=held.name)
        await begin(store, f"f{number}", status=RunStatus.FAILED, owner="")
    plans: list[str] = []

    class Explaining(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if "FROM runs" in sql:
                plans.extend(row[-1] for row in super().execute(f"EXPLAIN QUERY PLAN {sql}", parameters))
            return super().execute(sql, parameters)

    monkeypatch.setattr(connection, "CONNECTION_CLASS", Explaining)
    explaining = SqliteStore(database)
    before = explaining.transactions
    assert await claim_runs(explaining) == []
    assert explaining.transactions == before == 0
    await explaining.close()
    assert {step.partition(" (")[0] for step in plans if " runs " in step} == {
        "SEARCH runs USING COVERING INDEX runs_by_status",  # which processes and claims drive runs
        "SEARCH runs USING INTEGER PRIMARY KEY",  # those with letters
        "SEARCH runs USING INDEX runs_by_waking",  # those whose time has come
    }
