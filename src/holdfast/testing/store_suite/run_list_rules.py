"""Rules of lists and counts of runs."""

from __future__ import annotations

from holdfast.checkpoint.store import Letter, Note, RunPosition, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import begin, list_run_ids, move_on
from holdfast.testing.store_suite.samples import NOON, first_commit, sample_id, sample_record


async def read_pages(store: Store, query: RunQuery) -> list[str]:
    """Return all runs of a query, read in pages of its limit."""
    assert query.limit is not None
    found: list[str] = []
    while page := await store.runs(query):
        assert len(page) <= query.limit
        found += [head.run_id for head in page]
        assert len(found) < 1000, "the pages never end"
        query = query._replace(after=query.position_of(page[-1]))
    return found


class RunListRules:
    """The rules of ``runs``: order, filters and pages."""

    async def test_an_empty_store_lists_no_runs(self, store: Store) -> None:
        assert await list_run_ids(store, RunQuery()) == []
        assert await list_run_ids(store, RunQuery(newest=True, limit=5, after=_behind("r"))) == []
        assert await store.count_runs(RunQuery()) == 0

    async def test_runs_are_listed_with_their_whole_heads(self, store: Store) -> None:
        one = await begin(
            store, "one", wake_at=3, reason="why", status=RunStatus.WAITING, waiting_for="answers"
        )
        two = await move_on(store, await begin(store, "two", created=NOON + 1))
        assert list(await store.runs(RunQuery())) == [one, two]

    async def test_runs_are_listed_oldest_first_and_then_by_id(self, store: Store) -> None:
        for run, created in (("c", 2), ("a", 10), ("d", 1), ("b", 2), ("Z", 2), ("é", 2)):
            await begin(store, run, created=created, updated=99 - created)
        assert await list_run_ids(store, RunQuery()) == ["d", "Z", "b", "c", "é", "a"]

    async def test_newest_lists_the_last_updated_first(self, store: Store) -> None:
        for run, updated in (("a", 5), ("b", 9), ("c", 1), ("d", 10)):
            await begin(store, run, updated=updated, created=NOON - updated)
        head = await store.head(RunId("c"))
        assert head is not None
        await move_on(store, head, updated=100)
        assert await list_run_ids(store, RunQuery(newest=True)) == ["c", "d", "b", "a"]
        assert await list_run_ids(store, RunQuery(newest=True, limit=2)) == ["c", "d"]

    async def test_runs_are_filtered_by_workflow(self, store: Store) -> None:
        for run, name in (("a", "One"), ("b", "Two"), ("c", "One"), ("d", "one"), ("e", "On"), ("f", "%")):
            await begin(store, run, workflow_name=name)
        assert await list_run_ids(store, RunQuery(workflow_name="One")) == ["a", "c"]
        assert await list_run_ids(store, RunQuery(workflow_name="%")) == ["f"]
        assert await list_run_ids(store, RunQuery(workflow_name="O")) == []
        assert await list_run_ids(store, RunQuery(workflow_name="")) == []

    async def test_runs_are_filtered_by_status(self, store: Store) -> None:
        for status in RunStatus:
            await begin(store, status.value, status=status)
        for status in RunStatus:
            assert await list_run_ids(store, RunQuery(statuses=frozenset({status}))) == [status.value]
        ended = frozenset(status for status in RunStatus if status.ended)
        assert await list_run_ids(store, RunQuery(statuses=ended)) == sorted(ended)
        assert await list_run_ids(store, RunQuery(statuses=frozenset())) == []

    async def test_the_status_that_counts_is_the_present_one(self, store: Store) -> None:
        await move_on(store, await begin(store, "r"), status=RunStatus.COMPLETED, workflow_name="Renamed")
        assert await list_run_ids(store, RunQuery(statuses=frozenset({RunStatus.RUNNING}))) == []
        assert await list_run_ids(store, RunQuery(statuses=frozenset({RunStatus.COMPLETED}))) == ["r"]
        assert await list_run_ids(store, RunQuery(workflow_name="Flow")) == []

    async def test_runs_are_filtered_by_when_they_moved_last(self, store: Store) -> None:
        for run, updated in (("a", NOON + 5), ("b", NOON + 9), ("c", NOON + 7), ("d", NOON + 7)):
            await begin(store, run, created=NOON, updated=updated)
        assert await list_run_ids(store, RunQuery(updated_after=NOON)) == ["a", "b", "c", "d"]
        assert await list_run_ids(store, RunQuery(updated_after=NOON + 7)) == ["b", "c", "d"]
        assert await list_run_ids(store, RunQuery(updated_after=NOON + 10)) == []
        assert await read_pages(store, RunQuery(updated_after=NOON + 7, limit=1)) == ["b", "c", "d"]

    async def test_runs_are_filtered_by_family(self, store: Store) -> None:
        for run, family in (("a", "a"), ("b", "a"), ("c", "c"), ("d", "A"), ("e", "gone"), ("f", "a")):
            await begin(store, run, family=RunId(family))
        assert await list_run_ids(store, RunQuery(family=RunId("a"))) == ["a", "b", "f"]
        assert await list_run_ids(store, RunQuery(family=RunId("gone"))) == ["e"]
        assert await list_run_ids(store, RunQuery(family=RunId("b"))) == []
        assert await list_run_ids(store, RunQuery(family=RunId("%"))) == []
        assert await read_pages(store, RunQuery(family=RunId("a"), limit=2)) == ["a", "b", "f"]

    async def test_filters_are_combined(self, store: Store) -> None:
        await begin(store, "a", workflow_name="One")
        await begin(store, "b", workflow_name="One", status=RunStatus.FAILED)
        await begin(store, "c", workflow_name="Two", status=RunStatus.FAILED)
        await begin(store, "d", workflow_name="One", status=RunStatus.FAILED)
        query = RunQuery("One", frozenset({RunStatus.FAILED}))
        assert await list_run_ids(store, query) == ["b", "d"]
        assert await list_run_ids(store, query._replace(limit=1)) == ["b"]
        assert await list_run_ids(store, query._replace(after=_behind("b"))) == ["d"]
        assert await store.count_runs(query) == 2

    async def test_limit_is_the_most_that_is_given(self, store: Store) -> None:
        for run in "abcd":
            await begin(store, run)
        for limit in (0, 1, 3, 4, 5):
            assert await list_run_ids(store, RunQuery(limit=limit)) == list("abcd")[:limit]

    async def test_limit_counts_after_the_filters(self, store: Store) -> None:
        for number in range(6):
            await begin(store, f"r{number}", workflow_name="Odd" if number % 2 else "Even")
        assert await list_run_ids(store, RunQuery(workflow_name="Odd", limit=2)) == ["r1", "r3"]

    async def test_pages_hold_every_run_once(self, store: Store) -> None:
        runs = [f"r{number:02}" for number in range(23)]
        for number, run in enumerate(runs):
            # Many are made and updated in the same microsecond.
            await begin(store, run, created=NOON + number // 7, updated=NOON + number // 5)
        newest = sorted(runs, key=lambda run: (-(int(run[1:]) // 5), run))
        for limit in (1, 4, 7, 23, 50):
            assert await read_pages(store, RunQuery(limit=limit)) == runs
            assert await read_pages(store, RunQuery(limit=limit, newest=True)) == newest

    async def test_pages_of_filtered_runs_hold_every_run_once(self, store: Store) -> None:
        for number in range(12):
            await begin(store, f"r{number:02}", workflow_name="Odd" if number % 2 else "Even", created=NOON)
        expected = [f"r{number:02}" for number in range(1, 12, 2)]
        assert await read_pages(store, RunQuery(workflow_name="Odd", limit=2)) == expected

    async def test_pages_go_on_behind_a_run_that_no_longer_matches(self, store: Store) -> None:
        for run in "abcd":
            await begin(store, run)
        head = await store.head(RunId("b"))
        assert head is not None
        await move_on(store, head, status=RunStatus.COMPLETED)
        query = RunQuery(statuses=frozenset({RunStatus.RUNNING}), after=_behind("b"))
        assert await list_run_ids(store, query) == ["c", "d"]

    async def test_pages_go_on_behind_the_last_run_with_nothing(self, store: Store) -> None:
        await begin(store, "a")
        await begin(store, "b")
        assert await list_run_ids(store, RunQuery(after=_behind("b"))) == []
        assert await list_run_ids(store, RunQuery(after=_behind("a"))) == ["b"]

    async def test_pages_behind_a_run_that_is_gone_begin_where_it_was(self, store: Store) -> None:
        for number, run in enumerate("ace"):
            await begin(store, run, updated=NOON + 10 - number)
        assert await list_run_ids(store, RunQuery(after=_behind("b"))) == ["c", "e"]
        newest = RunQuery(newest=True)
        assert await list_run_ids(store, newest._replace(after=_behind("b", NOON + 9))) == ["c", "e"]
        assert await list_run_ids(store, newest._replace(after=_behind("d", NOON + 9))) == ["e"]
        assert await list_run_ids(store, newest._replace(after=_behind("d", NOON + 20))) == ["a", "c", "e"]

    async def test_a_run_that_moves_between_pages_of_the_newest_is_listed_at_most_once(
        self, store: Store
    ) -> None:
        heads = {run: await begin(store, run, updated=NOON + 10 - ord(run)) for run in "abcdef"}
        query = RunQuery(newest=True, limit=2)
        first = await store.runs(query)
        assert [head.run_id for head in first] == ["a", "b"]
        # One that was listed, the last one of the page, and one that was to come.
        for run in "abd":
            await move_on(store, heads[run], updated=NOON + 100)
        behind = query._replace(after=query.position_of(first[-1]), limit=None)
        assert await list_run_ids(store, behind) == ["c", "e", "f"]
        assert await list_run_ids(store, query._replace(limit=4)) == ["a", "b", "d", "c"]

    async def test_newest_lists_runs_of_every_status(self, store: Store) -> None:
        statuses = list(RunStatus)
        for number, status in enumerate(statuses * 2):
            await begin(store, f"r{number:02}", status=status, updated=NOON + number % 5)
        heads = await store.runs(RunQuery())
        expected = sorted(heads, key=lambda head: (-head.updated, head.run_id))
        assert list(await store.runs(RunQuery(newest=True))) == expected
        for limit in (1, 5):
            pages = await read_pages(store, RunQuery(newest=True, limit=limit))
            assert pages == [head.run_id for head in expected]
        for some in (
            {RunStatus.RUNNING},
            {RunStatus.COMPLETED},
            {RunStatus.RUNNING, RunStatus.FAILED},
            set(),
        ):
            chosen = [head.run_id for head in expected if head.status in some]
            assert await read_pages(store, RunQuery(None, frozenset(some), 2, newest=True)) == chosen

    async def test_runs_are_filtered_by_times(self, store: Store) -> None:
        for number, run in enumerate("abcd"):
            await begin(store, run, created=NOON + number, updated=NOON + 20 - number)
        for query, expected in (
            (RunQuery(created_after=NOON + 1), ["b", "c", "d"]),
            (RunQuery(created_before=NOON + 1), ["a"]),
            (RunQuery(created_after=NOON + 1, created_before=NOON + 3), ["b", "c"]),
            (RunQuery(updated_after=NOON + 19), ["a", "b"]),
            (RunQuery(updated_before=NOON + 19), ["c", "d"]),
            (RunQuery(updated_after=NOON + 18, updated_before=NOON + 19), ["c"]),
            (RunQuery(created_after=NOON + 2, updated_before=NOON + 18), ["d"]),
            (RunQuery(created_after=0, created_before=2**62), ["a", "b", "c", "d"]),
            (RunQuery(created_before=-1), []),
        ):
            assert await list_run_ids(store, query) == expected, query
            assert await list_run_ids(store, query._replace(newest=True)) == expected, query
            assert await store.count_runs(query) == len(expected), query

    async def test_forks_are_found_by_the_run_that_they_come_from(self, store: Store) -> None:
        await begin(store, "a")
        for run, origin in (("b", "a"), ("c", "a"), ("d", "b"), ("e", "a b"), ("f", "A")):
            await begin(store, run, family=RunId("a"), origin=f"{sample_id(origin, 1)} {origin}")
        for origin, expected in (("a", ["b", "c"]), ("b", ["d"]), ("a b", ["e"]), ("A", ["f"]), ("c", [])):
            query = RunQuery(forked_from=RunId(origin))
            for family in (None, RunId("a")):
                assert await list_run_ids(store, query._replace(family=family)) == expected, origin
                assert await list_run_ids(store, query._replace(family=family, newest=True)) == expected
                assert await store.count_runs(query._replace(family=family)) == len(expected)
        head = await store.head(RunId("e"))
        assert head is not None
        assert head.origin == f"{sample_id('a b', 1)} a b"
        assert (await move_on(store, head)).origin == head.origin

    async def test_runs_are_found_by_text(self, store: Store) -> None:
        await begin(store, "Order-17", workflow_name="Refunds")
        await begin(store, "b", workflow_name="ORDERS", status=RunStatus.COMPLETED)
        await begin(store, "c", reason="no such order", status=RunStatus.FAILED)
        await begin(store, "d", status=RunStatus.WAITING)
        await store.tag(RunId("d"), 1, ["before the Order"])
        await begin(store, "e", owner="order", retention="order")
        for text in ("order", "ORDER", "oRdEr"):
            assert await list_run_ids(store, RunQuery(text=text)) == ["Order-17", "b", "c", "d"]
            assert await read_pages(store, RunQuery(text=text, limit=1)) == ["Order-17", "b", "c", "d"]
            assert await store.count_runs(RunQuery(text=text)) == 4
        assert await list_run_ids(store, RunQuery("Refunds", text="order")) == ["Order-17"]
        assert await list_run_ids(store, RunQuery(text="order", newest=True, limit=2)) == ["Order-17", "b"]
        assert await list_run_ids(store, RunQuery(text="")) == ["Order-17", "b", "c", "d", "e"]
        await store.tag(RunId("d"), 1, [])
        assert await list_run_ids(store, RunQuery(text="order")) == ["Order-17", "b", "c"]

    async def test_odd_texts_stand_for_themselves(self, store: Store) -> None:
        reasons = {
            "percent": "50% off",
            "under": "a_b",
            "star": "a*b[c]?",
            "back": "C:\\new 'quoted' \"too\"",
            "street": "Große Straße",
            "greek": "ΟΔΟΣ",
            "half": "caf\udce9 \ud83d",
            "line": "one\ntwo\x00three",
        }
        for run, reason in reasons.items():
            await begin(store, f"r-{run}", reason=reason)
        await store.tag(RunId("r-line"), 1, ["ÜBER \udcff"])
        for text, expected in (
            ("%", ["percent"]),
            ("_", ["under"]),
            ("a%b", []),
            ("*", ["star"]),
            ("[C]", ["star"]),
            ("'QUOTED'", ["back"]),
            ("\\N", ["back"]),
            ("STRASSE", ["street"]),
            ("straße", ["street"]),
            ("οδοσ", ["greek"]),
            ("\udce9", ["half"]),
            ("CAF\udce9 \ud83d", ["half"]),
            ("two\x00T", ["line"]),
            ("über \udcff", ["line"]),
            ("\udcfe", []),
        ):
            found = await list_run_ids(store, RunQuery(text=text))
            assert found == [f"r-{run}" for run in expected], text
            assert await store.count_runs(RunQuery(text=text)) == len(expected), text

    async def test_text_that_changed_is_found_as_it_is_now(self, store: Store) -> None:
        head = await begin(store, "r", reason="first", status=RunStatus.FAILED)
        assert await list_run_ids(store, RunQuery(text="first")) == ["r"]
        await move_on(store, head, reason="second", status=RunStatus.FAILED)
        await store.tag(RunId("r"), 1, ["third"])
        assert await list_run_ids(store, RunQuery(text="first")) == []
        assert await list_run_ids(store, RunQuery(text="second")) == ["r"]
        assert await list_run_ids(store, RunQuery(text="third")) == ["r"]

    async def test_values_are_not_searched(self, store: Store) -> None:
        note, letter = Note("hidden", b"hidden"), Letter("hidden", b"hidden")
        record = sample_record("r", 1)._replace(values=b"hidden", changes=b"hidden")
        commit = first_commit("r")
        await store.commit(commit._replace(records=(record,), notes=(note,), letters=(letter,)))
        assert await list_run_ids(store, RunQuery(text="hidden")) == []

    async def test_counts_are_those_of_the_lists(self, store: Store) -> None:
        for number in range(12):
            status = RunStatus.FAILED if number % 3 else RunStatus.COMPLETED
            name = "Odd" if number % 2 else "Even"
            await begin(store, f"r{number}", status=status, workflow_name=name, created=NOON + number)
        failed = frozenset({RunStatus.FAILED})
        for query, expected in (
            (RunQuery(), 12),
            (RunQuery("Odd"), 6),
            (RunQuery(statuses=failed), 8),
            (RunQuery("Odd", failed), 4),
            (RunQuery("Odd", failed, created_after=NOON + 6), 2),
            (RunQuery(statuses=frozenset()), 0),
            (RunQuery(family=RunId("r3")), 1),
            (RunQuery("Nobody"), 0),
        ):
            assert len(await store.runs(query)) == expected, query
            assert await store.count_runs(query) == expected, query
            paged = query._replace(limit=1, after=_behind("r5", NOON + 5), newest=True)
            assert await store.count_runs(paged) == expected, query


def _behind(run: str, time: int = NOON) -> RunPosition:
    return RunPosition(time, RunId(run))
