"""Reads what the lines of a run hold: letters, notes, events and records."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from holdfast.checkpoint.store import Depth, EventRow, Letter, Note, Record
from holdfast.errors import CheckpointCorrupt
from holdfast.stores.file.line import (
    LinePlace,
    decode_event_rows,
    decode_keyed,
    decode_keyframe,
    decode_record,
    explain_problem,
)
from holdfast.stores.file.line_file import LineFile, damaged
from holdfast.stores.file.run_state import BadLine


class RunReader:
    """Reads parts of a run by the state of its file as it was looked at last; the caller holds the lock.

    A method returns None if the file was written anew since then: look again. It raises ``CheckpointCorrupt`` if what
    is asked for is damaged, or may be missing.
    """

    def __init__(self, lines: LineFile) -> None:
        self._lines = lines

    def letters(self) -> list[Letter] | None:
        """Return the letters that wait, oldest first."""
        self.check_lost(self._lines.state.lost_letters())
        letters = self._lines.state.letters
        bodies = self._bodies(dict.fromkeys(letters.values()))
        if bodies is None:
            return None
        found: dict[str, Letter] = {}
        for place, body in bodies.items():
            with self._reading(place):
                found |= {key: Letter(key, data) for key, data in map(decode_keyed, body["letters"])}
        missing = [place for key, place in letters.items() if key not in found]
        if missing:
            raise damaged(
                self._lines.path, None, "it does not hold the letters that it names", missing[0].offset
            )
        return [found[key] for key in letters]

    def notes(self) -> list[Note] | None:
        """Return the journal of the checkpoint on which the run stands, in order."""
        self.check_lost(self._lines.state.lost_notes())
        bodies = self._bodies(dict.fromkeys(self._lines.state.note_lines))
        if bodies is None:
            return None
        notes: dict[str, Note] = {}
        for place, body in bodies.items():
            with self._reading(place):
                notes |= {key: Note(key, data) for key, data in map(decode_keyed, body["notes"])}
        return list(notes.values())

    def events(self, first: int, limit: int | None = None) -> list[EventRow] | None:
        """Return the rows of events from a seq on, about ``limit`` of them and all of each seq, as far as readable."""
        state = self._lines.state
        wanted = state.events[bisect_left(state.events, first, key=itemgetter(0)) :]
        if not wanted:
            return []
        if limit is not None and len(wanted) > limit:
            last = wanted[max(limit, 1) - 1].seq
            wanted = wanted[: bisect_right(wanted, last, key=itemgetter(0))]
        rows: list[EventRow] = []
        for place in dict.fromkeys(event.line for event in wanted):
            try:
                bodies = self._bodies({place: None})
                if bodies is None:
                    return None
                rows += decode_event_rows(bodies[place])
            except (CheckpointCorrupt, TypeError, ValueError):  # what is left is shown
                continue
        return [row for row in rows if wanted[0].seq <= row.seq <= wanted[-1].seq]

    def records(self, seqs: Sequence[int], depth: Depth) -> list[Record] | None:
        """Return the records with these seqs."""
        state = self._lines.state
        lines = dict.fromkeys(state.records[seq].line for seq in seqs)
        with_frames = depth >= Depth.CHANGES
        frames = {seq: state.keyframes[seq] for seq in seqs if with_frames and seq in state.keyframes}
        bodies = self._bodies(lines | dict.fromkeys(frames.values()))
        if bodies is None or state.run_id is None:
            return None if state.run_id is not None else []
        found: dict[tuple[LinePlace, int], Any] = {}
        for place in lines:
            with self._reading(place):
                found |= {(place, document["seq"]): document for document in bodies[place].get("records", ())}
        records = []
        for seq in seqs:
            line = state.records[seq].line
            with self._reading(line):
                record = decode_record(found[line, seq], state.run_id, depth, line.is_sound)
                if seq in frames:
                    given = bodies[frames[seq]]["keyframes"][str(seq)]
                    record = record._replace(keyframe=decode_keyframe(given, depth))
            if seq in state.tags:
                record = record._replace(tags=state.tags[seq], tagged_by=state.tagged_by[seq])
            records.append(record)
        return records

    def check_lost(self, bad: BadLine | None) -> None:
        """Raise ``CheckpointCorrupt`` if what is asked for may have stood in a line that cannot be read."""
        if bad is not None:
            raise self._lines.damage(bad)

    @contextmanager
    def _reading(self, place: LinePlace) -> Iterator[None]:
        """Say that a line is damaged, whatever goes wrong with what stands in it."""
        try:
            yield
        except (MemoryError, CheckpointCorrupt):
            raise
        except Exception as error:
            raise damaged(self._lines.path, None, explain_problem(error), place.offset) from error

    def _bodies(self, places: dict[LinePlace, None]) -> dict[LinePlace, dict[str, Any]] | None:
        if not places:
            return {}
        bodies = self._lines.read_bodies(list(places))
        return None if bodies is None else dict(zip(places, bodies, strict=True))
