"""Rules of runs that come from other stores: first their blobs, then all the rest in one commit."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Commit, LeaveResult, RunQuery, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import Reopen, begin, catch_refusal, read_run, try_commit
from holdfast.testing.store_suite.samples import (
    LARGE,
    SEQS_OF_ARRIVAL,
    make_arrival,
    next_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class ImportRules:
    """The rules of ``add_blobs``, and of a first commit that brings a whole run."""

    async def test_blobs_can_be_added_before_there_is_a_run(self, store: Store) -> None:
        blobs = [sample_blob(b"small"), sample_blob(LARGE), sample_blob(b"")]
        await store.add_blobs(RunId("r"), blobs[:2])
        await store.add_blobs(RunId("r"), blobs[2:])
        await store.add_blobs(RunId("r"), [])
        digests = [blob.digest for blob in blobs]
        assert await store.blobs(RunId("r"), digests) == dict(blobs)
        assert await store.blobs(RunId("s"), digests) == {}
        assert await store.head(RunId("r")) is None
        assert list(await store.runs(RunQuery())) == []
        await begin(store, "r")
        assert await store.blobs(RunId("r"), digests) == dict(blobs)

    async def test_a_blob_that_is_there_is_left_as_it_is_by_one_that_is_added(self, store: Store) -> None:
        for number, data in enumerate((b"first", LARGE)):
            one, other = sample_blob(data, number), sample_blob(b"other", number)
            await begin(store, f"r{number}", [one])
            await store.add_blobs(RunId(f"r{number}"), [other])
            assert await store.blobs(RunId(f"r{number}"), [one.digest]) == {one.digest: data}
            await store.add_blobs(RunId(f"s{number}"), [one])
            await begin(store, f"s{number}", [other])
            assert await store.blobs(RunId(f"s{number}"), [one.digest]) == {one.digest: data}

    async def test_a_run_can_begin_with_letters(self, store: Store) -> None:
        letters = sample_letters("a", "b")
        commit = Commit(sample_head("r"), None, (sample_record("r", 1),), letters=letters)
        assert tuple(await store.commit(commit)) == letters
        assert tuple(await store.inbox(RunId("r"))) == letters
        assert await store.leave(RunId("r"), 1, sample_letters("a", "c")) == LeaveResult(commit.head, ("a",))
        taking = staying_commit(commit.head, taken=["a"])
        assert tuple(await store.commit(taking)) == sample_letters("b")
        assert tuple(await store.commit(next_commit(commit.head))) == sample_letters("b")
        assert await store.leave(RunId("r"), 0, sample_letters("a")) == LeaveResult(
            next_commit(commit.head).head, ("a",)
        )

    async def test_a_run_can_come_whole_in_one_commit(self, store: Store) -> None:
        commit = make_arrival()
        assert tuple(await store.commit(commit)) == commit.letters
        assert await read_run(store, "r") == (commit.head, list(commit.records))
        assert tuple(await store.notes(RunId("r"))) == commit.notes
        assert tuple(await store.inbox(RunId("r"))) == commit.letters
        for seq in (SEQS_OF_ARRIVAL[0], 777, SEQS_OF_ARRIVAL[-1]):
            assert await store.find(sample_id("r", seq)) == ("r", seq)
        await catch_refusal(store.commit(commit))
        then = next_commit(commit.head)
        assert tuple(await store.commit(then)) == commit.letters
        assert await read_run(store, "r") == (then.head, [*commit.records, *then.records])
        assert list(await store.notes(RunId("r"))) == []


class DurableImportRules:
    """The rules of imported runs that need a second store object to check."""

    async def test_another_object_sees_a_run_that_came_whole(self, store: Store, reopen: Reopen) -> None:
        blobs, commit = [sample_blob(b"small"), sample_blob(LARGE)], make_arrival()
        await store.add_blobs(RunId("r"), blobs)
        await store.commit(commit)
        await store.close()
        other = await reopen()
        assert await read_run(other, "r") == (commit.head, list(commit.records))
        assert tuple(await other.notes(RunId("r"))) == commit.notes
        assert tuple(await other.inbox(RunId("r"))) == commit.letters
        assert await other.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_one_of_several_objects_that_bring_a_run_wins(self, store: Store, reopen: Reopen) -> None:
        stores = [store, await reopen(), await reopen()]
        commits = [make_arrival()._replace(notes=sample_notes(f"{number}")) for number in range(3)]
        won = await asyncio.gather(*(try_commit(*each) for each in zip(stores, commits, strict=True)))
        assert sum(won) == 1
        for each in stores:
            assert await read_run(each, "r") == (commits[0].head, list(commits[0].records))
            assert tuple(await each.notes(RunId("r"))) == commits[won.index(True)].notes
