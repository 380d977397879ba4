"""Rules of events: the rows that commits leave for those who watch a run."""

from __future__ import annotations

from holdfast.checkpoint.store import Commit, EventRow, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import Reopen, begin, begin_with_records, catch_refusal, move_on
from holdfast.testing.store_suite.samples import (
    EVERY_BYTE,
    LARGE,
    expect_head,
    first_commit,
    make_removal,
    next_commit,
    rival_commit,
    sample_head,
    sample_record,
    staying_commit,
)


async def read_events(store: Store, run: str = "r", first: int = 0, limit: int = 1_000) -> list[EventRow]:
    """Return the rows of events of a run."""
    return list(await store.events(RunId(run), first, limit))


def rows_of(*seqs: int, part: str = "") -> tuple[EventRow, ...]:
    """Return a row of events for each seq."""
    return tuple(EventRow(seq, f"events of {seq}{part}".encode()) for seq in seqs)


async def begin_with_events(store: Store, records: int = 4, run: str = "r") -> None:
    """Make a run whose checkpoints have events, one row each."""
    commit = first_commit(run)._replace(events=rows_of(1))
    await store.commit(commit)
    for seq in range(2, records + 1):
        commit = next_commit(commit.head)._replace(events=rows_of(seq))
        await store.commit(commit)


