"""Commits: all or nothing, compared with the head that is there."""

from __future__ import annotations

from holdfast.checkpoint.store import Commit, Depth, Expected, Store
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    all_of,
    begin,
    first_commit,
    move_on,
    next_commit,
    refusal,
    rival_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_record,
)


class Commits:
    """What ``commit`` promises one caller."""

    async def test_a_commit_makes_head_records_and_blobs_readable(self, store: Store) -> None:
        blob = sample_blob(b"large")
        records = sample_record("r", 1), sample_record("r", 2)
        commit = Commit(sample_head("r", 2), None, records, (blob,))
        await store.commit(commit)
        assert await all_of(store, "r") == (commit.head, list(records))
        assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: b"large"}

    async def test_the_next_commit_replaces_the_head_and_keeps_the_records(self, store: Store) -> None:
        first = await begin(store, "r")
        second = await move_on(store, first)
        assert await all_of(store, "r") == (second, [sample_record("r", 1), sample_record("r", 2)])

    async def test_a_commit_may_move_the_head_without_records(self, store: Store) -> None:
        first = await begin(store, "r")
        taken = first._replace(token=2, owner="other:2", takeovers=1)
        await store.commit(Commit(taken, Expected(first.checkpoint_id, 1)))
        assert await all_of(store, "r") == (taken, [sample_record("r", 1)])

    async def test_another_checkpoint_than_expected_is_refused(self, store: Store) -> None:
        first = await begin(store, "r")
        await move_on(store, first)
        await self._is_refused(store, rival_commit(first, "late"))

    async def test_another_token_than_expected_is_refused(self, store: Store) -> None:
        first = await begin(store, "r", token=5)
        for wrong in (4, 6, 0):
            commit = next_commit(first)
            await self._is_refused(store, commit._replace(expected=Expected(first.checkpoint_id, wrong)))

    async def test_a_writer_whose_run_was_taken_at_the_same_checkpoint_is_refused(self, store: Store) -> None:
        first = await begin(store, "r")
        await store.commit(Commit(first._replace(token=2), Expected(first.checkpoint_id, 1)))
        await self._is_refused(store, next_commit(first))

    async def test_a_run_that_is_there_cannot_begin_again(self, store: Store) -> None:
        first = await begin(store, "r")
        again = rival_commit(first, "again")._replace(expected=None)
        await self._is_refused(store, again)
        await self._is_refused(store, Commit(first._replace(owner="another"), None))

    async def test_a_run_that_is_missing_cannot_go_on(self, store: Store) -> None:
        await self._is_refused(store, next_commit(sample_head("r")))

    async def test_the_head_of_another_run_is_not_the_expected_one(self, store: Store) -> None:
        other = await begin(store, "other")
        commit = next_commit(await begin(store, "r"))
        await self._is_refused(store, commit._replace(expected=Expected(other.checkpoint_id, other.token)))

    async def test_a_refused_commit_leaves_blobs_that_are_there(self, store: Store) -> None:
        first = await begin(store, "r", [sample_blob(b"kept", 1)])
        late = next_commit(first, [sample_blob(b"other", 1)])._replace(expected=None)
        await refusal(store.commit(late))
        digest = late.blobs[0].digest
        assert await store.blobs(RunId("r"), [digest]) == {digest: b"kept"}

    async def test_head_moved_is_a_storage_error_and_names_the_run(self, store: Store) -> None:
        await begin(store, "the-run")
        error = await refusal(store.commit(first_commit("the-run")))
        assert isinstance(error, StorageError)
        assert "the-run" in str(error)

    async def test_a_refused_writer_goes_on_from_the_head_that_is_there(self, store: Store) -> None:
        first = await begin(store, "r")
        await move_on(store, first, token=2)
        await refusal(store.commit(rival_commit(first, "late")))
        there = await store.head(RunId("r"))
        assert there is not None
        third = await move_on(store, there)
        assert (await all_of(store, "r"))[0] == third
        assert len(await store.records(RunId("r"), *ANYTHING, Depth.HEADERS)) == 3

    async def test_commits_of_other_runs_change_nothing(self, store: Store) -> None:
        await begin(store, "r")
        before = await all_of(store, "r")
        await move_on(store, await begin(store, "other"))
        assert await all_of(store, "r") == before

    async def _is_refused(self, store: Store, commit: Commit) -> None:
        """Nothing of it may be seen, not even with a record of its own at a seq of its own."""
        run = commit.head.run_id
        stray = sample_record(run, 77, checkpoint_id=sample_id(run, "stray"))
        before = await all_of(store, run)
        await refusal(store.commit(commit._replace(records=(*commit.records, stray))))
        assert await all_of(store, run) == before
        for record in (*commit.records, stray):
            assert await store.find(record.checkpoint_id) is None
