"""Which runs have something to do: the promises of ``due``."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.checkpoint.store import Commit, Head, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.durable import Reopen
from holdfast.testing.store_suite.inbox import leave
from holdfast.testing.store_suite.removal import place_of
from holdfast.testing.store_suite.samples import (
    GREATEST,
    NOON,
    ODD_IDS,
    begin,
    move_on,
    refusal,
    rival_commit,
    sample_head,
    sample_letters,
    sample_record,
    staying_commit,
)

HOUR = 3_600_000_000


async def waits(store: Store, run: str, wake_at: int | None = None, **fields: Any) -> Head:
    """Begin a run that waits, until ``wake_at`` if it has one."""
    return await begin(store, run, status=RunStatus.WAITING, owner="", wake_at=wake_at, **fields)


async def due(store: Store, time: int = NOON, limit: int = 1_000, workflow: str = "Flow") -> list[str]:
    """The runs that have something to do, in the order in which they are told."""
    heads = await store.due(workflow, time, limit)
    for head in heads:
        assert await store.head(head.run_id) == head
    return [head.run_id for head in heads]


class Waking:
    """What every store promises of the runs that wait."""

    async def test_a_run_is_due_when_its_time_has_come(self, store: Store) -> None:
        assert await due(store) == []
        await waits(store, "r", NOON)
        assert await due(store, NOON - 1) == []
        assert await due(store, NOON) == await due(store, NOON + 1) == await due(store, GREATEST) == ["r"]
        assert await due(store, NOON) == ["r"]  # asking changes nothing

    async def test_a_run_that_waits_for_ever_is_not_due(self, store: Store) -> None:
        await waits(store, "r")
        assert await due(store, GREATEST) == []

    async def test_only_runs_that_wait_are_due(self, store: Store) -> None:
        for status in RunStatus:
            await begin(store, status.value, status=status, wake_at=NOON)
            await begin(store, f"{status.value} with a letter", status=status)
            await leave(store, "a", run=f"{status.value} with a letter")
        assert await due(store) == ["waiting with a letter", "waiting"]

    async def test_only_runs_of_the_workflow_are_due(self, store: Store) -> None:
        for name in ("Flow", "flow", "Flow ", "Flow2", "", "%"):
            await waits(store, f"r{name}", NOON, workflow_name=name)
            await waits(store, f"s{name}", workflow_name=name)
            await leave(store, "a", run=f"s{name}")
        for name in ("Flow", "flow", "Flow ", "Flow2", "", "%"):
            assert await due(store, workflow=name) == [f"s{name}", f"r{name}"]
        assert await due(store, workflow="Other") == []

    async def test_the_soonest_is_told_first(self, store: Store) -> None:
        times = [NOON + 9, NOON + 10, 7, 100, NOON, 0, NOON - HOUR]
        for number, time in enumerate(times):
            await waits(store, f"r{number}", time)
        expected = [f"r{times.index(time)}" for time in sorted(times)]
        assert await due(store, GREATEST) == expected
        assert await due(store) == expected[:5]

    async def test_of_those_with_the_same_time_the_id_decides(self, store: Store) -> None:
        for run in ("b", "B", "a", "\u00e9", "c", "ab", "..", "😀"):
            await waits(store, run, NOON)
        assert await due(store) == sorted(["b", "B", "a", "\u00e9", "c", "ab", "..", "😀"])

    async def test_those_with_letters_come_first(self, store: Store) -> None:
        for run, time in (("e", 5), ("d", None), ("c", NOON + HOUR), ("b", 3), ("a", None), ("f", 4)):
            await waits(store, run, time)
        for run in ("e", "d", "c"):
            await leave(store, "x", "y", run=run)
        assert await due(store) == ["c", "d", "e", "b", "f"]

    async def test_no_more_are_told_than_were_asked_for(self, store: Store) -> None:
        for number in range(6):
            await waits(store, f"r{number}", NOON - number)
            await waits(store, f"other{number}", 0, workflow_name="Other")
        await waits(store, "later", NOON + 1)
        for run in ("r1", "r0", "later"):
            await leave(store, "a", run=run)
        expected = ["later", "r0", "r1", "r5", "r4", "r3", "r2"]
        for limit in (1, 2, 3, 4, 6, 7, 8, 100):
            assert await due(store, limit=limit) == expected[:limit]

    async def test_a_letter_counts_until_it_is_taken(self, store: Store) -> None:
        head = await waits(store, "r", NOON + HOUR)
        await leave(store, "a", "b")
        assert await due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["a"]))
        assert await due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["b"]))
        assert await due(store) == []
        assert await due(store, NOON + HOUR) == ["r"]
        await leave(store, "a")  # refused, it was taken
        assert await due(store) == []

    async def test_a_run_that_comes_to_wait_with_letters_is_due(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "a")
        assert await due(store) == []
        head = await move_on(store, head, status=RunStatus.WAITING)
        assert await due(store) == ["r"]
        head = await move_on(store, head, status=RunStatus.RUNNING)
        assert await due(store) == []
        await store.commit(staying_commit(head, status=RunStatus.WAITING))
        assert await due(store) == ["r"]

    async def test_a_run_that_moves_on_is_due_when_it_says_so_last(self, store: Store) -> None:
        head = await waits(store, "r", NOON)
        assert await due(store) == ["r"]
        head = await move_on(store, head, status=RunStatus.RUNNING, wake_at=None)
        assert await due(store, GREATEST) == []
        head = await move_on(store, head, status=RunStatus.WAITING, wake_at=NOON + HOUR)
        assert await due(store) == []
        assert await due(store, NOON + HOUR) == ["r"]
        await store.commit(staying_commit(head, wake_at=NOON - HOUR))
        assert await due(store) == ["r"]
        await store.commit(staying_commit(head, wake_at=None))
        assert await due(store, GREATEST) == []
        await store.commit(staying_commit(head, wake_at=NOON))
        assert await due(store) == ["r"]
        await store.commit(staying_commit(head, status=RunStatus.CANCELLED, wake_at=None))
        assert await due(store, GREATEST) == []

    async def test_a_refused_commit_wakes_nobody(self, store: Store) -> None:
        head = await waits(store, "r", NOON + HOUR)
        ahead = await move_on(store, head)
        late = rival_commit(head, "late")
        await refusal(store.commit(late._replace(head=late.head._replace(wake_at=NOON))))
        assert await due(store) == []
        assert await due(store, NOON + HOUR) == ["r"]
        assert await store.head(RunId("r")) == ahead

    async def test_a_run_that_was_removed_is_not_due(self, store: Store) -> None:
        head = await waits(store, "r", NOON)
        await leave(store, "a")
        await store.remove_run(RunId("r"), place_of(head))
        assert await due(store, GREATEST) == []
        await waits(store, "r", NOON + HOUR)
        assert await due(store) == []
        assert await due(store, NOON + HOUR) == ["r"]

    async def test_a_run_that_comes_whole_is_due(self, store: Store) -> None:
        for run, time, letters in (("r", NOON, ()), ("s", None, ("a",)), ("t", NOON + HOUR, ("a",))):
            records = tuple(sample_record(run, seq) for seq in range(1, 40))
            head = sample_head(run, 39, status=RunStatus.WAITING, owner="", wake_at=time)
            await store.commit(Commit(head, None, records, letters=sample_letters(*letters)))
        await store.commit(Commit(sample_head("u"), None, (sample_record("u", 1),)))
        assert await due(store) == ["s", "t", "r"]

    async def test_odd_ids_are_due(self, store: Store) -> None:
        ids = ODD_IDS[:40]
        for number, run in enumerate(ids):
            await waits(store, run, NOON if number % 2 else None)
            if not number % 2:
                await leave(store, "a", run=run)
        assert await due(store) == sorted(ids[::2]) + sorted(ids[1::2])

    async def test_what_is_due_is_told_while_runs_come_to_wait(self, store: Store) -> None:
        """Whatever else is written: a run that waited before the question is in the answer."""
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
                assert before <= set(await due(store))
                await asyncio.sleep(0)

        asking = asyncio.ensure_future(ask())
        await asyncio.gather(*(write(name) for name in "abc"))
        done = True
        await asking
        assert len(await due(store)) == 24


class KeptWaking:
    """What takes a second store object to check."""

    async def test_another_object_sees_what_is_due(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        assert await due(other) == []
        head = await waits(store, "r", NOON)
        assert await due(other) == ["r"]
        head = await move_on(other, head, wake_at=NOON + HOUR)
        assert await due(store) == []
        await leave(other, "a")
        assert await due(store) == ["r"]
        await store.commit(staying_commit(head, taken=["a"]))
        assert await due(other) == []
        assert await due(other, NOON + HOUR) == ["r"]
        await other.remove_run(RunId("r"), place_of(head))
        assert await due(store, GREATEST) == []

    async def test_what_is_due_is_due_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await waits(store, "timed", NOON)
        await waits(store, "later", NOON + HOUR)
        await waits(store, "lettered")
        await leave(store, "a", run="lettered")
        await waits(store, "neither")
        await store.close()
        other = await reopen()
        assert await due(other) == ["lettered", "timed"]
        assert await due(other, NOON + HOUR) == ["lettered", "timed", "later"]

    async def test_what_is_due_is_apart_in_namespaces(self, store: Store, reopen: Reopen) -> None:
        await waits(store, "r", NOON)
        await waits(store, "s")
        await leave(store, "a", run="s")
        for name in ("other", "Other", ".."):
            other = await reopen(name)
            assert await due(other) == []
            await waits(other, "r", NOON + 1)
            await waits(other, "t", NOON)
            assert await due(other, NOON + 1) == ["t", "r"]
        assert await due(store, GREATEST) == ["s", "r"]
