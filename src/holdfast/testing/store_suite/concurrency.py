"""Many tasks, several event loops, and callers that leave."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Commit, Depth, RunQuery, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    LARGE,
    all_of,
    begin,
    first_commit,
    move_on,
    next_commit,
    refusal,
    rival_commit,
    sample_blob,
    sample_head,
    sample_record,
    wins,
)


class Concurrency:
    """What holds when many use a store at the same time."""

    async def test_a_hundred_runs_commit_at_the_same_time(self, store: Store) -> None:
        async def run(name: str) -> None:
            head = await begin(store, name, [sample_blob(name.encode(), name)])
            for _ in range(4):
                head = await move_on(store, head, [sample_blob(b"same", "same")])

        names = [f"r{number}" for number in range(100)]
        await asyncio.gather(*(run(name) for name in names))
        for name in names:
            head, records = await all_of(store, name)
            assert head == sample_head(name, 5)
            assert records == [sample_record(name, seq) for seq in range(1, 6)]
            blobs = sample_blob(name.encode(), name), sample_blob(b"same", "same")
            assert await store.blobs(RunId(name), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_one_of_twenty_writers_of_a_run_wins(self, store: Store) -> None:
        head = await begin(store, "r")
        for round_number in range(5):
            rivals = [rival_commit(head, (round_number, writer)) for writer in range(20)]
            won = await asyncio.gather(*(wins(store, rival) for rival in rivals))
            assert sum(won) == 1
            winner = rivals[won.index(True)]
            there, records = await all_of(store, "r")
            assert there == winner.head
            assert records[1 + round_number :] == list(winner.records)
            for rival, has_won in zip(rivals, won, strict=True):
                found = await store.find(rival.head.checkpoint_id)
                assert found == (("r", rival.head.seq) if has_won else None)
            head = winner.head

    async def test_one_of_twenty_beginners_of_a_run_wins(self, store: Store) -> None:
        origin = sample_head("r", 0)
        rivals = [rival_commit(origin, writer)._replace(expected=None) for writer in range(20)]
        won = await asyncio.gather(*(wins(store, rival) for rival in rivals))
        assert sum(won) == 1
        winner = rivals[won.index(True)]
        assert await all_of(store, "r") == (winner.head, list(winner.records))

    async def test_a_refused_commit_fails_alone(self, store: Store) -> None:
        heads = [await begin(store, f"r{number}") for number in range(10)]
        moved = await move_on(store, heads[5])
        commits = [next_commit(head, [sample_blob(LARGE)]) for head in heads]
        commits[5] = rival_commit(heads[5], "late")
        outcomes = await asyncio.gather(*(wins(store, commit) for commit in commits))
        assert outcomes == [number != 5 for number in range(10)]
        expected = [commit.head for commit in commits]
        expected[5] = moved
        assert [await store.head(head.run_id) for head in heads] == expected

    async def test_a_head_is_never_seen_without_its_records_and_blobs(self, store: Store) -> None:
        done = False

        async def write() -> None:
            nonlocal done
            try:
                head = await begin(store, "r", [sample_blob(b"1", 1)])
                for seq in range(2, 30):
                    head = await move_on(store, head, [sample_blob(b"%d" % seq, seq)])
            finally:
                done = True

        async def read() -> None:
            while not done:
                if (head := await store.head(RunId("r"))) is not None:
                    found = await store.records(RunId("r"), head.seq, head.seq, Depth.ALL)
                    assert list(found) == [sample_record("r", head.seq)]
                    assert await store.find(head.checkpoint_id) == ("r", head.seq)
                    blob = sample_blob(b"%d" % head.seq, head.seq)
                    assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: blob.data}
                for listed in await store.runs(RunQuery()):
                    assert await store.records(RunId("r"), listed.seq, listed.seq, Depth.HEADERS)
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())

    async def test_a_caller_that_is_cancelled_leaves_the_commit_to_happen_or_not(self, store: Store) -> None:
        for patience in range(12):
            name = f"r{patience}"
            first = await begin(store, name)
            commit = next_commit(first, [sample_blob(LARGE, name)])
            task = asyncio.ensure_future(store.commit(commit))
            others = [asyncio.ensure_future(begin(store, f"{name}-{number}")) for number in range(3)]
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.gather(*others)
            if not task.cancelled():
                await task
            await self._happened_or_not(store, commit)

    async def _happened_or_not(self, store: Store, commit: Commit) -> None:
        """Whoever tries it again tells: it is taken if it had not happened, refused if it had; and it is whole."""
        won = await wins(store, commit)
        head, records = await all_of(store, commit.head.run_id)
        assert head == commit.head
        assert records == [sample_record(commit.head.run_id, 1), *commit.records]
        blob = commit.blobs[0]
        assert await store.blobs(commit.head.family, [blob.digest]) == {blob.digest: blob.data}
        if not won:
            await refusal(store.commit(commit))
        await move_on(store, commit.head)

    async def test_one_event_loop_after_another_may_use_a_store(self, store: Store) -> None:
        here = await begin(store, "here")

        async def elsewhere() -> None:
            assert await store.head(RunId("here")) == here
            await asyncio.gather(*(begin(store, f"there{number}") for number in range(5)))
            await move_on(store, here, [sample_blob(LARGE)])

        await asyncio.to_thread(asyncio.run, elsewhere())
        there, records = await all_of(store, "here")
        assert there is not None
        assert len(records) == 2
        await move_on(store, there)
        assert await store.head(RunId("there4")) == sample_head("there4")

    async def test_an_event_loop_that_ends_while_it_waits_disturbs_nobody(self, store: Store) -> None:
        async def leave() -> None:
            tasks = [
                asyncio.ensure_future(store.commit(first_commit(f"left{number}"))) for number in range(10)
            ]
            done, _ = await asyncio.wait(tasks, timeout=0)
            assert [task.exception() for task in done] == [None] * len(done)

        await begin(store, "r")
        await asyncio.to_thread(asyncio.run, leave())
        await begin(store, "s")
        for number in range(10):
            head, records = await all_of(store, f"left{number}")
            if head is None:
                assert records == []
                head = await begin(store, f"left{number}")
            await move_on(store, head)
        assert len(await store.records(RunId("left3"), *ANYTHING, Depth.ALL)) == 2
