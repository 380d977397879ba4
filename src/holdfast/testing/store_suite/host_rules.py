"""Rules that hosts rely on: which runs are due, and which processes live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Commit, Store
from holdfast.engine.status import RunStatus
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    Reopen,
    begin,
    begin_waiting,
    catch_refusal,
    leave_letters,
    list_due,
    lives,
    move_on,
)
from holdfast.testing.store_suite.samples import (
    GREATEST,
    HOUR,
    NOON,
    ODD_IDS,
    expect_head,
    first_commit,
    rival_commit,
    sample_head,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class PresenceRules:
    """The rules of ``join`` and ``living``, and of a closed store."""

    async def test_a_process_that_joined_lives(self, store: Store) -> None:
        await store.join()
        assert await lives(store, this_process()) is True
        await begin(store, "r")
        assert await lives(store, this_process()) is True

    async def test_a_process_may_join_twice(self, store: Store) -> None:
        await store.join()
        await store.join()
        assert await lives(store, this_process()) is True

    async def test_a_process_that_did_not_join_does_not_live(self, store: Store) -> None:
        assert await lives(store, this_process()) is False
        await begin(store, "r", owner=this_process())
        assert await lives(store, this_process()) is False

    async def test_a_process_that_is_made_up_does_not_live(self, store: Store) -> None:
        await store.join()
        there = this_process()
        for name in (
            *("", "nobody", there[:-1], f"{there}0", f" {there}", "..", "a/b", "%", "*"),
            *("host:1", "host:1:1", "häst 😀:1:2", "\x00", "\udc80", "x" * 1000, "\n"),
        ):
            assert await lives(store, name) is False, name

    async def test_many_processes_are_asked_for_at_once(self, store: Store) -> None:
        made_up = [f"host:{number}:1" for number in range(300)]
        assert await store.living([*made_up, this_process()]) == set()
        await store.join()
        assert await store.living([*made_up, this_process(), *made_up]) == {this_process()}
        assert await store.living(made_up) == await store.living([]) == set()

    async def test_a_closed_store_refuses_to_be_used(self, store: Store) -> None:
        await begin(store, "r")
        await store.join()
        await store.close()
        run = RunId("r")
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: store.commit(first_commit("s")._replace(notes=sample_notes("a"))),
            lambda: store.notes(run),
            lambda: store.leave(run, 1, sample_letters("a")),
            lambda: store.inbox(run),
            store.join,
            lambda: store.living([this_process()]),
        ]
        for number, use in enumerate(uses):
            try:
                await use()
            except StorageError:
                continue
            raise AssertionError(f"a store that is closed was used: {number}")


class WakeRules:
    """The rules of ``claim`` for runs that are due: which resting runs have something to do."""

    async def test_a_run_is_due_when_its_time_has_come(self, store: Store) -> None:
        assert await list_due(store) == []
        await begin_waiting(store, "r", NOON)
        assert await list_due(store, NOON - 1) == []
        for time in (NOON, NOON + 1, GREATEST):
            assert await list_due(store, time) == ["r"]
        assert await list_due(store, NOON) == ["r"]  # asking changes nothing

    async def test_a_run_that_waits_for_ever_is_not_due(self, store: Store) -> None:
        await begin_waiting(store, "r")
        assert await list_due(store, GREATEST) == []

    async def test_runs_that_rest_are_due(self, store: Store) -> None:
        """Those that have letters, whatever their status; of the others only those that wait for a time."""
        for status in RunStatus:
            await begin(store, status.value, status=status, wake_at=NOON)
            await begin(store, f"{status.value} with a letter", status=status)
            await leave_letters(store, "a", run=f"{status.value} with a letter")
        resting = sorted(status.value for status in RunStatus if status is not RunStatus.RUNNING)
        assert await list_due(store) == [*(f"{status} with a letter" for status in resting), "waiting"]

    async def test_letters_that_are_known_make_no_run_due(self, store: Store) -> None:
        """Only more of them than the head says do."""
        heads = {}
        for status in (RunStatus.FAILED, RunStatus.WAITING):
            heads[status] = await begin(store, status.value, status=status)
            await leave_letters(store, "a", "b", run=status.value)
            heads[status] = await move_on(store, heads[status], status=status, letters_known=2)
        assert await list_due(store) == []
        await leave_letters(store, "c", run="failed")
        assert await list_due(store) == ["failed"]
        await move_on(store, heads[RunStatus.WAITING], status=RunStatus.WAITING, letters_known=0)
        assert await list_due(store) == ["failed", "waiting"]

    async def test_only_runs_of_the_workflow_are_due(self, store: Store) -> None:
        for name in ("Flow", "flow", "Flow ", "Flow2", "", "%"):
            await begin_waiting(store, f"r{name}", NOON, workflow_name=name)
            await begin_waiting(store, f"s{name}", workflow_name=name)
            await leave_letters(store, "a", run=f"s{name}")
        for name in ("Flow", "flow", "Flow ", "Flow2", "", "%"):
            assert await list_due(store, workflow=name) == [f"s{name}", f"r{name}"]
        assert await list_due(store, workflow="Other") == []

    async def test_the_soonest_is_told_first(self, store: Store) -> None:
        times = [NOON + 9, NOON + 10, 7, 100, NOON, 0, NOON - HOUR]
        for number, time in enumerate(times):
            await begin_waiting(store, f"r{number}", time)
        expected = [f"r{times.index(time)}" for time in sorted(times)]
        assert await list_due(store, GREATEST) == expected
        assert await list_due(store) == expected[:5]

    async def test_of_those_with_the_same_time_the_id_decides(self, store: Store) -> None:
        for run in ("b", "B", "a", "\u00e9", "c", "ab", "..", "😀"):
            await begin_waiting(store, run, NOON)
        assert await list_due(store) == sorted(["b", "B", "a", "\u00e9", "c", "ab", "..", "😀"])

    async def test_those_with_letters_come_first(self, store: Store) -> None:
        for run, time in (("e", 5), ("d", None), ("c", NOON + HOUR), ("b", 3), ("a", None), ("f", 4)):
            await begin_waiting(store, run, time)
        for run in ("e", "d", "c"):
            await leave_letters(store, "x", "y", run=run)
        assert await list_due(store) == ["c", "d", "e", "b", "f"]

    async def test_no_more_are_told_than_were_asked_for(self, store: Store) -> None:
        for number in range(6):
            await begin_waiting(store, f"r{number}", NOON - number)
            await begin_waiting(store, f"other{number}", 0, workflow_name="Other")
        await begin_waiting(store, "later", NOON + 1)
        for run in ("r1", "r0", "later"):
            await leave_letters(store, "a", run=run)
        expected = ["later", "r0", "r1", "r5", "r4", "r3", "r2"]
        for limit in (1, 2, 3, 4, 6, 7, 8, 100):
            assert await list_due(store, limit=limit) == expected[:limit]

    async def test_a_letter_counts_until_it_is_taken(self, store: Store) -> None:
        head = await begin_waiting(store, "r", NOON + HOUR)
        await leave_letters(store, "a", "b")
        assert await list_due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["a"]))
        assert await list_due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["b"]))
        assert await list_due(store) == []
        assert await list_due(store, NOON + HOUR) == ["r"]
        await leave_letters(store, "a")  # refused, it was taken
        assert await list_due(store) == []

    async def test_a_run_that_comes_to_wait_with_letters_is_due(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "a")
        assert await list_due(store) == []
        head = await move_on(store, head, status=RunStatus.WAITING)
        assert await list_due(store) == ["r"]
        head = await move_on(store, head, status=RunStatus.RUNNING)
        assert await list_due(store) == []
        await store.commit(staying_commit(head, status=RunStatus.WAITING))
        assert await list_due(store) == ["r"]

    async def test_a_run_that_moves_on_is_due_when_it_says_so_last(self, store: Store) -> None:
        head = await begin_waiting(store, "r", NOON)
        assert await list_due(store) == ["r"]
        head = await move_on(store, head, status=RunStatus.RUNNING, wake_at=None)
        assert await list_due(store, GREATEST) == []
        head = await move_on(store, head, status=RunStatus.WAITING, wake_at=NOON + HOUR)
        assert await list_due(store) == []
        assert await list_due(store, NOON + HOUR) == ["r"]
        await store.commit(staying_commit(head, wake_at=NOON - HOUR))
        assert await list_due(store) == ["r"]
        await store.commit(staying_commit(head, wake_at=None))
        assert await list_due(store, GREATEST) == []
        await store.commit(staying_commit(head, wake_at=NOON))
        assert await list_due(store) == ["r"]
        await store.commit(staying_commit(head, status=RunStatus.CANCELLED, wake_at=None))
        assert await list_due(store, GREATEST) == []

    async def test_a_refused_commit_wakes_nobody(self, store: Store) -> None:
        head = await begin_waiting(store, "r", NOON + HOUR)
        ahead = await move_on(store, head)
        late = rival_commit(head, "late")
        await catch_refusal(store.commit(late._replace(head=late.head._replace(wake_at=NOON))))
        assert await list_due(store) == []
        assert await list_due(store, NOON + HOUR) == ["r"]
        assert await store.head(RunId("r")) == ahead

    async def test_a_run_that_was_removed_is_not_due(self, store: Store) -> None:
        head = await begin_waiting(store, "r", NOON)
        await leave_letters(store, "a")
        await store.remove_run(RunId("r"), expect_head(head))
        assert await list_due(store, GREATEST) == []
        await begin_waiting(store, "r", NOON + HOUR)
        assert await list_due(store) == []
        assert await list_due(store, NOON + HOUR) == ["r"]

    async def test_a_run_that_comes_whole_is_due(self, store: Store) -> None:
        for run, time, letters in (("r", NOON, ()), ("s", None, ("a",)), ("t", NOON + HOUR, ("a",))):
            records = tuple(sample_record(run, seq) for seq in range(1, 40))
            head = sample_head(run, 39, status=RunStatus.WAITING, owner="", wake_at=time)
            await store.commit(Commit(head, None, records, letters=sample_letters(*letters)))
        await store.commit(Commit(sample_head("u"), None, (sample_record("u", 1),)))
        assert await list_due(store) == ["s", "t", "r"]

    async def test_odd_ids_are_due(self, store: Store) -> None:
        ids = ODD_IDS[:40]
        for number, run in enumerate(ids):
            await begin_waiting(store, run, NOON if number % 2 else None)
            if not number % 2:
                await leave_letters(store, "a", run=run)
        assert await list_due(store) == sorted(ids[::2]) + sorted(ids[1::2])

    async def test_what_is_due_is_told_while_runs_come_to_wait(self, store: Store) -> None:
        """A run that waited before the query is in its answer, whatever is written meanwhile."""
        waiting: set[str] = set()
        done = False

        async def write(name: str) -> None:
            for number in range(8):
                head = await begin(store, f"{name}{number}")
                await move_on(store, head, status=RunStatus.WAITING, wake_at=number)
                waiting.add(f"{name}{number}")

        async def ask() -> None:
            while not done:
                before = set(waiting)
                assert before <= set(await list_due(store))
                await asyncio.sleep(0)

        asking = asyncio.ensure_future(ask())
        await asyncio.gather(*(write(name) for name in "abc"))
        done = True
        await asking
        assert len(await list_due(store)) == 24


class DurableWakeRules:
    """The rules of ``claim`` for runs that are due, which need a second store object to check."""

    async def test_another_object_sees_what_is_due(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        assert await list_due(other) == []
        head = await begin_waiting(store, "r", NOON)
        assert await list_due(other) == ["r"]
        head = await move_on(other, head, wake_at=NOON + HOUR)
        assert await list_due(store) == []
        await leave_letters(other, "a")
        assert await list_due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["a"]))
        assert await list_due(other) == []
        assert await list_due(other, NOON + HOUR) == ["r"]
        await other.remove_run(RunId("r"), expect_head(head))
        assert await list_due(store, GREATEST) == []

    async def test_what_is_due_is_due_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await begin_waiting(store, "timed", NOON)
        await begin_waiting(store, "later", NOON + HOUR)
        await begin_waiting(store, "lettered")
        await leave_letters(store, "a", run="lettered")
        await begin_waiting(store, "neither")
        await store.close()
        other = await reopen()
        assert await list_due(other) == ["lettered", "timed"]
        assert await list_due(other, NOON + HOUR) == ["lettered", "timed", "later"]

    async def test_what_is_due_is_apart_in_namespaces(self, store: Store, reopen: Reopen) -> None:
        await begin_waiting(store, "r", NOON)
        await begin_waiting(store, "s")
        await leave_letters(store, "a", run="s")
        for name in ("other", "Other", ".."):
            other = await reopen(name)
            assert await list_due(other) == []
            await begin_waiting(other, "r", NOON + 1)
            await begin_waiting(other, "t", NOON)
            assert await list_due(other, NOON + 1) == ["t", "r"]
        assert await list_due(store, GREATEST) == ["s", "r"]
