"""Tags, and the removal of records and of whole runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.checkpoint.store import (
    Commit,
    Depth,
    Expected,
    Head,
    Keyframe,
    Left,
    Record,
    Removal,
    RunQuery,
    Store,
)
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.inbox import inbox, keys_of, leave
from holdfast.testing.store_suite.journal import journal
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    GREATEST,
    LARGE,
    ODD_KEYS,
    all_of,
    begin,
    move_on,
    names_of_runs,
    refusal,
    sample_blob,
    sample_head,
    sample_id,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


def place_of(head: Head) -> Expected:
    """What a writer believes who knows this head."""
    return Expected(head.checkpoint_id, head.token)


def removal_of(
    head: Head, seqs: Sequence[int], keyframes: Sequence[tuple[int, Keyframe]] = (), **fields: object
) -> Removal:
    """The removal of records of a run that stands on ``head``."""
    removal = Removal(head.run_id, place_of(head), tuple(seqs), tuple(keyframes))
    return removal._replace(**fields)  # type: ignore[arg-type]


async def run_of(store: Store, run: str, records: int, **head_fields: object) -> Head:
    """A run with so many records."""
    made = tuple(sample_record(run, seq) for seq in range(1, records + 1))
    head = sample_head(run, records, **head_fields)
    await store.commit(Commit(head, None, made))
    return head


async def tags_of(store: Store, run: str) -> dict[int, tuple[str, ...]]:
    """The tags of the records of a run by seq, without those that have none; they are the same at every depth."""
    found = [
        {record.seq: record.tags for record in await store.records(RunId(run), *ANYTHING, depth)}
        for depth in Depth
    ]
    assert found[0] == found[1] == found[2]
    return {seq: tags for seq, tags in found[0].items() if tags}


async def seqs_of(store: Store, run: str) -> list[int]:
    """The seqs of the records of a run; what is found by id must agree."""
    there = [record.seq for record in await store.records(RunId(run), *ANYTHING, Depth.HEADERS)]
    head = await store.head(RunId(run))
    for seq in range(1, (head.seq if head is not None else 20) + 1):
        assert await store.find(sample_id(run, seq)) == ((run, seq) if seq in there else None)
    return there


async def refused_as_it_is(store: Store, removal: Removal) -> None:
    """A removal must be refused with HeadMoved, and change nothing."""
    before = await all_of(store, removal.run_id)
    error = await refusal(store.remove(removal))
    assert removal.run_id in str(error)
    assert await all_of(store, removal.run_id) == before


class Removals:
    """What ``tag``, ``remove`` and ``remove_run`` promise."""

    # Tags.

    async def test_a_record_has_the_tags_that_it_was_given(self, store: Store) -> None:
        await run_of(store, "r", 3)
        assert await tags_of(store, "r") == {}
        assert await store.tag(RunId("r"), 2, ["b", "a"]) is True
        assert await store.tag(RunId("r"), 3, ("c",)) is True
        assert await tags_of(store, "r") == {2: ("b", "a"), 3: ("c",)}

    async def test_new_tags_take_the_place_of_those_before(self, store: Store) -> None:
        await run_of(store, "r", 2)
        for tags in (("a", "b"), ("b",), ("c", "b", "a"), (), ("a",)):
            assert await store.tag(RunId("r"), 1, tags) is True
            assert await tags_of(store, "r") == ({1: tags} if tags else {})

    async def test_tags_are_added_and_taken_beside_others(self, store: Store) -> None:
        await run_of(store, "r", 1)
        for tags, drop, left in ((["a", "b"], (), "ab"), (["c", "a"], ["b"], "ac"), ([], ["a"], "c")):
            assert await store.tag(RunId("r"), 1, tags, drop) is True
            assert await tags_of(store, "r") == {1: tuple(left)}

    async def test_of_many_who_tag_a_record_none_undoes_what_another_did(self, store: Store) -> None:
        await run_of(store, "r", 1)
        given = [f"tag {number}" for number in range(20)]
        await asyncio.gather(*(store.tag(RunId("r"), 1, [tag], ()) for tag in given))
        assert sorted((await tags_of(store, "r"))[1]) == sorted(given)

    async def test_what_is_not_there_cannot_be_tagged(self, store: Store) -> None:
        assert await store.tag(RunId("r"), 1, ["a"]) is False
        head = await run_of(store, "r", 3)
        await store.remove(removal_of(head, [1]))
        for seq in (0, 1, 4, GREATEST):
            assert await store.tag(RunId("r"), seq, ["a"]) is False
        assert await store.tag(RunId("R"), 2, ["a"]) is False
        assert await tags_of(store, "r") == {}

    async def test_tags_are_any_text(self, store: Store) -> None:
        await run_of(store, "r", 1)
        tags = tuple(ODD_KEYS)
        await store.tag(RunId("r"), 1, tags)
        same = await tags_of(store, "r") == {1: tags}
        assert same, "a tag was lost or changed"

    async def test_tags_change_nothing_else(self, store: Store) -> None:
        for run in ("r", "s"):
            await run_of(store, run, 2)
        before = await all_of(store, "r"), await all_of(store, "s")
        await store.tag(RunId("r"), 1, ["a"])
        head, records = await all_of(store, "r")
        assert (head, [record._replace(tags=()) for record in records]) == before[0]
        assert await all_of(store, "s") == before[1]

    async def test_tags_stay_while_the_run_goes_on(self, store: Store) -> None:
        head = await begin(store, "r")
        await store.tag(RunId("r"), 1, ["a"])
        head = await move_on(store, head)
        await store.tag(RunId("r"), 2, ["b"])
        head = await move_on(store, head)
        await store.tag(RunId("r"), 2, [])
        assert await store.remove(removal_of(head, [2], [(1, sample_keyframe(1))])) is True
        assert await tags_of(store, "r") == {1: ("a",)}

    async def test_a_record_with_tags_is_not_removed(self, store: Store) -> None:
        head = await run_of(store, "r", 5)
        await store.tag(RunId("r"), 2, ["a"])
        before = await all_of(store, "r")
        for seqs in ([2], [1, 2, 3], [4, 2]):
            assert await store.remove(removal_of(head, seqs, [(5, sample_keyframe(5))])) is False
            assert await all_of(store, "r") == before
        assert await store.remove(removal_of(head, [1, 3, 4])) is True
        assert await seqs_of(store, "r") == [2, 5]
        await store.tag(RunId("r"), 2, [])
        assert await store.remove(removal_of(head, [2])) is True
        assert await seqs_of(store, "r") == [5]

    # Records.

    async def test_removed_records_are_gone_and_the_others_stay(self, store: Store) -> None:
        head = await run_of(store, "r", 6)
        assert await store.remove(removal_of(head, [1, 2, 4])) is True
        assert await all_of(store, "r") == (head, [sample_record("r", seq) for seq in (3, 5, 6)])
        assert await seqs_of(store, "r") == [3, 5, 6]
        await store.remove(removal_of(head, [5, 3]))
        assert await seqs_of(store, "r") == [6]

    async def test_many_records_are_removed_at_once(self, store: Store) -> None:
        head = await run_of(store, "r", 300)
        await store.remove(removal_of(head, [seq for seq in range(1, 300) if seq % 100]))
        assert await seqs_of(store, "r") == [100, 200, 300]

    async def test_records_get_keyframes_as_others_go(self, store: Store) -> None:
        first = sample_record("r", 2, keyframe=sample_keyframe(2))
        records = sample_record("r", 1), first, sample_record("r", 3), sample_record("r", 4)
        head = sample_head("r", 4)
        await store.commit(Commit(head, None, records))
        await store.tag(RunId("r"), 3, ["kept"])
        cut, large = sample_keyframe(20, cut=True), Keyframe(LARGE, LARGE, True)
        await store.remove(removal_of(head, [1], [(2, cut), (3, large)]))
        same = await all_of(store, "r") == (
            head,
            [
                first._replace(keyframe=cut),
                sample_record("r", 3, keyframe=large, tags=("kept",)),
                sample_record("r", 4),
            ],
        )
        assert same, "a record did not get its keyframe, or changed otherwise"
        await store.remove(removal_of(head, [], [(4, sample_keyframe(4))]))
        assert (await all_of(store, "r"))[1][-1].keyframe == sample_keyframe(4)

    async def test_removed_keyframes_are_gone(self, store: Store) -> None:
        records = [sample_record("r", seq, keyframe=sample_keyframe(seq)) for seq in (1, 2, 3)]
        await store.commit(Commit(sample_head("r", 3), None, tuple(records)))
        await store.remove(removal_of(sample_head("r", 3), [1, 2]))
        assert (await all_of(store, "r"))[1] == records[2:]

    async def test_a_removal_brings_the_blobs_of_its_keyframes(self, store: Store) -> None:
        head = await run_of(store, "r", 2, family=RunId("first"))
        blobs = sample_blob(b"small"), sample_blob(LARGE)
        await store.remove(removal_of(head, [1], [(2, sample_keyframe(2, cut=True))], blobs=blobs))
        assert await store.blobs(RunId("first"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_seqs_without_a_record_are_passed_over(self, store: Store) -> None:
        head = await run_of(store, "r", 3)
        await store.remove(removal_of(head, [1]))
        keyframes = [(1, sample_keyframe(1)), (9, sample_keyframe(9)), (2, sample_keyframe(2))]
        await store.remove(removal_of(head, [1, 1, 0, 77, GREATEST], keyframes))
        await store.remove(removal_of(head, []))
        kept = sample_record("r", 2, keyframe=sample_keyframe(2))
        assert await all_of(store, "r") == (head, [kept, sample_record("r", 3)])

    async def test_a_removal_by_one_who_missed_a_commit_is_refused(self, store: Store) -> None:
        first = await begin(store, "r")
        head = await move_on(store, first)
        removal = removal_of(head, [1], [(2, sample_keyframe(2))])
        stale = (
            place_of(first),
            Expected(head.checkpoint_id, head.token + 1),
            Expected(first.checkpoint_id, 7),
        )
        for expected in stale:
            await refused_as_it_is(store, removal._replace(expected=expected))
        await refused_as_it_is(store, removal._replace(run_id=RunId("nobody")))
        assert await names_of_runs(store, RunQuery()) == ["r"]
        await store.remove(removal)
        assert await seqs_of(store, "r") == [2]

    async def test_the_record_on_which_a_run_stands_cannot_be_removed(self, store: Store) -> None:
        head = await run_of(store, "r", 3)
        before = await all_of(store, "r")
        for seqs in ([3], [1, 3], [3, 2]):
            try:
                await store.remove(removal_of(head, seqs, [(3, sample_keyframe(3))]))
            except HeadMoved:
                raise AssertionError("the head did not move, but that is what was said") from None
            except StorageError:
                assert await all_of(store, "r") == before
            else:
                raise AssertionError("the record on which the run stands could be removed")
        await store.remove(removal_of(head, [1, 2]))

    async def test_a_run_goes_on_after_a_removal(self, store: Store) -> None:
        head = await run_of(store, "r", 3)
        await store.commit(staying_commit(head, sample_notes("a")))
        await leave(store, "x", "y")
        await store.commit(staying_commit(head, taken=["x"]))
        await store.remove(removal_of(head, [1, 2]))
        assert await store.head(RunId("r")) == head
        assert await journal(store) == sample_notes("a")
        assert keys_of(await inbox(store)) == ["y"]
        assert await leave(store, "x") == Left(head, ("x",))
        await move_on(store, head)
        assert await seqs_of(store, "r") == [3, 4]

    async def test_a_removal_touches_no_other_run(self, store: Store) -> None:
        for run in ("a", "b", "a1", "A"):
            await run_of(store, run, 3, family=RunId("a"))
            await store.tag(RunId(run), 1, ["kept"])
        others = [await all_of(store, run) for run in ("b", "a1", "A")]
        await store.remove(removal_of(sample_head("a", 3), [1, 2], [(3, sample_keyframe(3))]))
        assert [await all_of(store, run) for run in ("b", "a1", "A")] == others
        for run in ("b", "a1", "A"):
            assert await seqs_of(store, run) == [1, 2, 3]

    async def test_a_removal_is_seen_whole_or_not_at_all(self, store: Store) -> None:
        head = await run_of(store, "r", 4)
        cut = sample_keyframe(3, cut=True)
        before = [sample_record("r", seq) for seq in (1, 2, 3, 4)]
        after = [sample_record("r", 3, keyframe=cut), sample_record("r", 4)]
        seen: list[list[Record]] = []
        removing = asyncio.ensure_future(store.remove(removal_of(head, [1, 2], [(3, cut)])))
        while not removing.done():
            seen.append((await all_of(store, "r"))[1])
            await asyncio.sleep(0)
        await removing
        assert [records for records in seen if records not in (before, after)] == []
        assert (await all_of(store, "r"))[1] == after

    # Runs.

    async def test_a_removed_run_is_gone(self, store: Store) -> None:
        head = await run_of(store, "r", 3)
        await store.commit(staying_commit(head, sample_notes("a")))
        await leave(store, "x")
        await store.remove_run(RunId("r"), place_of(head))
        assert await all_of(store, "r") == (None, [])
        assert await seqs_of(store, "r") == []
        assert await names_of_runs(store, RunQuery()) == []
        assert await journal(store) == ()
        assert await inbox(store) == ()
        assert await leave(store, "y") == Left(None)
        assert await store.tag(RunId("r"), 1, ["a"]) is False

    async def test_the_blobs_of_a_removed_run_stay(self, store: Store) -> None:
        blobs = sample_blob(b"small"), sample_blob(LARGE)
        head = await begin(store, "r", blobs)
        await store.remove_run(RunId("r"), place_of(head))
        assert await store.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_a_run_that_moved_is_not_removed(self, store: Store) -> None:
        first = await begin(store, "r")
        head = await move_on(store, first)
        before = await all_of(store, "r")
        for expected in (place_of(first), Expected(head.checkpoint_id, head.token + 1)):
            error = await refusal(store.remove_run(RunId("r"), expected))
            assert "'r'" in str(error)
            assert await all_of(store, "r") == before
        await refusal(store.remove_run(RunId("nobody"), place_of(head)))
        await store.remove_run(RunId("r"), place_of(head))
        await refusal(store.remove_run(RunId("r"), place_of(head)))

    async def test_the_id_of_a_removed_run_can_be_used_again(self, store: Store) -> None:
        for _ in range(3):
            framed = tuple(sample_record("r", seq, keyframe=sample_keyframe(seq)) for seq in (1, 2, 3))
            head = sample_head("r", 3)
            await store.commit(Commit(head, None, framed, notes=sample_notes("a")))
            await store.tag(RunId("r"), 1, ["old"])
            await leave(store, "x", "y")
            await store.commit(staying_commit(head, taken=["x"]))
            await store.remove_run(RunId("r"), place_of(head))
            again = await begin(store, "r", owner="another")
            assert await all_of(store, "r") == (again, [sample_record("r", 1)])
            assert await seqs_of(store, "r") == [1]
            assert await journal(store) == ()
            assert await leave(store, "x") == Left(again)
            assert await inbox(store) == sample_letters("x")
            await refusal(store.commit(staying_commit(head, sample_notes("late"))))
            await store.remove_run(RunId("r"), place_of(again))

    async def test_removing_a_run_touches_no_other(self, store: Store) -> None:
        for run in ("a", "b", "a1", "A"):
            head = await run_of(store, run, 2, family=RunId("a"))
            await store.commit(staying_commit(head, sample_notes(run)))
            await leave(store, "x", run=run)
            await store.tag(RunId(run), 1, [run])
        others = [await all_of(store, run) for run in ("b", "a1", "A")]
        await store.remove_run(RunId("a"), place_of(sample_head("a", 2)))
        assert [await all_of(store, run) for run in ("b", "a1", "A")] == others
        for run in ("b", "a1", "A"):
            assert await tags_of(store, run) == {1: (run,)}
            assert await journal(store, run) == sample_notes(run)
            assert await inbox(store, run) == sample_letters("x")
