"""Stores with bugs that show when it is asked which runs have something to do, for the conformance suite to catch."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast import RunStatus
from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import ClaimRequest, Commit, Expected, Head, KnownMarks, LeaveResult, Letter
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from tests.stores.planted_durable import Kept
from tests.support.store_parts import sort_due_runs


async def find_due(store: MemoryStore, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
    request = ClaimRequest(this_process(), time, 0, limit, {workflow_name: None}, abandoned=False)
    return await MemoryStore.claim(store, request)


class DueStore(MemoryStore):
    """Finds the runs that are due by a method of its own, for bugs to change."""

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        if request.lease or request.abandoned:
            return await super().claim(request)
        (workflow_name,) = request.workflows
        return await self.due(workflow_name, request.time, request.limit)

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return await find_due(self, workflow_name, time, limit)


class DueKept(DueStore, Kept):
    """The same for stores of which there are several objects."""


def select_due_runs(
    heads: Iterable[Head], workflow_name: str, time: int, limit: int, count_letters: Callable[[RunId], int]
) -> list[Head]:
    named = [head for head in heads if head.workflow_name == workflow_name]
    return sort_due_runs(named, time, count_letters)[:limit]


class DueOf(DueStore):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return heads

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return self.change(list(await super().due(workflow_name, time, 1_000_000)), time, limit)[:limit]


class WakesTooLate(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return [head for head in heads if head.wake_at is None or head.wake_at < time]


class WakesTooEarly(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return await super().due(workflow_name, time + 1, limit)


class TellsOnce(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        told = self.__dict__.setdefault("_told", set())
        found = [head for head in heads if head not in told]
        told.update(found[:limit])
        return found


class WakesThoseThatWaitForEver(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        known = [head._replace(wake_at=head.wake_at or 0) for head in self._heads.values()]
        found = select_due_runs(
            known, workflow_name, time, limit, lambda run: len(self._get_waiting_letters(run))
        )
        return [self._heads[head.run_id] for head in found]


class IgnoresTheStatus(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        known = [head._replace(status=RunStatus.WAITING) for head in self._heads.values()]
        found = select_due_runs(
            known, workflow_name, time, limit, lambda run: len(self._get_waiting_letters(run))
        )
        return [self._heads[head.run_id] for head in found]


class WakesOnlyThoseThatWait(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return [head for head in heads if head.status is RunStatus.WAITING]


class IgnoresWhatIsKnown(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        known = [head._replace(letters_known=0) for head in self._heads.values()]
        found = select_due_runs(
            known, workflow_name, time, limit, lambda run: len(self._get_waiting_letters(run))
        )
        return [self._heads[head.run_id] for head in found]


class IgnoresTheWorkflow(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        names = {head.workflow_name for head in self._heads.values()}
        return [head for name in names for head in await super(type(self), self).due(name, time, limit)]


class IgnoresTheCaseOfWorkflows(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        names = sorted({head.workflow_name for head in self._heads.values()})
        same = [name for name in names if name.lower() == workflow_name.lower()]
        return [head for name in same for head in await super(type(self), self).due(name, time, limit)]


class TimesInOrderOfText(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return sorted(heads, key=lambda head: str(head.wake_at))


class LatestFirst(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return heads[::-1]


class IgnoresCaseOfIds(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return sorted(heads, key=lambda head: (head.wake_at or 0, head.run_id.lower()))


class LettersLast(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return sorted(heads, key=lambda head: bool(self._get_waiting_letters(head.run_id)))


class CutsBeforeItChooses(DueStore):
    """Takes the first of all workflows, then looks at them."""

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        known = sorted(self._heads.values(), key=lambda head: (head.wake_at is None, head.wake_at))[:limit]
        return select_due_runs(
            known, workflow_name, time, limit, lambda run: len(self._get_waiting_letters(run))
        )


class TellsOneTooMany(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return await super().due(workflow_name, time, limit + 1)


class IgnoresLetters(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return select_due_runs(self._heads.values(), workflow_name, time, limit, lambda run: False)


class CountsLettersThatWereTaken(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        return select_due_runs(
            self._heads.values(), workflow_name, time, limit, lambda run: bool(self._letters.get(run))
        )


class MarksRunsThatWaitWhenALetterComes(DueStore):
    """Forgets those for which one came while they were running."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        if left.head is not None and left.head.status is RunStatus.WAITING:
            self.__dict__.setdefault("_marked", set()).add(run_id)
        return left

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        marked = self.__dict__.get("_marked", ())
        return select_due_runs(self._heads.values(), workflow_name, time, limit, lambda run: run in marked)


