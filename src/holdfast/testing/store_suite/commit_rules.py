"""Rules of commits and heads: all or nothing, compared with the head in the store, by one caller or many."""

from __future__ import annotations

import asyncio
import re

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import begin, catch_refusal, move_on, read_run, try_commit
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    GREATEST,
    LARGE,
    first_commit,
    next_commit,
    rival_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_record,
)


class CommitRules:
    """The rules of ``commit`` for one caller."""

    async def test_a_commit_makes_head_records_and_blobs_readable(self, store: Store) -> None:
        blob = sample_blob(b"large")
        records = sample_record("r", 1), sample_record("r", 2)
        commit = Commit(sample_head("r", 2), None, records, (blob,))
        await store.commit(commit)
        assert await read_run(store, "r") == (commit.head, list(records))
        assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: b"large"}

    async def test_the_next_commit_replaces_the_head_and_keeps_the_records(self, store: Store) -> None:
        first = await begin(store, "r")
        second = await move_on(store, first)
        assert await read_run(store, "r") == (second, [sample_record("r", 1), sample_record("r", 2)])

    async def test_a_commit_may_move_the_head_without_records(self, store: Store) -> None:
        first = await begin(store, "r")
        taken = first._replace(token=2, owner="other:2", takeovers=1)
        await store.commit(Commit(taken, Expected(first.checkpoint_id, 1)))
        assert await read_run(store, "r") == (taken, [sample_record("r", 1)])

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
        await catch_refusal(store.commit(late))
        digest = late.blobs[0].digest
        assert await store.blobs(RunId("r"), [digest]) == {digest: b"kept"}

    async def test_head_moved_is_a_storage_error_and_names_the_run(self, store: Store) -> None:
        await begin(store, "the-run")
        error = await catch_refusal(store.commit(first_commit("the-run")))
        assert isinstance(error, StorageError)
        assert "the-run" in str(error)

    async def test_a_refused_writer_goes_on_from_the_head_that_is_there(self, store: Store) -> None:
        first = await begin(store, "r")
        await move_on(store, first, token=2)
        await catch_refusal(store.commit(rival_commit(first, "late")))
        there = await store.head(RunId("r"))
        assert there is not None
        third = await move_on(store, there)
        assert (await read_run(store, "r"))[0] == third
        assert len(await store.records(RunId("r"), *ANYTHING, Depth.HEADERS)) == 3

    async def test_commits_of_other_runs_change_nothing(self, store: Store) -> None:
        await begin(store, "r")
        before = await read_run(store, "r")
        await move_on(store, await begin(store, "other"))
        assert await read_run(store, "r") == before

    async def _is_refused(self, store: Store, commit: Commit) -> None:
        """No part of a refused commit may be seen, not even a record at an unused seq."""
        run = commit.head.run_id
        stray = sample_record(run, 77, checkpoint_id=sample_id(run, "stray"))
        before = await read_run(store, run)
        await catch_refusal(store.commit(commit._replace(records=(*commit.records, stray))))
        assert await read_run(store, run) == before
        for record in (*commit.records, stray):
            assert await store.find(record.checkpoint_id) is None