class EventRules:
    """The rules of ``events``, and of other methods for events."""

    async def test_a_run_without_events_has_none(self, store: Store) -> None:
        assert await read_events(store) == []
        head = await begin(store, "r")
        await move_on(store, head)
        assert await read_events(store) == []

    async def test_events_are_read_as_they_were_committed(self, store: Store) -> None:
        first = first_commit("r")._replace(events=(EventRow(1, EVERY_BYTE),))
        await store.commit(first)
        second = next_commit(first.head)._replace(events=(EventRow(2, LARGE),))
        await store.commit(second)
        await begin_with_events(store, 2, run="other")
        assert await read_events(store) == [EventRow(1, EVERY_BYTE), EventRow(2, LARGE)]

    async def test_a_change_of_the_head_has_events_of_its_own(self, store: Store) -> None:
        commit = first_commit("r")._replace(events=rows_of(1))
        await store.commit(commit)
        for number, status in enumerate((RunStatus.WAITING, RunStatus.RUNNING, RunStatus.FAILED)):
            commit = staying_commit(commit.head, status=status)._replace(events=rows_of(1, part=str(number)))
            await store.commit(commit)
        await store.commit(next_commit(commit.head)._replace(events=rows_of(2)))
        parts = [row for number in range(3) for row in rows_of(1, part=str(number))]
        assert await read_events(store) == [*rows_of(1), *parts, *rows_of(2)]

    async def test_a_page_of_events_begins_at_a_seq_and_cuts_none(self, store: Store) -> None:
        await begin_with_events(store, 3)
        head = await store.head(RunId("r"))
        assert head is not None
        for part in "ab":
            await store.commit(staying_commit(head)._replace(events=rows_of(3, part=part)))
        all_of_3 = [*rows_of(3), *rows_of(3, part="a"), *rows_of(3, part="b")]
        assert await read_events(store, first=2) == [*rows_of(2), *all_of_3]
        assert await read_events(store, first=4) == []
        assert await read_events(store, limit=2) == [*rows_of(1, 2)]
        for limit in (1, 2, 3):
            assert await read_events(store, first=3, limit=limit) == all_of_3
        assert await read_events(store, first=2, limit=2) == [*rows_of(2), *all_of_3]

    async def test_nothing_of_a_refused_commit_is_told(self, store: Store) -> None:
        await begin_with_events(store, 2)
        rival = rival_commit(sample_head("r", 1), "rival")
        await catch_refusal(store.commit(rival._replace(events=rows_of(2, part="rival"), events_from=9)))
        assert await read_events(store) == [*rows_of(1, 2)]

    async def test_events_outlive_their_checkpoints(self, store: Store) -> None:
        await begin_with_events(store, 4)
        head = await store.head(RunId("r"))
        assert head is not None
        assert await store.remove(make_removal(head, [1, 2, 3]))
        assert await read_events(store) == [*rows_of(1, 2, 3, 4)]
        await store.commit(next_commit(head)._replace(events=rows_of(5)))
        assert await read_events(store, first=3) == [*rows_of(3, 4, 5)]

    async def test_events_of_a_head_stay_behind_those_of_its_removed_checkpoint(self, store: Store) -> None:
        await begin_with_events(store, 2)
        head = await store.head(RunId("r"))
        assert head is not None
        await store.commit(staying_commit(head)._replace(events=rows_of(2, part="later")))
        moved = next_commit(head)._replace(events=rows_of(3))
        await store.commit(moved)
        assert await store.remove(make_removal(moved.head, [1, 2]))
        assert await read_events(store) == [*rows_of(1, 2), *rows_of(2, part="later"), *rows_of(3)]

    async def test_events_before_a_seq_go_when_a_commit_says_so(self, store: Store) -> None:
        await begin_with_events(store, 4)
        await begin_with_events(store, 4, run="other")
        head = await store.head(RunId("r"))
        assert head is not None
        assert await store.remove(make_removal(head, [2]))
        commit = next_commit(head)._replace(events=rows_of(5), events_from=4)
        await store.commit(commit)
        assert await read_events(store) == [*rows_of(4, 5)]
        await store.commit(staying_commit(commit.head)._replace(events_from=5))
        assert await read_events(store) == [*rows_of(5)]
        assert await read_events(store, "other") == [*rows_of(1, 2, 3, 4)]

    async def test_the_events_of_a_removed_run_are_gone(self, store: Store) -> None:
        await begin_with_events(store, 2)
        head = await store.head(RunId("r"))
        assert head is not None
        await store.commit(staying_commit(head)._replace(events=rows_of(2, part="b")))
        await store.remove_run(RunId("r"), expect_head(head))
        assert await read_events(store) == []
        await begin(store, "r")
        assert await read_events(store) == []

    async def test_a_replaced_run_keeps_its_events_up_to_its_head(self, store: Store) -> None:
        await begin_with_events(store, 4)
        head = await store.head(RunId("r"))
        assert head is not None
        await store.commit(staying_commit(head)._replace(events=rows_of(4, part="b")))
        left = sample_head("r", 3, token=head.token + 1)
        await store.replace(Commit(left, expect_head(head), (sample_record("r", 3),)))
        assert await read_events(store) == [*rows_of(1, 2, 3)]
        await store.commit(next_commit(left)._replace(events=rows_of(4, part="anew")))
        assert await read_events(store) == [*rows_of(1, 2, 3), *rows_of(4, part="anew")]

    async def test_a_run_that_comes_whole_brings_its_events(self, store: Store) -> None:
        records = tuple(sample_record("r", seq) for seq in range(5, 40))
        rows = [*rows_of(2), *rows_of(2, part="b"), *rows_of(*range(5, 40)), *rows_of(39, part="b")]
        await store.commit(Commit(sample_head("r", 39), None, records, events=tuple(rows)))
        assert await read_events(store) == rows


class DurableEventRules:
    """The rules of events that need a second store object to check."""

    async def test_another_object_sees_events(self, store: Store, reopen: Reopen) -> None:
        await begin_with_events(store, 3)
        other = await reopen()
        assert await read_events(other) == [*rows_of(1, 2, 3)]
        head = await store.head(RunId("r"))
        assert head is not None
        await store.commit(staying_commit(head)._replace(events=rows_of(3, part="b"), events_from=2))
        assert await read_events(other) == [*rows_of(2, 3), *rows_of(3, part="b")]
        assert await store.remove(make_removal(head, [1, 2]))
        await store.close()
        assert await read_events(await reopen()) == [*rows_of(2, 3), *rows_of(3, part="b")]

    async def test_another_namespace_sees_no_events(self, store: Store, reopen: Reopen) -> None:
        await begin_with_events(store, 2)
        other = await reopen("other")
        await begin_with_records(other, "r", 1)
        assert await read_events(other) == []
