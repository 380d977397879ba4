"""Short ways to use a store in a rule: begin a run, leave a letter, read all of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import (
    Blob,
    ClaimRequest,
    Commit,
    Depth,
    Head,
    LeaveResult,
    Letter,
    Note,
    Record,
    Removal,
    RunQuery,
    Store,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    FAMILY,
    NOON,
    first_commit,
    next_commit,
    sample_head,
    sample_id,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


async def begin(store: Store, run: str, blobs: Sequence[Blob] = (), **head_fields: Any) -> Head:
    """Begin a run with one record."""
    commit = first_commit(run, blobs, **head_fields)
    await store.commit(commit)
    return commit.head


async def move_on(store: Store, after: Head, blobs: Sequence[Blob] = (), **head_fields: Any) -> Head:
    """Move a run on by one record."""
    commit = next_commit(after, blobs, **head_fields)
    await store.commit(commit)
    return commit.head


async def read_run(store: Store, run: str) -> tuple[Head | None, list[Record]]:
    """Return the head and the whole records of a run."""
    return await store.head(RunId(run)), list(await store.records(RunId(run), *ANYTHING, Depth.ALL))


async def list_run_ids(store: Store, query: RunQuery) -> list[str]:
    """Return the run ids that a query selects."""
    return [head.run_id for head in await store.runs(query)]


async def try_commit(store: Store, commit: Commit) -> bool:
    """Commit; return False if the commit is refused."""
    try:
        await store.commit(commit)
    except HeadMoved:
        return False
    return True


async def catch_refusal(commit: Awaitable[object]) -> HeadMoved:
    """Await a commit that must be refused, and return its error."""
    try:
        await commit
    except HeadMoved as error:
        return error
    raise AssertionError("the commit was taken, but it had to be refused with HeadMoved")


async def check_missing(store: Store, commit: Commit) -> None:
    """Check that a commit is refused because a blob that it needs is missing, and changes nothing."""
    run = commit.head.run_id
    before = (
        await read_run(store, run),
        await read_journal(store, run),
        dict((await store.mark(FAMILY)).sizes),
    )
    assert repr(run) in await _describe_missing(store, commit)
    brought = {blob.digest for blob in commit.blobs}
    after = {
        digest: size for digest, size in (await store.mark(FAMILY)).sizes.items() if digest not in brought
    }
    assert (await read_run(store, run), await read_journal(store, run), after) == before
    for record in commit.records:
        assert await store.find(record.checkpoint_id) is None


async def _describe_missing(store: Store, commit: Commit) -> str:
    try:
        await store.commit(commit)
    except CheckpointNotFound as error:
        return str(error)
    raise AssertionError("the commit was taken, but something that it needs is not there")


async def find_blobs(store: Store, blobs: list[Blob], family: str = "r") -> list[bool]:
    """Return for each blob whether the store has it; those that it has must be whole."""
    found = await store.blobs(RunId(family), [blob.digest for blob in blobs])
    assert all(found.get(blob.digest, blob.data) == blob.data for blob in blobs)
    return [blob.digest in found for blob in blobs]


async def discard_blobs(store: Store, mark: int, blobs: list[Blob], family: str = "r") -> int:
    """Discard blobs; return the bytes that this freed."""
    return await store.discard(RunId(family), mark, [blob.digest for blob in blobs])


async def commit_blobs(store: Store, head: Head, *blobs: Blob) -> None:
    """Write blobs by a commit that changes nothing else."""
    await store.commit(staying_commit(head)._replace(blobs=blobs))


async def read_journal(store: Store, run: str = "r") -> tuple[Note, ...]:
    """Return the notes of a run."""
    return tuple(await store.notes(RunId(run)))


async def begin_with_notes(store: Store, run: str, *keys: str) -> Head:
    """Begin a run, and note each key."""
    head = await begin(store, run)
    await store.commit(staying_commit(head, sample_notes(*keys)))
    return head


async def read_inbox(store: Store, run: str = "r") -> tuple[Letter, ...]:
    """Return the letters that wait for a run."""
    return tuple(await store.inbox(RunId(run)))


async def leave_letters(store: Store, *keys: str, run: str = "r", since: int = 1) -> LeaveResult:
    """Leave a letter for each key."""
    return await store.leave(RunId(run), since, sample_letters(*keys))


def get_keys(letters: Iterable[Letter]) -> list[str]:
    """Return the keys of letters, which must be those of ``sample_letters``."""
    keys = [letter.key for letter in letters]
    assert tuple(letters) == sample_letters(*keys)
    return keys


async def begin_waiting(store: Store, run: str, wake_at: int | None = None, **fields: Any) -> Head:
    """Begin a run that waits, until ``wake_at`` if it has one."""
    return await begin(store, run, status=RunStatus.WAITING, owner="", wake_at=wake_at, **fields)


async def list_due(store: Store, time: int = NOON, limit: int = 1_000, workflow: str = "Flow") -> list[str]:
    """Return the runs that have something to do, in the order of the store."""
    request = ClaimRequest(this_process(), time, 0, limit, {workflow: None}, abandoned=False)
    heads = await store.claim(request)
    for head in heads:
        assert await store.head(head.run_id) == head
    return [head.run_id for head in heads]


async def lives(store: Store, process: str) -> bool:
    """Return True if a store says that a process lives."""
    found = await store.living([process])
    assert set(found) <= {process}
    return process in found


async def begin_with_records(store: Store, run: str, records: int, **head_fields: object) -> Head:
    """Begin a run with so many records."""
    made = tuple(sample_record(run, seq) for seq in range(1, records + 1))
    head = sample_head(run, records, **head_fields)
    await store.commit(Commit(head, None, made))
    return head


async def read_givers(store: Store, run: str) -> dict[int, dict[str, str]]:
    """Return by seq and tag who gave the tags of a run; this must be equal at every depth."""
    found = [
        {record.seq: dict(record.tagged_by) for record in await store.records(RunId(run), *ANYTHING, depth)}
        for depth in Depth
    ]
    assert all(each == found[0] for each in found), "who gave tags depends on how much is read"
    return {seq: givers for seq, givers in found[0].items() if givers}


async def read_tags(store: Store, run: str) -> dict[int, tuple[str, ...]]:
    """Return the tags of a run by seq, without records that have none; they must be equal at every depth."""
    found = [
        {record.seq: record.tags for record in await store.records(RunId(run), *ANYTHING, depth)}
        for depth in Depth
    ]
    assert found[0] == found[1] == found[2]
    return {seq: tags for seq, tags in found[0].items() if tags}


async def read_seqs(store: Store, run: str) -> list[int]:
    """Return the seqs of the records of a run; finding records by id must agree."""
    there = [record.seq for record in await store.records(RunId(run), *ANYTHING, Depth.HEADERS)]
    head = await store.head(RunId(run))
    for seq in range(1, (head.seq if head is not None else 20) + 1):
        assert await store.find(sample_id(run, seq)) == ((run, seq) if seq in there else None)
    return there


async def check_refused(store: Store, removal: Removal) -> None:
    """Check that a removal is refused with ``HeadMoved``, and changes nothing."""
    before = await read_run(store, removal.run_id)
    error = await catch_refusal(store.remove(removal))
    assert removal.run_id in str(error)
    assert await read_run(store, removal.run_id) == before


class Reopen(Protocol):
    """The type of the fixture ``reopen``, which makes another store object for the place of ``store``."""

    async def __call__(self, namespace: str = "") -> Store:
        """Return a store object that is not opened yet; the fixture closes it after the test."""
        ...
