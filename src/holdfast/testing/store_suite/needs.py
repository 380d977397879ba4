"""Commits that are built on blobs which someone may remove meanwhile."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Blob, Commit, Head, Store
from holdfast.errors import CheckpointNotFound
from holdfast.testing.store_suite.durable import Reopen
from holdfast.testing.store_suite.journal import journal
from holdfast.testing.store_suite.samples import (
    LARGE,
    all_of,
    begin,
    first_commit,
    next_commit,
    refusal,
    sample_blob,
    sample_notes,
)
from holdfast.testing.store_suite.sweeping import FAMILY, bring, discarded, sample_blobs, there


def needing(commit: Commit, *blobs: Blob) -> Commit:
    """The commit, if these blobs are there."""
    return commit._replace(needs=tuple(blob.digest for blob in blobs))


async def fails(store: Store, commit: Commit) -> None:
    """A commit must be refused because something it needs is not there, and change nothing."""
    run = commit.head.run_id
    before = await all_of(store, run), await journal(store, run), dict((await store.mark(FAMILY)).sizes)
    assert repr(run) in await _what_is_missing(store, commit)
    brought = {blob.digest for blob in commit.blobs}
    after = {
        digest: size for digest, size in (await store.mark(FAMILY)).sizes.items() if digest not in brought
    }
    assert (await all_of(store, run), await journal(store, run), after) == before
    for record in commit.records:
        assert await store.find(record.checkpoint_id) is None


async def _what_is_missing(store: Store, commit: Commit) -> str:
    try:
        await store.commit(commit)
    except CheckpointNotFound as error:
        return str(error)
    raise AssertionError("the commit was taken, but something that it needs is not there")


class Needs:
    """What ``Commit.needs`` promises."""

    async def test_a_commit_is_taken_if_what_it_needs_is_there(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs[:2])
        await store.add_blobs(FAMILY, blobs[2:])
        await store.commit(needing(next_commit(head), *blobs, blobs[0]))
        fork = needing(first_commit("fork", family=FAMILY), *blobs)
        await store.commit(fork)
        assert (await all_of(store, "fork"))[0] == fork.head
        assert await there(store, blobs) == [True] * 3

    async def test_a_commit_is_refused_if_what_it_needs_is_missing(self, store: Store) -> None:
        blobs, missing = sample_blobs(), sample_blobs("missing")
        head = await begin(store, "r", blobs)
        await begin(store, "s", missing)
        moving = next_commit(head)._replace(notes=sample_notes("a"))
        for blob in missing:
            await fails(store, needing(moving, *blobs, blob))
            await fails(store, needing(first_commit("fork", family=FAMILY), blob, *blobs))
        await fails(store, needing(first_commit("nobody"), blobs[0]))
        await store.commit(needing(moving, *blobs))
        assert await store.head(FAMILY) == moving.head

    async def test_who_missed_a_commit_hears_of_that_first(self, store: Store) -> None:
        head = await begin(store, "r")
        missing = sample_blobs("missing")
        await refusal(store.commit(needing(first_commit("r"), *missing)))
        stale = next_commit(head._replace(token=7))
        await refusal(store.commit(needing(stale, *missing)))

    async def test_what_a_commit_needs_counts_as_brought(self, store: Store) -> None:
        blobs, unused = sample_blobs(), sample_blobs("unused")
        head = await begin(store, "r", [*blobs, *unused])
        mark, _ = await store.mark(FAMILY)
        await store.commit(needing(next_commit(head), *blobs))
        assert await discarded(store, mark, [*blobs, *unused]) > 0
        assert await there(store, [*blobs, *unused]) == [True] * 3 + [False] * 3

    async def test_added_blobs_count_as_brought(self, store: Store) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")
        await begin(store, "r", [*again, *unused])
        mark, sizes = await store.mark(FAMILY)
        await store.add_blobs(FAMILY, [*again, *new])
        freed = sum(sizes[blob.digest] for blob in unused)
        assert await discarded(store, mark, [*again, *new, *unused]) == freed
        assert await there(store, [*again, *new]) == [True] * 6

    async def test_a_sweep_comes_before_or_behind_who_needs_a_blob(self, store: Store) -> None:
        head = await begin(store, "r")
        for number in range(12):
            blob = sample_blob(LARGE if number % 2 else b"small", "needed", number)
            head = await _raced(store, store, head, blob, number // 2)


async def _raced(store: Store, sweeper: Store, head: Head, blob: Blob, turns: int) -> Head:
    """A sweep and a commit that needs what it takes: one of them comes first."""
    await bring(store, head, blob)
    mark, _ = await sweeper.mark(FAMILY)
    commit = needing(next_commit(head), blob)

    async def moved() -> bool:
        try:
            await store.commit(commit)
        except CheckpointNotFound:
            return False
        return True

    moving = asyncio.ensure_future(moved())
    for _ in range(turns):
        await asyncio.sleep(0)
    await discarded(sweeper, mark, [blob])
    done = await moving
    assert await there(store, [blob]) == [done]
    assert await store.head(FAMILY) == (commit.head if done else head)
    return commit.head if done else head


class KeptNeeds:
    """What takes a second store object to check."""

    async def test_another_object_knows_what_a_commit_needed(self, store: Store, reopen: Reopen) -> None:
        blobs, other = sample_blobs(), await reopen()
        head = await begin(store, "r", blobs)
        mark, sizes = await other.mark(FAMILY)
        fork = needing(first_commit("fork", family=FAMILY), *blobs)
        await store.commit(fork)
        assert await discarded(other, mark, blobs) == 0
        mark, _ = await other.mark(FAMILY)
        assert await discarded(other, mark, blobs) == sum(sizes.values())
        await fails(store, needing(next_commit(head), *blobs))
        await fails(store, needing(next_commit(fork.head), *blobs))

    async def test_a_sweep_of_another_object_comes_before_or_behind(
        self, store: Store, reopen: Reopen
    ) -> None:
        sweeper = await reopen()
        head = await begin(store, "r")
        for number in range(12):
            blob = sample_blob(LARGE if number % 2 else b"small", "needed", number)
            head = await _raced(store, sweeper, head, blob, number // 2)