class KeepsTheFirstTime(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        times = self.__dict__.setdefault("_times", {})
        for head in self._heads.values():
            if head.wake_at is not None:
                times.setdefault(head.run_id, head.wake_at)
        return [
            head for head in await super().due(workflow_name, 1 << 62, limit) if times[head.run_id] <= time
        ]


class NotesTheTimeBeforeItCompares(DueStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.__dict__.setdefault("_times", {})[commit.head.run_id] = commit.head.wake_at
        return await super().commit(commit)

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        times = self.__dict__.get("_times", {})
        found = await super().due(workflow_name, 1 << 62, limit)
        return [head for head in found if (times[head.run_id] or 0) <= time]


class KeepsTimesOfRemovedRuns(DueStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        self.__dict__.setdefault("_old", {})[run_id] = self._heads[run_id]
        return await super().remove_run(run_id, expected, known)

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        old = self.__dict__.get("_old", {})
        found = {head.run_id: head for head in await super().due(workflow_name, time, limit)}
        return list({**old, **found}.values())


class ForgetsRunsThatComeWhole(DueStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if len(commit.records) > 1:
            self.__dict__.setdefault("_whole", set()).add(commit.head.run_id)
        return await super().commit(commit)

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        whole = self.__dict__.get("_whole", ())
        return [h for h in await super().due(workflow_name, time, limit) if h.run_id not in whole]


class OneOfEachSpelling(DueOf):
    def change(self, heads: list[Head], time: int, limit: int) -> list[Head]:
        return list({head.run_id.casefold(): head for head in heads}.values())


class TellsThoseOfAMomentAgo(DueStore):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        before = self.__dict__.get("_before", [])
        self._before = await super().due(workflow_name, time, limit)
        await asyncio.sleep(0)
        return before if self._heads else []


class RemembersWhatIsDue(DueKept):
    """Asks once for each time and workflow, unless it was itself that wrote."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.__dict__["_asked"] = {}
        return await super().commit(commit)

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        asked = self.__dict__.setdefault("_asked", {})
        if (workflow_name, time) not in asked:
            asked[workflow_name, time] = await super().due(workflow_name, time, limit)
        found: Sequence[Head] = asked[workflow_name, time]
        return found


class NotesInMemoryWhatIsDue(DueKept):
    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        mine = self.__dict__.get("_mine", set())
        return [h for h in await super().due(workflow_name, time, limit) if h.run_id in mine]

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.__dict__.setdefault("_mine", set()).add(commit.head.run_id)
        return await super().commit(commit)


class OneRoomForWhatIsDue(DueKept):
    def __init__(self, place: dict[str, object], namespace: str = "") -> None:
        super().__init__(place, namespace)
        self._all = place

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        rooms = [room for name, room in self._all.items() if name.startswith("namespace")]
        found = [head for room in rooms for head in await find_due(room, workflow_name, time, limit)]  # type: ignore[arg-type]
        return sorted(found, key=lambda head: (head.wake_at or 0, head.run_id))


BUGS: list[tuple[type[MemoryStore], str]] = [
    (WakesTooLate, "test_a_run_is_due_when_its_time_has_come"),
    (WakesTooEarly, "test_a_run_is_due_when_its_time_has_come"),
    (TellsOnce, "test_a_run_is_due_when_its_time_has_come"),
    (WakesThoseThatWaitForEver, "test_a_run_that_waits_for_ever_is_not_due"),
    (IgnoresTheStatus, "test_runs_that_rest_are_due"),
    (WakesOnlyThoseThatWait, "test_runs_that_rest_are_due"),
    (IgnoresWhatIsKnown, "test_letters_that_are_known_make_no_run_due"),
    (IgnoresTheWorkflow, "test_only_runs_of_the_workflow_are_due"),
    (IgnoresTheCaseOfWorkflows, "test_only_runs_of_the_workflow_are_due"),
    (TimesInOrderOfText, "test_the_soonest_is_told_first"),
    (LatestFirst, "test_the_soonest_is_told_first"),
    (IgnoresCaseOfIds, "test_of_those_with_the_same_time_the_id_decides"),
    (LettersLast, "test_those_with_letters_come_first"),
    (LatestFirst, "test_those_with_letters_come_first"),
    (TellsOneTooMany, "test_no_more_are_told_than_were_asked_for"),
    (CutsBeforeItChooses, "test_no_more_are_told_than_were_asked_for"),
    (CountsLettersThatWereTaken, "test_a_letter_counts_until_it_is_taken"),
    (IgnoresLetters, "test_a_letter_counts_until_it_is_taken"),
    (MarksRunsThatWaitWhenALetterComes, "test_a_run_that_comes_to_wait_with_letters_is_due"),
    (KeepsTheFirstTime, "test_a_run_that_moves_on_is_due_when_it_says_so_last"),
    (NotesTheTimeBeforeItCompares, "test_a_refused_commit_wakes_nobody"),
    (KeepsTimesOfRemovedRuns, "test_a_run_that_was_removed_is_not_due"),
    (ForgetsRunsThatComeWhole, "test_a_run_that_comes_whole_is_due"),
    (OneOfEachSpelling, "test_odd_ids_are_due"),
    (TellsThoseOfAMomentAgo, "test_what_is_due_is_told_while_runs_come_to_wait"),
]

DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    (RemembersWhatIsDue, "test_another_object_sees_what_is_due"),
    (NotesInMemoryWhatIsDue, "test_another_object_sees_what_is_due"),
    (NotesInMemoryWhatIsDue, "test_what_is_due_is_due_after_reopening"),
    (OneRoomForWhatIsDue, "test_what_is_due_is_apart_in_namespaces"),
]
