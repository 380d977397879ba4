"""SqliteStore: commits of many runs that are written by few statements, each as if it were alone."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.store import Commit, Head, Letter
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.store_parts import (
    MOST_TOGETHER,
    begin,
    first_commit,
    next_commit,
    read_run,
    sample_blob,
    sample_head,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    seal_head,
    staying_commit,
)


async def committed(store: SqliteStore | MemoryStore, commits: Sequence[Commit]) -> list[object]:
    """Commit together; return the letters of each commit, or the type and text of its error."""
    outcomes = await asyncio.gather(*(store.commit(commit) for commit in commits), return_exceptions=True)
    return [
        f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, BaseException) else list(outcome)
        for outcome in outcomes
    ]


def of_all_kinds() -> list[Commit]:
    """Commits of runs that began: no two alike, some of them of one run, some that must be refused."""
    heads = {name: sample_head(name) for name in "abcdefgh"}
    moved = {name: next_commit(head) for name, head in heads.items()}
    record = sample_record("c", 2, keyframe=sample_keyframe(2), tags=("tag", "other"))
    missing = sample_blob(b"missing")
    return [
        moved["a"],
        moved["b"]._replace(expected=None),
        moved["c"]._replace(
            records=(record,), head=moved["c"].head._replace(checkpoint_id=record.checkpoint_id)
        ),
        moved["d"]._replace(taken=("known",)),
        next_commit(moved["a"].head),
        staying_commit(heads["e"], sample_notes("n")),
        moved["f"]._replace(needs=(missing.digest,)),
        next_commit(heads["g"], wake_at=77, reason="\udcff half a character"),
        first_commit("new", [sample_blob(b"content")])._replace(letters=sample_letters("x", "y")),
        moved["d"],
        next_commit(heads["h"], owner="somebody"),
        first_commit("a"),
    ]


async def test_each_commit_does_what_it_does_in_memory(store: SqliteStore) -> None:
    memory = MemoryStore()
    for each in (store, memory):
        for name in "abcdefgh":
            await begin(each, name)
        await each.leave(RunId("d"), 1, sample_letters("known", "stays"))
        await each.commit(staying_commit(sample_head("h"), sample_notes("n", "m")))
    commits, before = of_all_kinds(), store.transactions
    outcomes = await committed(store, commits)
    assert store.transactions - before <= 2
    assert outcomes == await committed(memory, commits)
    refused = [outcome.partition(":")[0] for outcome in outcomes if isinstance(outcome, str)]
    assert refused == [
        HeadMoved.__name__,
        CheckpointNotFound.__name__,
        HeadMoved.__name__,
        HeadMoved.__name__,
    ]
    for name in (*"abcdefgh", "new"):
        assert await read_run(store, name) == await read_run(memory, name)
        assert await store.notes(RunId(name)) == await memory.notes(RunId(name))
        assert await store.inbox(RunId(name)) == await memory.inbox(RunId(name))
    assert await store.inspect() == []


async def test_more_runs_than_one_statement_takes(store: SqliteStore) -> None:
    names = [f"r{number}" for number in range(MOST_TOGETHER * 2 + 3)]
    assert await committed(store, [first_commit(name) for name in names]) == [[]] * len(names)
    heads = [sample_head(name) for name in names]
    assert await committed(store, [next_commit(head) for head in heads]) == [[]] * len(names)
    assert store.transactions < 20
    assert [await store.head(head.run_id) for head in heads[::100]] == [
        next_commit(head).head for head in heads[::100]
    ]
    assert await store.inspect() == []


async def test_letters_that_cannot_be_read_stop_their_commit_alone_before_it_writes(
    database: Path, store: SqliteStore
) -> None:
    heads = [await begin(store, name) for name in "ab"]
    for head in heads:
        await store.leave(head.run_id, 1, [Letter("k", b"data")])
    execute(database, "UPDATE letters SET data = 'text' WHERE run = (SELECT id FROM runs WHERE run = 'a')")
    outcomes = await asyncio.gather(
        *(store.commit(next_commit(head)) for head in heads), return_exceptions=True
    )
    assert isinstance(outcomes[0], CheckpointCorrupt)
    assert outcomes[1] == [Letter("k", b"data")]
    assert await read_run(store, "a") == (heads[0], [sample_record("a", 1)])
    assert await store.head(RunId("b")) == next_commit(heads[1]).head


def test_a_seal_covers_every_field_of_a_head() -> None:
    head = sample_head("r")
    seals = {seal_head("", head, 0), seal_head("n", head, 0), seal_head("", head, 1)}
    for place, part in enumerate(head):
        other = f"{part}x" if isinstance(part, str) else (part or 0) + 1
        for changed in (other, b"no text"):
            fields: list[Any] = [*head[:place], changed, *head[place + 1 :]]
            seals.add(seal_head("", Head(*fields), 0))
    assert len(seals) == 3 + 2 * len(head)
