"""Rules of inspecting, mending and replacing runs."""

from __future__ import annotations

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Keyframe, RunQuery, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    begin_with_records,
    catch_refusal,
    get_keys,
    leave_letters,
    list_run_ids,
    lives,
    move_on,
    read_inbox,
    read_journal,
    read_run,
    read_seqs,
    read_tags,
)
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    expect_head,
    make_removal,
    sample_blob,
    sample_head,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


def _make_replacement(head: Head) -> Commit:
    """Return the commit that replaces a run of four records by the second and third of them."""
    cut = Keyframe(b"\x00all", b"\x00values", True)
    second = sample_record("r", 2, keyframe=cut, tags=("b", "a"))
    left = sample_head("r", 3, token=head.token + 1)
    return Commit(left, expect_head(head), (second, sample_record("r", 3)), notes=sample_notes("kept"))


class RepairRules:
    """The rules of ``inspect``, ``mend`` and ``replace`` for an undamaged store."""

    async def test_a_run_is_replaced_by_what_is_left_of_it(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 4)
        await begin_with_records(store, "other", 2)
        await store.tag(RunId("r"), 4, ["lost"])
        await store.commit(staying_commit(head, notes=sample_notes("old")))
        await leave_letters(store, "r", "waits", "gone")
        commit = _make_replacement(head)._replace(letters=sample_letters("waits"))
        await store.replace(commit)
        assert await read_run(store, "r") == (commit.head, list(commit.records))
        assert await read_seqs(store, "r") == [2, 3]
        assert await read_tags(store, "r") == {2: ("b", "a")}
        assert await read_journal(store, "r") == commit.notes
        assert get_keys(await read_inbox(store, "r")) == ["waits"]
        assert await read_seqs(store, "other") == [1, 2]

    async def test_a_run_goes_on_after_it_was_replaced(self, store: Store) -> None:
        commit = _make_replacement(await begin_with_records(store, "r", 4))
        await store.replace(commit)
        assert (await store.leave(RunId("r"), 3, sample_letters("new"))).refused == ()
        head = await move_on(store, commit.head)
        assert await read_seqs(store, "r") == [2, 3, head.seq]
        assert await store.tag(RunId("r"), 2, ())
        assert await store.remove(make_removal(head, [2]))
        assert await read_seqs(store, "r") == [3, head.seq]
        assert list(await store.inspect()) == []

    async def test_a_run_that_moved_is_not_replaced(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 4)
        before = await read_run(store, "r")
        for expected in (None, Expected(head.checkpoint_id, head.token + 1)):
            await catch_refusal(store.replace(_make_replacement(head)._replace(expected=expected)))
        assert await read_run(store, "r") == before
        await catch_refusal(
            store.replace(_make_replacement(head)._replace(head=sample_head("nobody", 3), records=()))
        )

    async def test_what_a_repair_brings_is_there(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 4)
        blob = sample_blob(b"x" * 100, "new")
        await store.replace(_make_replacement(head)._replace(blobs=(blob,)))
        assert await store.blobs(head.family, [blob.digest]) == {blob.digest: blob.data}

    async def test_what_is_tried_on_a_copy_does_not_happen(self, store: Store) -> None:
        blob = sample_blob(b"x" * 100, "old")
        head = await begin_with_records(store, "r", 4)
        await store.add_blobs(head.family, [blob])
        before = await read_run(store, "r")
        async with store.rehearsal() as (copy, retold):
            assert await read_run(copy, "r") == before
            assert await copy.blobs(head.family, [blob.digest]) == {blob.digest: blob.data}
            commit = _make_replacement(head)._replace(blobs=(sample_blob(b"y" * 100, "new"),))
            await copy.replace(commit)
            assert await read_seqs(copy, "r") == [2, 3]
            assert len(await copy.blobs(head.family, [commit.blobs[0].digest])) == 1
            assert await lives(copy, "nobody") is False
            assert retold("as it is") == "as it is"
        assert await read_run(store, "r") == before
        assert await store.blobs(head.family, [commit.blobs[0].digest]) == {}

    async def test_a_rehearsal_of_one_run_has_that_run_alone(self, store: Store) -> None:
        blob = sample_blob(b"x" * 100, "old")
        head = await begin_with_records(store, "r", 4)
        await store.add_blobs(head.family, [blob])
        await store.commit(staying_commit(head, notes=sample_notes("a", "b")))
        await leave_letters(store, "one", "two", "three", run="r")
        await store.commit(staying_commit(head)._replace(taken=("two",)))
        await store.tag(RunId("r"), 2, ["gold", "odd \ud800"])
        await store.remove(make_removal(head, [3], [(4, Keyframe(b"\x00all", b"", True))]))
        await begin_with_records(store, "other", 3)
        before = await read_run(store, "r")
        async with store.rehearsal(RunId("r")) as (copy, _):
            assert await list_run_ids(copy, RunQuery()) == ["r"]
            assert await read_run(copy, "r") == before
            assert await read_tags(copy, "r") == {2: ("gold", "odd \ud800")}
            assert await read_journal(copy, "r") == sample_notes("a", "b")
            assert get_keys(await read_inbox(copy, "r")) == ["one", "three"]
            assert (await copy.leave(RunId("r"), 4, sample_letters("two"))).refused == ("two",)
            assert await copy.blobs(head.family, [blob.digest]) == {blob.digest: blob.data}
            assert list(await copy.inspect()) == []
            await copy.replace(_make_replacement(head))
            assert await read_seqs(copy, "r") == [2, 3]
        assert await read_run(store, "r") == before
        assert await list_run_ids(store, RunQuery()) == ["other", "r"]

    async def test_nothing_is_wrong_with_a_sound_store(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 6)
        await store.commit(staying_commit(head, notes=sample_notes("a", "b")))
        await store.commit(staying_commit(head, notes=sample_notes("b", "c")))
        await leave_letters(store, "r", "one", "two")
        await store.commit(staying_commit(head)._replace(taken=("one",)))
        await store.tag(RunId("r"), 2, ["gold", "odd \ud800"])
        cut = Keyframe(b"\x00all", b"", True)
        await store.remove(make_removal(head, [1, 3], [(4, cut)]))
        await store.tag(RunId("r"), 4, ["later"])
        await begin_with_records(store, "gone", 2)
        gone = await store.head(RunId("gone"))
        assert gone is not None
        await store.remove_run(RunId("gone"), expect_head(gone))
        assert list(await store.inspect()) == []
        for name in ("r", "gone", "never"):
            assert list(await store.inspect(RunId(name))) == []
        assert all(record.sound for record in await store.records(RunId("r"), *ANYTHING, Depth.ALL))
        before = await read_run(store, "r")
        for run_id in (None, RunId("r"), RunId("nobody")):
            assert list(await store.mend(run_id)) == []
        assert await read_run(store, "r") == before
