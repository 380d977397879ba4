"""Sweeping blobs that nobody needs, beside those who bring some."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Blob, Head, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.removal import place_of, removal_of, run_of
from holdfast.testing.store_suite.samples import (
    LARGE,
    all_of,
    begin,
    first_commit,
    move_on,
    sample_blob,
    sample_head,
    staying_commit,
)

FAMILY = RunId("r")
KINDS = (b"small", b"s" * 5000, LARGE)
"""The content of blobs that stores keep in different places."""


def sample_blobs(*parts: object) -> list[Blob]:
    """A blob of each kind, with names of their own for each ``parts``."""
    return [sample_blob(data, number, *parts) for number, data in enumerate(KINDS)]


async def there(store: Store, blobs: list[Blob], family: str = "r") -> list[bool]:
    """Which of the blobs are there; those that are must be whole."""
    found = await store.blobs(RunId(family), [blob.digest for blob in blobs])
    assert all(found.get(blob.digest, blob.data) == blob.data for blob in blobs)
    return [blob.digest in found for blob in blobs]


async def discarded(store: Store, mark: int, blobs: list[Blob], family: str = "r") -> int:
    """The bytes that discarding the blobs freed."""
    return await store.discard(RunId(family), mark, [blob.digest for blob in blobs])


async def bring(store: Store, head: Head, *blobs: Blob) -> None:
    """Bring blobs by a commit that changes nothing else."""
    await store.commit(staying_commit(head)._replace(blobs=blobs))


class Sweeping:
    """What ``mark`` and ``discard`` promise."""

    async def test_a_mark_gives_the_blobs_of_a_family(self, store: Store) -> None:
        assert (await store.mark(FAMILY)).sizes == {}
        mine, theirs = sample_blobs("mine"), sample_blobs("theirs")
        head = await begin(store, "r", mine[:1])
        await begin(store, "fork", mine[1:], family=FAMILY)
        await begin(store, "s", theirs)
        await bring(store, head, mine[0])
        sizes = (await store.mark(FAMILY)).sizes
        assert sizes.keys() == {blob.digest for blob in mine}
        assert min(sizes.values()) > 0
        assert (await store.mark(RunId("s"))).sizes.keys() == {blob.digest for blob in theirs}
        assert (await store.mark(RunId("fork"))).sizes == {}

    async def test_discarded_blobs_are_gone_and_the_others_stay(self, store: Store) -> None:
        gone, kept = sample_blobs("gone"), sample_blobs("kept")
        await begin(store, "r", [*gone, *kept])
        mark, _ = await store.mark(FAMILY)
        await discarded(store, mark, gone)
        assert await there(store, [*gone, *kept]) == [False] * 3 + [True] * 3
        assert (await store.mark(FAMILY)).sizes.keys() == {blob.digest for blob in kept}
        assert (await all_of(store, "r"))[0] == sample_head("r")

    async def test_what_was_freed_is_what_the_mark_said(self, store: Store) -> None:
        blobs = sample_blobs()
        await begin(store, "r", blobs)
        mark, sizes = await store.mark(FAMILY)
        for blob in blobs:
            assert await discarded(store, mark, [blob]) == sizes[blob.digest]
            assert await discarded(store, mark, [blob]) == 0

    async def test_what_is_not_there_is_passed_over(self, store: Store) -> None:
        blobs, missing = sample_blobs(), sample_blobs("missing")
        mark, _ = await store.mark(FAMILY)
        assert await discarded(store, mark, missing) == 0
        await begin(store, "r", blobs)
        mark, sizes = await store.mark(FAMILY)
        assert await discarded(store, mark, []) == 0
        assert await discarded(store, mark, missing) == 0
        assert await discarded(store, mark, [*missing, *blobs, *blobs]) == sum(sizes.values())

    async def test_blobs_that_are_new_since_the_mark_stay(self, store: Store) -> None:
        head = await begin(store, "r", sample_blobs("old"))
        mark, _ = await store.mark(FAMILY)
        new = sample_blobs("new")
        await move_on(store, head, new)
        assert await discarded(store, mark, new) == 0
        assert await there(store, new) == [True] * 3

    async def test_blobs_that_are_brought_again_since_the_mark_stay(self, store: Store) -> None:
        again, not_again = sample_blobs("again"), sample_blobs("not again")
        head = await begin(store, "r", [*again, *not_again])
        mark, sizes = await store.mark(FAMILY)
        await move_on(store, head, again)
        freed = sum(sizes[blob.digest] for blob in not_again)
        assert await discarded(store, mark, [*again, *not_again]) == freed
        assert await there(store, [*again, *not_again]) == [True] * 3 + [False] * 3

    async def test_blobs_that_a_fork_brings_since_the_mark_stay(self, store: Store) -> None:
        blobs = sample_blobs()
        await begin(store, "r", blobs)
        mark, _ = await store.mark(FAMILY)
        await begin(store, "fork", blobs, family=FAMILY)
        assert await discarded(store, mark, blobs) == 0
        assert await there(store, blobs) == [True] * 3

    async def test_blobs_that_a_removal_brings_since_the_mark_stay(self, store: Store) -> None:
        again, new = sample_blobs("again"), sample_blobs("new")
        head = await run_of(store, "r", 2)
        await bring(store, head, *again)
        mark, _ = await store.mark(FAMILY)
        await store.remove(removal_of(head, [1], blobs=(*again, *new)))
        assert await discarded(store, mark, [*again, *new]) == 0
        assert await there(store, [*again, *new]) == [True] * 6

    async def test_each_mark_has_a_moment_of_its_own(self, store: Store) -> None:
        first, second, third = sample_blobs(1), sample_blobs(2), sample_blobs(3)
        head = await begin(store, "r", first)
        early, _ = await store.mark(FAMILY)
        await bring(store, head, *second)
        late, _ = await store.mark(FAMILY)
        await bring(store, head, *third)
        await discarded(store, early, [*second, *third])
        assert await there(store, [*first, *second, *third]) == [True] * 9
        await discarded(store, late, [*first, *second, *third])
        assert await there(store, [*first, *second, *third]) == [False] * 6 + [True] * 3

    async def test_the_marks_of_families_do_not_disturb_each_other(self, store: Store) -> None:
        mine, theirs, unused = sample_blobs("mine"), sample_blobs("theirs"), sample_blobs("unused")
        await begin(store, "r", mine)
        mark, _ = await store.mark(FAMILY)
        head = await begin(store, "s", [*theirs, *unused])
        other, _ = await store.mark(RunId("s"))
        await bring(store, head, *theirs)
        await discarded(store, mark, mine)
        await discarded(store, other, [*theirs, *unused], "s")
        assert await there(store, mine) == [False] * 3
        assert await there(store, [*theirs, *unused], "s") == [True] * 3 + [False] * 3

    async def test_families_are_swept_apart(self, store: Store) -> None:
        blobs = sample_blobs()
        for run in ("r", "s", "R"):
            await begin(store, run, blobs)
        mark, _ = await store.mark(FAMILY)
        await discarded(store, mark, blobs)
        assert await there(store, blobs) == [False] * 3
        for run in ("s", "R"):
            assert await there(store, blobs, run) == [True] * 3

    async def test_discarded_blobs_can_be_brought_again(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs)
        for _ in range(3):
            mark, _ = await store.mark(FAMILY)
            await discarded(store, mark, blobs)
            assert await there(store, blobs) == [False] * 3
            head = await move_on(store, head, blobs)
            assert await there(store, blobs) == [True] * 3
            assert await discarded(store, mark, blobs) == 0

    async def test_blobs_of_a_removed_run_can_be_discarded(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs)
        await store.remove_run(FAMILY, place_of(head))
        mark, sizes = await store.mark(FAMILY)
        assert sizes.keys() == {blob.digest for blob in blobs}
        assert await discarded(store, mark, blobs) == sum(sizes.values())
        assert (await store.mark(FAMILY)).sizes == {}

    async def test_what_is_brought_while_a_sweep_runs_is_there(self, store: Store) -> None:
        head = await begin(store, "r", sample_blobs())
        for data in (b"small", LARGE):
            for number in range(8):
                blob = sample_blob(data, data[:5], number % 2)
                mark, _ = await store.mark(FAMILY)
                moving = asyncio.ensure_future(move_on(store, head, [blob]))
                for _ in range(number // 2):
                    await asyncio.sleep(0)
                await asyncio.gather(*(discarded(store, mark, [blob]) for _ in range(2)))
                head = await moving
                assert await there(store, [blob]) == [True]

    async def test_sweeps_and_writers_do_not_wait_for_each_other(self, store: Store) -> None:
        head = await begin(store, "r", [sample_blob(LARGE, "swept", number) for number in range(6)])

        async def sweep(number: int) -> None:
            mark, _ = await store.mark(FAMILY)
            await discarded(store, mark, [sample_blob(b"", "swept", number)])

        async def write(number: int) -> None:
            await store.commit(first_commit(f"w{number}", [sample_blob(LARGE, "written", number)]))

        both = [work(number) for number in range(6) for work in (sweep, write)]
        async with asyncio.timeout(5):
            await asyncio.gather(*both)
        assert await there(store, [sample_blob(LARGE, "swept", number) for number in range(6)]) == [False] * 6
        for number in range(6):
            assert await there(store, [sample_blob(LARGE, "written", number)], f"w{number}") == [True]
        assert await store.head(FAMILY) == head
