"""Stores with bugs of the journal, for the conformance suite to catch."""

import asyncio
import unicodedata
from collections.abc import Sequence

from holdfast.checkpoint.store import Commit, Expected, Letter, Note
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore


class NotesOf(MemoryStore):
    """Keeps notes as it should, from parts that can be broken one by one."""

    def added(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return notes

    def shown(self, notes: list[Note]) -> list[Note]:
        return notes

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(notes=self.added(commit.notes)))

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return self.shown(list(await super().notes(run_id)))


class FailsForNotesOfAnUnknownRun(MemoryStore):
    async def notes(self, run_id: RunId) -> Sequence[Note]:
        self._heads[run_id]
        return await super().notes(run_id)


class BeginsWithoutNotes(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit if commit.expected is not None else commit._replace(notes=()))


class AddsByReplacingAll(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        if commit.notes:
            self._notes[commit.head.run_id] = {note.key: note for note in commit.notes}
        return waiting


class EmptiesAtEveryCommit(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        self._notes[commit.head.run_id] = {note.key: note for note in commit.notes}
        return waiting


class EmptiesWhenTheOwnerChanges(MemoryStore):
    """Keeps the journal by token, as if each owner had one of its own."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        if commit.expected is not None and commit.expected.token != commit.head.token:
            self._notes.pop(commit.head.run_id, None)
        return waiting


class NeverEmpties(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        before = self._notes.get(commit.head.run_id, {})
        waiting = await super().commit(commit)
        self._notes[commit.head.run_id] = {**before, **self._notes.get(commit.head.run_id, {})}
        return waiting


class EmptiesOnlyWithRecords(NeverEmpties):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await (MemoryStore if commit.records else NeverEmpties).commit(self, commit)


class AddsBeforeItEmpties(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        moves = commit.expected is not None and commit.expected.checkpoint_id != commit.head.checkpoint_id
        return await super().commit(commit._replace(notes=()) if moves else commit)


class NotesEachTime(MemoryStore):
    """Appends also what replaces."""

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return self.__dict__.get("_all", {}).get(run_id, [])

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        self.__dict__.setdefault("_all", {}).setdefault(commit.head.run_id, []).extend(commit.notes)
        return waiting


class MovesWhatItReplaces(MemoryStore):
    """Deletes and inserts."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        notes = self._notes.get(commit.head.run_id, {})
        for note in commit.notes:
            notes[note.key] = notes.pop(note.key)
        return waiting


class KeepsWhatIsThere(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        before = dict(self._notes.get(commit.head.run_id, {}))
        waiting = await super().commit(commit)
        self._notes[commit.head.run_id] = {**self._notes.get(commit.head.run_id, {}), **before}
        return waiting


class RefusesAKeyTwice(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if len({note.key for note in commit.notes}) < len(commit.notes):
            raise StorageError("twice")
        return await super().commit(commit)


class KeepsTheFirstOfTwo(NotesOf):
    def added(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple({note.key: note for note in reversed(notes)}.values())[::-1]


class NotesBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._notes.setdefault(commit.head.run_id, {}).update({note.key: note for note in commit.notes})
        return await super().commit(commit)


class EmptiesBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None and there.checkpoint_id != commit.head.checkpoint_id:
            self._notes.pop(there.run_id, None)
        return await super().commit(commit)


class NotesForAnyToken(MemoryStore):
    """Takes a commit that only adds notes for one that needs no comparing."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = self._heads.get(commit.head.run_id)
        if there is not None and commit.head.checkpoint_id == there.checkpoint_id and commit.notes:
            expected = Expected(there.checkpoint_id, there.token)
            return await super().commit(commit._replace(head=there, expected=expected))
        return await super().commit(commit)


class NotesByFamily(MemoryStore):
    async def notes(self, run_id: RunId) -> Sequence[Note]:
        head = self._heads.get(run_id)
        return await super().notes(head.family if head is not None else run_id)


class EmptiesRunsThatBeginAlike(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        if commit.records:
            for run in self._heads:
                if run != commit.head.run_id and run.startswith(commit.head.run_id):
                    self._notes.pop(run, None)
        return waiting


class HasOneJournal(MemoryStore):
    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return [note for notes in self._notes.values() for note in notes.values()]


class LosesEmptyNotes(NotesOf):
    def shown(self, notes: list[Note]) -> list[Note]:
        return [note for note in notes if note.data]


class NotesAreLines(NotesOf):
    def added(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple(Note(note.key, note.data.rstrip(b"\n")) for note in notes)


class NotesAreShort(NotesOf):
    def added(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple(Note(note.key, note.data[:65536]) for note in notes)


class KeysOf(NotesOf):
    def key(self, key: str) -> str:
        return key

    def added(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple(Note(self.key(note.key), note.data) for note in notes)


class KeysWithoutCase(KeysOf):
    def key(self, key: str) -> str:
        return key.lower()


class KeysUpToZero(KeysOf):
    def key(self, key: str) -> str:
        return key.partition("\x00")[0]


class KeysInUtf8(KeysOf):
    def key(self, key: str) -> str:
        return key.encode("utf-8", "replace").decode()


class KeysInUtf16(KeysOf):
    """Joins two halves of a character that were two."""

    def key(self, key: str) -> str:
        return key.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


class KeysNormalized(KeysOf):
    def key(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


class ShortKeys(KeysOf):
    def key(self, key: str) -> str:
        return key[:1000]


class NotesInOrderOfKeys(NotesOf):
    def shown(self, notes: list[Note]) -> list[Note]:
        return sorted(notes)


class KeepsAHundredNotes(NotesOf):
    def shown(self, notes: list[Note]) -> list[Note]:
        return notes[-100:]


class WritesTheWholeJournal(MemoryStore):
    """Reads it, adds to it, writes it: what another commit wrote in the meantime is lost."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        run = commit.head.run_id
        stays = commit.expected is not None and commit.expected.checkpoint_id == commit.head.checkpoint_id
        before = dict(self._notes.get(run, {})) if stays else {}
        await asyncio.sleep(0)
        waiting = await super().commit(commit)
        self._notes[run] = {**before, **{note.key: note for note in commit.notes}}
        return waiting


class ShowsNotesBeforeTheHead(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        notes = self._notes.setdefault(commit.head.run_id, {})
        before = dict(notes)
        for note in commit.notes:
            notes[note.key] = note
            await asyncio.sleep(0)
        notes.clear()
        notes.update(before)
        return await super().commit(commit)


class NotesBehindTheHead(MemoryStore):
    """Writes a head without its notes if the caller is cancelled."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit._replace(notes=()))
        await asyncio.sleep(0)
        self._notes.setdefault(commit.head.run_id, {}).update({note.key: note for note in commit.notes})
        return waiting


class NotesOfTheLoserWin(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        try:
            return await super().commit(commit)
        except HeadMoved:
            self._notes.setdefault(commit.head.run_id, {}).update({note.key: note for note in commit.notes})
            raise


BUGS: list[tuple[type[MemoryStore], str]] = [
    (FailsForNotesOfAnUnknownRun, "test_a_run_of_which_nothing_is_noted_has_an_empty_journal"),
    (BeginsWithoutNotes, "test_the_first_commit_may_have_notes"),
    (AddsByReplacingAll, "test_a_commit_that_stays_on_its_checkpoint_adds_to_the_journal"),
    (EmptiesAtEveryCommit, "test_a_commit_that_stays_on_its_checkpoint_keeps_the_journal"),
    (EmptiesWhenTheOwnerChanges, "test_a_commit_that_stays_on_its_checkpoint_keeps_the_journal"),
    (NeverEmpties, "test_a_commit_that_moves_the_head_empties_the_journal"),
    (EmptiesOnlyWithRecords, "test_a_commit_that_moves_the_head_without_records_empties_the_journal"),
    (NeverEmpties, "test_notes_of_a_commit_that_moves_the_head_belong_to_the_new_checkpoint"),
    (AddsBeforeItEmpties, "test_notes_of_a_commit_that_moves_the_head_belong_to_the_new_checkpoint"),
    (NotesEachTime, "test_a_note_replaces_that_of_its_key_in_its_place"),
    (MovesWhatItReplaces, "test_a_note_replaces_that_of_its_key_in_its_place"),
    (KeepsWhatIsThere, "test_a_note_replaces_that_of_its_key_in_its_place"),
    (RefusesAKeyTwice, "test_of_two_notes_of_a_commit_with_one_key_the_last_is_kept"),
    (KeepsTheFirstOfTwo, "test_of_two_notes_of_a_commit_with_one_key_the_last_is_kept"),
    (NotesBeforeItCompares, "test_nothing_of_a_refused_commit_is_noted"),
    (EmptiesBeforeItCompares, "test_nothing_of_a_refused_commit_is_noted"),
    (NotesForAnyToken, "test_a_writer_whose_run_was_taken_over_can_note_nothing"),
    (NotesByFamily, "test_journals_of_other_runs_are_left_alone"),
    (EmptiesRunsThatBeginAlike, "test_journals_of_other_runs_are_left_alone"),
    (HasOneJournal, "test_journals_of_other_runs_are_left_alone"),
    (LosesEmptyNotes, "test_data_of_notes_comes_back_as_it_was_given"),
    (NotesAreLines, "test_data_of_notes_comes_back_as_it_was_given"),
    (NotesAreShort, "test_data_of_notes_comes_back_as_it_was_given"),
    (KeysWithoutCase, "test_keys_of_notes_are_any_text_and_are_apart"),
    (KeysUpToZero, "test_keys_of_notes_are_any_text_and_are_apart"),
    (KeysInUtf8, "test_keys_of_notes_are_any_text_and_are_apart"),
    (KeysInUtf16, "test_keys_of_notes_are_any_text_and_are_apart"),
    (KeysNormalized, "test_keys_of_notes_are_any_text_and_are_apart"),
    (ShortKeys, "test_keys_of_notes_are_any_text_and_are_apart"),
    (NotesInOrderOfKeys, "test_many_notes_keep_their_order"),
    (KeepsAHundredNotes, "test_many_notes_keep_their_order"),
    (WritesTheWholeJournal, "test_notes_that_are_committed_at_the_same_time_are_all_there"),
    (NotesOfTheLoserWin, "test_of_rivals_only_the_notes_of_the_winner_are_there"),
    (ShowsNotesBeforeTheHead, "test_a_journal_is_never_seen_in_part"),
    (NotesBehindTheHead, "test_a_cancelled_commit_happens_with_its_notes_or_not"),
    (HasOneJournal, "test_odd_ids_have_journals_and_inboxes_of_their_own"),
]
