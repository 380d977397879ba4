"""Rules of tags, and of the removal of records and whole runs."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import (
    Commit,
    Expected,
    Keyframe,
    KnownMarks,
    LeaveResult,
    Record,
    Retag,
    RunQuery,
    Store,
)
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    Reopen,
    begin,
    begin_with_records,
    catch_refusal,
    check_refused,
    commit_blobs,
    discard_blobs,
    find_blobs,
    get_keys,
    leave_letters,
    list_run_ids,
    move_on,
    read_givers,
    read_inbox,
    read_journal,
    read_run,
    read_seqs,
    read_tags,
)
from holdfast.testing.store_suite.samples import (
    FAMILY,
    GREATEST,
    LARGE,
    ODD_KEYS,
    expect_head,
    make_removal,
    sample_blob,
    sample_blobs,
    sample_head,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class RemovalRules:
    """The rules of ``tag``, ``remove`` and ``remove_run``."""

    # Tags.

    async def test_a_record_has_the_tags_that_it_was_given(self, store: Store) -> None:
        await begin_with_records(store, "r", 3)
        assert await read_tags(store, "r") == {}
        assert await store.tag(RunId("r"), 2, ["b", "a"]) is True
        assert await store.tag(RunId("r"), 3, ("c",)) is True
        assert await read_tags(store, "r") == {2: ("b", "a"), 3: ("c",)}

    async def test_new_tags_take_the_place_of_those_before(self, store: Store) -> None:
        await begin_with_records(store, "r", 2)
        for tags in (("a", "b"), ("b",), ("c", "b", "a"), (), ("a",)):
            assert await store.tag(RunId("r"), 1, tags) is True
            assert await read_tags(store, "r") == ({1: tags} if tags else {})

    async def test_tags_are_added_and_taken_beside_others(self, store: Store) -> None:
        await begin_with_records(store, "r", 1)
        for tags, drop, left in ((["a", "b"], (), "ab"), (["c", "a"], ["b"], "ac"), ([], ["a"], "c")):
            assert await store.tag(RunId("r"), 1, tags, drop) is True
            assert await read_tags(store, "r") == {1: tuple(left)}

    async def test_of_many_who_tag_a_record_none_undoes_what_another_did(self, store: Store) -> None:
        await begin_with_records(store, "r", 1)
        given = [f"tag {number}" for number in range(20)]
        await asyncio.gather(*(store.tag(RunId("r"), 1, [tag], ()) for tag in given))
        assert sorted((await read_tags(store, "r"))[1]) == sorted(given)

    async def test_a_tag_says_who_gave_it(self, store: Store) -> None:
        await begin_with_records(store, "r", 3)
        odd = ODD_KEYS[-1]
        await store.tag(RunId("r"), 2, ["a", "b", odd], (), "kim")
        await store.tag(RunId("r"), 2, ["b", "c"], (), odd)
        await store.tag(RunId("r"), 2, ["d"], ())
        await store.tag(RunId("r"), 2, ["a", "d"], (), "lee")
        assert await read_givers(store, "r") == {2: {"a": "kim", "b": "kim", odd: "kim", "c": odd}}
        await store.tag(RunId("r"), 2, ["a"], ["a", "b", odd], "lee")
        assert await read_givers(store, "r") == {2: {"c": odd, "a": "lee"}}
        await store.tag(RunId("r"), 2, ["c"])
        assert await read_tags(store, "r") == {2: ("c",)}
        assert await read_givers(store, "r") == {}

    async def test_a_removal_keeps_who_gave_the_tags_that_stay(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 4)
        await store.tag(RunId("r"), 2, ["a", "b"], (), "kim")
        await store.tag(RunId("r"), 3, ["c"], (), "lee")
        change = Retag(2, ("a", "b"), ("new", "b"))
        assert await store.remove(make_removal(head, [1], tags=(change,))) is True
        assert await read_tags(store, "r") == {2: ("new", "b"), 3: ("c",)}
        assert await read_givers(store, "r") == {2: {"b": "kim"}, 3: {"c": "lee"}}

    async def test_what_is_not_there_cannot_be_tagged(self, store: Store) -> None:
        assert await store.tag(RunId("r"), 1, ["a"]) is False
        head = await begin_with_records(store, "r", 3)
        await store.remove(make_removal(head, [1]))
        for seq in (0, 1, 4, GREATEST):
            assert await store.tag(RunId("r"), seq, ["a"]) is False
        assert await store.tag(RunId("R"), 2, ["a"]) is False
        assert await read_tags(store, "r") == {}

    async def test_tags_are_any_text(self, store: Store) -> None:
        await begin_with_records(store, "r", 1)
        tags = tuple(ODD_KEYS)
        await store.tag(RunId("r"), 1, tags)
        same = await read_tags(store, "r") == {1: tags}
        assert same, "a tag was lost or changed"

    async def test_tags_change_nothing_else(self, store: Store) -> None:
        for run in ("r", "s"):
            await begin_with_records(store, run, 2)
        before = await read_run(store, "r"), await read_run(store, "s")
        await store.tag(RunId("r"), 1, ["a"])
        head, records = await read_run(store, "r")
        assert (head, [record._replace(tags=()) for record in records]) == before[0]
        assert await read_run(store, "s") == before[1]

    async def test_tags_stay_while_the_run_goes_on(self, store: Store) -> None:
        head = await begin(store, "r")
        await store.tag(RunId("r"), 1, ["a"])
        head = await move_on(store, head)
        await store.tag(RunId("r"), 2, ["b"])
        head = await move_on(store, head)
        await store.tag(RunId("r"), 2, [])
        assert await store.remove(make_removal(head, [2], [(1, sample_keyframe(1))])) is True
        assert await read_tags(store, "r") == {1: ("a",)}

    async def test_a_record_with_tags_is_not_removed(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 5)
        await store.tag(RunId("r"), 2, ["a"])
        before = await read_run(store, "r")
        for seqs in ([2], [1, 2, 3], [4, 2]):
            assert await store.remove(make_removal(head, seqs, [(5, sample_keyframe(5))])) is False
            assert await read_run(store, "r") == before
        assert await store.remove(make_removal(head, [1, 3, 4])) is True
        assert await read_seqs(store, "r") == [2, 5]
        await store.tag(RunId("r"), 2, [])
        assert await store.remove(make_removal(head, [2])) is True
        assert await read_seqs(store, "r") == [5]

    async def test_a_removal_changes_tags(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 5)
        for seq, tags in ((1, ["a"]), (2, ["a", "b"])):
            await store.tag(RunId("r"), seq, tags)
        changes = Retag(1, ("a",), ()), Retag(2, ("a", "b"), ("c",)), Retag(3, (), ("d", "e"))
        assert await store.remove(make_removal(head, [1, 4], [(3, sample_keyframe(3))], tags=changes)) is True
        assert await read_tags(store, "r") == {2: ("c",), 3: ("d", "e")}
        assert await read_seqs(store, "r") == [2, 3, 5]
        assert await store.remove(make_removal(head, [], tags=(Retag(2, ("c",), ()),))) is True
        assert await read_tags(store, "r") == {3: ("d", "e")}

    async def test_a_removal_that_expects_other_tags_changes_nothing(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 5)
        await store.tag(RunId("r"), 2, ["a", "b"])
        await store.remove(make_removal(head, [4]))
        before = await read_run(store, "r")
        for changes in (
            (Retag(2, ("b", "a"), ()),),
            (Retag(2, (), ("a", "b", "c")),),
            (Retag(3, ("a",), ()),),
            (Retag(4, (), ("a",)),),  # which is gone
            (Retag(9, (), ()),),
            (Retag(3, (), ("c",)), Retag(2, ("a",), ())),
            (Retag(1, (), ("c",)),),  # a tag that keeps what is to go
        ):
            removal = make_removal(head, [1], [(5, sample_keyframe(5))], tags=changes)
            assert await store.remove(removal) is False
            assert await read_run(store, "r") == before

    # Records.

    async def test_removed_records_are_gone_and_the_others_stay(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 6)
        assert await store.remove(make_removal(head, [1, 2, 4])) is True
        assert await read_run(store, "r") == (head, [sample_record("r", seq) for seq in (3, 5, 6)])
        assert await read_seqs(store, "r") == [3, 5, 6]
        await store.remove(make_removal(head, [5, 3]))
        assert await read_seqs(store, "r") == [6]

    async def test_many_records_are_removed_at_once(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 300)
        await store.remove(make_removal(head, [seq for seq in range(1, 300) if seq % 100]))
        assert await read_seqs(store, "r") == [100, 200, 300]

    async def test_records_get_keyframes_as_others_go(self, store: Store) -> None:
        first = sample_record("r", 2, keyframe=sample_keyframe(2))
        records = sample_record("r", 1), first, sample_record("r", 3), sample_record("r", 4)
        head = sample_head("r", 4)
        await store.commit(Commit(head, None, records))
        await store.tag(RunId("r"), 3, ["kept"])
        cut, large = sample_keyframe(20, cut=True), Keyframe(LARGE, LARGE, True)
        await store.remove(make_removal(head, [1], [(2, cut), (3, large)]))
        same = await read_run(store, "r") == (
            head,
            [
                first._replace(keyframe=cut),
                sample_record("r", 3, keyframe=large, tags=("kept",)),
                sample_record("r", 4),
            ],
        )
        assert same, "a record did not get its keyframe, or changed otherwise"
        await store.remove(make_removal(head, [], [(4, sample_keyframe(4))]))
        assert (await read_run(store, "r"))[1][-1].keyframe == sample_keyframe(4)

    async def test_removed_keyframes_are_gone(self, store: Store) -> None:
        records = [sample_record("r", seq, keyframe=sample_keyframe(seq)) for seq in (1, 2, 3)]
        await store.commit(Commit(sample_head("r", 3), None, tuple(records)))
        await store.remove(make_removal(sample_head("r", 3), [1, 2]))
        assert (await read_run(store, "r"))[1] == records[2:]

    async def test_a_removal_brings_the_blobs_of_its_keyframes(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 2, family=RunId("first"))
        blobs = sample_blob(b"small"), sample_blob(LARGE)
        await store.remove(make_removal(head, [1], [(2, sample_keyframe(2, cut=True))], blobs=blobs))
        assert await store.blobs(RunId("first"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_seqs_without_a_record_are_passed_over(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 3)
        await store.remove(make_removal(head, [1]))
        keyframes = [(1, sample_keyframe(1)), (9, sample_keyframe(9)), (2, sample_keyframe(2))]
        await store.remove(make_removal(head, [1, 1, 0, 77, GREATEST], keyframes))
        await store.remove(make_removal(head, []))
        kept = sample_record("r", 2, keyframe=sample_keyframe(2))
        assert await read_run(store, "r") == (head, [kept, sample_record("r", 3)])

    async def test_a_removal_by_one_who_missed_a_commit_is_refused(self, store: Store) -> None:
        first = await begin(store, "r")
        head = await move_on(store, first)
        removal = make_removal(head, [1], [(2, sample_keyframe(2))])
        stale = (
            expect_head(first),
            Expected(head.checkpoint_id, head.token + 1),
            Expected(first.checkpoint_id, 7),
        )
        for expected in stale:
            await check_refused(store, removal._replace(expected=expected))
        await check_refused(store, removal._replace(run_id=RunId("nobody")))
        assert await list_run_ids(store, RunQuery()) == ["r"]
        await store.remove(removal)
        assert await read_seqs(store, "r") == [2]

    async def test_the_record_on_which_a_run_stands_cannot_be_removed(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 3)
        before = await read_run(store, "r")
        for seqs in ([3], [1, 3], [3, 2]):
            try:
                await store.remove(make_removal(head, seqs, [(3, sample_keyframe(3))]))
            except HeadMoved:
                raise AssertionError("the head did not move, but that is what was said") from None
            except StorageError:
                assert await read_run(store, "r") == before
            else:
                raise AssertionError("the record on which the run stands could be removed")
        await store.remove(make_removal(head, [1, 2]))

    async def test_a_run_goes_on_after_a_removal(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 3)
        await store.commit(staying_commit(head, sample_notes("a")))
        await leave_letters(store, "x", "y")
        await store.commit(staying_commit(head, taken=["x"]))
        await store.remove(make_removal(head, [1, 2]))
        assert await store.head(RunId("r")) == head
        assert await read_journal(store) == sample_notes("a")
        assert get_keys(await read_inbox(store)) == ["y"]
        assert await leave_letters(store, "x") == LeaveResult(head, ("x",))
        await move_on(store, head)
        assert await read_seqs(store, "r") == [3, 4]

    async def test_a_removal_touches_no_other_run(self, store: Store) -> None:
        for run in ("a", "b", "a1", "A"):
            await begin_with_records(store, run, 3, family=RunId("a"))
            await store.tag(RunId(run), 1, ["kept"])
        others = [await read_run(store, run) for run in ("b", "a1", "A")]
        await store.remove(make_removal(sample_head("a", 3), [1, 2], [(3, sample_keyframe(3))]))
        assert [await read_run(store, run) for run in ("b", "a1", "A")] == others
        for run in ("b", "a1", "A"):
            assert await read_seqs(store, run) == [1, 2, 3]

    async def test_a_removal_is_seen_whole_or_not_at_all(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 4)
        cut = sample_keyframe(3, cut=True)
        before = [sample_record("r", seq) for seq in (1, 2, 3, 4)]
        after = [sample_record("r", 3, keyframe=cut), sample_record("r", 4)]
        seen: list[list[Record]] = []
        removing = asyncio.ensure_future(store.remove(make_removal(head, [1, 2], [(3, cut)])))
        while not removing.done():
            seen.append((await read_run(store, "r"))[1])
            await asyncio.sleep(0)
        await removing
        assert [records for records in seen if records not in (before, after)] == []
        assert (await read_run(store, "r"))[1] == after

    # Runs.

    async def test_a_removed_run_is_gone(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 3)
        await store.commit(staying_commit(head, sample_notes("a")))
        await leave_letters(store, "x")
        await store.remove_run(RunId("r"), expect_head(head))
        assert await read_run(store, "r") == (None, [])
        assert await read_seqs(store, "r") == []
        assert await list_run_ids(store, RunQuery()) == []
        assert await read_journal(store) == ()
        assert await read_inbox(store) == ()
        assert await leave_letters(store, "y") == LeaveResult(None)
        assert await store.tag(RunId("r"), 1, ["a"]) is False

    async def test_the_blobs_of_a_removed_run_stay(self, store: Store) -> None:
        blobs = sample_blob(b"small"), sample_blob(LARGE)
        head = await begin(store, "r", blobs)
        await store.remove_run(RunId("r"), expect_head(head))
        assert await store.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_a_run_that_moved_is_not_removed(self, store: Store) -> None:
        first = await begin(store, "r")
        head = await move_on(store, first)
        before = await read_run(store, "r")
        for expected in (expect_head(first), Expected(head.checkpoint_id, head.token + 1)):
            error = await catch_refusal(store.remove_run(RunId("r"), expected))
            assert "'r'" in str(error)
            assert await read_run(store, "r") == before
        await catch_refusal(store.remove_run(RunId("nobody"), expect_head(head)))
        await store.remove_run(RunId("r"), expect_head(head))
        await catch_refusal(store.remove_run(RunId("r"), expect_head(head)))

    async def test_a_run_that_got_a_letter_or_a_tag_is_not_removed(self, store: Store) -> None:
        head = await begin_with_records(store, "r", 3)
        await store.tag(RunId("r"), 2, ["a"])
        await leave_letters(store, "x")
        before = await read_run(store, "r"), await read_inbox(store)
        for known in (KnownMarks(), KnownMarks(1), KnownMarks(0, {2: ("a",)}), KnownMarks(1, {2: ("b",)})):
            assert await store.remove_run(RunId("r"), expect_head(head), known) is False
            assert (await read_run(store, "r"), await read_inbox(store)) == before
        assert await store.remove_run(RunId("r"), expect_head(head), KnownMarks(1, {2: ("a",)})) is True
        assert await read_run(store, "r") == (None, [])

    async def test_the_id_of_a_removed_run_can_be_used_again(self, store: Store) -> None:
        for _ in range(3):
            framed = tuple(sample_record("r", seq, keyframe=sample_keyframe(seq)) for seq in (1, 2, 3))
            head = sample_head("r", 3)
            await store.commit(Commit(head, None, framed, notes=sample_notes("a")))
            await store.tag(RunId("r"), 1, ["old"])
            await leave_letters(store, "x", "y")
            await store.commit(staying_commit(head, taken=["x"]))
            await store.remove_run(RunId("r"), expect_head(head))
            again = await begin(store, "r", owner="another")
            assert await read_run(store, "r") == (again, [sample_record("r", 1)])
            assert await read_seqs(store, "r") == [1]
            assert await read_journal(store) == ()
            assert await leave_letters(store, "x") == LeaveResult(again)
            assert await read_inbox(store) == sample_letters("x")
            await catch_refusal(store.commit(staying_commit(head, sample_notes("late"))))
            await store.remove_run(RunId("r"), expect_head(again))

    async def test_removing_a_run_touches_no_other(self, store: Store) -> None:
        for run in ("a", "b", "a1", "A"):
            head = await begin_with_records(store, run, 2, family=RunId("a"))
            await store.commit(staying_commit(head, sample_notes(run)))
            await leave_letters(store, "x", run=run)
            await store.tag(RunId(run), 1, [run])
        others = [await read_run(store, run) for run in ("b", "a1", "A")]
        await store.remove_run(RunId("a"), expect_head(sample_head("a", 2)))
        assert [await read_run(store, run) for run in ("b", "a1", "A")] == others
        for run in ("b", "a1", "A"):
            assert await read_tags(store, run) == {1: (run,)}
            assert await read_journal(store, run) == sample_notes(run)
            assert await read_inbox(store, run) == sample_letters("x")


class DurableRemovalRules:
    """The rules of tags, removals and sweeps that need a second store object to check."""

    async def test_another_object_sees_what_was_tagged_and_removed(
        self, store: Store, reopen: Reopen
    ) -> None:
        head = await begin_with_records(store, "r", 4)
        other = await reopen()
        assert await read_seqs(other, "r") == [1, 2, 3, 4]
        assert await read_run(store, "r") == await read_run(other, "r")
        await store.tag(RunId("r"), 3, ODD_KEYS)
        assert (await read_tags(other, "r"))[3] == tuple(ODD_KEYS)
        await other.tag(RunId("r"), 3, ["b", "a"])
        cut = sample_keyframe(3, cut=True)
        await other.remove(make_removal(head, [1, 2], [(3, cut)]))
        kept = [sample_record("r", 3, keyframe=cut, tags=("b", "a")), sample_record("r", 4)]
        assert await read_run(store, "r") == (head, kept)
        await store.close()
        again = await reopen()
        assert await read_run(again, "r") == (head, kept)
        assert await read_seqs(again, "r") == [3, 4]

    async def test_another_object_sees_that_a_run_is_gone(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        for number in range(3):
            one, two = (store, other) if number % 2 else (other, store)
            head = await begin_with_records(one, "r", 2)
            await one.commit(staying_commit(head, sample_notes("a")))
            await leave_letters(one, "x")
            assert await two.head(RunId("r")) == head
            await two.remove_run(RunId("r"), expect_head(head))
            assert await read_run(one, "r") == (None, [])
            assert (await read_journal(one), await read_inbox(one)) == ((), ())
        await store.close()
        assert await read_run(await reopen(), "r") == (None, [])

    async def test_an_object_that_missed_a_commit_removes_nothing(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        first = await begin(store, "r")
        assert await other.head(RunId("r")) == first
        second = await move_on(store, first)
        await catch_refusal(other.remove(make_removal(first, [])))
        await catch_refusal(other.remove_run(RunId("r"), expect_head(first)))
        assert await read_run(other, "r") == (second, [sample_record("r", 1), sample_record("r", 2)])

    async def test_an_object_that_missed_a_removal_goes_on(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await begin_with_records(store, "r", 3)
        await other.remove(make_removal(head, [1]))
        head = await move_on(store, head)
        await store.remove(make_removal(head, [1, 2]))
        assert await read_seqs(other, "r") == [3, 4]
        await other.remove_run(RunId("r"), expect_head(head))
        await catch_refusal(store.commit(staying_commit(head)))
        await catch_refusal(store.remove(make_removal(head, [3])))
        again = await begin(store, "r", owner="another")
        assert await read_run(other, "r") == (again, [sample_record("r", 1)])

    async def test_what_another_object_brings_since_the_mark_stays(
        self, store: Store, reopen: Reopen
    ) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")
        head = await begin(store, "r", [*again, *unused])
        other = await reopen()
        assert await find_blobs(other, again) == [True] * 3
        mark, sizes = await store.mark(FAMILY)
        assert sizes.keys() == {blob.digest for blob in [*again, *unused]}
        await commit_blobs(other, head, *again, *new)
        await other.close()
        sweeper = await reopen()
        freed = sum(sizes[blob.digest] for blob in unused)
        assert await discard_blobs(sweeper, mark, [*again, *new, *unused]) == freed
        assert await find_blobs(store, [*again, *new, *unused]) == [True] * 6 + [False] * 3
        assert await discard_blobs(store, mark, [*again, *new]) == 0

    async def test_discarded_blobs_stay_gone(self, store: Store, reopen: Reopen) -> None:
        gone, kept = sample_blobs("gone"), sample_blobs("kept")
        await begin(store, "r", [*gone, *kept])
        other = await reopen()
        assert await find_blobs(other, gone) == [True] * 3
        mark, _ = await store.mark(FAMILY)
        await discard_blobs(store, mark, gone)
        await store.close()
        for one in (other, await reopen()):
            assert await find_blobs(one, [*gone, *kept]) == [False] * 3 + [True] * 3
            assert (await one.mark(FAMILY)).sizes.keys() == {blob.digest for blob in kept}

    async def test_what_an_object_brings_while_another_sweeps_is_there(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = await reopen()
        head = await begin(store, "r")
        for number in range(12):
            blob = sample_blob(LARGE if number % 2 else b"small", number % 4)
            mark, _ = await other.mark(FAMILY)
            moving = asyncio.ensure_future(move_on(store, head, [blob]))
            for _ in range(number // 4):
                await asyncio.sleep(0)
            await discard_blobs(other, mark, [blob])
            head = await moving
            assert await find_blobs(other, [blob]) == [True]

    async def test_upkeep_of_namespaces_is_apart(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blobs()
        names = ["", "other", "Other", ".."]
        stores = {name: store if not name else await reopen(name) for name in names}
        for one in stores.values():
            await one.commit(staying_commit(sample_head("r"))._replace(expected=None, blobs=tuple(blobs)))
            await one.remove_run(RunId("r"), expect_head(sample_head("r")))
            await begin_with_records(one, "r", 3)
        for name in names[1:3]:
            one = stores[name]
            await one.tag(RunId("r"), 2, [name])
            await one.remove(make_removal(sample_head("r", 3), [1], [(2, sample_keyframe(2))]))
            mark, sizes = await one.mark(FAMILY)
            assert sizes.keys() == {blob.digest for blob in blobs}
            await discard_blobs(one, mark, blobs)
            assert await find_blobs(one, blobs) == [False] * 3
        await stores["other"].remove_run(RunId("r"), expect_head(sample_head("r", 3)))
        assert (await read_run(stores["other"], "r"))[0] is None
        assert await read_seqs(stores["Other"], "r") == [2, 3]
        for name in ("", ".."):
            assert await read_seqs(stores[name], "r") == [1, 2, 3]
            assert (await read_run(stores[name], "r"))[1][1] == sample_record("r", 2)
            assert await find_blobs(stores[name], blobs) == [True] * 3

    async def test_upkeep_opens_a_store_by_itself(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blobs()
        head = await begin_with_records(store, "r", 2)
        await commit_blobs(store, head, *blobs)
        assert await (await reopen()).tag(RunId("r"), 2, ["a"])
        mark, sizes = await (await reopen()).mark(FAMILY)
        assert await discard_blobs(await reopen(), mark, blobs) == sum(sizes.values())
        assert await (await reopen()).remove(make_removal(head, [1]))
        assert await read_seqs(store, "r") == [2]
        await (await reopen()).remove_run(RunId("r"), expect_head(head))
        assert await read_run(store, "r") == (None, [])
