"""Stores with bugs that show when runs are claimed, for the conformance suite to catch."""

import asyncio
from collections.abc import Sequence

from holdfast.checkpoint.store import ClaimRequest, Commit, Expected, Head, KnownMarks, Letter
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.stores.planted_durable import Kept


class ClaimsNothing(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = await super().claim(request)
        self._claims.clear()
        return found


class ClaimsOneTooMany(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await super().claim(request._replace(limit=request.limit + 1))


class ClaimsForEver(MemoryStore):
    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        claim = self._claims.get(head.run_id)
        return claim is not None and claim.checkpoint_id == head.checkpoint_id


class ClaimsRunsAndNotWhereTheyStand(MemoryStore):
    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        claim = self._claims.get(head.run_id)
        return claim is not None and request.time < claim.until


class IgnoresLettersThatCameSince(MemoryStore):
    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        claim = self._claims.get(head.run_id)
        return claim is not None and claim.holds(head, claim.letters, request)


class SleepsOnWhenClaimed(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = await super().claim(request)
        for run, claim in self._claims.items():
            if claim.until < request.time + request.lease:
                self._claims[run] = claim._replace(until=request.time + request.lease)
        return found


class BelievesAnyLease(MemoryStore):
    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        return super()._is_claimed(head, request._replace(lease=1 << 60))


class BelievesNoLeaseButItsOwn(MemoryStore):
    def _is_claimed(self, head: Head, request: ClaimRequest) -> bool:
        claim = self._claims.get(head.run_id)
        end = request.time + request.lease
        return super()._is_claimed(head, request) and claim is not None and claim.until <= end


class IgnoresBuilds(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await super().claim(request._replace(workflows=dict.fromkeys(request.workflows), fits=True))


class KnowsEveryBuildOrNone(MemoryStore):
    """Takes a fingerprint that is not known for one that does not fit."""

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = await super().claim(request)
        strict = all(builds is not None for builds in request.workflows.values())
        return [head for head in found if head.fingerprint or not strict]


class LeavesNothingOut(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await super().claim(request._replace(besides={}))


class OneWorkflowAfterTheOther(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        parts = [{name: builds} for name, builds in request.workflows.items()]
        found = [await super(type(self), self).claim(request._replace(workflows=part)) for part in parts]
        return [head for part in found for head in part][: request.limit]


class ClaimsWhenItLooks(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await super().claim(request._replace(lease=request.lease or 1_000))


class AbandonedFirst(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = await super().claim(request)
        return sorted(found, key=lambda head: head.wake_at is not None)


class AlwaysRescues(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await super().claim(request._replace(abandoned=True))


class TakesOwnersOfThisProcessForDead(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = list(await super().claim(request))
        running = [head for head in self._heads.values() if head.status == "running" and head not in found]
        return found + running if request.abandoned else found


class ClaimsAfterItFound(MemoryStore):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = await super().claim(request._replace(lease=0))
        await asyncio.sleep(0)
        await super().claim(request)
        return found


class KeepsClaimsOfRemovedRuns(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        claims = dict(self._claims)
        is_gone = await super().remove_run(run_id, expected, known)
        self._claims = claims
        return is_gone


class ClaimsInMemory(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._claims = {}


class OneClaimForAllNamespaces(Kept):
    def __init__(self, place: dict[str, object], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._claimed: set[str] = place.setdefault("claimed", set())  # type: ignore[assignment]

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found = [head for head in await super().claim(request) if head.run_id not in self._claimed]
        self._claimed |= {head.run_id for head in found}
        return found

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit)


BUGS: list[tuple[type[MemoryStore], str]] = [
    (ClaimsNothing, "test_what_is_due_is_claimed_once"),
    (ClaimsOneTooMany, "test_no_more_are_claimed_than_were_asked_for"),
    (ClaimsForEver, "test_a_claim_ends_with_its_lease"),
    (ClaimsRunsAndNotWhereTheyStand, "test_a_claim_ends_when_the_run_moves"),
    (IgnoresLettersThatCameSince, "test_a_claim_ends_when_the_run_moves"),
    (SleepsOnWhenClaimed, "test_a_claim_ends_when_the_run_wakes"),
    (BelievesAnyLease, "test_a_claim_that_is_much_longer_than_the_own_lease_is_not_believed"),
    (BelievesNoLeaseButItsOwn, "test_a_claim_counts_for_those_who_asked_a_moment_before"),
    (IgnoresBuilds, "test_only_runs_of_a_build_that_is_at_hand_are_claimed"),
    (KnowsEveryBuildOrNone, "test_only_runs_of_a_build_that_is_at_hand_are_claimed"),
    (LeavesNothingOut, "test_runs_are_left_out_as_long_as_they_stand_where_they_stood"),
    (OneWorkflowAfterTheOther, "test_runs_of_several_workflows_come_in_one_order"),
    (ClaimsWhenItLooks, "test_a_look_claims_nothing"),
    (AbandonedFirst, "test_abandoned_runs_come_last_and_the_oldest_first"),
    (AlwaysRescues, "test_abandoned_runs_come_last_and_the_oldest_first"),
    (TakesOwnersOfThisProcessForDead, "test_a_run_that_is_held_in_this_process_is_not_abandoned"),
    (ClaimsAfterItFound, "test_no_two_get_the_same_run"),
    (KeepsClaimsOfRemovedRuns, "test_a_run_that_was_removed_is_claimed_no_more"),
]

DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    (ClaimsInMemory, "test_another_object_heeds_claims"),
    (OneClaimForAllNamespaces, "test_claims_are_apart_in_namespaces"),
]
