"""The state of a run as the lines of its file say, taken in one after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from holdfast.checkpoint.store import Expected, Head
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file.line import Line, LinePlace, decode_body, decode_line, explain_problem


class RecordPlace(NamedTuple):
    """The line that holds a record, and the id of the record."""

    line: LinePlace
    checkpoint_id: CheckpointId


class EventPlace(NamedTuple):
    """The line that holds an event row, the seq of the row, and about how many bytes of the line it takes."""

    seq: int
    line: LinePlace
    size: int


class BadLine(NamedTuple):
    """A part of the file that is not what was written."""

    offset: int
    number: int
    """The number of the line, from 1."""
    problem: str
    after_seq: int
    """The greatest seq before it: records with greater seqs may have stood there."""


class RunState:
    """The state that the lines of a file add up to. Knows where bodies stand, and reads none of them."""

    def __init__(self) -> None:
        self.file_id = ""
        self.run_id: RunId | None = None
        self.namespace = ""
        self.end = 0
        """The position of the next line: behind the last sound one."""
        self.lines = 0
        self.bad: list[BadLine] = []
        """Lines before ``end`` that are not sound."""
        self.gone = False
        """True if the run was removed, and no other began in this file since."""
        self._clear()

    def _clear(self) -> None:
        self.head: Head | None = None
        self.records: dict[int, RecordPlace] = {}
        self.seqs: list[int] = []
        self.by_id: dict[CheckpointId, int] = {}
        self.tags: dict[int, tuple[str, ...]] = {}
        """By seq; a record without any may be missing."""
        self.tagged_by: dict[int, dict[str, str]] = {}
        """By seq and tag, who gave it, as far as that was said."""
        self.keyframes: dict[int, LinePlace] = {}
        """The lines that give records keyframes."""
        self.note_lines: list[LinePlace] = []
        """The lines with notes since the run came to its checkpoint."""
        self.letters: dict[str, LinePlace] = {}
        """The letters that wait, oldest first, by their keys."""
        self.used: set[str] = set()
        """The keys of all letters that were ever left."""
        self.events: list[EventPlace] = []
        """The event rows, in order; a line may hold several."""
        self._inbox = 0
        """The number of letters that wait, as the last line says."""
        self._notes_from = 0
        """Behind here the lines begin that may have notes of the checkpoint on which the run stands."""

    @property
    def expected(self) -> Expected | None:
        """The place that a writer has to know to move the run on; None without a run."""
        return None if self.head is None else Expected(self.head.checkpoint_id, self.head.token)

    def seqs_between(self, first: int, last: int) -> Sequence[int]:
        """Return the seqs of the records that are there from ``first`` to ``last``."""
        return self.seqs[bisect_left(self.seqs, first) : bisect_right(self.seqs, last)]

    def live_bytes(self) -> int:
        """Return the length of all lines that something still needs."""
        places = {place.line for place in self.records.values()}
        places.update(self.keyframes.values(), self.note_lines, self.letters.values())
        # A line may be needed for its events alone: then most of it is the record that was removed.
        of_events = sum(event.size for event in self.events if event.line not in places)
        return sum(place.length for place in places) + of_events

    # Taking in lines.

    def take_all(self, data: bytes, with_tail: bool = False) -> BadLine | None:
        """Take in what the file holds from ``end`` on; return the first bad line behind which no sound one follows.

        ``with_tail`` takes in such lines too, as far as they can be read.
        """
        pending: list[tuple[BadLine, bytes]] = []
        for offset, line in _split(data, self.end):
            number = self.lines + len(pending) + 1
            try:
                taken = self._decode(offset, line)
                if not taken.place.is_sound:
                    raise ValueError("its checksum is wrong")
                self._take_sound(taken, pending)
            except Exception as error:
                problem = explain_problem(error)
                pending.append((BadLine(offset, number, problem, self.seqs[-1] if self.seqs else 0), line))
        for bad, content in pending if with_tail else ():
            self.take_bad(bad, content)
        return pending[0][0] if pending else None

    def _decode(self, offset: int, line: bytes) -> Line:
        if not offset:
            first = decode_line("", 0, line[:-1])
            self.file_id = str(first.meta["file"]) if first.place.is_sound else self.file_id
        if line[-1:] != b"\n":
            raise ValueError("it does not end")
        return decode_line("" if not offset else self.file_id, offset, line[:-1])

    def _take_sound(self, line: Line, pending: list[tuple[BadLine, bytes]]) -> None:
        head = line.head
        for bad, content in pending:
            self.take_bad(bad, content)
        pending.clear()
        self.take(line, head)

    def take(self, line: Line, head: Head | None) -> None:
        """Take in the line at ``end``; ``head`` is the one that it states."""
        meta, place = line.meta, line.place
        if head is not None:
            if self.head is None or self.head.checkpoint_id != head.checkpoint_id:
                self.note_lines.clear()
                self._notes_from = self.end
            self.head, self.run_id = head, head.run_id
            self._inbox = meta.get("inbox", 0)
        elif meta["kind"] == "file":
            self.run_id, self.namespace = RunId(meta["run_id"]), meta["namespace"]
        if "ids" in meta:
            self._add_records(line)
        if "noted" in meta:
            self.note_lines.append(place)
        for key in meta.get("left", ()):
            self.letters[key] = place
            self.used.add(key)
        for key in meta.get("taken", ()):
            self.letters.pop(key, None)
        if "used" in meta:
            self.used.update(meta["used"])
        for seq, tags in meta.get("tags", {}).items():
            self.tags[int(seq)] = tuple(tags)
            self.tagged_by[int(seq)] = dict(meta.get("tagged_by", {}).get(seq, ()))
        for seq in meta.get("cut", ()):
            if seq in self.records:
                self.keyframes[seq] = place
        if "events" in meta:
            self.events += [EventPlace(seq, place, size) for seq, size in meta["events"]]
        if "events_from" in meta:
            del self.events[: bisect_left(self.events, meta["events_from"], key=itemgetter(0))]
        if "removed" in meta:
            self._remove(meta["removed"])
        self.gone = meta["kind"] == "gone"
        if self.gone:
            self._clear()
        self.end = place.offset + place.length
        self.lines += 1

    def _add_records(self, line: Line) -> None:
        for seq, checkpoint_id in line.ids:
            if seq not in self.records:
                if self.seqs and seq < self.seqs[-1]:
                    self.seqs.insert(bisect_left(self.seqs, seq), seq)
                else:
                    self.seqs.append(seq)
            self.records[seq] = RecordPlace(line.place, checkpoint_id)
            self.by_id[checkpoint_id] = seq

    def _remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            place = self.records.pop(seq, None)
            if place is not None:
                self.by_id.pop(place.checkpoint_id, None)
                self.tags.pop(seq, None)
                self.tagged_by.pop(seq, None)
                self.keyframes.pop(seq, None)
        self.seqs = sorted(self.records)

    def take_bad(self, bad: BadLine, content: bytes) -> None:
        """Note a bad line, and take from it the records that can be read; whoever reads them is told."""
        self.bad.append(bad)
        self.lines += 1
        try:
            line = decode_line(self.file_id, bad.offset, content.rstrip(b"\n"))
            decode_body(content)
            if self.run_id is None and "head" in line.meta:
                self.run_id = RunId(line.meta["head"]["run_id"])
            self._add_records(line._replace(place=line.place._replace(is_sound=False)))
        except Exception:
            pass

    def lost_between(self, first: int, last: int) -> BadLine | None:
        """Return a bad line that may have held records from ``first`` to ``last`` that nobody can read."""
        for bad in self.bad:
            behind = [place.line.offset > bad.offset for place in self.records.values()]
            following = [seq for seq, later in zip(self.records, behind, strict=True) if later]
            next_seq = min(following, default=last + 1)
            there = set(self.seqs_between(bad.after_seq + 1, next_seq - 1))
            if any(seq not in there for seq in range(max(first, bad.after_seq + 1), min(last + 1, next_seq))):
                return bad
        return None

    def lost_notes(self) -> BadLine | None:
        """Return a bad line that may have held notes of the checkpoint on which the run stands."""
        return next((bad for bad in self.bad if bad.offset >= self._notes_from), None)

    def lost_letters(self) -> BadLine | None:
        """Return a bad line if the letters that wait are not as many as the last line says."""
        return self.bad[-1] if self.bad and len(self.letters) != self._inbox else None


def _split(data: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines in ``data``, each with its newline and its position in the file."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin) + 1 or len(data)
        yield offset + begin, data[begin:end]
        begin = end
