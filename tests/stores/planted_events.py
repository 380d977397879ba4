"""Stores with bugs of events, for the conformance suite to catch."""

from collections.abc import Sequence

from holdfast.checkpoint.store import Commit, EventRow, Expected, Letter, Removal
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore


class TellsOfAnUnknownRun(MemoryStore):
    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return await super().events(run_id, first, limit) or [EventRow(1, b"")]


class CutsRows(MemoryStore):
    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return [row._replace(data=row.data[:100]) for row in await super().events(run_id, first, limit)]


class KeepsOneRowOfASeq(MemoryStore):
    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return list({row.seq: row for row in await super().events(run_id, first, limit)}.values())


class CutsASeq(MemoryStore):
    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return list(await super().events(run_id, first, limit))[:limit]


class BeginsBehindTheSeq(MemoryStore):
    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return await super().events(run_id, first + 1 if first else 0, limit)


class TellsBeforeItChecks(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._add_events(commit.head.run_id, commit.events, commit.events_from)
        return await super().commit(commit._replace(events=(), events_from=0))


class RemovesEventsWithTheirCheckpoints(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        removed = await super().remove(removal)
        rows = self._events.get(removal.run_id, [])
        self._events[removal.run_id] = [row for row in rows if row.seq not in removal.seqs]
        return removed


class SortsARemovedCheckpointLast(MemoryStore):
    async def remove(self, removal: Removal) -> bool:
        removed = await super().remove(removal)
        rows = self._events.get(removal.run_id, [])
        by_seq = {seq: [row for row in rows if row.seq == seq] for seq in sorted({row.seq for row in rows})}
        for seq in removal.seqs:
            by_seq[seq] = by_seq.get(seq, [])[1:] + by_seq.get(seq, [])[:1]
        self._events[removal.run_id] = [row for group in by_seq.values() for row in group]
        return removed


class NeverDrops(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(events_from=0))


class DropsThoseOfAllRuns(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters = await super().commit(commit)
        for run_id in self._events if commit.events_from else ():
            self._add_events(run_id, (), commit.events_from)
        return letters


class KeepsThoseOfARemovedRun(MemoryStore):
    def _remove_all(self, run_id: RunId) -> None:
        kept = self._events.get(run_id, [])
        super()._remove_all(run_id)
        self._events[run_id] = kept


class ForgetsThoseOfAReplacedRun(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        self._events.pop(commit.head.run_id, None)
        await super().replace(commit)


class KeepsThoseBehindTheHead(MemoryStore):
    async def replace(self, commit: Commit) -> None:
        kept = self._events.pop(commit.head.run_id, [])
        await super().replace(commit)
        self._events[commit.head.run_id] = kept


class BringsOneRowAlong(MemoryStore):
    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await super().commit(commit._replace(events=commit.events[:1]))


class RemovesNoEvents(MemoryStore):
    async def remove_run(self, run_id: RunId, expected: Expected, known: object = None) -> bool:
        kept = self._events.get(run_id, [])
        removed = await super().remove_run(run_id, expected, known)  # type: ignore[arg-type]
        self._events[run_id] = kept
        return removed


BUGS: list[tuple[type[MemoryStore], str]] = [
    (TellsOfAnUnknownRun, "test_a_run_without_events_has_none"),
    (CutsRows, "test_events_are_read_as_they_were_committed"),
    (KeepsOneRowOfASeq, "test_a_change_of_the_head_has_events_of_its_own"),
    (CutsASeq, "test_a_page_of_events_begins_at_a_seq_and_cuts_none"),
    (BeginsBehindTheSeq, "test_a_page_of_events_begins_at_a_seq_and_cuts_none"),
    (TellsBeforeItChecks, "test_nothing_of_a_refused_commit_is_told"),
    (RemovesEventsWithTheirCheckpoints, "test_events_outlive_their_checkpoints"),
    (SortsARemovedCheckpointLast, "test_events_of_a_head_stay_behind_those_of_its_removed_checkpoint"),
    (NeverDrops, "test_events_before_a_seq_go_when_a_commit_says_so"),
    (DropsThoseOfAllRuns, "test_events_before_a_seq_go_when_a_commit_says_so"),
    (KeepsThoseOfARemovedRun, "test_the_events_of_a_removed_run_are_gone"),
    (RemovesNoEvents, "test_the_events_of_a_removed_run_are_gone"),
    (ForgetsThoseOfAReplacedRun, "test_a_replaced_run_keeps_its_events_up_to_its_head"),
    (KeepsThoseBehindTheHead, "test_a_replaced_run_keeps_its_events_up_to_its_head"),
    (BringsOneRowAlong, "test_a_run_that_comes_whole_brings_its_events"),
]
