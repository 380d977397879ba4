"""What is tagged, removed and swept, in stores that outlive their object."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.durable import Reopen
from holdfast.testing.store_suite.inbox import inbox, leave
from holdfast.testing.store_suite.journal import journal
from holdfast.testing.store_suite.removal import place_of, removal_of, run_of, seqs_of, tags_of
from holdfast.testing.store_suite.samples import (
    LARGE,
    ODD_KEYS,
    all_of,
    begin,
    move_on,
    refusal,
    sample_blob,
    sample_head,
    sample_keyframe,
    sample_notes,
    sample_record,
    staying_commit,
)
from holdfast.testing.store_suite.sweeping import FAMILY, bring, discarded, sample_blobs, there


class Lasting:
    """What a second object of the place of a store sees of upkeep."""

    async def test_another_object_sees_what_was_tagged_and_removed(
        self, store: Store, reopen: Reopen
    ) -> None:
        head = await run_of(store, "r", 4)
        other = await reopen()
        assert await seqs_of(other, "r") == [1, 2, 3, 4]
        assert await all_of(store, "r") == await all_of(other, "r")
        await store.tag(RunId("r"), 3, ODD_KEYS)
        assert (await tags_of(other, "r"))[3] == tuple(ODD_KEYS)
        await other.tag(RunId("r"), 3, ["b", "a"])
        cut = sample_keyframe(3, cut=True)
        await other.remove(removal_of(head, [1, 2], [(3, cut)]))
        kept = [sample_record("r", 3, keyframe=cut, tags=("b", "a")), sample_record("r", 4)]
        assert await all_of(store, "r") == (head, kept)
        await store.close()
        again = await reopen()
        assert await all_of(again, "r") == (head, kept)
        assert await seqs_of(again, "r") == [3, 4]

    async def test_another_object_sees_that_a_run_is_gone(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        for number in range(3):
            one, two = (store, other) if number % 2 else (other, store)
            head = await run_of(one, "r", 2)
            await one.commit(staying_commit(head, sample_notes("a")))
            await leave(one, "x")
            assert await two.head(RunId("r")) == head
            await two.remove_run(RunId("r"), place_of(head))
            assert await all_of(one, "r") == (None, [])
            assert (await journal(one), await inbox(one)) == ((), ())
        await store.close()
        assert await all_of(await reopen(), "r") == (None, [])

    async def test_an_object_that_missed_a_commit_removes_nothing(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        first = await begin(store, "r")
        assert await other.head(RunId("r")) == first
        second = await move_on(store, first)
        await refusal(other.remove(removal_of(first, [])))
        await refusal(other.remove_run(RunId("r"), place_of(first)))
        assert await all_of(other, "r") == (second, [sample_record("r", 1), sample_record("r", 2)])

    async def test_an_object_that_missed_a_removal_goes_on(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await run_of(store, "r", 3)
        await other.remove(removal_of(head, [1]))
        head = await move_on(store, head)
        await store.remove(removal_of(head, [1, 2]))
        assert await seqs_of(other, "r") == [3, 4]
        await other.remove_run(RunId("r"), place_of(head))
        await refusal(store.commit(staying_commit(head)))
        await refusal(store.remove(removal_of(head, [3])))
        again = await begin(store, "r", owner="another")
        assert await all_of(other, "r") == (again, [sample_record("r", 1)])

    async def test_what_another_object_brings_since_the_mark_stays(
        self, store: Store, reopen: Reopen
    ) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")
        head = await begin(store, "r", [*again, *unused])
        other = await reopen()
        assert await there(other, again) == [True] * 3
        mark, sizes = await store.mark(FAMILY)
        assert sizes.keys() == {blob.digest for blob in [*again, *unused]}
        await bring(other, head, *again, *new)
        await other.close()
        sweeper = await reopen()
        freed = sum(sizes[blob.digest] for blob in unused)
        assert await discarded(sweeper, mark, [*again, *new, *unused]) == freed
        assert await there(store, [*again, *new, *unused]) == [True] * 6 + [False] * 3
        assert await discarded(store, mark, [*again, *new]) == 0

    async def test_discarded_blobs_stay_gone(self, store: Store, reopen: Reopen) -> None:
        gone, kept = sample_blobs("gone"), sample_blobs("kept")
        await begin(store, "r", [*gone, *kept])
        other = await reopen()
        assert await there(other, gone) == [True] * 3
        mark, _ = await store.mark(FAMILY)
        await discarded(store, mark, gone)
        await store.close()
        for one in (other, await reopen()):
            assert await there(one, [*gone, *kept]) == [False] * 3 + [True] * 3
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
            await discarded(other, mark, [blob])
            head = await moving
            assert await there(other, [blob]) == [True]

    async def test_upkeep_of_namespaces_is_apart(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blobs()
        names = ["", "other", "Other", ".."]
        stores = {name: store if not name else await reopen(name) for name in names}
        for one in stores.values():
            await one.commit(staying_commit(sample_head("r"))._replace(expected=None, blobs=tuple(blobs)))
            await one.remove_run(RunId("r"), place_of(sample_head("r")))
            await run_of(one, "r", 3)
        for name in names[1:3]:
            one = stores[name]
            await one.tag(RunId("r"), 2, [name])
            await one.remove(removal_of(sample_head("r", 3), [1], [(2, sample_keyframe(2))]))
            mark, sizes = await one.mark(FAMILY)
            assert sizes.keys() == {blob.digest for blob in blobs}
            await discarded(one, mark, blobs)
            assert await there(one, blobs) == [False] * 3
        await stores["other"].remove_run(RunId("r"), place_of(sample_head("r", 3)))
        assert (await all_of(stores["other"], "r"))[0] is None
        assert await seqs_of(stores["Other"], "r") == [2, 3]
        for name in ("", ".."):
            assert await seqs_of(stores[name], "r") == [1, 2, 3]
            assert (await all_of(stores[name], "r"))[1][1] == sample_record("r", 2)
            assert await there(stores[name], blobs) == [True] * 3

    async def test_upkeep_opens_a_store_by_itself(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blobs()
        head = await run_of(store, "r", 2)
        await bring(store, head, *blobs)
        assert await (await reopen()).tag(RunId("r"), 2, ["a"])
        mark, sizes = await (await reopen()).mark(FAMILY)
        assert await discarded(await reopen(), mark, blobs) == sum(sizes.values())
        assert await (await reopen()).remove(removal_of(head, [1]))
        assert await seqs_of(store, "r") == [2]
        await (await reopen()).remove_run(RunId("r"), place_of(head))
        assert await all_of(store, "r") == (None, [])
