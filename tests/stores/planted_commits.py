"""Stores with bugs of commits, heads and opening, for the conformance suite to catch."""

import asyncio
from collections.abc import Sequence

from holdfast.checkpoint.store import (
    Commit,
    Expected,
    Head,
    Letter,
    StoreInfo,
)
from holdfast.errors import HeadMoved
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore

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


class ReplacesAnyKeyBox(MemoryStore):
    async def set_key_box(self, box: str, expected: str) -> bool:
        return await super().set_key_box(box, self._key_box)


class ClosesOnlyOnce(MemoryStore):
    async def close(self) -> None:
        self._check_open()
        await super().close()


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
    (ReplacesAnyKeyBox, "test_a_key_box_is_replaced_only_by_whoever_knows_it"),
    (ClosesOnlyOnce, "test_a_store_may_be_closed_twice"),
    (ForgetsTheRetention, "test_every_field_of_a_head_comes_back"),
    (KeepsTheFirstRetention, "test_every_field_of_a_head_can_change"),
    (NeedsRecords, "test_a_commit_may_move_the_head_without_records"),
    (KeepsOneCommit, "test_the_next_commit_replaces_the_head_and_keeps_the_records"),
    (LocksARefusedRun, "test_a_refused_writer_goes_on_from_the_head_that_is_there"),
    (TouchesOtherRuns, "test_commits_of_other_runs_change_nothing"),
    (HoldsSixtyRuns, "test_a_hundred_runs_commit_at_the_same_time"),
    (AnswersTooEarly, "test_a_head_is_seen_as_soon_as_commit_returns"),
    (FailsForAnUnknownRun, "test_an_unknown_run_has_no_head"),
]
