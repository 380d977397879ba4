"""Rules of blobs: written with commits, needed by commits, and swept when no run needs them."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Blob, Head, Store
from holdfast.errors import CheckpointNotFound
from holdfast.ids import Digest, RunId
from holdfast.testing.store_suite.actions import (
    Reopen,
    begin,
    begin_with_records,
    catch_refusal,
    check_missing,
    commit_blobs,
    discard_blobs,
    find_blobs,
    move_on,
    read_run,
)
from holdfast.testing.store_suite.samples import (
    EVERY_BYTE,
    FAMILY,
    LARGE,
    add_needs,
    expect_head,
    first_commit,
    make_removal,
    next_commit,
    sample_blob,
    sample_blobs,
    sample_head,
    sample_notes,
)

FIVE_MB = EVERY_BYTE * (5 * 4096)


class BlobRules:
    """The rules of ``blobs``, and of ``commit`` for blobs."""

    async def test_blobs_come_back_as_they_were_given(self, store: Store) -> None:
        contents = [b"", b"\x00", b"small", EVERY_BYTE, EVERY_BYTE * 20, LARGE, FIVE_MB]
        blobs = [sample_blob(content) for content in contents]
        await begin(store, "r", blobs)
        assert await store.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_each_blob_can_be_asked_for_alone(self, store: Store) -> None:
        blobs = [sample_blob(b"%d" % number) for number in range(5)]
        await begin(store, "r", blobs)
        for blob in blobs:
            assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: blob.data}
        assert await store.blobs(RunId("r"), [blobs[3].digest, blobs[1].digest, blobs[3].digest]) == {
            blobs[3].digest: b"3",
            blobs[1].digest: b"1",
        }

    async def test_blobs_that_are_not_there_are_left_out(self, store: Store) -> None:
        there, missing = sample_blob(b"there"), sample_blob(b"missing")
        assert await store.blobs(RunId("r"), [there.digest]) == {}
        await begin(store, "r", [there])
        assert await store.blobs(RunId("r"), [missing.digest, there.digest]) == {there.digest: b"there"}
        assert await store.blobs(RunId("r"), [missing.digest]) == {}
        assert await store.blobs(RunId("r"), []) == {}

    async def test_the_name_of_a_blob_is_given_not_computed(self, store: Store) -> None:
        named = [
            Blob(Digest(bytes(32)), b"zeros"),
            Blob(Digest(b"\xff" * 32), b"ones"),
            sample_blob(LARGE, "odd"),
        ]
        await begin(store, "r", named)
        assert await store.blobs(RunId("r"), [blob.digest for blob in named]) == dict(named)

    async def test_names_that_differ_in_one_byte_are_apart(self, store: Store) -> None:
        name = EVERY_BYTE[:32]
        alike = [name, b"\xff" + name[1:], name[:-1] + b"\xff", name[:8] + b"\xff" + name[9:]]
        for data in (b"small", LARGE):
            blobs = [Blob(Digest(one), data + b"%d" % number) for number, one in enumerate(alike)]
            run = f"with {len(data)} bytes"
            await begin(store, run, blobs)
            assert await store.blobs(RunId(run), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_a_blob_that_is_there_is_left_as_it_is(self, store: Store) -> None:
        for data in (b"first", LARGE, b""):
            run = f"with {len(data)} bytes"
            first = await begin(store, run, [sample_blob(data, 1)])
            second = await move_on(store, first, [sample_blob(b"other", 1), sample_blob(b"new", 2)])
            await move_on(store, second, [sample_blob(LARGE + b"!", 1)])
            digests = [sample_blob(b"", number).digest for number in (1, 2)]
            assert await store.blobs(RunId(run), digests) == {digests[0]: data, digests[1]: b"new"}

    async def test_a_blob_may_be_given_twice_in_one_commit(self, store: Store) -> None:
        for data in (b"twice", LARGE):
            blob = sample_blob(data)
            run = f"with {len(data)} bytes"
            await begin(store, run, [blob, blob])
            assert await store.blobs(RunId(run), [blob.digest]) == {blob.digest: data}

    async def test_families_are_apart(self, store: Store) -> None:
        for number, data in enumerate((b"small", LARGE)):
            one, both = sample_blob(data + b"1", number, 1), sample_blob(data + b"2", number, 2)
            await begin(store, f"a{number}", [one, both])
            await begin(store, f"b{number}", [both._replace(data=data + b"3")])
            digests = [one.digest, both.digest]
            assert await store.blobs(RunId(f"a{number}"), digests) == dict([one, both])
            assert await store.blobs(RunId(f"b{number}"), digests) == {both.digest: data + b"3"}
            assert await store.blobs(RunId(f"c{number}"), digests) == {}

    async def test_a_fork_adds_to_the_blobs_of_its_family(self, store: Store) -> None:
        blobs = [sample_blob(b"of the first"), sample_blob(b"of the fork"), sample_blob(LARGE)]
        await begin(store, "first", blobs[:1])
        await begin(store, "fork", blobs[1:], family=RunId("first"))
        digests = [blob.digest for blob in blobs]
        assert await store.blobs(RunId("first"), digests) == dict(blobs)
        assert await store.blobs(RunId("fork"), digests) == {}

    async def test_a_family_need_not_be_a_run(self, store: Store) -> None:
        blob = sample_blob(b"orphan")
        await begin(store, "fork", [blob], family=RunId("gone"))
        assert await store.blobs(RunId("gone"), [blob.digest]) == {blob.digest: b"orphan"}
        assert await store.head(RunId("gone")) is None


class NeededBlobRules:
    """The rules of ``Commit.needs``."""

    async def test_a_commit_is_taken_if_what_it_needs_is_there(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs[:2])
        await store.add_blobs(FAMILY, blobs[2:])
        await store.commit(add_needs(next_commit(head), *blobs, blobs[0]))
        fork = add_needs(first_commit("fork", family=FAMILY), *blobs)
        await store.commit(fork)
        assert (await read_run(store, "fork"))[0] == fork.head
        assert await find_blobs(store, blobs) == [True] * 3

    async def test_a_commit_is_refused_if_what_it_needs_is_missing(self, store: Store) -> None:
        blobs, missing = sample_blobs(), sample_blobs("missing")
        head = await begin(store, "r", blobs)
        await begin(store, "s", missing)
        moving = next_commit(head)._replace(notes=sample_notes("a"))
        for blob in missing:
            await check_missing(store, add_needs(moving, *blobs, blob))
            await check_missing(store, add_needs(first_commit("fork", family=FAMILY), blob, *blobs))
        await check_missing(store, add_needs(first_commit("nobody"), blobs[0]))
        await store.commit(add_needs(moving, *blobs))
        assert await store.head(FAMILY) == moving.head

    async def test_who_missed_a_commit_hears_of_that_first(self, store: Store) -> None:
        head = await begin(store, "r")
        missing = sample_blobs("missing")
        await catch_refusal(store.commit(add_needs(first_commit("r"), *missing)))
        stale = next_commit(head._replace(token=7))
        await catch_refusal(store.commit(add_needs(stale, *missing)))

    async def test_what_a_commit_needs_counts_as_brought(self, store: Store) -> None:
        blobs, unused = sample_blobs(), sample_blobs("unused")
        head = await begin(store, "r", [*blobs, *unused])
        mark, _ = await store.mark(FAMILY)
        await store.commit(add_needs(next_commit(head), *blobs))
        assert await discard_blobs(store, mark, [*blobs, *unused]) > 0
        assert await find_blobs(store, [*blobs, *unused]) == [True] * 3 + [False] * 3

    async def test_added_blobs_count_as_brought(self, store: Store) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")
        await begin(store, "r", [*again, *unused])
        mark, sizes = await store.mark(FAMILY)
        await store.add_blobs(FAMILY, [*again, *new])
        freed = sum(sizes[blob.digest] for blob in unused)
        assert await discard_blobs(store, mark, [*again, *new, *unused]) == freed
        assert await find_blobs(store, [*again, *new]) == [True] * 6

    async def test_a_sweep_comes_before_or_behind_who_needs_a_blob(self, store: Store) -> None:
        head = await begin(store, "r")
        for number in range(12):
            blob = sample_blob(LARGE if number % 2 else b"small", "needed", number)
            head = await _race_sweep(store, store, head, blob, number // 2)


async def _race_sweep(store: Store, sweeper: Store, head: Head, blob: Blob, turns: int) -> Head:
    """Race a sweep with a commit that needs the swept blob: one of them must come first."""
    await commit_blobs(store, head, blob)
    mark, _ = await sweeper.mark(FAMILY)
    commit = add_needs(next_commit(head), blob)

    async def moved() -> bool:
        try:
            await store.commit(commit)
        except CheckpointNotFound:
            return False
        return True

    moving = asyncio.ensure_future(moved())
    for _ in range(turns):
        await asyncio.sleep(0)
    await discard_blobs(sweeper, mark, [blob])
    done = await moving
    assert await find_blobs(store, [blob]) == [done]
    assert await store.head(FAMILY) == (commit.head if done else head)
    return commit.head if done else head


class DurableNeedRules:
    """The rules of ``Commit.needs`` that need a second store object to check."""

    async def test_another_object_knows_what_a_commit_needed(self, store: Store, reopen: Reopen) -> None:
        blobs, other = sample_blobs(), await reopen()
        head = await begin(store, "r", blobs)
        mark, sizes = await other.mark(FAMILY)
        fork = add_needs(first_commit("fork", family=FAMILY), *blobs)
        await store.commit(fork)
        assert await discard_blobs(other, mark, blobs) == 0
        mark, _ = await other.mark(FAMILY)
        assert await discard_blobs(other, mark, blobs) == sum(sizes.values())
        await check_missing(store, add_needs(next_commit(head), *blobs))
        await check_missing(store, add_needs(next_commit(fork.head), *blobs))

    async def test_a_sweep_of_another_object_comes_before_or_behind(
        self, store: Store, reopen: Reopen
    ) -> None:
        sweeper = await reopen()
        head = await begin(store, "r")
        for number in range(12):
            blob = sample_blob(LARGE if number % 2 else b"small", "needed", number)
            head = await _race_sweep(store, sweeper, head, blob, number // 2)


class SweepRules:
    """The rules of ``mark`` and ``discard``."""

    async def test_a_mark_gives_the_blobs_of_a_family(self, store: Store) -> None:
        assert (await store.mark(FAMILY)).sizes == {}
        mine, theirs = sample_blobs("mine"), sample_blobs("theirs")
        head = await begin(store, "r", mine[:1])
        await begin(store, "fork", mine[1:], family=FAMILY)
        await begin(store, "s", theirs)
        await commit_blobs(store, head, mine[0])
        sizes = (await store.mark(FAMILY)).sizes
        assert sizes.keys() == {blob.digest for blob in mine}
        assert min(sizes.values()) > 0
        assert (await store.mark(RunId("s"))).sizes.keys() == {blob.digest for blob in theirs}
        assert (await store.mark(RunId("fork"))).sizes == {}

    async def test_discarded_blobs_are_gone_and_the_others_stay(self, store: Store) -> None:
        gone, kept = sample_blobs("gone"), sample_blobs("kept")
        await begin(store, "r", [*gone, *kept])
        mark, _ = await store.mark(FAMILY)
        await discard_blobs(store, mark, gone)
        assert await find_blobs(store, [*gone, *kept]) == [False] * 3 + [True] * 3
        assert (await store.mark(FAMILY)).sizes.keys() == {blob.digest for blob in kept}
        assert (await read_run(store, "r"))[0] == sample_head("r")

    async def test_what_was_freed_is_what_the_mark_said(self, store: Store) -> None:
        blobs = sample_blobs()
        await begin(store, "r", blobs)
        mark, sizes = await store.mark(FAMILY)
        for blob in blobs:
            assert await discard_blobs(store, mark, [blob]) == sizes[blob.digest]
            assert await discard_blobs(store, mark, [blob]) == 0

    async def test_what_is_not_there_is_passed_over(self, store: Store) -> None:
        blobs, missing = sample_blobs(), sample_blobs("missing")
        mark, _ = await store.mark(FAMILY)
        assert await discard_blobs(store, mark, missing) == 0
        await begin(store, "r", blobs)
        mark, sizes = await store.mark(FAMILY)
        assert await discard_blobs(store, mark, []) == 0
        assert await discard_blobs(store, mark, missing) == 0
        assert await discard_blobs(store, mark, [*missing, *blobs, *blobs]) == sum(sizes.values())

    async def test_blobs_that_are_new_since_the_mark_stay(self, store: Store) -> None:
        head = await begin(store, "r", sample_blobs("old"))
        mark, _ = await store.mark(FAMILY)
        new = sample_blobs("new")
        await move_on(store, head, new)
        assert await discard_blobs(store, mark, new) == 0
        assert await find_blobs(store, new) == [True] * 3

    async def test_blobs_that_are_brought_again_since_the_mark_stay(self, store: Store) -> None:
        again, not_again = sample_blobs("again"), sample_blobs("not again")
        head = await begin(store, "r", [*again, *not_again])
        mark, sizes = await store.mark(FAMILY)
        await move_on(store, head, again)
        freed = sum(sizes[blob.digest] for blob in not_again)
        assert await discard_blobs(store, mark, [*again, *not_again]) == freed
        assert await find_blobs(store, [*again, *not_again]) == [True] * 3 + [False] * 3

    async def test_blobs_that_a_fork_brings_since_the_mark_stay(self, store: Store) -> None:
        blobs = sample_blobs()
        await begin(store, "r", blobs)
        mark, _ = await store.mark(FAMILY)
        await begin(store, "fork", blobs, family=FAMILY)
        assert await discard_blobs(store, mark, blobs) == 0
        assert await find_blobs(store, blobs) == [True] * 3

    async def test_blobs_that_a_removal_brings_since_the_mark_stay(self, store: Store) -> None:
        again, new = sample_blobs("again"), sample_blobs("new")
        head = await begin_with_records(store, "r", 2)
        await commit_blobs(store, head, *again)
        mark, _ = await store.mark(FAMILY)
        await store.remove(make_removal(head, [1], blobs=(*again, *new)))
        assert await discard_blobs(store, mark, [*again, *new]) == 0
        assert await find_blobs(store, [*again, *new]) == [True] * 6

    async def test_each_mark_has_a_moment_of_its_own(self, store: Store) -> None:
        first, second, third = sample_blobs(1), sample_blobs(2), sample_blobs(3)
        head = await begin(store, "r", first)
        early, _ = await store.mark(FAMILY)
        await commit_blobs(store, head, *second)
        late, _ = await store.mark(FAMILY)
        await commit_blobs(store, head, *third)
        await discard_blobs(store, early, [*second, *third])
        assert await find_blobs(store, [*first, *second, *third]) == [True] * 9
        await discard_blobs(store, late, [*first, *second, *third])
        assert await find_blobs(store, [*first, *second, *third]) == [False] * 6 + [True] * 3

    async def test_the_marks_of_families_do_not_disturb_each_other(self, store: Store) -> None:
        mine, theirs, unused = sample_blobs("mine"), sample_blobs("theirs"), sample_blobs("unused")
        await begin(store, "r", mine)
        mark, _ = await store.mark(FAMILY)
        head = await begin(store, "s", [*theirs, *unused])
        other, _ = await store.mark(RunId("s"))
        await commit_blobs(store, head, *theirs)
        await discard_blobs(store, mark, mine)
        await discard_blobs(store, other, [*theirs, *unused], "s")
        assert await find_blobs(store, mine) == [False] * 3
        assert await find_blobs(store, [*theirs, *unused], "s") == [True] * 3 + [False] * 3

    async def test_families_are_swept_apart(self, store: Store) -> None:
        blobs = sample_blobs()
        for run in ("r", "s", "R"):
            await begin(store, run, blobs)
        mark, _ = await store.mark(FAMILY)
        await discard_blobs(store, mark, blobs)
        assert await find_blobs(store, blobs) == [False] * 3
        for run in ("s", "R"):
            assert await find_blobs(store, blobs, run) == [True] * 3

    async def test_discarded_blobs_can_be_brought_again(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs)
        for _ in range(3):
            mark, _ = await store.mark(FAMILY)
            await discard_blobs(store, mark, blobs)
            assert await find_blobs(store, blobs) == [False] * 3
            head = await move_on(store, head, blobs)
            assert await find_blobs(store, blobs) == [True] * 3
            assert await discard_blobs(store, mark, blobs) == 0

    async def test_blobs_of_a_removed_run_can_be_discarded(self, store: Store) -> None:
        blobs = sample_blobs()
        head = await begin(store, "r", blobs)
        await store.remove_run(FAMILY, expect_head(head))
        mark, sizes = await store.mark(FAMILY)
        assert sizes.keys() == {blob.digest for blob in blobs}
        assert await discard_blobs(store, mark, blobs) == sum(sizes.values())
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
                await asyncio.gather(*(discard_blobs(store, mark, [blob]) for _ in range(2)))
                head = await moving
                assert await find_blobs(store, [blob]) == [True]

    async def test_sweeps_and_writers_do_not_wait_for_each_other(self, store: Store) -> None:
        head = await begin(store, "r", [sample_blob(LARGE, "swept", number) for number in range(6)])

        async def sweep(number: int) -> None:
            mark, _ = await store.mark(FAMILY)
            await discard_blobs(store, mark, [sample_blob(b"", "swept", number)])

        async def write(number: int) -> None:
            await store.commit(first_commit(f"w{number}", [sample_blob(LARGE, "written", number)]))

        both = [work(number) for number in range(6) for work in (sweep, write)]
        async with asyncio.timeout(5):
            await asyncio.gather(*both)
        assert (
            await find_blobs(store, [sample_blob(LARGE, "swept", number) for number in range(6)])
            == [False] * 6
        )
        for number in range(6):
            assert await find_blobs(store, [sample_blob(LARGE, "written", number)], f"w{number}") == [True]
        assert await store.head(FAMILY) == head
