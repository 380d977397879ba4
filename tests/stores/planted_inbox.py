"""Stores with bugs of the inbox and of presence, for the conformance suite to catch."""

import asyncio
from collections.abc import Collection, Sequence, Set

from holdfast.checkpoint.store import Commit, Head, LeaveResult, Letter
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.support.parts import this_process


class LettersOf(MemoryStore):
    """Keeps letters as it should, from parts that can be broken one by one."""

    def key(self, key: str) -> str:
        return key

    def data(self, data: bytes) -> bytes:
        return data

    def shown(self, letters: list[Letter]) -> list[Letter]:
        return letters

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        taken = tuple(self.key(key) for key in commit.taken)
        return self.shown(list(await super().commit(commit._replace(taken=taken))))

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        kept = [Letter(self.key(letter.key), self.data(letter.data)) for letter in letters]
        return await super().leave(run_id, since, kept, most)

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return self.shown(list(await super().inbox(run_id)))


class TakesWaitingLettersForTaken(MemoryStore):
    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in keys if key in self._letters.get(run_id, {})]


class TakesUnknownLettersForTaken(MemoryStore):
    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in keys if self._letters.get(run_id, {}).get(key) is None]


class UsesUpForRunsToCome(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        if run_id not in self._heads:
            self._letters.setdefault(run_id, {}).update(dict.fromkeys(keys))
        return await super().use_up(run_id, keys)


class UsesUpByLeaving(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        return await super().leave(run_id, 0, [Letter(key, b"") for key in keys])


class ForgetsWhatWasUsedUp(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        return (await super().use_up(run_id, []))._replace(refused=())


class UsingUpTakesAll(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        used = await super().use_up(run_id, keys)
        self._letters.get(run_id, {}).update(dict.fromkeys(self._letters.get(run_id, {})))
        return used


class UsesUpWhatItCan(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        used = await super().use_up(run_id, keys)
        if used.refused:
            await super().use_up(run_id, [key for key in keys if key not in used.refused])
        return used


class UsesUpKeysThatWait(MemoryStore):
    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        known = self._letters.get(run_id, {})
        used = await super().use_up(run_id, [key for key in keys if known.get(key) is None])
        return used._replace(refused=tuple(key for key in keys if key in used.refused))


class TakesOnlyWhatWasThereBefore(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        known = self._letters.get(commit.head.run_id, {})
        taken = tuple(key for key in commit.taken if key in known)
        return await super().commit(commit._replace(taken=taken))


class ForgetsKeysOfTheFirstCommit(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.expected is None:
            left = tuple(letter for letter in commit.letters if letter.key not in commit.taken)
            commit = commit._replace(letters=left, taken=())
        return await super().commit(commit)


class UsesUpBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.letters:
            await super().use_up(commit.head.run_id, commit.taken)
        return await super().commit(commit)


class CommitsReplaceLetters(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        known = self._letters.setdefault(commit.head.run_id, {})
        known.update({letter.key: letter for letter in commit.letters})
        return await super().commit(commit)


class FailsForTheInboxOfAnUnknownRun(MemoryStore):
    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        self._heads[run_id]
        return await super().inbox(run_id)


class ReturnsNothing(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await super().commit(commit)
        return ()


class ReturnsNone(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await super().commit(commit)
        return None  # type: ignore[return-value]


class LettersInOrderOfKeys(LettersOf):
    def shown(self, letters: list[Letter]) -> list[Letter]:
        return sorted(letters)


class ComparesEachLetterWithAll(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = [
            letter for letter in await self.inbox(commit.head.run_id) if letter.key not in commit.taken
        ]
        await super().commit(commit)
        return [*waiting, *commit.letters]


class NewestFirst(LettersOf):
    def shown(self, letters: list[Letter]) -> list[Letter]:
        return letters[::-1]


class ShowsAHundredLetters(LettersOf):
    def shown(self, letters: list[Letter]) -> list[Letter]:
        return letters[:100]


class SaysWhereTheRunBegan(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        first: dict[RunId, Head | None] = self.__dict__.setdefault("_first", {})
        return left._replace(head=first.setdefault(run_id, left.head))


class SaysNotWhereTheRunStoodWhenItRefuses(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        return left if not left.refused else left._replace(head=None)


class LeavesForRunsToCome(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        if run_id not in self._heads:
            self._letters.setdefault(run_id, {}).update({letter.key: letter for letter in letters})
        return await super().leave(run_id, since, letters, most)


class RefusesForRunsThatAreMissing(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        if run_id not in self._heads:
            raise StorageError("no such run")
        return await super().leave(run_id, since, letters, most)


class LeavingIsAnUpdate(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.head is not None:
            self._heads[run_id] = left.head._replace(updated=left.head.updated + 5)
        return left


class LeavingIsACommit(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.head is not None:
            self._heads[run_id] = left.head._replace(token=left.head.token + 1)
        return left


class LeavesOnlyForRunsThatGoOn(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        head = self._heads.get(run_id)
        if head is not None and head.status.ended:
            return LeaveResult(head)
        return await super().leave(run_id, since, letters, most)


class ReturnsEachLetterOnce(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        seen = self.__dict__.setdefault("_seen", set())
        waiting = [letter for letter in await super().commit(commit) if letter not in seen]
        seen.update(waiting)
        return waiting


class EmptiesTheInboxWithTheJournal(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.records:
            self._letters.pop(commit.head.run_id, None)
        return await super().commit(commit)


class ReturnsWhatItTakes(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        before = await self.inbox(commit.head.run_id)
        await super().commit(commit)
        return before


class TakesOnlyWhenItMoves(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit if commit.records else commit._replace(taken=()))


class TakesAll(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.taken:
            commit = commit._replace(taken=tuple(self._letters.get(commit.head.run_id, {})))
        return await super().commit(commit)


class TakesOnlyWhatWaits(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = {letter.key for letter in await self.inbox(commit.head.run_id)}
        if not waiting.issuperset(commit.taken):
            raise StorageError("nothing to take")
        return await super().commit(commit)


class TakesBeforeItCompares(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._letters.get(commit.head.run_id, {}).update(dict.fromkeys(commit.taken, None))
        return await super().commit(commit)


class LetsLettersBeReplaced(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        waiting = self._letters.get(run_id, {})
        waiting.update({letter.key: letter for letter in letters if waiting.get(letter.key) is not None})
        return left


class LooksOnlySince(MemoryStore):
    """Forgets what waits as soon as the run moves on."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        head = self._heads.get(run_id)
        if head is not None and since < head.seq and self._letters.get(run_id):
            known = self._letters[run_id]
            letters = [letter for letter in letters if letter.key not in known or known[letter.key] is None]
        return await super().leave(run_id, since, letters, most)


class LeavesWhatItCan(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.refused:
            await super().leave(run_id, since, [one for one in letters if one.key not in left.refused], most)
        return left


class NamesOneOfTheRefused(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        return left._replace(refused=left.refused[:1])


class NamesAllAsRefused(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        return left._replace(refused=tuple(letter.key for letter in letters) if left.refused else ())


class ForgetsWhatWasTaken(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for key in commit.taken:
            self._letters.get(commit.head.run_id, {}).pop(key, None)
        return await super().commit(commit)


class ForgetsWhatWasTakenOnTheWay(MemoryStore):
    """Forgets with each move what was taken before, and with it."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        if commit.records and commit.head.run_id in self._letters:
            self._letters[commit.head.run_id] = {letter.key: letter for letter in waiting}
        return waiting


class RefusesButLeaves(MemoryStore):
    """Says of what was taken long ago that it is refused, and leaves it all the same."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.refused and since > 2:
            self._letters[run_id].update({letter.key: letter for letter in letters})
        return left


class TakesFromEveryRun(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for letters in self._letters.values():
            letters.update({key: None for key in commit.taken if key in letters})
        return await super().commit(commit)


class HasOneInbox(MemoryStore):
    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return [letter for letters in self._letters.values() for letter in letters.values() if letter]


class KeysAreUsedByAllRuns(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        used = {key for known in self._letters.values() for key in known}
        refused = tuple(letter.key for letter in letters if letter.key in used)
        return (
            LeaveResult(self._heads[run_id], refused)
            if refused
            else await super().leave(run_id, since, letters, most)
        )


class LosesEmptyLetters(LettersOf):
    def shown(self, letters: list[Letter]) -> list[Letter]:
        return [letter for letter in letters if letter.data]


class LettersAreShort(LettersOf):
    def data(self, data: bytes) -> bytes:
        return data[:65536]


class ReturnsLettersAsText(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await super().commit(commit)
        return [Letter(key, data.decode("ascii", "replace").encode()) for key, data in waiting]


class LettersWithoutCase(LettersOf):
    def key(self, key: str) -> str:
        return key.lower()


class LettersByShortKeys(LettersOf):
    def key(self, key: str) -> str:
        return key[:255]


class TakesByPattern(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        pattern = any("%" in key for key in commit.taken)
        every = tuple(self._letters.get(commit.head.run_id, {})) if pattern else ()
        return await super().commit(commit._replace(taken=(*commit.taken, *every)))


# ---------------------------------------------------------------- many at the same time


class LooksBeforeItLeaves(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        known = self._letters.setdefault(run_id, {})
        refused = tuple(letter.key for letter in letters if letter.key in known)
        await asyncio.sleep(0)
        if not refused:
            known.update({letter.key: letter for letter in letters})
        return LeaveResult(self._heads.get(run_id), refused)


class WritesTheWholeInbox(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        before = dict(self._letters.get(run_id, {}))
        await asyncio.sleep(0)
        left = await super().leave(run_id, since, letters, most)
        if not left.refused:
            self._letters[run_id] = {**before, **{letter.key: letter for letter in letters}}
        return left


class LeavesOneByOne(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, [], most)
        refused = [letter.key for letter in letters if letter.key in self._letters.get(run_id, {})]
        if left.head is None or refused:
            return left._replace(refused=tuple(refused))
        for letter in letters:
            await super().leave(run_id, since, [letter], most)
            await asyncio.sleep(0)
        return left


class TakesFromAnOldInbox(MemoryStore):
    """Loses letters that are left while a commit takes others."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        before = dict(self._letters.get(commit.head.run_id, {}))
        await asyncio.sleep(0)
        waiting = await super().commit(commit)
        if commit.taken:
            self._letters[commit.head.run_id] = {**before, **dict.fromkeys(commit.taken)}
        return waiting


class ReturnsWhatWaitedLastTime(MemoryStore):
    """Reads the inbox before the commit, and gives it to the next one."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        last: dict[RunId, Sequence[Letter]] = self.__dict__.setdefault("_last", {})
        before = last.get(commit.head.run_id, ())
        last[commit.head.run_id] = await super().commit(commit)
        return [letter for letter in before if letter.key not in commit.taken]


class TakesBehindTheHead(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await super().commit(commit._replace(taken=()))
        await asyncio.sleep(0)
        self._letters.get(commit.head.run_id, {}).update(dict.fromkeys(commit.taken, None))
        return await self.inbox(commit.head.run_id)


class LeavesInOneLoop(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        loop = self.__dict__.setdefault("_loop", asyncio.get_running_loop())
        if loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return await super().leave(run_id, since, letters, most)


# ---------------------------------------------------------------- presence and closing


class NobodyLives(MemoryStore):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return frozenset()


class EverybodyLives(MemoryStore):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return frozenset(processes)


class ThisProcessAlwaysLives(MemoryStore):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return {this_process()} & set(processes)


class LivesUntilItCommits(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._joined = False
        return await super().commit(commit)


class JoinsOnce(MemoryStore):
    async def join(self) -> None:
        if self._joined:
            raise StorageError("joined already")
        await super().join()


class LeavesWhenItJoinsTwice(MemoryStore):
    async def join(self) -> None:
        self._check_open()
        self._joined = not self._joined


class SeesOneProcessAtATime(MemoryStore):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return await super().living(list(processes)[:1])


class WhoeverBeginsAlikeLives(MemoryStore):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return {process for process in processes if self._joined and process.startswith(this_process()[:-1])}


class AnswersWhenItIsClosed(MemoryStore):
    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return self._get_waiting_letters(run_id)


class JoinsWhenItIsClosed(MemoryStore):
    async def join(self) -> None:
        self._joined = True


class TakesLettersWithoutEnd(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        return await super().leave(run_id, since, letters)


class CountsLettersThatWereTaken(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        known = self._letters.get(run_id, {})
        taken = sum(letter is None for letter in known.values())
        return await super().leave(run_id, since, letters, None if most is None else most - taken)


class LeavesAsManyAsThereIsRoomFor(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.is_full:
            for letter in letters:
                await super().leave(run_id, since, [letter], most)
        return left


class BoundsLettersOfAllSenders(MemoryStore):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        return await super().leave(run_id, since, letters, 3 if most is None else most)


BUGS: list[tuple[type[MemoryStore], str]] = [
    (TakesLettersWithoutEnd, "test_no_more_letters_wait_than_the_sender_allows"),
    (TakesWaitingLettersForTaken, "test_keys_of_letters_that_were_taken_are_told"),
    (TakesUnknownLettersForTaken, "test_keys_of_letters_that_were_taken_are_told"),
    (UsesUpForRunsToCome, "test_keys_are_used_up_without_letters"),
    (UsesUpByLeaving, "test_keys_are_used_up_without_letters"),
    (ForgetsWhatWasUsedUp, "test_keys_are_used_up_without_letters"),
    (UsingUpTakesAll, "test_keys_are_used_up_without_letters"),
    (UsesUpWhatItCan, "test_keys_are_used_up_all_or_none"),
    (UsesUpKeysThatWait, "test_keys_are_used_up_all_or_none"),
    (TakesOnlyWhatWasThereBefore, "test_a_commit_uses_up_keys_that_nobody_left"),
    (UsesUpBeforeItCompares, "test_a_commit_uses_up_keys_that_nobody_left"),
    (ForgetsKeysOfTheFirstCommit, "test_a_commit_that_is_written_whole_uses_up_its_keys"),
    (CommitsReplaceLetters, "test_a_commit_leaves_no_letter_whose_key_was_used"),
    (CountsLettersThatWereTaken, "test_no_more_letters_wait_than_the_sender_allows"),
    (LeavesAsManyAsThereIsRoomFor, "test_no_more_letters_wait_than_the_sender_allows"),
    (BoundsLettersOfAllSenders, "test_no_more_letters_wait_than_the_sender_allows"),
    (FailsForTheInboxOfAnUnknownRun, "test_a_run_for_which_nothing_was_left_has_an_empty_inbox"),
    (ReturnsNone, "test_a_run_for_which_nothing_was_left_has_an_empty_inbox"),
    (LettersInOrderOfKeys, "test_letters_are_kept_in_the_order_in_which_they_were_left"),
    (ComparesEachLetterWithAll, "test_taking_many_letters_does_not_compare_each_with_all"),
    (NewestFirst, "test_letters_are_kept_in_the_order_in_which_they_were_left"),
    (SaysWhereTheRunBegan, "test_leaving_says_where_the_run_stood"),
    (SaysNotWhereTheRunStoodWhenItRefuses, "test_leaving_says_where_the_run_stood"),
    (LeavesForRunsToCome, "test_nothing_can_be_left_for_a_run_that_is_not_there"),
    (RefusesForRunsThatAreMissing, "test_nothing_can_be_left_for_a_run_that_is_not_there"),
    (LeavingIsAnUpdate, "test_leaving_moves_no_head"),
    (LeavingIsACommit, "test_a_writer_goes_on_although_letters_were_left"),
    (LeavesOnlyForRunsThatGoOn, "test_letters_can_be_left_for_a_run_of_any_status"),
    (ReturnsNothing, "test_every_commit_returns_the_letters_that_wait"),
    (ReturnsEachLetterOnce, "test_every_commit_returns_the_letters_that_wait"),
    (EmptiesTheInboxWithTheJournal, "test_every_commit_returns_the_letters_that_wait"),
    (ReturnsWhatWaitedLastTime, "test_every_commit_returns_the_letters_that_wait"),
    (ReturnsWhatItTakes, "test_a_letter_that_was_taken_waits_no_longer"),
    (TakesOnlyWhenItMoves, "test_a_letter_that_was_taken_waits_no_longer"),
    (TakesAll, "test_a_letter_that_was_taken_waits_no_longer"),
    (TakesOnlyWhatWaits, "test_taking_what_does_not_wait_is_no_error"),
    (TakesBeforeItCompares, "test_a_refused_commit_takes_no_letter"),
    (LetsLettersBeReplaced, "test_a_key_that_waits_cannot_be_left_again"),
    (LooksOnlySince, "test_a_key_that_waits_cannot_be_left_again"),
    (LeavesWhatItCan, "test_letters_are_left_all_or_none"),
    (NamesOneOfTheRefused, "test_letters_are_left_all_or_none"),
    (NamesAllAsRefused, "test_letters_are_left_all_or_none"),
    (ForgetsWhatWasTaken, "test_a_key_that_was_taken_cannot_be_left_again"),
    (ForgetsWhatWasTakenOnTheWay, "test_a_key_that_was_taken_cannot_be_left_again"),
    (RefusesButLeaves, "test_a_key_that_was_taken_before_is_refused_or_left"),
    (TakesFromEveryRun, "test_inboxes_of_other_runs_are_left_alone"),
    (HasOneInbox, "test_inboxes_of_other_runs_are_left_alone"),
    (KeysAreUsedByAllRuns, "test_inboxes_of_other_runs_are_left_alone"),
    (HasOneInbox, "test_odd_ids_have_journals_and_inboxes_of_their_own"),
    (LosesEmptyLetters, "test_data_of_letters_comes_back_as_it_was_given"),
    (LettersAreShort, "test_data_of_letters_comes_back_as_it_was_given"),
    (ReturnsLettersAsText, "test_data_of_letters_comes_back_as_it_was_given"),
    (LettersWithoutCase, "test_keys_of_letters_are_any_text_and_are_apart"),
    (LettersByShortKeys, "test_keys_of_letters_are_any_text_and_are_apart"),
    (TakesByPattern, "test_keys_of_letters_are_any_text_and_are_apart"),
    (ForgetsWhatWasTaken, "test_keys_of_letters_are_any_text_and_are_apart"),
    (ShowsAHundredLetters, "test_many_letters_keep_their_order"),
    (LettersInOrderOfKeys, "test_many_letters_keep_their_order"),
    (LooksBeforeItLeaves, "test_one_of_twenty_who_leave_the_same_key_wins"),
    (WritesTheWholeInbox, "test_letters_that_many_leave_at_the_same_time_are_all_there"),
    (LeavesOneByOne, "test_letters_that_are_left_together_are_seen_together"),
    (TakesFromAnOldInbox, "test_no_letter_is_lost_or_taken_twice_while_the_run_goes_on"),
    (ReturnsWhatWaitedLastTime, "test_no_letter_is_lost_or_taken_twice_while_the_run_goes_on"),
    (LeavesOneByOne, "test_a_cancelled_caller_leaves_all_letters_or_none"),
    (TakesBehindTheHead, "test_a_cancelled_commit_takes_its_letters_or_not"),
    (LeavesInOneLoop, "test_one_event_loop_after_another_may_use_an_inbox"),
    (NobodyLives, "test_a_process_that_joined_lives"),
    (LivesUntilItCommits, "test_a_process_that_joined_lives"),
    (JoinsOnce, "test_a_process_may_join_twice"),
    (LeavesWhenItJoinsTwice, "test_a_process_may_join_twice"),
    (ThisProcessAlwaysLives, "test_a_process_that_did_not_join_does_not_live"),
    (EverybodyLives, "test_a_process_that_is_made_up_does_not_live"),
    (SeesOneProcessAtATime, "test_many_processes_are_asked_for_at_once"),
    (WhoeverBeginsAlikeLives, "test_a_process_that_is_made_up_does_not_live"),
    (AnswersWhenItIsClosed, "test_a_closed_store_refuses_to_be_used"),
    (JoinsWhenItIsClosed, "test_a_closed_store_refuses_to_be_used"),
]