class HeadRules:
    """The rules of ``open`` and ``head``."""

    async def test_a_store_says_its_id_and_its_format(self, store: Store) -> None:
        info = await store.open()
        assert re.fullmatch("[0-9a-f]{32}", info.store_id)
        assert (type(info.major), type(info.minor), type(info.features)) == (int, int, frozenset)
        assert info.major >= 1

    async def test_a_store_may_be_opened_twice(self, store: Store) -> None:
        info = await store.open()
        await begin(store, "r")
        assert await store.open() == info

    async def test_a_key_box_is_replaced_only_by_whoever_knows_it(self, store: Store) -> None:
        await store.open()
        before = await store.key_box()
        assert await store.set_key_box("first", before)
        assert not await store.set_key_box("second", before)
        assert await store.key_box() == "first"

    async def test_a_store_may_be_closed_twice(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_an_unknown_run_has_no_head(self, store: Store) -> None:
        assert await store.head(RunId("nobody")) is None
        await begin(store, "somebody")
        assert await store.head(RunId("nobody")) is None

    async def test_every_field_of_a_head_comes_back(self, store: Store) -> None:
        heads = [
            sample_head("plain"),
            sample_head("fork", family=RunId("another")),
            sample_head("numbers", GREATEST, token=GREATEST - 1, created=GREATEST - 2, updated=GREATEST - 3),
            sample_head("more", wake_at=GREATEST, takeovers=GREATEST),
            sample_head("zero", seq=0, token=0, created=0, updated=0, takeovers=0),
            sample_head("wake", wake_at=0),
            sample_head(
                "words", workflow_name="Größe 😀", owner="häst:1:'x'", reason="ValueError: 'ß'\n\tat 5% \\"
            ),
            sample_head("odd", reason="\x00 \x1b \u2028 \udc80 \ud83d", owner="", workflow_name=""),
            sample_head("kept", retention="keep_last:3"),
            sample_head("waits", status=RunStatus.WAITING, waiting_for="answers time"),
            sample_head("long", retention="r" * 200, reason="why " * 20_000, owner="o" * 2000),
            *(sample_head(f"is-{status.value}", status=status) for status in RunStatus),
        ]
        for head in heads:
            await store.commit(Commit(head, None))
        for head in heads:
            there = await store.head(head.run_id)
            assert there == head
            assert there is not None
            assert type(there.status) is RunStatus

    async def test_every_field_of_a_head_can_change(self, store: Store) -> None:
        before = await begin(store, "r", wake_at=5, reason="why", owner="one", takeovers=3)
        changes: list[dict[str, object]] = [
            {"wake_at": None},
            {"wake_at": 0},
            {"wake_at": None, "reason": "", "owner": "", "takeovers": 0},
            {"retention": "latest_only"},
            {"status": RunStatus.FAILED, "reason": "boom"},
            {"retention": ""},
            {"status": RunStatus.WAITING, "waiting_for": "messages"},
            {"status": RunStatus.STOPPED, "waiting_for": ""},
            {"status": RunStatus.RUNNING, "token": 9, "updated": 1},
            {"workflow_name": "Renamed", "family": RunId("other"), "created": 7},
            {"checkpoint_id": sample_id("elsewhere"), "seq": 12},
        ]
        for change in changes:
            after = before._replace(**change)  # type: ignore[arg-type]
            await store.commit(Commit(after, Expected(before.checkpoint_id, before.token)))
            assert await store.head(RunId("r")) == after
            before = after

    async def test_a_head_is_seen_as_soon_as_commit_returns(self, store: Store) -> None:
        for number in range(20):
            commit = first_commit(f"r{number}")
            await store.commit(commit)
            assert await store.head(commit.head.run_id) == commit.head


class ConcurrencyRules:
    """The rules for many tasks and event loops, and for callers that are cancelled."""

    async def test_a_hundred_runs_commit_at_the_same_time(self, store: Store) -> None:
        async def run(name: str) -> None:
            head = await begin(store, name, [sample_blob(name.encode(), name)])
            for _ in range(4):
                head = await move_on(store, head, [sample_blob(b"same", "same")])

        names = [f"r{number}" for number in range(100)]
        await asyncio.gather(*(run(name) for name in names))
        for name in names:
            head, records = await read_run(store, name)
            assert head == sample_head(name, 5)
            assert records == [sample_record(name, seq) for seq in range(1, 6)]
            blobs = sample_blob(name.encode(), name), sample_blob(b"same", "same")
            assert await store.blobs(RunId(name), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_one_of_twenty_writers_of_a_run_wins(self, store: Store) -> None:
        head = await begin(store, "r")
        for round_number in range(5):
            rivals = [rival_commit(head, (round_number, writer)) for writer in range(20)]
            won = await asyncio.gather(*(try_commit(store, rival) for rival in rivals))
            assert sum(won) == 1
            winner = rivals[won.index(True)]
            there, records = await read_run(store, "r")
            assert there == winner.head
            assert records[1 + round_number :] == list(winner.records)
            for rival, has_won in zip(rivals, won, strict=True):
                found = await store.find(rival.head.checkpoint_id)
                assert found == (("r", rival.head.seq) if has_won else None)
            head = winner.head

    async def test_one_of_twenty_beginners_of_a_run_wins(self, store: Store) -> None:
        origin = sample_head("r", 0)
        rivals = [rival_commit(origin, writer)._replace(expected=None) for writer in range(20)]
        won = await asyncio.gather(*(try_commit(store, rival) for rival in rivals))
        assert sum(won) == 1
        winner = rivals[won.index(True)]
        assert await read_run(store, "r") == (winner.head, list(winner.records))

    async def test_a_refused_commit_fails_alone(self, store: Store) -> None:
        heads = [await begin(store, f"r{number}") for number in range(10)]
        moved = await move_on(store, heads[5])
        commits = [next_commit(head, [sample_blob(LARGE)]) for head in heads]
        commits[5] = rival_commit(heads[5], "late")
        outcomes = await asyncio.gather(*(try_commit(store, commit) for commit in commits))
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
        """A second try is taken if the first had not happened, and refused if it had; the commit is whole."""
        won = await try_commit(store, commit)
        head, records = await read_run(store, commit.head.run_id)
        assert head == commit.head
        assert records == [sample_record(commit.head.run_id, 1), *commit.records]
        blob = commit.blobs[0]
        assert await store.blobs(commit.head.family, [blob.digest]) == {blob.digest: blob.data}
        if not won:
            await catch_refusal(store.commit(commit))
        await move_on(store, commit.head)

    async def test_one_event_loop_after_another_may_use_a_store(self, store: Store) -> None:
        here = await begin(store, "here")

        async def elsewhere() -> None:
            assert await store.head(RunId("here")) == here
            await asyncio.gather(*(begin(store, f"there{number}") for number in range(5)))
            await move_on(store, here, [sample_blob(LARGE)])

        await asyncio.to_thread(asyncio.run, elsewhere())
        there, records = await read_run(store, "here")
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
            head: Head | None
            try:
                head = await begin(store, f"left{number}")
            except HeadMoved:  # it was committed, though nobody waited for it
                head, records = await read_run(store, f"left{number}")
                assert len(records) == 1
            assert head is not None
            await move_on(store, head)
        assert len(await store.records(RunId("left3"), *ANYTHING, Depth.ALL)) == 2
