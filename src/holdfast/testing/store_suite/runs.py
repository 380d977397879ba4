"""Listing runs: order, filters and pages."""

from __future__ import annotations

from holdfast.checkpoint.store import RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import NOON, begin, move_on, names_of_runs


async def pages(store: Store, query: RunQuery) -> list[str]:
    """All runs of a query, read in pages of its limit."""
    assert query.limit is not None
    found: list[str] = []
    while page := await names_of_runs(store, query):
        assert len(page) <= query.limit
        found += page
        assert len(found) < 1000, "the pages never end"
        query = query._replace(after=RunId(page[-1]))
    return found


class Runs:
    """What ``runs`` promises."""

    async def test_an_empty_store_lists_no_runs(self, store: Store) -> None:
        assert await names_of_runs(store, RunQuery()) == []
        assert await names_of_runs(store, RunQuery(newest=True, limit=5, after=RunId("r"))) == []

    async def test_runs_are_listed_with_their_whole_heads(self, store: Store) -> None:
        one = await begin(
            store, "one", wake_at=3, reason="why", status=RunStatus.WAITING, waiting_for="answers"
        )
        two = await move_on(store, await begin(store, "two", created=NOON + 1))
        assert list(await store.runs(RunQuery())) == [one, two]

    async def test_runs_are_listed_oldest_first_and_then_by_id(self, store: Store) -> None:
        for run, created in (("c", 2), ("a", 10), ("d", 1), ("b", 2), ("Z", 2), ("é", 2)):
            await begin(store, run, created=created, updated=99 - created)
        assert await names_of_runs(store, RunQuery()) == ["d", "Z", "b", "c", "é", "a"]

    async def test_newest_lists_the_last_updated_first(self, store: Store) -> None:
        for run, updated in (("a", 5), ("b", 9), ("c", 1), ("d", 10)):
            await begin(store, run, updated=updated, created=NOON - updated)
        head = await store.head(RunId("c"))
        assert head is not None
        await move_on(store, head, updated=100)
        assert await names_of_runs(store, RunQuery(newest=True)) == ["c", "d", "b", "a"]
        assert await names_of_runs(store, RunQuery(newest=True, limit=2)) == ["c", "d"]

    async def test_runs_are_filtered_by_workflow(self, store: Store) -> None:
        for run, name in (("a", "One"), ("b", "Two"), ("c", "One"), ("d", "one"), ("e", "On"), ("f", "%")):
            await begin(store, run, workflow_name=name)
        assert await names_of_runs(store, RunQuery(workflow_name="One")) == ["a", "c"]
        assert await names_of_runs(store, RunQuery(workflow_name="%")) == ["f"]
        assert await names_of_runs(store, RunQuery(workflow_name="O")) == []
        assert await names_of_runs(store, RunQuery(workflow_name="")) == []

    async def test_runs_are_filtered_by_status(self, store: Store) -> None:
        for status in RunStatus:
            await begin(store, status.value, status=status)
        for status in RunStatus:
            assert await names_of_runs(store, RunQuery(statuses=frozenset({status}))) == [status.value]
        ended = frozenset(status for status in RunStatus if status.ended)
        assert await names_of_runs(store, RunQuery(statuses=ended)) == sorted(ended)
        assert await names_of_runs(store, RunQuery(statuses=frozenset())) == []

    async def test_the_status_that_counts_is_the_present_one(self, store: Store) -> None:
        await move_on(store, await begin(store, "r"), status=RunStatus.COMPLETED, workflow_name="Renamed")
        assert await names_of_runs(store, RunQuery(statuses=frozenset({RunStatus.RUNNING}))) == []
        assert await names_of_runs(store, RunQuery(statuses=frozenset({RunStatus.COMPLETED}))) == ["r"]
        assert await names_of_runs(store, RunQuery(workflow_name="Flow")) == []

    async def test_runs_are_filtered_by_when_they_moved_last(self, store: Store) -> None:
        for run, updated in (("a", NOON + 5), ("b", NOON + 9), ("c", NOON + 7), ("d", NOON + 7)):
            await begin(store, run, created=NOON, updated=updated)
        assert await names_of_runs(store, RunQuery(since=NOON)) == ["a", "b", "c", "d"]
        assert await names_of_runs(store, RunQuery(since=NOON + 7)) == ["b", "c", "d"]
        assert await names_of_runs(store, RunQuery(since=NOON + 10)) == []
        assert await pages(store, RunQuery(since=NOON + 7, limit=1)) == ["b", "c", "d"]

    async def test_runs_are_filtered_by_family(self, store: Store) -> None:
        for run, family in (("a", "a"), ("b", "a"), ("c", "c"), ("d", "A"), ("e", "gone"), ("f", "a")):
            await begin(store, run, family=RunId(family))
        assert await names_of_runs(store, RunQuery(family=RunId("a"))) == ["a", "b", "f"]
        assert await names_of_runs(store, RunQuery(family=RunId("gone"))) == ["e"]
        assert await names_of_runs(store, RunQuery(family=RunId("b"))) == []
        assert await names_of_runs(store, RunQuery(family=RunId("%"))) == []
        assert await pages(store, RunQuery(family=RunId("a"), limit=2)) == ["a", "b", "f"]

    async def test_filters_are_combined(self, store: Store) -> None:
        await begin(store, "a", workflow_name="One")
        await begin(store, "b", workflow_name="One", status=RunStatus.FAILED)
        await begin(store, "c", workflow_name="Two", status=RunStatus.FAILED)
        await begin(store, "d", workflow_name="One", status=RunStatus.FAILED)
        query = RunQuery("One", frozenset({RunStatus.FAILED}))
        assert await names_of_runs(store, query) == ["b", "d"]
        assert await names_of_runs(store, query._replace(limit=1)) == ["b"]
        assert await names_of_runs(store, query._replace(after=RunId("b"))) == ["d"]

    async def test_limit_is_the_most_that_is_given(self, store: Store) -> None:
        for run in "abcd":
            await begin(store, run)
        for limit in (0, 1, 3, 4, 5):
            assert await names_of_runs(store, RunQuery(limit=limit)) == list("abcd")[:limit]

    async def test_limit_counts_after_the_filters(self, store: Store) -> None:
        for number in range(6):
            await begin(store, f"r{number}", workflow_name="Odd" if number % 2 else "Even")
        assert await names_of_runs(store, RunQuery(workflow_name="Odd", limit=2)) == ["r1", "r3"]

    async def test_pages_hold_every_run_once(self, store: Store) -> None:
        runs = [f"r{number:02}" for number in range(23)]
        for number, run in enumerate(runs):
            # Many are made and updated in the same microsecond.
            await begin(store, run, created=NOON + number // 7, updated=NOON + number // 5)
        newest = sorted(runs, key=lambda run: (-(int(run[1:]) // 5), run))
        for limit in (1, 4, 7, 23, 50):
            assert await pages(store, RunQuery(limit=limit)) == runs
            assert await pages(store, RunQuery(limit=limit, newest=True)) == newest

    async def test_pages_of_filtered_runs_hold_every_run_once(self, store: Store) -> None:
        for number in range(12):
            await begin(store, f"r{number:02}", workflow_name="Odd" if number % 2 else "Even", created=NOON)
        expected = [f"r{number:02}" for number in range(1, 12, 2)]
        assert await pages(store, RunQuery(workflow_name="Odd", limit=2)) == expected

    async def test_pages_go_on_behind_a_run_that_no_longer_matches(self, store: Store) -> None:
        for run in "abcd":
            await begin(store, run)
        head = await store.head(RunId("b"))
        assert head is not None
        await move_on(store, head, status=RunStatus.COMPLETED)
        query = RunQuery(statuses=frozenset({RunStatus.RUNNING}), after=RunId("b"))
        assert await names_of_runs(store, query) == ["c", "d"]

    async def test_pages_go_on_behind_the_last_run_with_nothing(self, store: Store) -> None:
        await begin(store, "a")
        await begin(store, "b")
        assert await names_of_runs(store, RunQuery(after=RunId("b"))) == []
        assert await names_of_runs(store, RunQuery(after=RunId("a"))) == ["b"]

    async def test_pages_behind_a_run_that_is_gone_leave_out_no_later_run(self, store: Store) -> None:
        for run in "ace":
            await begin(store, run)
        # Where it would have been, or anew.
        assert await names_of_runs(store, RunQuery(after=RunId("b"))) in (["c", "e"], ["a", "c", "e"])
