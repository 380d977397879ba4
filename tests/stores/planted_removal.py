"""Stores with bugs of removal and of sweeping, for the conformance suite to catch."""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    Expected,
    KnownMarks,
    Letter,
    MarkedBlobs,
    Record,
    Removal,
)
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.memory import MemoryStore
from tests.stores.planted_durable import Kept
from tests.support.store_parts import TagChange

# -- tags ------------------------------------------------------------------------------------------


class SortsTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await super().tag(run_id, seq, sorted(tags), drop, by)


class ForgetsWhoTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await super().tag(run_id, seq, tags, drop)


class NamesTheLastWhoTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await super().tag(run_id, seq, tags, None if drop is None else [*drop, *tags], by)


class ForgetsWhoTagsWithARemoval(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        for place, record in self._records.items():
            self._records[place] = record._replace(tagged_by={})
        return done


class ShowsTagsOnlyWithValues(MemoryStore):
    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        found = await super().records(run_id, first, last, depth)
        return found if depth is Depth.ALL else [record._replace(tags=()) for record in found]


class AddsTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        record = self._records.get((run_id, seq))
        known = record.tags if record is not None else ()
        return await super().tag(run_id, seq, tuple(dict.fromkeys([*known, *tags])), by=by)


class UndoesWhatOthersTag(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        record = self._records.get((run_id, seq))
        known = record.tags if record is not None else ()
        await asyncio.sleep(0)
        return await super().tag(run_id, seq, TagChange(tags, drop).apply(known, {})[0], by=by)


class DropsNoTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await super().tag(run_id, seq, tags, drop and (), by)


class TagsAnything(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        await super().tag(run_id, seq, tags, drop, by)
        return True


class SpellsTagsAnew(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await super().tag(
            run_id, seq, [tag.encode("utf-8", "replace").decode() for tag in tags], drop, by
        )


class MovesTheHeadWhenItTags(MemoryStore):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        done = await super().tag(run_id, seq, tags, drop, by)
        if done:
            self._heads[run_id] = self._heads[run_id]._replace(updated=0)
        return done


class TagsOnlyHeads(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        for place, record in self._records.items():
            if place[0] == commit.head.run_id and place[1] != commit.head.seq:
                self._records[place] = record._replace(tags=())
        return waiting


# -- records ---------------------------------------------------------------------------------------


class RemovesAllBefore(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        last = max(removal.seqs, default=0)
        return await super().remove(
            removal._replace(seqs=tuple(range(last + 1)) if last < 1000 else removal.seqs)
        )


class FindsWhatWasRemoved(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        places = dict(self._places)
        done = await super().remove(removal)
        self._places.update(places)
        return done


class RemovesWhatHasTags(MemoryStore):
    def _untag(self, removal: Removal) -> None:
        for seq in removal.seqs:
            if (record := self._records.get((removal.run_id, seq))) is not None:
                self._records[removal.run_id, seq] = record._replace(tags=())

    async def remove(self, removal: Removal) -> bool:
        self._untag(removal)
        return await super().remove(removal)


class SaysThatWhatHasTagsIsGone(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        await super().remove(removal)
        return True


class RemovesWhatHasNoTags(MemoryStore):
    """Passes over records with tags, though those they follow from go."""

    async def remove(self, removal: Removal) -> bool:
        records = {seq: self._records.get((removal.run_id, seq)) for seq in removal.seqs}
        bare = [seq for seq, record in records.items() if record is None or not record.tags]
        await super().remove(removal._replace(seqs=tuple(bare)))
        return len(bare) == len(records)


class RemovesAHundred(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        return await super().remove(removal._replace(seqs=removal.seqs[:100]))


class KeepsTheKeyframeThatIsThere(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        bare = [one for one in removal.keyframes if not self._records[removal.run_id, one[0]].keyframe]
        return await super().remove(removal._replace(keyframes=tuple(bare)))


class GivesNoKeyframes(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        return await super().remove(removal._replace(keyframes=()))


class ForgetsTagsWithKeyframes(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        for seq, _ in removal.keyframes:
            if (record := self._records.get((removal.run_id, seq))) is not None:
                self._records[removal.run_id, seq] = record._replace(tags=())
        return done


class KeepsRecordsWithKeyframes(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        bare = [
            seq
            for seq in removal.seqs
            if (record := self._records.get((removal.run_id, seq))) is None or record.keyframe is None
        ]
        return await super().remove(removal._replace(seqs=tuple(bare)))


class BringsNoBlobsToKeyframes(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        return await super().remove(removal._replace(blobs=()))


class BringsBlobsToTheRun(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal._replace(blobs=()))
        self._add_blobs(removal.run_id, removal.blobs)
        return done


class NeedsEveryRecord(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        for seq in (*removal.seqs, *(seq for seq, _ in removal.keyframes)):
            self._records[removal.run_id, seq]
        return await super().remove(removal)


class RemovesFromAnyHead(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        head = self._heads.get(removal.run_id)
        if head is not None:
            removal = removal._replace(expected=Expected(head.checkpoint_id, head.token))
        return await super().remove(removal)


class RemovesFromAnyOwner(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        head = self._heads.get(removal.run_id)
        if head is not None:
            removal = removal._replace(expected=removal.expected._replace(token=head.token))
        return await super().remove(removal)


class GivesKeyframesBeforeItCompares(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        for seq, keyframe in removal.keyframes:
            if (record := self._records.get((removal.run_id, seq))) is not None:
                self._records[removal.run_id, seq] = record._replace(keyframe=keyframe)
        return await super().remove(removal)


class RemovesTheHead(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        for seq in removal.seqs:
            self._remove_record(removal.run_id, seq)
        return await super().remove(removal._replace(seqs=()))


class SaysThatTheHeadMoved(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        try:
            return await super().remove(removal)
        except StorageError as error:
            raise HeadMoved(str(error)) from None


class EmptiesTheJournalWithARemoval(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        self._notes.pop(removal.run_id, None)
        return done


class ForgetsLettersWithARemoval(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        self._letters.pop(removal.run_id, None)
        return done


class TakesTheTokenForARemoval(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        head = self._heads[removal.run_id]
        self._heads[removal.run_id] = head._replace(token=head.token + 1)
        return done


class ChangesNoTagsWithARemoval(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        return await super().remove(removal._replace(tags=()))


class ChangesTagsThatAreOthers(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        found = [self._records.get((removal.run_id, retag.seq)) for retag in removal.tags]
        there = zip(removal.tags, found, strict=True)
        known = tuple(retag._replace(before=one.tags) for retag, one in there if one is not None)
        return await super().remove(removal._replace(tags=known))


class RemovesFromTheFamily(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        family = self._heads[removal.run_id].family
        for head in self._heads.values():
            if head.family == family:
                for seq in removal.seqs:
                    self._remove_record(head.run_id, seq)
        return done


class RemovesStepByStep(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        for seq in removal.seqs:
            await super().remove(removal._replace(seqs=(seq,), keyframes=()))
            await asyncio.sleep(0)
        return await super().remove(removal)


# -- runs ------------------------------------------------------------------------------------------


class RemovesOnlyTheHead(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        self._get_expected_head(run_id, expected)
        del self._heads[run_id]
        return True


class KeepsTheJournalOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        notes = self._notes.get(run_id, {})
        done = await super().remove_run(run_id, expected, known)
        self._notes[run_id] = notes
        return done


class KeepsTheInboxOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        letters = self._letters.get(run_id, {})
        done = await super().remove_run(run_id, expected, known)
        self._letters[run_id] = letters
        return done


class KeepsTheUsedKeysOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        letters = self._letters.get(run_id, {})
        done = await super().remove_run(run_id, expected, known)
        self._letters[run_id] = dict.fromkeys(letters)
        return done


class FindsTheCheckpointsOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        places = dict(self._places)
        done = await super().remove_run(run_id, expected, known)
        self._places.update(places)
        return done


class RemembersTagsOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        old: dict[CheckpointId, tuple[str, ...]] = self.__dict__.setdefault("_old", {})
        old.update({record.checkpoint_id: record.tags for record in self._records.values()})
        return await super().remove_run(run_id, expected, known)

    def _add_record(self, record: Record) -> None:
        tags = self.__dict__.get("_old", {}).get(record.checkpoint_id, ())
        super()._add_record(record._replace(tags=tags))


class RemovesBlobsWithARun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        done = await super().remove_run(run_id, expected, known)
        for place in [place for place in self._blobs if place[0] == run_id]:
            del self._blobs[place]
        return done


class RemovesRunsThatMoved(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        head = self._heads.get(run_id)
        return await super().remove_run(
            run_id, Expected(head.checkpoint_id, head.token) if head else expected
        )


class TakesARunThatIsGoneForRemoved(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        if run_id in self._heads:
            await super().remove_run(run_id, expected, known)
        return True


class RefusesTheIdOfARemovedRun(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        done = await super().remove_run(run_id, expected, known)
        self.__dict__.setdefault("_used", set()).add(run_id)
        return done

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.head.run_id in self.__dict__.get("_used", ()):
            raise HeadMoved(f"{commit.head.run_id!r} was used")
        return await super().commit(commit)


class RemovesRunsWithNewLetters(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        return await super().remove_run(run_id, expected, known and known._replace(letters=99))


class RemovesRunsWithNewTags(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        tags = {seq: record.tags for (_, seq), record in self._records.items() if record.tags}
        return await super().remove_run(run_id, expected, known and known._replace(tags=tags))


class RemovesTheFamily(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        family = self._get_expected_head(run_id, expected).family
        for head in [head for head in self._heads.values() if head.family == family]:
            await super().remove_run(head.run_id, Expected(head.checkpoint_id, head.token))
        return True


# -- sweeping --------------------------------------------------------------------------------------


class SweepsOf(MemoryStore):
    """Sweeps as it should, from parts that can be broken one by one."""

    def may_go(self, family: RunId, mark: int, digest: Digest) -> bool:
        return self._blob_marks.get((family, digest), 0) < mark

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        going = [digest for digest in digests if self.may_go(family, mark, digest)]
        for digest in going:
            self._blob_marks.pop((family, digest), None)
        return sum(len(self._blobs.pop((family, digest), b"")) for digest in going)


class DiscardIgnoresTheMark(SweepsOf):
    def may_go(self, family: RunId, mark: int, digest: Digest) -> bool:
        return True


class KnowsOnlyNewBlobs(SweepsOf):
    """A blob that is there already is not known to be brought again."""

    def _add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        super()._add_blobs(family, [blob for blob in blobs if (family, blob.digest) not in self._blobs])


class KnowsOnlyBlobsThatAreBroughtAgain(SweepsOf):
    def _add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        new = {blob.digest for blob in blobs if (family, blob.digest) not in self._blobs}
        super()._add_blobs(family, blobs)
        for digest in new:
            self._blob_marks.pop((family, digest), None)


class ForgetsWhatForksBring(SweepsOf):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        brought = dict(self._blob_marks)
        waiting = await super().commit(commit)
        if commit.head.family != commit.head.run_id:
            self._blob_marks = brought
        return waiting


class ForgetsWhatRemovalsBring(SweepsOf):
    async def remove(self, removal: Removal) -> bool:
        brought = dict(self._blob_marks)
        done = await super().remove(removal)
        self._blob_marks = brought
        return done


class KeepsWhatWasEverBrought(SweepsOf):
    def may_go(self, family: RunId, mark: int, digest: Digest) -> bool:
        return not self._blob_marks.get((family, digest), 0)


class HasOneMark(SweepsOf):
    def may_go(self, family: RunId, mark: int, digest: Digest) -> bool:
        return super().may_go(family, self._marks, digest)


class ForgetsWhatWasBroughtWithEachMark(SweepsOf):
    async def mark(self, family: RunId) -> MarkedBlobs:
        self._blob_marks.clear()
        return await super().mark(family)


class MarksFamiliesApart(SweepsOf):
    """Counts for each family, and compares with the count of all."""

    async def mark(self, family: RunId) -> MarkedBlobs:
        marks: dict[RunId, int] = self.__dict__.setdefault("_of_family", {})
        marks[family] = marks.get(family, 0) + 1
        return (await super().mark(family))._replace(mark=marks[family])


class MarksAllBlobs(SweepsOf):
    async def mark(self, family: RunId) -> MarkedBlobs:
        marked = await super().mark(family)
        return marked._replace(sizes={digest: len(data) for (_, digest), data in self._blobs.items()})


class MarksWhatThisRunBrought(SweepsOf):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        mine = self.__dict__.setdefault("_mine", {})
        mine.setdefault(commit.head.run_id, set()).update(blob.digest for blob in commit.blobs)
        return await super().commit(commit)

    async def mark(self, family: RunId) -> MarkedBlobs:
        marked = await super().mark(family)
        mine = self.__dict__.get("_mine", {}).get(family, set())
        return marked._replace(sizes={d: size for d, size in marked.sizes.items() if d in mine})


class DiscardsAllThatIsUnmarked(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return await super().discard(family, mark, [digest for _, digest in self._blobs])


class DiscardsFromEveryFamily(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        freed = await super().discard(family, mark, digests)
        for place in [place for place in self._blobs if place[1] in digests]:
            if self.may_go(place[0], mark, place[1]):
                del self._blobs[place]
        return freed


class FreesWhatIsNotThere(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        await super().discard(family, mark, digests)
        return len(digests)


class CountsBlobsNotBytes(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        there = sum((family, digest) in self._blobs for digest in digests)
        return min(there, await super().discard(family, mark, digests))


class FailsForMissingBlobs(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        for digest in digests:
            self._blobs[family, digest]
        return await super().discard(family, mark, digests)


class NeverTakesADiscardedBlobAgain(SweepsOf):
    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        before = set(self._blobs)
        freed = await super().discard(family, mark, digests)
        self.__dict__.setdefault("_gone", set()).update(before - set(self._blobs))
        return freed

    def _add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        gone = self.__dict__.get("_gone", set())
        super()._add_blobs(family, [blob for blob in blobs if (family, blob.digest) not in gone])


class NeedsARunToSweep(SweepsOf):
    async def mark(self, family: RunId) -> MarkedBlobs:
        marked = await super().mark(family)
        return marked if family in self._heads else marked._replace(sizes={})


class LooksBeforeItBrings(SweepsOf):
    """Looks which blobs are missing, and a sweep takes others before it writes them."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        missing = [blob for blob in commit.blobs if (commit.head.family, blob.digest) not in self._blobs]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await super().commit(commit._replace(blobs=tuple(missing)))


class WaitsForItself(SweepsOf):
    """A sweep that holds a lock while it waits for the thread in which a writer waits for the lock."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        self._thread, self._lock = asyncio.Lock(), asyncio.Lock()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        async with self._thread, self._lock:
            await asyncio.sleep(0)
            return await super().commit(commit)

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        async with self._lock:
            await asyncio.sleep(0)
            async with self._thread:
                return await super().discard(family, mark, digests)


BUGS: list[tuple[type[MemoryStore], str]] = [
    (SortsTags, "test_a_record_has_the_tags_that_it_was_given"),
    (ShowsTagsOnlyWithValues, "test_a_record_has_the_tags_that_it_was_given"),
    (UndoesWhatOthersTag, "test_of_many_who_tag_a_record_none_undoes_what_another_did"),
    (DropsNoTags, "test_tags_are_added_and_taken_beside_others"),
    (AddsTags, "test_new_tags_take_the_place_of_those_before"),
    (TagsAnything, "test_what_is_not_there_cannot_be_tagged"),
    (SpellsTagsAnew, "test_tags_are_any_text"),
    (MovesTheHeadWhenItTags, "test_tags_change_nothing_else"),
    (TagsOnlyHeads, "test_tags_stay_while_the_run_goes_on"),
    (ForgetsTagsWithKeyframes, "test_tags_stay_while_the_run_goes_on"),
    (RemovesAllBefore, "test_removed_records_are_gone_and_the_others_stay"),
    (FindsWhatWasRemoved, "test_removed_records_are_gone_and_the_others_stay"),
    (RemovesWhatHasTags, "test_a_record_with_tags_is_not_removed"),
    (SaysThatWhatHasTagsIsGone, "test_a_record_with_tags_is_not_removed"),
    (RemovesWhatHasNoTags, "test_a_record_with_tags_is_not_removed"),
    (RemovesAHundred, "test_many_records_are_removed_at_once"),
    (KeepsTheKeyframeThatIsThere, "test_records_get_keyframes_as_others_go"),
    (GivesNoKeyframes, "test_records_get_keyframes_as_others_go"),
    (ForgetsTagsWithKeyframes, "test_records_get_keyframes_as_others_go"),
    (KeepsRecordsWithKeyframes, "test_removed_keyframes_are_gone"),
    (BringsNoBlobsToKeyframes, "test_a_removal_brings_the_blobs_of_its_keyframes"),
    (BringsBlobsToTheRun, "test_a_removal_brings_the_blobs_of_its_keyframes"),
    (NeedsEveryRecord, "test_seqs_without_a_record_are_passed_over"),
    (RemovesFromAnyHead, "test_a_removal_by_one_who_missed_a_commit_is_refused"),
    (RemovesFromAnyOwner, "test_a_removal_by_one_who_missed_a_commit_is_refused"),
    (GivesKeyframesBeforeItCompares, "test_a_removal_by_one_who_missed_a_commit_is_refused"),
    (RemovesTheHead, "test_the_record_on_which_a_run_stands_cannot_be_removed"),
    (SaysThatTheHeadMoved, "test_the_record_on_which_a_run_stands_cannot_be_removed"),
    (GivesKeyframesBeforeItCompares, "test_the_record_on_which_a_run_stands_cannot_be_removed"),
    (EmptiesTheJournalWithARemoval, "test_a_run_goes_on_after_a_removal"),
    (ForgetsLettersWithARemoval, "test_a_run_goes_on_after_a_removal"),
    (TakesTheTokenForARemoval, "test_a_run_goes_on_after_a_removal"),
    (ForgetsWhoTags, "test_a_tag_says_who_gave_it"),
    (NamesTheLastWhoTags, "test_a_tag_says_who_gave_it"),
    (ForgetsWhoTagsWithARemoval, "test_a_removal_keeps_who_gave_the_tags_that_stay"),
    (ChangesNoTagsWithARemoval, "test_a_removal_changes_tags"),
    (ChangesTagsThatAreOthers, "test_a_removal_that_expects_other_tags_changes_nothing"),
    (RemovesFromTheFamily, "test_a_removal_touches_no_other_run"),
    (RemovesStepByStep, "test_a_removal_is_seen_whole_or_not_at_all"),
    (RemovesOnlyTheHead, "test_a_removed_run_is_gone"),
    (KeepsTheJournalOfARemovedRun, "test_a_removed_run_is_gone"),
    (KeepsTheInboxOfARemovedRun, "test_a_removed_run_is_gone"),
    (FindsTheCheckpointsOfARemovedRun, "test_a_removed_run_is_gone"),
    (RemovesBlobsWithARun, "test_the_blobs_of_a_removed_run_stay"),
    (RemovesRunsThatMoved, "test_a_run_that_moved_is_not_removed"),
    (TakesARunThatIsGoneForRemoved, "test_a_run_that_moved_is_not_removed"),
    (RefusesTheIdOfARemovedRun, "test_the_id_of_a_removed_run_can_be_used_again"),
    (KeepsTheUsedKeysOfARemovedRun, "test_the_id_of_a_removed_run_can_be_used_again"),
    (RemembersTagsOfARemovedRun, "test_the_id_of_a_removed_run_can_be_used_again"),
    (RemovesOnlyTheHead, "test_the_id_of_a_removed_run_can_be_used_again"),
    (RemovesRunsWithNewLetters, "test_a_run_that_got_a_letter_or_a_tag_is_not_removed"),
    (RemovesRunsWithNewTags, "test_a_run_that_got_a_letter_or_a_tag_is_not_removed"),
    (RemovesTheFamily, "test_removing_a_run_touches_no_other"),
    (MarksAllBlobs, "test_a_mark_gives_the_blobs_of_a_family"),
    (MarksWhatThisRunBrought, "test_a_mark_gives_the_blobs_of_a_family"),
    (DiscardsAllThatIsUnmarked, "test_discarded_blobs_are_gone_and_the_others_stay"),
    (CountsBlobsNotBytes, "test_what_was_freed_is_what_the_mark_said"),
    (FreesWhatIsNotThere, "test_what_is_not_there_is_passed_over"),
    (FailsForMissingBlobs, "test_what_is_not_there_is_passed_over"),
    (DiscardIgnoresTheMark, "test_blobs_that_are_new_since_the_mark_stay"),
    (KnowsOnlyBlobsThatAreBroughtAgain, "test_blobs_that_are_new_since_the_mark_stay"),
    (DiscardIgnoresTheMark, "test_blobs_that_are_brought_again_since_the_mark_stay"),
    (KnowsOnlyNewBlobs, "test_blobs_that_are_brought_again_since_the_mark_stay"),
    (ForgetsWhatForksBring, "test_blobs_that_a_fork_brings_since_the_mark_stay"),
    (ForgetsWhatRemovalsBring, "test_blobs_that_a_removal_brings_since_the_mark_stay"),
    (HasOneMark, "test_each_mark_has_a_moment_of_its_own"),
    (ForgetsWhatWasBroughtWithEachMark, "test_each_mark_has_a_moment_of_its_own"),
    (KeepsWhatWasEverBrought, "test_each_mark_has_a_moment_of_its_own"),
    (MarksFamiliesApart, "test_the_marks_of_families_do_not_disturb_each_other"),
    (DiscardsFromEveryFamily, "test_families_are_swept_apart"),
    (NeverTakesADiscardedBlobAgain, "test_discarded_blobs_can_be_brought_again"),
    (NeedsARunToSweep, "test_blobs_of_a_removed_run_can_be_discarded"),
    (LooksBeforeItBrings, "test_what_is_brought_while_a_sweep_runs_is_there"),
    (WaitsForItself, "test_sweeps_and_writers_do_not_wait_for_each_other"),
]


# -- bugs that take a second object to see -----------------------------------------------------------


class KeepsTagsToItself(Kept):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        self.__dict__.setdefault("_tags", {})[run_id, seq] = tuple(tags)
        return (run_id, seq) in self._records

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        tags = self.__dict__.get("_tags", {})
        found = await super().records(run_id, first, last, depth)
        return [record._replace(tags=tags.get((run_id, record.seq), ())) for record in found]


class RemembersRecords(Kept):
    """Reads records once."""

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        read = self.__dict__.setdefault("_read", {})
        for record in await super().records(run_id, first, last, depth):
            read[run_id, record.seq, depth] = record
        return [
            record for (run, seq, of), record in sorted(read.items()) if run == run_id and of is depth
            if first <= seq <= last
        ]  # fmt: skip


class RemembersHeads(Kept):
    async def head(self, run_id: RunId) -> Any:
        seen = self.__dict__.setdefault("_seen", {})
        if (head := await super().head(run_id)) is not None:
            seen[run_id] = head
        return seen.get(run_id)


class RemovesByWhatItSaw(Kept):
    """Compares with the head that it last saw, although another object may have moved it."""

    async def head(self, run_id: RunId) -> Any:
        head = self.__dict__.setdefault("_seen", {})[run_id] = await super().head(run_id)
        return head

    def _get_expected_head(self, run_id: RunId, expected: Expected) -> Any:
        head = self._heads.get(run_id)
        seen = self.__dict__.get("_seen", {}).get(run_id)
        if head is not None and seen is not None and (seen.checkpoint_id, seen.token) == expected:
            return head
        return super()._get_expected_head(run_id, expected)


class BelievesThatItsRunsAreThere(Kept):
    """Writes a run on that it began, although another object removed it."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        mine = self.__dict__.setdefault("_began", set())
        if commit.head.run_id in mine and commit.head.run_id not in self._heads:
            commit = commit._replace(expected=None)
        mine.add(commit.head.run_id)
        return await super().commit(commit)


class KnowsOnlyWhatItBroughtItself(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._blob_marks = {}


class RemembersBlobs(Kept):
    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Any:
        read = self.__dict__.setdefault("_read", {})
        read.update({(family, d): data for d, data in (await super().blobs(family, digests)).items()})
        return {digest: read[family, digest] for digest in digests if (family, digest) in read}


class LooksBeforeItBringsBesideOthers(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        missing = [blob for blob in commit.blobs if (commit.head.family, blob.digest) not in self._blobs]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await super().commit(commit._replace(blobs=tuple(missing)))


class SweepsAllNamespaces(Kept):
    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._place = place

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        for room in self._place.values():
            for digest in digests if isinstance(room, MemoryStore) else ():
                if room._blobs is not self._blobs:
                    room._blobs.pop((family, digest), None)
        return await super().discard(family, mark, digests)


class RemovesFromAllNamespaces(Kept):
    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._place = place

    async def remove(self, removal: Removal) -> bool:
        done = await super().remove(removal)
        for room in self._place.values():
            for seq in removal.seqs if isinstance(room, MemoryStore) else ():
                room._remove_record(removal.run_id, seq)
        return done


class MustBeOpenedToSweep(Kept):
    async def open(self) -> Any:
        self._opened = True
        return await super().open()

    async def mark(self, family: RunId) -> MarkedBlobs:
        if not getattr(self, "_opened", False):
            raise StorageError("open it first")
        return await super().mark(family)


DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    (KeepsTagsToItself, "test_another_object_sees_what_was_tagged_and_removed"),
    (RemembersRecords, "test_another_object_sees_what_was_tagged_and_removed"),
    (RemembersHeads, "test_another_object_sees_that_a_run_is_gone"),
    (RemovesByWhatItSaw, "test_an_object_that_missed_a_commit_removes_nothing"),
    (BelievesThatItsRunsAreThere, "test_an_object_that_missed_a_removal_goes_on"),
    (KnowsOnlyWhatItBroughtItself, "test_what_another_object_brings_since_the_mark_stays"),
    (RemembersBlobs, "test_discarded_blobs_stay_gone"),
    (LooksBeforeItBringsBesideOthers, "test_what_an_object_brings_while_another_sweeps_is_there"),
    (SweepsAllNamespaces, "test_upkeep_of_namespaces_is_apart"),
    (RemovesFromAllNamespaces, "test_upkeep_of_namespaces_is_apart"),
    (MustBeOpenedToSweep, "test_upkeep_opens_a_store_by_itself"),
]
