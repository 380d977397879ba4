"""Stores that outlive their object, with bugs that take a second object to see, for the conformance suite to catch."""

import asyncio
from collections.abc import Collection, Sequence, Set
from typing import Any

from holdfast.checkpoint.store import Commit, Expected, Head, LeaveResult, Letter, Note, StoreInfo
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.support.parts import this_process


class Kept(MemoryStore):
    """A store whose dicts lie in a place that other objects share."""

    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(namespace)
        kept = place.setdefault(self.room(namespace), MemoryStore(namespace))
        self._info = place.setdefault("info", MemoryStore())._info
        self._present: list[MemoryStore] = place.setdefault("present", [])
        self.adopt(kept)

    def room(self, namespace: str) -> str:
        return f"namespace {namespace}"

    def adopt(self, kept: MemoryStore) -> None:
        self._counting = kept
        for name in (
            "_heads",
            "_records",
            "_seqs",
            "_places",
            "_blobs",
            "_blob_marks",
            "_notes",
            "_letters",
            "_claims",
            "_events",
        ):
            setattr(self, name, getattr(kept, name))

    @property
    def _marks(self) -> int:
        return self._counting._marks

    @_marks.setter
    def _marks(self, count: int) -> None:
        if "_counting" in self.__dict__:
            self._counting._marks = count

    async def join(self) -> None:
        await super().join()
        self._present.append(self)

    async def living(self, processes: Collection[str]) -> Set[str]:
        self._check_open()
        return {this_process()} & set(processes) if any(not one._closed for one in self._present) else set()


class ForgetsNotes(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._notes = {}


class ForgetsEvents(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._events = {}


class SharesEvents(Kept):
    """Keeps the events of all namespaces together."""

    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._events = place.setdefault("events", {})


class ForgetsLetters(Kept):
    def adopt(self, kept: MemoryStore) -> None:
        super().adopt(kept)
        self._letters = {}


class ForgetsWhatWasTakenWhenItCloses(Kept):
    async def close(self) -> None:
        await super().close()
        for letters in self._letters.values():
            for key in [key for key, letter in letters.items() if letter is None]:
                del letters[key]


class RemembersNotes(Kept):
    """Reads a journal once."""

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        read: dict[RunId, Sequence[Note]] = self.__dict__.setdefault("_read", {})
        if run_id not in read:
            read[run_id] = await super().notes(run_id)
        return read[run_id]


class NotesWithoutTheOthers(Kept):
    """Notes and takes before it looks whether others have moved the head."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None and commit.expected != Expected(there.checkpoint_id, there.token):
            self._notes.setdefault(there.run_id, {}).update({note.key: note for note in commit.notes})
        return await super().commit(commit)


class TakesWithoutTheOthers(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._letters.get(commit.head.run_id, {}).update(dict.fromkeys(commit.taken, None))
        return await super().commit(commit)


class ReturnsOnlyItsOwnLetters(Kept):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        self.__dict__.setdefault("_mine", set()).update(letters)
        return left

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        mine = self.__dict__.get("_mine", set())
        return [letter for letter in await super().commit(commit) if letter in mine]


class KnowsOnlyKeysThatItSaw(Kept):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        seen: set[str] = self.__dict__.setdefault("_seen", set())
        for letter in letters:
            if letter.key not in seen:
                self._letters.get(run_id, {}).pop(letter.key, None)
                seen.add(letter.key)
        return await super().leave(run_id, since, letters, most)


class LooksBeforeOthersLeave(Kept):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, [], most)
        known = self._letters.setdefault(run_id, {})
        refused = tuple(letter.key for letter in letters if letter.key in known)
        await asyncio.sleep(0)
        if not refused:
            known.update({letter.key: letter for letter in letters})
        return left._replace(refused=refused)


class TakesWhatOthersLeaveMeanwhile(Kept):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        known = self._letters.setdefault(commit.head.run_id, {})
        await asyncio.sleep(0)
        waiting = await super().commit(commit)
        await asyncio.sleep(0)
        for key in known:
            if commit.taken and key not in {letter.key for letter in waiting}:
                known[key] = None
        return waiting


class MixesNotesOfNamespaces(Kept):
    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._notes = place.setdefault("notes", {})


class MixesLettersOfNamespaces(Kept):
    def __init__(self, place: dict[str, Any], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._letters = place.setdefault("letters", {})


class SeesOnlyItself(Kept):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return await MemoryStore.living(self, processes)


class LivesOnWhenItIsClosed(Kept):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return {this_process()} & set(processes) if self._present else set()


class ClosesForAll(Kept):
    async def close(self) -> None:
        await super().close()
        self._present.clear()


class ClosesForAllWhoJoined(Kept):
    """As a lock of a process that is given up with the first of its files to be closed."""

    async def close(self) -> None:
        await super().close()
        if self in self._present:
            self._present.clear()


class JoinsOnceForAll(Kept):
    """Only the first object of a process counts."""

    async def join(self) -> None:
        if not any(self._present):
            await super().join()


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


BUGS: list[tuple[type[Kept], str]] = [
    (ForgetsNotes, "test_another_object_finds_the_journal"),
    (ForgetsNotes, "test_every_method_opens_a_store_by_itself"),
    (ForgetsEvents, "test_another_object_sees_events"),
    (SharesEvents, "test_another_namespace_sees_no_events"),
    (ForgetsLetters, "test_another_object_finds_the_inbox"),
    (ForgetsWhatWasTakenWhenItCloses, "test_another_object_finds_the_inbox"),
    (ForgetsLetters, "test_every_method_opens_a_store_by_itself"),
    (RemembersNotes, "test_what_one_object_notes_the_other_sees_at_once"),
    (NotesWithoutTheOthers, "test_an_object_that_missed_a_commit_notes_and_takes_nothing"),
    (TakesWithoutTheOthers, "test_an_object_that_missed_a_commit_notes_and_takes_nothing"),
    (ReturnsOnlyItsOwnLetters, "test_what_one_object_leaves_the_next_commit_of_the_other_returns"),
    (KnowsOnlyKeysThatItSaw, "test_of_objects_that_leave_the_same_key_one_wins"),
    (LooksBeforeOthersLeave, "test_of_objects_that_leave_the_same_key_one_wins"),
    (TakesWhatOthersLeaveMeanwhile, "test_no_letter_of_another_object_is_lost"),
    (MixesNotesOfNamespaces, "test_journals_and_inboxes_of_namespaces_are_apart"),
    (MixesLettersOfNamespaces, "test_journals_and_inboxes_of_namespaces_are_apart"),
    (SeesOnlyItself, "test_another_object_sees_that_this_process_lives"),
    (LivesOnWhenItIsClosed, "test_a_process_lives_until_it_closes_the_store"),
    (ClosesForAll, "test_a_process_lives_until_it_closes_the_last_object"),
    (ClosesForAllWhoJoined, "test_a_process_lives_until_it_closes_the_last_object"),
    (JoinsOnceForAll, "test_a_process_lives_until_it_closes_the_last_object"),
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
]
