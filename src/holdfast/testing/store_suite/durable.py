"""What holds for stores that outlive their object."""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.checkpoint.store import Depth, Left, RunQuery, Store
from holdfast.errors import HeadMoved
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    LARGE,
    ODD_IDS,
    all_of,
    begin,
    first_commit,
    move_on,
    names_of_runs,
    refusal,
    rival_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class Reopen(Protocol):
    """Makes another store object for the place of ``store``."""

    async def __call__(self, namespace: str = "") -> Store:
        """Neither opened nor closed by anyone but the fixture, which closes it after the test."""
        ...


class Durable:
    """The promises that take a second store object to check."""

    async def test_another_object_sees_everything(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blob(b"small"), sample_blob(LARGE), sample_blob(b"")
        commit = first_commit("r", blobs, wake_at=0, reason="why")
        keyframe = sample_keyframe(1, cut=True)
        commit = commit._replace(records=(commit.records[0]._replace(keyframe=keyframe, values=LARGE),))
        await store.commit(commit)
        info = await store.open()
        await store.close()
        other = await reopen()
        assert await all_of(other, "r") == (commit.head, list(commit.records))
        assert await other.find(sample_id("r", 1)) == ("r", 1)
        assert list(await other.runs(RunQuery())) == [commit.head]
        assert await other.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
        assert await other.open() == info

    async def test_every_method_opens_a_store_by_itself(self, store: Store, reopen: Reopen) -> None:
        blob, notes = sample_blob(b"data"), sample_notes("a")
        await begin(store, "r", [blob])
        assert await (await reopen()).head(RunId("r")) == sample_head("r")
        assert await names_of_runs(await reopen(), RunQuery()) == ["r"]
        assert await (await reopen()).find(sample_id("r", 1)) == ("r", 1)
        assert len(await (await reopen()).records(RunId("r"), *ANYTHING, Depth.ALL)) == 1
        assert await (await reopen()).blobs(RunId("r"), [blob.digest]) == {blob.digest: b"data"}
        letters = sample_letters("a")
        assert await (await reopen()).leave(RunId("r"), 1, letters) == Left(sample_head("r"))
        assert tuple(await (await reopen()).inbox(RunId("r"))) == letters
        assert tuple(await (await reopen()).commit(staying_commit(sample_head("r"), notes))) == letters
        assert tuple(await (await reopen()).notes(RunId("r"))) == notes
        await move_on(await reopen(), sample_head("r"))
        await (await reopen()).add_blobs(RunId("r"), [blob])
        assert not await (await reopen()).lives("nobody")
        await (await reopen()).join()
        await (await reopen()).close()

    async def test_what_one_object_commits_the_other_sees_at_once(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await begin(store, "r")
        for seq in range(2, 8):
            assert await other.head(RunId("r")) == head
            assert [record.seq for record in await other.records(RunId("r"), *ANYTHING, Depth.ALL)] == list(
                range(1, seq)
            )
            head = await move_on(other if seq % 2 else store, head)
        assert await all_of(store, "r") == await all_of(other, "r")

    async def test_one_of_several_objects_that_write_a_run_wins(self, store: Store, reopen: Reopen) -> None:
        objects = [store, await reopen(), await reopen()]
        head = await begin(store, "r")
        for round_number in range(5):
            rivals = [rival_commit(head, (round_number, number)) for number in range(9)]
            outcomes = await asyncio.gather(
                *(objects[number % 3].commit(rival) for number, rival in enumerate(rivals)),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes].count(HeadMoved) == 8
            won = [not isinstance(outcome, BaseException) for outcome in outcomes]
            head = rivals[won.index(True)].head
            for one in objects:
                assert await one.head(RunId("r")) == head
        assert len(await store.records(RunId("r"), *ANYTHING, Depth.HEADERS)) == 6

    async def test_an_object_that_missed_a_commit_is_refused(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        first = await begin(store, "r")
        assert await other.head(RunId("r")) == first
        second = await move_on(other, first)
        await refusal(store.commit(rival_commit(first, "late")))
        assert await store.head(RunId("r")) == second

    async def test_objects_may_begin_at_the_same_time(self, store: Store, reopen: Reopen) -> None:
        objects = [store, *[await reopen() for _ in range(4)]]
        infos = await asyncio.gather(*(one.open() for one in objects))
        assert len({info.store_id for info in infos}) == 1
        await asyncio.gather(*(begin(one, f"r{number}") for number, one in enumerate(objects)))
        assert await names_of_runs(store, RunQuery()) == [f"r{number}" for number in range(5)]

    async def test_closing_one_object_leaves_the_others_alone(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await begin(other, "r")
        await begin(store, "s")
        await store.close()
        await move_on(other, head)
        assert await names_of_runs(other, RunQuery()) == ["r", "s"]

    async def test_namespaces_are_apart(self, store: Store, reopen: Reopen) -> None:
        blob, large = sample_blob(b"mine"), sample_blob(LARGE)
        mine = await begin(store, "r", [blob, large])
        names = ["other", "Other", "..", "a/b#c", "n" * 200]
        for name in names:
            other = await reopen(name)
            assert await all_of(other, "r") == (None, [])
            assert await other.find(sample_id("r", 1)) is None
            assert await other.runs(RunQuery()) == []
            assert await other.blobs(RunId("r"), [blob.digest, large.digest]) == {}
            theirs = [blob._replace(data=name.encode()), large._replace(data=LARGE + name.encode())]
            await begin(other, "r", theirs, owner=name)
            assert await other.head(RunId("r")) == sample_head("r", owner=name)
            assert await other.find(sample_id("r", 1)) == ("r", 1)
            assert await other.blobs(RunId("r"), [blob.digest, large.digest]) == dict(theirs)
        assert await all_of(store, "r") == (mine, [sample_record("r", 1)])
        assert await store.blobs(RunId("r"), [blob.digest, large.digest]) == dict([blob, large])
        assert list(await store.runs(RunQuery())) == [mine]

    async def test_a_namespace_is_found_again(self, store: Store, reopen: Reopen) -> None:
        head = await begin(await reopen("other"), "r", [sample_blob(LARGE)])
        again = await reopen("other")
        assert await again.head(RunId("r")) == head
        assert await again.blobs(RunId("r"), [sample_blob(LARGE).digest]) == {
            sample_blob(LARGE).digest: LARGE
        }
        assert (await again.open()).store_id == (await store.open()).store_id

    async def test_odd_ids_are_found_again(self, store: Store, reopen: Reopen) -> None:
        for run in ODD_IDS:
            await begin(store, run, [sample_blob(LARGE + run.encode(), "same")])
        await store.close()
        other = await reopen()
        assert await names_of_runs(other, RunQuery()) == sorted(ODD_IDS)
        digest = sample_blob(b"", "same").digest
        for run in ODD_IDS:
            assert await all_of(other, run) == (sample_head(run), [sample_record(run, 1)])
            assert await other.blobs(RunId(run), [digest]) == {digest: LARGE + run.encode()}
