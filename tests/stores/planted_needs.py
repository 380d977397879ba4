"""Stores that do not see to it that what a commit needs is there, for the conformance suite to catch."""

import asyncio
from collections.abc import Sequence

from holdfast.checkpoint.store import Blob, Commit, Letter
from holdfast.errors import CheckpointNotFound, HeadMoved
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.stores.planted_durable import Kept
from tests.support.store_parts import check_needs


class IgnoresNeeds(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(needs=()))


class LooksInEveryFamily(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        check_needs(commit, {digest for _, digest in self._blobs})
        mine = [digest for digest in commit.needs if (commit.head.family, digest) in self._blobs]
        return await super().commit(commit._replace(needs=tuple(mine)))


class LooksAtTheFirst(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(needs=commit.needs[:1]))


class LooksAfterwards(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(needs=()))
        check_needs(commit, {digest for family, digest in self._blobs if family == commit.head.family})
        return waiting


class LooksAtNeedsFirst(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        check_needs(commit, {digest for family, digest in self._blobs if family == commit.head.family})
        return await super().commit(commit)


class NeedsOnlyWhatWasCommitted(MemoryStore):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        await super().add_blobs(family, blobs)
        self.__dict__.setdefault("_added", set()).update(blob.digest for blob in blobs)

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        check_needs(commit, {d for _, d in self._blobs} - self.__dict__.get("_added", set()))
        return await super().commit(commit)


class SaysThatTheHeadMovedInstead(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        try:
            return await super().commit(commit)
        except CheckpointNotFound as error:
            raise HeadMoved(str(error)) from None


class OnlyLooks(MemoryStore):
    """Finds the blobs that a commit needs, but does not mark them as in use."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        brought = dict(self._blob_marks)
        waiting = await super().commit(commit)
        if commit.needs:
            self._blob_marks = brought
        return waiting


class ForgetsWhatIsAdded(MemoryStore):
    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        brought = dict(self._blob_marks)
        await super().add_blobs(family, blobs)
        self._blob_marks = brought


class LooksTooEarly(MemoryStore):
    """Looks whether what a commit needs is there, and a sweep takes it before it is committed."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.needs:
            check_needs(commit, {digest for _, digest in self._blobs})
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await super().commit(commit._replace(needs=()))


class LooksTooEarlyBesideOthers(LooksTooEarly, Kept):
    """Looks too early, and a sweep of another object takes it."""


class TellsNobodyWhatItNeeds(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        brought = dict(self._blob_marks)
        waiting = await super().commit(commit)
        if commit.needs:
            self._blob_marks.clear()
            self._blob_marks.update(brought)
        return waiting


BUGS: list[tuple[type[MemoryStore], str]] = [
    (NeedsOnlyWhatWasCommitted, "test_a_commit_is_taken_if_what_it_needs_is_there"),
    (IgnoresNeeds, "test_a_commit_is_refused_if_what_it_needs_is_missing"),
    (LooksInEveryFamily, "test_a_commit_is_refused_if_what_it_needs_is_missing"),
    (LooksAtTheFirst, "test_a_commit_is_refused_if_what_it_needs_is_missing"),
    (LooksAfterwards, "test_a_commit_is_refused_if_what_it_needs_is_missing"),
    (SaysThatTheHeadMovedInstead, "test_a_commit_is_refused_if_what_it_needs_is_missing"),
    (LooksAtNeedsFirst, "test_who_missed_a_commit_hears_of_that_first"),
    (OnlyLooks, "test_what_a_commit_needs_counts_as_brought"),
    (ForgetsWhatIsAdded, "test_added_blobs_count_as_brought"),
    (LooksTooEarly, "test_a_sweep_comes_before_or_behind_who_needs_a_blob"),
]

DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    (TellsNobodyWhatItNeeds, "test_another_object_knows_what_a_commit_needed"),
    (LooksTooEarlyBesideOthers, "test_a_sweep_of_another_object_comes_before_or_behind"),
]
