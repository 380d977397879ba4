"""Stores that are bad at being repaired, for the conformance suite to catch."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.checkpoint.store import Commit, Damage, Expected, Mended, Rehearsal, SealedForms
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore


class KeepsWhatShouldGo(MemoryStore):
    def _remove_all(self, run_id: RunId) -> None:
        for table in (self._heads, self._notes, self._letters):
            table.pop(run_id, None)


class KeepsOldLetters(MemoryStore):
    def _remove_all(self, run_id: RunId) -> None:
        letters = self._letters.get(run_id, {})
        super()._remove_all(run_id)
        self._letters[run_id] = letters


class ReplacesWithoutTags(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        await super().replace(
            commit._replace(records=tuple(made._replace(tags=()) for made in commit.records))
        )


class KeepsTheOldToken(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        assert commit.expected is not None
        await super().replace(commit._replace(head=commit.head._replace(token=commit.expected.token)))


class ReplacesWhateverIsThere(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        head = self._heads.get(commit.head.run_id)
        expected = None if head is None else Expected(head.checkpoint_id, head.token)
        await super().replace(commit._replace(expected=expected))


class ReplacesWithoutBlobs(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        await super().replace(commit._replace(blobs=()))


class ComplainsOfTags(MemoryStore):
    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        return [Damage(made.run_id, "tags") for made in self._records.values() if made.tags]


class ComplainsOfARunThatIsGone(MemoryStore):
    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        return [Damage(run_id, "gone")] if run_id is not None and run_id not in self._heads else []


class MendsWhatIsWhole(MemoryStore):
    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        return [Mended(there, "") for there in self._heads]


class RehearsesOnItself(MemoryStore):
    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        yield Rehearsal(self, str)


class RehearsesWithoutBlobs(MemoryStore):
    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        async with super().rehearsal(run_id) as rehearsal:
            assert isinstance(rehearsal.store, MemoryStore)
            rehearsal.store._blobs.clear()
            yield rehearsal


class RehearsesAllRuns(MemoryStore):
    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        async with super().rehearsal() as rehearsal:
            yield rehearsal


class RehearsesWithoutUsedKeys(MemoryStore):
    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        async with super().rehearsal(run_id) as rehearsal:
            assert isinstance(rehearsal.store, MemoryStore)
            for letters in rehearsal.store._letters.values():
                for key in [key for key, letter in letters.items() if letter is None]:
                    del letters[key]
            yield rehearsal


BUGS = [
    (RehearsesAllRuns, "test_a_rehearsal_of_one_run_has_that_run_alone"),
    (RehearsesWithoutUsedKeys, "test_a_rehearsal_of_one_run_has_that_run_alone"),
    (RehearsesOnItself, "test_what_is_tried_on_a_copy_does_not_happen"),
    (RehearsesWithoutBlobs, "test_what_is_tried_on_a_copy_does_not_happen"),
    (KeepsWhatShouldGo, "test_a_run_is_replaced_by_what_is_left_of_it"),
    (KeepsOldLetters, "test_a_run_is_replaced_by_what_is_left_of_it"),
    (ReplacesWithoutTags, "test_a_run_is_replaced_by_what_is_left_of_it"),
    (KeepsTheOldToken, "test_a_run_goes_on_after_it_was_replaced"),
    (ReplacesWhateverIsThere, "test_a_run_that_moved_is_not_replaced"),
    (ReplacesWithoutBlobs, "test_what_a_repair_brings_is_there"),
    (ComplainsOfTags, "test_nothing_is_wrong_with_a_sound_store"),
    (ComplainsOfARunThatIsGone, "test_nothing_is_wrong_with_a_sound_store"),
    (MendsWhatIsWhole, "test_nothing_is_wrong_with_a_sound_store"),
]
