"""Stores with bugs that show when a run comes from another store, for the conformance suite to catch."""

from collections.abc import Sequence

from holdfast.checkpoint.store import Blob, Commit, Letter
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.stores.planted_durable import Kept


class DropsAddedBlobs(MemoryStore):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        pass


class AddsBlobsToTheWrongFamily(MemoryStore):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        await super().add_blobs(RunId("s"), blobs)


class ReplacesBlobs(MemoryStore):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        self._blobs.update({(family, blob.digest): blob.data for blob in blobs})


class DropsTheFirstLetters(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(letters=()))


class ForgetsTheKeysOfTheFirstLetters(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        for key in commit.taken:
            del self._letters[commit.head.run_id][key]
        return waiting


class DropsTheTagsOfTheFirstRecords(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        bare = tuple(record._replace(tags=()) for record in commit.records)
        return await super().commit(commit._replace(records=bare))


class TakesAThousandRecords(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(records=commit.records[:1000]))


class ForgetsNotesOfTheFirstCommit(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit if commit.expected is not None else commit._replace(notes=()))


class KeepsAddedBlobsToItself(Kept):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        self._blobs = dict(self._blobs)
        await super().add_blobs(family, blobs)


class LetsTheLastOneWin(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.expected is None:
            self._heads.pop(commit.head.run_id, None)
        return await super().commit(commit)


BUGS = [
    (DropsAddedBlobs, "test_blobs_can_be_added_before_there_is_a_run"),
    (AddsBlobsToTheWrongFamily, "test_blobs_can_be_added_before_there_is_a_run"),
    (ReplacesBlobs, "test_a_blob_that_is_there_is_left_as_it_is_by_one_that_is_added"),
    (DropsTheFirstLetters, "test_a_run_can_begin_with_letters"),
    (ForgetsTheKeysOfTheFirstLetters, "test_a_run_can_begin_with_letters"),
    (DropsTheFirstLetters, "test_a_run_can_come_whole_in_one_commit"),
    (DropsTheTagsOfTheFirstRecords, "test_a_run_can_come_whole_in_one_commit"),
    (TakesAThousandRecords, "test_a_run_can_come_whole_in_one_commit"),
    (ForgetsNotesOfTheFirstCommit, "test_a_run_can_come_whole_in_one_commit"),
]

DURABLE_BUGS = [
    (KeepsAddedBlobsToItself, "test_another_object_sees_a_run_that_came_whole"),
    (LetsTheLastOneWin, "test_one_of_several_objects_that_bring_a_run_wins"),
]
