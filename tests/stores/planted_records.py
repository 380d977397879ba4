"""Stores with bugs of records, blobs, run lists and ids, for the conformance suite to catch."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    Head,
    LeaveResult,
    Letter,
    Note,
    Record,
    RunPosition,
    RunQuery,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.memory import MemoryStore

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
            and (query.updated_after is None or head.updated >= query.updated_after)
            and (query.forked_from is None or self.comes_from(head, query.forked_from))
            and (query.updated_before is None or head.updated < query.updated_before)
            and (query.created_after is None or head.created >= query.created_after)
            and (query.created_before is None or head.created < query.created_before)
            and (query.text is None or any(self.contains(one, query.text) for one in self.texts(head)))
        )

    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        return bool(self.key(head, query) > (-after.time if query.newest else after.time, after.run_id))

    def comes_from(self, head: Head, run_id: RunId) -> bool:
        return head.origin[65:] == run_id

    def contains(self, text: str, wanted: str) -> bool:
        return wanted.casefold() in text.casefold()

    def texts(self, head: Head) -> list[str]:
        return [head.run_id, head.workflow_name, head.reason, *self._get_tags(head.run_id)]

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        heads = sorted(self._heads.values(), key=lambda head: self.key(head, query))
        after = query.after
        heads = [head for head in heads if after is None or self.behind(head, after, query)]
        return self.limited([head for head in heads if self.matches(head, query)], query)

    async def count_runs(self, query: RunQuery) -> int:
        return len([head for head in self._heads.values() if self.matches(head, query)])

    def limited(self, heads: list[Head], query: RunQuery) -> list[Head]:
        return heads[: query.limit]


class PagesRepeatRuns(Listing):
    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        time = -after.time if query.newest else after.time
        return bool(self.key(head, query)[0] >= time and head.run_id != after.run_id)


class PagesLoseRunsOfTheSameTime(Listing):
    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        return bool(self.key(head, query)[0] > (-after.time if query.newest else after.time))


class PagesBeginAnewBehindWhatNoLongerMatches(Listing):
    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        there = self._heads.get(after.run_id)
        return (there is not None and not self.matches(there, query)) or super().behind(head, after, query)


class PagesOfNewestAreInOrderOfAge(Listing):
    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        there = self._heads[after.run_id]
        return (head.created, head.run_id) > (there.created, there.run_id)


class PagesBeginWhereTheirLastRunIsNow(Listing):
    def behind(self, head: Head, after: RunPosition, query: RunQuery) -> bool:
        there = self._heads.get(after.run_id)
        return super().behind(head, after if there is None else query.position_of(there), query)


class LeavesOutDrivenRunsOfTheNewest(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        is_left_out = query.newest and query.statuses is None and head.status is RunStatus.RUNNING
        return super().matches(head, query) and not is_left_out


class IgnoresWhenRunsBegan(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        return super().matches(head, query._replace(created_after=None))


class IncludesTheEndOfATime(Listing):
    def matches(self, head: Head, query: RunQuery) -> bool:
        before = query.updated_before
        return super().matches(head, query if before is None else query._replace(updated_before=before + 1))


class TakesFamiliesForForks(Listing):
    def comes_from(self, head: Head, run_id: RunId) -> bool:
        return head.family == run_id != head.run_id


class FindsForksOfRunsThatEndAlike(Listing):
    def comes_from(self, head: Head, run_id: RunId) -> bool:
        return head.origin.endswith(f" {run_id}")


class FindsTextOfTheSameCase(Listing):
    def contains(self, text: str, wanted: str) -> bool:
        return wanted in text


class FindsTextByLowerCase(Listing):
    def contains(self, text: str, wanted: str) -> bool:
        return wanted.lower() in text.lower()


class FindsTextByPatterns(Listing):
    def contains(self, text: str, wanted: str) -> bool:
        pattern = re.escape(wanted.casefold()).replace("%", ".*").replace("_", ".")
        return re.search(pattern, text.casefold(), re.DOTALL) is not None


class FindsNoTextWithHalfACharacter(Listing):
    def contains(self, text: str, wanted: str) -> bool:
        return super().contains(text.encode(errors="replace").decode(), wanted)


class FindsNoTags(Listing):
    def texts(self, head: Head) -> list[str]:
        return super().texts(head)[:3]


class FindsTextInTheWholeHead(Listing):
    def texts(self, head: Head) -> list[str]:
        return [*super().texts(head), *map(str, head)]


class RemembersTexts(Listing):
    def texts(self, head: Head) -> list[str]:
        remembered: list[str] = self.__dict__.setdefault("_texts", {}).setdefault(head.run_id, [])
        remembered += super().texts(head)
        return remembered


class FindsTextInValues(Listing):
    def texts(self, head: Head) -> list[str]:
        records = [self._records[head.run_id, seq] for seq in self._seqs[head.run_id]]
        return [*super().texts(head), *(record.values.decode("latin-1") for record in records)]


class CountsOnePage(Listing):
    async def count_runs(self, query: RunQuery) -> int:
        return len(await self.runs(query))


class CountsAllRuns(Listing):
    async def count_runs(self, query: RunQuery) -> int:
        return len(self._heads)


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
            self._heads[query.after.run_id]
        return await super().runs(query)


class IgnoresFamilies(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query._replace(family=None))


class IgnoresWhenRunsMoved(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query._replace(updated_after=None))


class LimitsBeforeItLooksAtFamilies(MemoryStore):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        found = await super().runs(query._replace(family=None))
        return [head for head in found if query.family in (None, head.family)]


class GivesNothingBehindWhatIsGone(Listing):
    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await super().runs(query) if query.after is None or query.after.run_id in self._heads else []


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

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        return await super().leave(self.name(run_id), since, letters, most)

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
    (
        PagesBeginWhereTheirLastRunIsNow,
        "test_a_run_that_moves_between_pages_of_the_newest_is_listed_at_most_once",
    ),
    (LeavesOutDrivenRunsOfTheNewest, "test_newest_lists_runs_of_every_status"),
    (IgnoresWhenRunsBegan, "test_runs_are_filtered_by_times"),
    (IncludesTheEndOfATime, "test_runs_are_filtered_by_times"),
    (TakesFamiliesForForks, "test_forks_are_found_by_the_run_that_they_come_from"),
    (FindsForksOfRunsThatEndAlike, "test_forks_are_found_by_the_run_that_they_come_from"),
    (FindsTextOfTheSameCase, "test_runs_are_found_by_text"),
    (FindsTextByLowerCase, "test_odd_texts_stand_for_themselves"),
    (FindsTextByPatterns, "test_odd_texts_stand_for_themselves"),
    (FindsNoTextWithHalfACharacter, "test_odd_texts_stand_for_themselves"),
    (FindsNoTags, "test_runs_are_found_by_text"),
    (FindsTextInTheWholeHead, "test_runs_are_found_by_text"),
    (RemembersTexts, "test_text_that_changed_is_found_as_it_is_now"),
    (FindsTextInValues, "test_values_are_not_searched"),
    (CountsOnePage, "test_counts_are_those_of_the_lists"),
    (CountsAllRuns, "test_counts_are_those_of_the_lists"),
    (IgnoresNewest, "test_newest_lists_the_last_updated_first"),
    (OrdersByIdAlone, "test_runs_are_listed_oldest_first_and_then_by_id"),
    (OrdersIdsWithoutCase, "test_runs_are_listed_oldest_first_and_then_by_id"),
    (TakesNoStatusForAny, "test_runs_are_filtered_by_status"),
    (IgnoresStatuses, "test_runs_are_filtered_by_status"),
    (IgnoresFamilies, "test_runs_are_filtered_by_family"),
    (IgnoresWhenRunsMoved, "test_runs_are_filtered_by_when_they_moved_last"),
    (LimitsBeforeItLooksAtFamilies, "test_runs_are_filtered_by_family"),
    (FiltersByOneOrTheOther, "test_filters_are_combined"),
    (MatchesWorkflowsThatBeginAlike, "test_runs_are_filtered_by_workflow"),
    (TakesNoLimitForAny, "test_limit_is_the_most_that_is_given"),
    (LimitsBeforeItFilters, "test_limit_counts_after_the_filters"),
    (RemembersTheFirstStatus, "test_the_status_that_counts_is_the_present_one"),
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
    (GivesNothingBehindWhatIsGone, "test_pages_behind_a_run_that_is_gone_begin_where_it_was"),
    (BeginsAnewAtTheEnd, "test_pages_go_on_behind_the_last_run_with_nothing"),
    (PagesRepeatRuns, "test_pages_hold_odd_ids_once"),
    (IgnoresCase, "test_odd_ids_are_taken_and_are_apart"),
    (NormalizesLetters, "test_odd_ids_are_taken_and_are_apart"),
    (CutsLongIds, "test_odd_ids_are_taken_and_are_apart"),
    (StripsIds, "test_odd_ids_are_taken_and_are_apart"),
    (IgnoresCase, "test_odd_ids_have_journals_and_inboxes_of_their_own"),
]
