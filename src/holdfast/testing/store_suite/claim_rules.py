"""Rules of ``claim``: which runs somebody should go on with, and how they are kept from others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any

from holdfast.checkpoint.ownership import Claim, this_process
from holdfast.checkpoint.store import ClaimRequest, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import Reopen, begin, begin_waiting, leave_letters, move_on
from holdfast.testing.store_suite.samples import HOUR, NOON, expect_head, staying_commit

_LEASE = 1_000
_FLOWS: Mapping[str, Set[str] | None] = {"Flow": None}


async def claim_runs(store: Store, time: int = NOON, limit: int = 1_000, **fields: Any) -> list[str]:
    """Claim runs, and return their ids; their heads stay as they are."""
    asked = ClaimRequest(this_process(), time, _LEASE, limit, _FLOWS)._replace(**fields)
    heads = await store.claim(asked)
    for head in heads:
        assert await store.head(head.run_id) == head
    return [head.run_id for head in heads]


async def begin_abandoned(store: Store, run: str, **fields: Any) -> None:
    """Begin a run that is RUNNING, and whose owner does not live."""
    await begin(store, run, **{"owner": "gone:1:1#1", **fields})


class ClaimRules:
    """The rules of ``claim`` for a store in one process."""

    async def test_what_is_due_is_claimed_once(self, store: Store) -> None:
        await store.join()
        assert await claim_runs(store) == []
        for run, time in (("later", NOON + HOUR), ("timed", NOON), ("soon", NOON - 1), ("lettered", None)):
            await begin_waiting(store, run, time)
        await leave_letters(store, "a", run="lettered")
        assert await claim_runs(store) == ["lettered", "soon", "timed"]
        assert await claim_runs(store) == []

    async def test_no_more_are_claimed_than_were_asked_for(self, store: Store) -> None:
        await store.join()
        for number in range(5):
            await begin_waiting(store, f"r{number}", NOON - 9 + number)
        await begin_abandoned(store, "s")
        assert await claim_runs(store, limit=0) == []
        assert await claim_runs(store, limit=2) == ["r0", "r1"]
        assert await claim_runs(store, limit=2) == ["r2", "r3"]
        assert await claim_runs(store, limit=2) == ["r4", "s"]
        assert await claim_runs(store, limit=2) == []

    async def test_a_claim_ends_with_its_lease(self, store: Store) -> None:
        await store.join()
        await begin_waiting(store, "r", NOON)
        assert await claim_runs(store) == ["r"]
        assert await claim_runs(store, NOON + _LEASE - 1) == []
        assert await claim_runs(store, NOON + _LEASE) == ["r"]

    async def test_a_claim_ends_when_the_run_moves(self, store: Store) -> None:
        await store.join()
        head = await begin_waiting(store, "r", NOON)
        assert await claim_runs(store) == ["r"]
        head = await move_on(store, head)
        assert await claim_runs(store) == ["r"]
        await store.commit(staying_commit(head, token=head.token + 1))
        assert await claim_runs(store) == ["r"]
        await leave_letters(store, "a")
        assert await claim_runs(store) == ["r"]
        assert await claim_runs(store) == []

    async def test_a_claim_ends_when_the_run_wakes(self, store: Store) -> None:
        """Whoever got it because of its letters may have been too early."""
        await store.join()
        await begin_waiting(store, "r", NOON + 5)
        await leave_letters(store, "a")
        assert await claim_runs(store) == ["r"]
        assert await claim_runs(store, NOON + 4) == []
        assert await claim_runs(store, NOON + 5) == ["r"]
        assert await claim_runs(store, NOON + 6) == []

    async def test_a_claim_that_is_much_longer_than_the_own_lease_is_not_believed(self, store: Store) -> None:
        await store.join()
        await begin_waiting(store, "r", NOON)
        assert await claim_runs(store, lease=HOUR) == ["r"]
        assert await claim_runs(store) == ["r"]

    async def test_a_claim_counts_for_those_who_asked_a_moment_before(self, store: Store) -> None:
        await store.join()
        await begin_waiting(store, "r", NOON - HOUR)
        assert await claim_runs(store, NOON + 9) == ["r"]
        assert await claim_runs(store, NOON) == []

    async def test_only_runs_of_a_build_that_is_at_hand_are_claimed(self, store: Store) -> None:
        await store.join()
        for build in ("", "a", "b"):
            await begin_waiting(store, f"due{build}", NOON, fingerprint=build)
            await begin_abandoned(store, f"lost{build}", fingerprint=build)
        await begin_waiting(store, "other", NOON, workflow_name="Other", fingerprint="a")
        flows = {"Flow": frozenset(["a", "c"])}
        assert await claim_runs(store, workflows=flows, fits=False, lease=0) == ["dueb", "lostb"]
        assert await claim_runs(store, workflows=_FLOWS, fits=False, lease=0) == []
        assert await claim_runs(store, workflows=flows) == ["due", "duea", "lost", "losta"]
        assert await claim_runs(store, workflows={"Flow": frozenset()}) == []
        assert await claim_runs(store, workflows={"Flow": None}) == ["dueb", "lostb"]

    async def test_runs_are_left_out_as_long_as_they_stand_where_they_stood(self, store: Store) -> None:
        await store.join()
        head = await begin_waiting(store, "r", NOON)
        await begin_waiting(store, "s", NOON)
        besides = {head.run_id: head.checkpoint_id, RunId("nobody"): head.checkpoint_id}
        assert await claim_runs(store, besides=besides) == ["s"]
        await move_on(store, head)
        assert await claim_runs(store, besides=besides) == ["r"]

    async def test_runs_of_several_workflows_come_in_one_order(self, store: Store) -> None:
        await store.join()
        for number, name in enumerate(["Flow", "Other", "Flow", "Other", "Third"]):
            await begin_waiting(store, f"r{number}", NOON - 9 + number, workflow_name=name)
        assert await claim_runs(store, workflows={}) == []
        assert await claim_runs(store, workflows={"Other": None, "Flow": None}) == ["r0", "r1", "r2", "r3"]

    async def test_a_look_claims_nothing(self, store: Store) -> None:
        await begin_waiting(store, "r", NOON)
        for _ in range(2):
            assert await claim_runs(store, lease=0) == ["r"]
        await store.join()
        assert await claim_runs(store) == ["r"]
        assert await claim_runs(store, lease=0) == ["r"]

    async def test_abandoned_runs_come_last_and_the_oldest_first(self, store: Store) -> None:
        await store.join()
        await begin_abandoned(store, "b", created=NOON - 5)
        await begin_abandoned(store, "a", created=NOON - 4)
        await begin_abandoned(store, "c", created=NOON - 5)
        await begin_waiting(store, "r", NOON)
        assert await claim_runs(store, lease=0, abandoned=False) == ["r"]
        assert await claim_runs(store) == ["r", "b", "c", "a"]
        assert await claim_runs(store) == []

    async def test_a_run_that_is_held_in_this_process_is_not_abandoned(self, store: Store) -> None:
        await store.join()
        held, other = Claim(), Claim()
        await begin(store, "r", owner=held.name)
        await begin(store, "s", owner=other.name)
        assert await claim_runs(store, lease=0) == []
        held.release()
        assert await claim_runs(store) == ["r"]
        other.release()
        assert await claim_runs(store) == ["s"]

    async def test_no_two_get_the_same_run(self, store: Store) -> None:
        await store.join()
        names = [f"r{number:02d}" for number in range(40)]
        for name in names:
            await begin_waiting(store, name, NOON)
        claimed = await asyncio.gather(*(claim_runs(store, limit=7) for _ in range(8)))
        assert sorted(run for one in claimed for run in one) == names

    async def test_a_run_that_was_removed_is_claimed_no_more(self, store: Store) -> None:
        await store.join()
        head = await begin_waiting(store, "r", NOON)
        assert await claim_runs(store) == ["r"]
        await store.remove_run(RunId("r"), expect_head(head))
        assert await claim_runs(store, NOON + HOUR) == []
        head = await begin_waiting(store, "r", NOON)
        assert await claim_runs(store) == ["r"]
        assert (await move_on(store, head, status=RunStatus.COMPLETED, wake_at=None)).seq == 2
        assert await claim_runs(store) == []


class DurableClaimRules:
    """The rules of ``claim`` for several objects of one store."""

    async def test_another_object_heeds_claims(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        await store.join()
        for number in range(3):
            await begin_waiting(store, f"r{number}", NOON)
        assert await claim_runs(store, limit=1) == ["r0"]
        assert await claim_runs(other, limit=1) == ["r1"]
        assert await claim_runs(store) == ["r2"]
        assert await claim_runs(other) == []

    async def test_claims_are_apart_in_namespaces(self, store: Store, reopen: Reopen) -> None:
        tenant = await reopen("tenant")
        await store.join()
        await begin_waiting(store, "r", NOON)
        await begin_abandoned(tenant, "r")
        assert await claim_runs(store) == ["r"]
        assert await claim_runs(tenant) == ["r"]
        assert await claim_runs(store) == await claim_runs(tenant) == []
