"""The conformance suite is worth something: each planted bug fails the test that is there for it."""

import asyncio
import hashlib
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    Expected,
    Head,
    Left,
    Letter,
    Note,
    Record,
    RunQuery,
    Store,
    StoreInfo,
)
from holdfast.errors import HeadMoved, HoldfastError, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import DurableStoreConformance, StoreConformance
from holdfast.testing.store_suite.process_rules import OtherProcessRules
from tests.stores import (
    planted_arrivals,
    planted_elsewhere,
    planted_inbox,
    planted_journal,
    planted_kept,
    planted_needs,
    planted_removal,
    planted_repairing,
    planted_waking,
)
from tests.stores.planted_elsewhere import Filed
from tests.stores.planted_kept import Kept

TESTS = sorted(name for name in dir(StoreConformance) if name.startswith("test_"))
PROCESS_TESTS = sorted(name for name in dir(OtherProcessRules) if name.startswith("test_"))
DURABLE_TESTS = sorted(
    {name for name in dir(DurableStoreConformance) if name.startswith("test_")} - {*TESTS, *PROCESS_TESTS}
)


async def passes(test: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(test, 30)
    except (AssertionError, HoldfastError, RuntimeError, KeyError, TypeError, TimeoutError):
        return False
    return True


async def failing(make: Callable[[], Store], tests: Sequence[str] = TESTS) -> list[str]:
    suite = StoreConformance()
    return [name for name in tests if not await passes(getattr(suite, name)(make()))]


# ---------------------------------------------------------------- bugs of commit


class IgnoresTheToken(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None and commit.expected is not None:
            commit = commit._replace(expected=commit.expected._replace(token=there.token))
        return await super().commit(commit)


class IgnoresTheCheckpoint(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None and commit.expected is not None:
            commit = commit._replace(expected=commit.expected._replace(checkpoint_id=there.checkpoint_id))
        return await super().commit(commit)


class LetsARunBeginAgain(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.expected is None:
            self._heads.pop(commit.head.run_id, None)
        return await super().commit(commit)


class LetsAMissingRunGoOn(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.head.run_id not in self._heads:
            commit = commit._replace(expected=None)
        return await super().commit(commit)


class WritesRecordsBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for record in commit.records:
            self._add_record(record)
        return await super().commit(commit)


class IndexesIdsBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for record in commit.records:
            self._places.setdefault(record.checkpoint_id, (record.run_id, record.seq))
        return await super().commit(commit)


class ReplacesBlobsBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for blob in commit.blobs:
            self._blobs[commit.head.family, blob.digest] = blob.data
        return await super().commit(commit)


class ShowsTheHeadBeforeTheRecords(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(records=(), blobs=()))
        await asyncio.sleep(0)
        for record in commit.records:
            self._add_record(record)
        for blob in commit.blobs:
            self._blobs.setdefault((commit.head.family, blob.digest), blob.data)
        return waiting


class ShowsTheHeadBeforeTheBlobs(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(blobs=()))
        await asyncio.sleep(0)
        for blob in commit.blobs:
            self._blobs.setdefault((commit.head.family, blob.digest), blob.data)
        return waiting


class StopsHalfwayWhenCancelled(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        place = Expected(there.checkpoint_id, there.token) if there is not None else None
        if place != commit.expected:
            raise HeadMoved(f"{commit.head.run_id} moved")
        self._heads[commit.head.run_id] = commit.head
        await asyncio.sleep(0)
        for record in commit.records:
            self._add_record(record)
        for blob in commit.blobs:
            self._blobs.setdefault((commit.head.family, blob.digest), blob.data)
        return ()


class ComparesTooEarly(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        place = Expected(there.checkpoint_id, there.token) if there is not None else None
        await asyncio.sleep(0)
        if place == commit.expected and (there := self._heads.get(commit.head.run_id)) is not None:
            commit = commit._replace(expected=Expected(there.checkpoint_id, there.token))
        return await super().commit(commit)


class RefusesAllForOne(MemoryStore):
    """A group commit in which one refusal fails the whole group."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        group = self.__dict__.setdefault("_group", [])
        group.append(commit.expected == (there and Expected(there.checkpoint_id, there.token)))
        await asyncio.sleep(0)
        if not all(group):
            raise HeadMoved(f"{commit.head.run_id}: one of the group moved")
        waiting = await super().commit(commit)
        group.clear()
        return waiting


class KeepsOnlyTheLastRecord(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(records=commit.records[-1:]))


class BelongsToOneLoop(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        loop = self.__dict__.setdefault("_loop", asyncio.get_running_loop())
        if loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return await super().commit(commit)


class SaysNotWhichRunMoved(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        try:
            return await super().commit(commit)
        except HeadMoved:
            raise HeadMoved("moved") from None


class NeedsRecords(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit) if commit.records else ()


class KeepsOneCommit(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        seqs = self._seqs.get(commit.head.run_id, [])
        seqs[:] = [record.seq for record in commit.records] or seqs
        return waiting


class LocksARefusedRun(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        refused = self.__dict__.setdefault("_refused", set())
        if commit.head.run_id in refused:
            raise HeadMoved(f"{commit.head.run_id} is locked")
        try:
            return await super().commit(commit)
        except HeadMoved:
            refused.add(commit.head.run_id)
            raise


class TouchesOtherRuns(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        for run, head in self._heads.items():
            if run != commit.head.run_id:
                self._heads[run] = head._replace(updated=head.updated + 1)
        return waiting


class HoldsSixtyRuns(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        if len(self._heads) > 60:
            del self._heads[next(iter(self._heads))]
        return waiting


class AnswersTooEarly(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        waiting = await super().commit(commit)
        if there is None:
            del self._heads[commit.head.run_id]
            asyncio.get_running_loop().call_soon(self._heads.setdefault, commit.head.run_id, commit.head)
        return waiting


# ---------------------------------------------------------------- bugs of heads and of open


class FailsForAnUnknownRun(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        return self._heads[run_id]


class WakesNeverAtZero(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(wake_at=head.wake_at or None)


class ForgetsTheReason(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(reason=head.reason.encode("utf-8", "replace").decode())


class ForgetsWhatItWaitsFor(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(waiting_for=head.waiting_for.partition(" ")[0])


class NumbersAreFloats(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(token=int(float(head.token)))


class StatusIsText(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(status=head.status.value)  # type: ignore[arg-type]


class KeepsOldFields(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        waiting = await super().commit(commit)
        if there is not None:
            self._heads[there.run_id] = commit.head._replace(reason=commit.head.reason or there.reason)
        return waiting


class ForgetsTheRetention(MemoryStore):
    async def head(self, run_id: RunId) -> Head | None:
        head = await super().head(run_id)
        return head and head._replace(retention="")


class KeepsTheFirstRetention(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None:
            commit = commit._replace(head=commit.head._replace(retention=there.retention))
        return await super().commit(commit)


class IsAnotherStoreEachTime(MemoryStore):
    async def open(self) -> StoreInfo:
        return MemoryStore()._info


class HasAShortId(MemoryStore):
    async def open(self) -> StoreInfo:
        return self._info._replace(store_id="1")


class ClosesOnlyOnce(MemoryStore):
    async def close(self) -> None:
        self._check_open()
        await super().close()


# ---------------------------------------------------------------- bugs of records and find


class RecordsOf(MemoryStore):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return records

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return self.change(list(await super().records(run_id, first, last, depth)), first, last, depth)


class RecordsInOrderOfArrival(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        by_seq = {record.seq: record for record in await super().records(run_id, first, last, depth)}
        return [by_seq[seq] for run, seq in self._records if run == run_id and seq in by_seq]


class RecordsInOrderOfText(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return sorted(records, key=lambda record: str(record.seq))


class RangeWithoutItsLast(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record for record in records if record.seq < last]


class RangeWithoutItsFirst(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record for record in records if record.seq > first]


class StopsAtAGap(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record for number, record in enumerate(records) if record.seq == records[0].seq + number]


class IgnoresDepth(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await super().records(run_id, first, last, Depth.ALL)


class ReadsValuesOfKeyframes(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        records = await super().records(run_id, first, last, depth)
        if depth is not Depth.CHANGES:
            return records
        return [record._replace(keyframe=self._records[run_id, record.seq].keyframe) for record in records]


class LosesTheCut(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [
            record._replace(keyframe=record.keyframe and record.keyframe._replace(cut=False))
            for record in records
        ]


class LosesEmptyKeyframes(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [
            record._replace(keyframe=record.keyframe if record.keyframe and any(record.keyframe) else None)
            for record in records
        ]


class CutsLongBytes(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record._replace(values=record.values[:65536]) for record in records]


class StripsZeros(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record._replace(header=record.header.rstrip(b"\0")) for record in records]


class MixesRunsThatBeginAlike(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        alike = [run for run in self._heads if run.startswith(run_id)]
        return [
            record
            for run in alike
            for record in await super(type(self), self).records(run, first, last, depth)
        ]


class FailsForRecordsOfAnUnknownRun(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        self._heads[run_id]
        return await super().records(run_id, first, last, depth)


class TakesRangesBackwards(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await super().records(run_id, min(first, last), max(first, last), depth)


class CountsBytesAsFloats(RecordsOf):
    def change(self, records: list[Record], first: int, last: int, depth: Depth) -> list[Record]:
        return [record._replace(new_bytes=int(float(record.new_bytes))) for record in records]


class FindsNothing(MemoryStore):
    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return None


class FindsOnlyHeads(MemoryStore):
    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        place = await super().find(checkpoint_id)
        return place if place and self._heads[place[0]].checkpoint_id == checkpoint_id else None


class FindsByPrefix(MemoryStore):
    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return next((place for id, place in self._places.items() if id[:16] == checkpoint_id[:16]), None)


class FindsAnyCase(MemoryStore):
    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return self._places.get(CheckpointId(checkpoint_id.lower()))


# ---------------------------------------------------------------- bugs of blobs


class BlobsOf(MemoryStore):
    def name(self, family: RunId, digest: Digest) -> tuple[RunId, Digest]:
        return family, digest

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(blobs=()))
        for blob in commit.blobs:
            name = self.name(commit.head.family, blob.digest)
            self._blobs.setdefault(name, blob.data)
            self._blob_marks[name] = self._marks
        return waiting

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        names = {digest: self.name(family, digest) for digest in digests}
        return {digest: self._blobs[name] for digest, name in names.items() if name in self._blobs}


class MixesFamilies(BlobsOf):
    def name(self, family: RunId, digest: Digest) -> tuple[RunId, Digest]:
        return RunId(""), digest


class NamesBlobsByPrefix(BlobsOf):
    def name(self, family: RunId, digest: Digest) -> tuple[RunId, Digest]:
        return family, Digest(digest[:8])


class BlobsBelongToRuns(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(blobs=()))
        for blob in commit.blobs:
            self._blobs.setdefault((commit.head.run_id, blob.digest), blob.data)
        return waiting


class ReplacesBlobs(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        for blob in commit.blobs:
            self._blobs[commit.head.family, blob.digest] = blob.data
        return waiting


class LosesEmptyBlobs(MemoryStore):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return {name: data for name, data in (await super().blobs(family, digests)).items() if data}


class GivesNothingForMissingBlobs(MemoryStore):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return {digest: self._blobs.get((family, digest), b"") for digest in digests}


class HasNoRoomForLargeBlobs(MemoryStore):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return {name: data[: 2**22] for name, data in (await super().blobs(family, digests)).items()}


class RefusesABlobTwice(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if len({blob.digest for blob in commit.blobs}) < len(commit.blobs):
            raise StorageError("twice")
        return await super().commit(commit)


class NeedsTheRunOfAFamily(MemoryStore):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return await super().blobs(family, digests) if family in self._heads else {}


class GivesAllBlobs(MemoryStore):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return await super().blobs(family, [name for owner, name in self._blobs if owner == family])


class ComputesNames(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        blobs = tuple(Blob(Digest(hashlib.sha256(blob.data).digest()), blob.data) for blob in commit.blobs)
        return await super().commit(commit._replace(blobs=blobs))


# ---------------------------------------------------------------- bugs of runs and of ids


class Listing(MemoryStore):
    """Lists runs as it should, from parts that can be broken one by one."""

    def key(self, head: Head, query: RunQuery) -> Any:
        return (-head.updated if query.newest else head.created), head.run_id

    def matches(self, head: Head, query: RunQuery) -> bool:
        return (
            query.workflow_name in (None, head.workflow_name)
            and query.family in (None, head.family)
            and (query.statuses is None or head.status in query.statuses)
            and (query.since is None or head.updated >= query.since)
        )

    def behind(self, head: Head, after: Head, query: RunQuery) -> bool:
        return bool(self.key(head, query) > self.key(after, query))

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        heads = sorted(self._heads.values(), key=lambda head: self.key(head, query))
        after = self._heads.get(query.after) if query.after is not None else None
        heads = [head for head in heads if after is None or self.behind(head, after, query)]
        return self.limited([head for head in heads if self.matches(head, query)], query)

    def limited(self, heads: list[Head], query: RunQuery) -> list[Head]:
        return heads[: query.limit]


class PagesRepeatRuns(Listing):
    def behind(self, head: Head, after: Head, query: RunQuery) -> bool:
        return bool(self.key(head, query)[0] >= self.key(after, query)[0] and head != after)


class PagesLoseRunsOfTheSameTime(Listing):
    def behind(self, head: Head, after: Head, query: RunQuery) -> bool:
        return bool(self.key(head, query)[0] > self.key(after, query)[0])


class PagesBeginAnewBehindWhatNoLongerMatches(Listing):
    def behind(self, head: Head, after: Head, query: RunQuery) -> bool:
        return not self.matches(after, query) or super().behind(head, after, query)


class PagesOfNewestAreInOrderOfAge(Listing):
    def behind(self, head: Head, after: Head, query: RunQuery) -> bool:
        return (head.created, head.run_id) > (after.created, after.run_id)


class IgnoresNewest(Listing):
    def key(self, head: Head, query: RunQuery) -> Any:
        return head.created, head.run_id


class OrdersByIdAlone(Listing):
    def key(self, head: Head, query: RunQuery) -> Any:
        return (-head.updated if query.newest else 0), head.run_id


class OrdersIdsWithoutCase(Listing):
    def key(self, head: Head, query: RunQuery) -> Any:
        return (-head.updated if query.newest else head.created), head.run_id.lower(), head.run_id


class TakesNoStatusForAny(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        return super().matches(head, query._replace(statuses=query.statuses or None))


class IgnoresStatuses(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        return super().matches(head, query._replace(statuses=None))


class FiltersByOneOrTheOther(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        one = super().matches(head, query._replace(statuses=None))
        return one or (query.statuses is not None and head.status in query.statuses)


class MatchesWorkflowsThatBeginAlike(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        alike = head.workflow_name.startswith(query.workflow_name or "")
        return alike and super().matches(head, query._replace(workflow_name=None))


class TakesNoLimitForAny(Listing):
    def limited(self, heads: list[Head], query: RunQuery) -> list[Head]:
        return heads[: query.limit or None]


class LimitsBeforeItFilters(Listing):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        first = await super().runs(query._replace(workflow_name=None, statuses=None))
        return [head for head in first if self.matches(head, query)]


class RemembersTheFirstStatus(Listing):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        self.__dict__.setdefault("_first", {}).setdefault(commit.head.run_id, commit.head.status)
        return waiting

    def matches(self, head: Head, query: RunQuery) -> bool:
        return super().matches(head._replace(status=self.__dict__["_first"][head.run_id]), query)


class ListsHalfOfAHead(Listing):
    def limited(self, heads: list[Head], query: RunQuery) -> list[Head]:
        return [head._replace(reason="") for head in super().limited(heads, query)]


class TakesPatterns(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        return super().matches(
            head, query._replace(workflow_name=None if query.workflow_name == "%" else query[0])
        )


class NeedsTheRunBefore(Listing):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        if query.after is not None:
            self._heads[query.after]
        return await super().runs(query)


class IgnoresFamilies(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query._replace(family=None))


class IgnoresWhenRunsMoved(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query._replace(since=None))


class LimitsBeforeItLooksAtFamilies(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        found = await super().runs(query._replace(family=None))
        return [head for head in found if query.family in (None, head.family)]


class GivesNothingBehindWhatIsGone(Listing):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query) if query.after is None or query.after in self._heads else []


class BeginsAnewAtTheEnd(Listing):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query) or await super().runs(query._replace(after=None))


class Renaming(MemoryStore):
    """Keeps runs under other names."""

    def name(self, run_id: RunId) -> RunId:
        return run_id

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        name = self.name(commit.head.run_id)
        records = tuple(record._replace(run_id=name) for record in commit.records)
        return await super().commit(commit._replace(head=commit.head._replace(run_id=name), records=records))

    async def head(self, run_id: RunId) -> Head | None:
        return await super().head(self.name(run_id))

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return await super().notes(self.name(run_id))

    async def leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> Left:
        return await super().leave(self.name(run_id), since, letters)

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await super().inbox(self.name(run_id))


class IgnoresCase(Renaming):
    def name(self, run_id: RunId) -> RunId:
        return RunId(run_id.lower())


class NormalizesLetters(Renaming):
    def name(self, run_id: RunId) -> RunId:
        return RunId(unicodedata.normalize("NFC", run_id))


class CutsLongIds(Renaming):
    def name(self, run_id: RunId) -> RunId:
        return RunId(run_id[:100])


class StripsIds(Renaming):
    def name(self, run_id: RunId) -> RunId:
        return RunId(run_id.strip() or " ")


BUGS: list[tuple[type[MemoryStore], str]] = [
    (IgnoresTheToken, "test_another_token_than_expected_is_refused"),
    (IgnoresTheToken, "test_a_writer_whose_run_was_taken_at_the_same_checkpoint_is_refused"),
    (IgnoresTheCheckpoint, "test_another_checkpoint_than_expected_is_refused"),
    (IgnoresTheCheckpoint, "test_one_of_twenty_writers_of_a_run_wins"),
    (IgnoresTheCheckpoint, "test_the_head_of_another_run_is_not_the_expected_one"),
    (LetsARunBeginAgain, "test_a_run_that_is_there_cannot_begin_again"),
    (LetsARunBeginAgain, "test_one_of_twenty_beginners_of_a_run_wins"),
    (LetsAMissingRunGoOn, "test_a_run_that_is_missing_cannot_go_on"),
    (WritesRecordsBeforeItCompares, "test_another_checkpoint_than_expected_is_refused"),
    (IndexesIdsBeforeItCompares, "test_a_run_that_is_there_cannot_begin_again"),
    (ReplacesBlobsBeforeItCompares, "test_a_refused_commit_leaves_blobs_that_are_there"),
    (ShowsTheHeadBeforeTheRecords, "test_a_head_is_never_seen_without_its_records_and_blobs"),
    (ShowsTheHeadBeforeTheBlobs, "test_a_head_is_never_seen_without_its_records_and_blobs"),
    (StopsHalfwayWhenCancelled, "test_a_caller_that_is_cancelled_leaves_the_commit_to_happen_or_not"),
    (ComparesTooEarly, "test_one_of_twenty_writers_of_a_run_wins"),
    (RefusesAllForOne, "test_a_refused_commit_fails_alone"),
    (KeepsOnlyTheLastRecord, "test_a_commit_makes_head_records_and_blobs_readable"),
    (BelongsToOneLoop, "test_one_event_loop_after_another_may_use_a_store"),
    (BelongsToOneLoop, "test_an_event_loop_that_ends_while_it_waits_disturbs_nobody"),
    (SaysNotWhichRunMoved, "test_head_moved_is_a_storage_error_and_names_the_run"),
    (WakesNeverAtZero, "test_every_field_of_a_head_comes_back"),
    (ForgetsTheReason, "test_every_field_of_a_head_comes_back"),
    (ForgetsWhatItWaitsFor, "test_every_field_of_a_head_comes_back"),
    (NumbersAreFloats, "test_every_field_of_a_head_comes_back"),
    (StatusIsText, "test_every_field_of_a_head_comes_back"),
    (KeepsOldFields, "test_every_field_of_a_head_can_change"),
    (IsAnotherStoreEachTime, "test_a_store_may_be_opened_twice"),
    (HasAShortId, "test_a_store_says_its_id_and_its_format"),
    (ClosesOnlyOnce, "test_a_store_may_be_closed_twice"),
    (RecordsInOrderOfArrival, "test_records_come_in_order_of_seq"),
    (RecordsInOrderOfText, "test_records_of_many_commits_come_in_order_of_seq"),
    (RangeWithoutItsLast, "test_both_ends_of_a_range_belong_to_it"),
    (RangeWithoutItsFirst, "test_both_ends_of_a_range_belong_to_it"),
    (StopsAtAGap, "test_records_that_are_not_there_are_left_out"),
    (IgnoresDepth, "test_depth_says_how_much_of_a_record_is_read"),
    (ReadsValuesOfKeyframes, "test_depth_says_how_much_of_a_record_is_read"),
    (LosesTheCut, "test_keyframes_come_back_with_their_cut"),
    (LosesEmptyKeyframes, "test_keyframes_come_back_with_their_cut"),
    (CutsLongBytes, "test_bytes_of_every_kind_and_size_come_back"),
    (StripsZeros, "test_bytes_of_every_kind_and_size_come_back"),
    (MixesRunsThatBeginAlike, "test_records_of_runs_are_apart"),
    (FindsNothing, "test_a_checkpoint_is_found_by_its_id"),
    (FindsOnlyHeads, "test_a_checkpoint_of_an_earlier_commit_is_found"),
    (FindsByPrefix, "test_ids_that_differ_in_one_digit_are_apart"),
    (FindsAnyCase, "test_what_is_no_checkpoint_is_not_found"),
    (MixesFamilies, "test_families_are_apart"),
    (MixesFamilies, "test_odd_families_are_taken_and_are_apart"),
    (NamesBlobsByPrefix, "test_names_that_differ_in_one_byte_are_apart"),
    (BlobsBelongToRuns, "test_a_fork_adds_to_the_blobs_of_its_family"),
    (ReplacesBlobs, "test_a_blob_that_is_there_is_left_as_it_is"),
    (LosesEmptyBlobs, "test_blobs_come_back_as_they_were_given"),
    (GivesNothingForMissingBlobs, "test_blobs_that_are_not_there_are_left_out"),
    (HasNoRoomForLargeBlobs, "test_blobs_come_back_as_they_were_given"),
    (PagesRepeatRuns, "test_pages_hold_every_run_once"),
    (PagesLoseRunsOfTheSameTime, "test_pages_hold_every_run_once"),
    (PagesLoseRunsOfTheSameTime, "test_pages_of_filtered_runs_hold_every_run_once"),
    (PagesBeginAnewBehindWhatNoLongerMatches, "test_pages_go_on_behind_a_run_that_no_longer_matches"),
    (PagesOfNewestAreInOrderOfAge, "test_pages_hold_every_run_once"),
    (IgnoresNewest, "test_newest_lists_the_last_updated_first"),
    (OrdersByIdAlone, "test_runs_are_listed_oldest_first_and_then_by_id"),
    (OrdersIdsWithoutCase, "test_runs_are_listed_oldest_first_and_then_by_id"),
    (TakesNoStatusForAny, "test_runs_are_filtered_by_status"),
    (IgnoresStatuses, "test_runs_are_filtered_by_status"),
    (IgnoresFamilies, "test_runs_are_filtered_by_family"),
    (IgnoresWhenRunsMoved, "test_runs_are_filtered_by_when_they_moved_last"),
    (LimitsBeforeItLooksAtFamilies, "test_runs_are_filtered_by_family"),
    (ForgetsTheRetention, "test_every_field_of_a_head_comes_back"),
    (KeepsTheFirstRetention, "test_every_field_of_a_head_can_change"),
    (FiltersByOneOrTheOther, "test_filters_are_combined"),
    (MatchesWorkflowsThatBeginAlike, "test_runs_are_filtered_by_workflow"),
    (TakesNoLimitForAny, "test_limit_is_the_most_that_is_given"),
    (LimitsBeforeItFilters, "test_limit_counts_after_the_filters"),
    (RemembersTheFirstStatus, "test_the_status_that_counts_is_the_present_one"),
    (NeedsRecords, "test_a_commit_may_move_the_head_without_records"),
    (KeepsOneCommit, "test_the_next_commit_replaces_the_head_and_keeps_the_records"),
    (LocksARefusedRun, "test_a_refused_writer_goes_on_from_the_head_that_is_there"),
    (TouchesOtherRuns, "test_commits_of_other_runs_change_nothing"),
    (HoldsSixtyRuns, "test_a_hundred_runs_commit_at_the_same_time"),
    (AnswersTooEarly, "test_a_head_is_seen_as_soon_as_commit_returns"),
    (FailsForAnUnknownRun, "test_an_unknown_run_has_no_head"),
    (FailsForRecordsOfAnUnknownRun, "test_an_unknown_run_has_no_records"),
    (TakesRangesBackwards, "test_a_range_that_holds_nothing_is_empty"),
    (CountsBytesAsFloats, "test_large_numbers_come_back"),
    (RefusesABlobTwice, "test_a_blob_may_be_given_twice_in_one_commit"),
    (NeedsTheRunOfAFamily, "test_a_family_need_not_be_a_run"),
    (GivesAllBlobs, "test_each_blob_can_be_asked_for_alone"),
    (ComputesNames, "test_the_name_of_a_blob_is_given_not_computed"),
    (ListsHalfOfAHead, "test_runs_are_listed_with_their_whole_heads"),
    (TakesPatterns, "test_odd_words_in_a_query_find_only_themselves"),
    (NeedsTheRunBefore, "test_an_empty_store_lists_no_runs"),
    (GivesNothingBehindWhatIsGone, "test_pages_behind_a_run_that_is_gone_leave_out_no_later_run"),
    (BeginsAnewAtTheEnd, "test_pages_go_on_behind_the_last_run_with_nothing"),
    (PagesRepeatRuns, "test_pages_hold_odd_ids_once"),
    (IgnoresCase, "test_odd_ids_are_taken_and_are_apart"),
    (NormalizesLetters, "test_odd_ids_are_taken_and_are_apart"),
    (CutsLongIds, "test_odd_ids_are_taken_and_are_apart"),
    (StripsIds, "test_odd_ids_are_taken_and_are_apart"),
    (IgnoresCase, "test_odd_ids_have_journals_and_inboxes_of_their_own"),
    *planted_journal.BUGS,
    *planted_inbox.BUGS,
    *planted_arrivals.BUGS,
    *planted_repairing.BUGS,
    *planted_removal.BUGS,
    *planted_waking.BUGS,
    *planted_needs.BUGS,
]


@pytest.mark.parametrize(("store", "test"), BUGS, ids=[f"{store.__name__}-{test}" for store, test in BUGS])
async def test_a_planted_bug_is_caught(store: type[MemoryStore], test: str) -> None:
    assert await failing(store, [test]) == [test]


@pytest.mark.parametrize(
    "store",
    [
        *(MemoryStore, Listing, BlobsOf, RecordsOf, Renaming),
        *(planted_journal.NotesOf, planted_journal.KeysOf, planted_inbox.LettersOf),
        planted_removal.SweepsOf,
    ],
)
async def test_what_the_bugs_are_planted_in_is_sound(store: type[MemoryStore]) -> None:
    assert await failing(store) == []


# ---------------------------------------------------------------- stores that outlive their object


class ForgetsBlobs(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._blobs = {}


class ForgetsIds(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._places = {}


class ForgetsOnClose(Kept):
    async def close(self) -> None:
        await super().close()
        self._heads.clear()


class ComparesWithWhatItSaw(Kept):
    """Trusts a head that it has seen, although another object may have moved it."""

    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._seen: dict[RunId, Head] = {}

    async def head(self, run_id: RunId) -> Head | None:
        if run_id not in self._seen and (head := await super().head(run_id)) is not None:
            self._seen[run_id] = head
        return self._seen.get(run_id)


class ChecksWithoutTheOthers(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        mine = self.__dict__.setdefault("_mine", {})
        if mine.get(commit.head.run_id) == commit.expected and there is not None:
            commit = commit._replace(expected=Expected(there.checkpoint_id, there.token))
        waiting = await super().commit(commit)
        mine[commit.head.run_id] = Expected(commit.head.checkpoint_id, commit.head.token)
        return waiting


class MixesNamespaces(Kept):
    def room(self, namespace: str) -> str:
        return "namespace"


class IgnoresCaseOfNamespaces(Kept):
    def room(self, namespace: str) -> str:
        return f"namespace {namespace.lower()}"


class MustBeOpened(Kept):
    async def open(self) -> StoreInfo:
        self._opened = True
        return await super().open()

    async def head(self, run_id: RunId) -> Head | None:
        if not getattr(self, "_opened", False):
            raise StorageError("open it first")
        return await super().head(run_id)


class DrawsAnIdPerObject(Kept):
    async def open(self) -> StoreInfo:
        return self._info._replace(store_id=f"{id(self):032x}")


class ClosesTheOthers(Kept):
    async def close(self) -> None:
        await super().close()
        self._heads["closed"] = None  # type: ignore[index, assignment]

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if "closed" in self._heads:
            raise StorageError("closed")
        return await super().commit(commit)


async def failing_kept(kind: type[Kept], tests: Sequence[str] = DURABLE_TESTS) -> list[str]:
    failed = []
    for name in tests:
        place: dict[str, MemoryStore] = {}

        async def reopen(namespace: str = "", place: dict[str, MemoryStore] = place) -> Store:
            return kind(place, namespace)

        if not await passes(getattr(DurableStoreConformance(), name)(kind(place), reopen)):
            failed.append(name)
    return failed


DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    (ForgetsBlobs, "test_another_object_sees_everything"),
    (ForgetsBlobs, "test_every_method_opens_a_store_by_itself"),
    (ForgetsBlobs, "test_odd_ids_are_found_again"),
    (ForgetsBlobs, "test_a_namespace_is_found_again"),
    (ForgetsIds, "test_another_object_sees_everything"),
    (ForgetsOnClose, "test_another_object_sees_everything"),
    (ForgetsOnClose, "test_closing_one_object_leaves_the_others_alone"),
    (ComparesWithWhatItSaw, "test_what_one_object_commits_the_other_sees_at_once"),
    (ComparesWithWhatItSaw, "test_one_of_several_objects_that_write_a_run_wins"),
    (ChecksWithoutTheOthers, "test_an_object_that_missed_a_commit_is_refused"),
    (MixesNamespaces, "test_namespaces_are_apart"),
    (IgnoresCaseOfNamespaces, "test_namespaces_are_apart"),
    (MustBeOpened, "test_every_method_opens_a_store_by_itself"),
    (DrawsAnIdPerObject, "test_objects_may_begin_at_the_same_time"),
    (ClosesTheOthers, "test_closing_one_object_leaves_the_others_alone"),
    *planted_kept.BUGS,
    *planted_arrivals.DURABLE_BUGS,
    *planted_removal.DURABLE_BUGS,
    *planted_waking.DURABLE_BUGS,
    *planted_needs.DURABLE_BUGS,
]


@pytest.mark.parametrize(
    ("store", "test"), DURABLE_BUGS, ids=[f"{store.__name__}-{test}" for store, test in DURABLE_BUGS]
)
async def test_a_planted_bug_of_a_durable_store_is_caught(store: type[Kept], test: str) -> None:
    assert await failing_kept(store, [test]) == [test]


async def test_what_the_durable_bugs_are_planted_in_is_sound() -> None:
    assert await failing_kept(Kept) == []


# ---------------------------------------------------------------- stores that other processes use


class Impatient(DurableStoreConformance):
    patience = 0.1


async def failing_filed(kind: type[Filed], path: Path, tests: Sequence[str]) -> list[str]:
    failed = []
    for name in tests:
        place = path / name

        async def reopen(namespace: str = "", place: Path = place) -> Store:
            return kind(place, namespace)

        if not await passes(getattr(Impatient(), name)(kind(place), reopen)):
            failed.append(name)
    return failed


@pytest.mark.parametrize(
    ("store", "test"),
    planted_elsewhere.BUGS,
    ids=[f"{store.__name__}-{test}" for store, test in planted_elsewhere.BUGS],
)
async def test_a_planted_bug_of_a_store_of_many_processes_is_caught(
    store: type[Filed], test: str, tmp_path: Path
) -> None:
    assert await failing_filed(store, tmp_path, [test]) == [test]


async def test_what_the_bugs_of_many_processes_are_planted_in_is_sound(tmp_path: Path) -> None:
    assert await failing_filed(Filed, tmp_path, PROCESS_TESTS) == []


def test_every_test_can_fail() -> None:
    assert {test for _, test in BUGS} == set(TESTS)
    assert {test for _, test in DURABLE_BUGS} == set(DURABLE_TESTS)
    assert {test for _, test in planted_elsewhere.BUGS} == set(PROCESS_TESTS)
