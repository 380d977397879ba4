"""Start checkpoints that follow an end at once: they are derived from its record, and no record is stored for them.

Stores hold the records of ends. All else reads, finds, tags and removes checkpoints through this module, which
shows each derived start as a record behind the one that carries it. A carrier goes when both its checkpoints are
removed; while one of them stays, a mark among the tags of the carrier says which of them was removed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import end_id, is_start_id, start_id
from holdfast.checkpoint.format.record import has_start
from holdfast.checkpoint.store import Depth, Record, Retag, Store
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId

# Tags of a carrier: its own, unless they begin with one of these.
_OF_START, _OF_END, _REMOVED = "start:", "end:", "removed:"
_END_REMOVED, _START_REMOVED = _REMOVED + "end", _REMOVED + "start"


class _Labels(NamedTuple):
    """The tags of both checkpoints of a carrier with who gave them, or None; and which of the two were removed."""

    end: Mapping[str, str | None] = {}
    start: Mapping[str, str | None] = {}
    removed: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Record) -> _Labels:
        """Read the tags of a record."""
        end: dict[str, str | None] = {}
        start: dict[str, str | None] = {}
        removed: list[str] = []
        for tag in record.tags:
            by = record.tagged_by.get(tag)
            if tag.startswith(_OF_START):
                start[tag.removeprefix(_OF_START)] = by
            elif tag in (_END_REMOVED, _START_REMOVED):
                removed.append(tag)
            else:
                end[tag.removeprefix(_OF_END)] = by
        return cls(end, start, tuple(removed))

    def tags(self) -> tuple[str, ...]:
        """Return them as the tags of a record."""
        return (*map(_tag_of_end, self.end), *map(_tag_of_start, self.start), *self.removed)

    def put_on(self, record: Record) -> Record:
        """Return a record that has them as its tags."""
        end = {_tag_of_end(tag): by for tag, by in self.end.items()}
        start = {_tag_of_start(tag): by for tag, by in self.start.items()}
        return record._replace(tags=self.tags(), tagged_by=_givers(end | start))


def _tag_of_start(tag: str) -> str:
    return _OF_START + tag


def _givers(tags: Mapping[str, str | None]) -> dict[str, str]:
    return {tag: by for tag, by in tags.items() if by is not None}


def _tag_of_end(tag: str) -> str:
    return _OF_END + tag if tag.startswith((_OF_START, _OF_END, _REMOVED)) else tag


def expand(records: Iterable[Record]) -> list[Record]:
    """Return the checkpoints of stored records, each start behind its end.

    A checkpoint that was removed is left out, unless someone gave it a tag at the same time. A start without its end
    has the keyframe of the carrier, and the content by which its id is checked.
    """
    found: list[Record] = []
    for record in records:
        if not record.tags:  # as most
            found.append(record)
            if has_start(record):
                found.append(_start_of(record))
            continue
        labels = _Labels.of(record)
        shows_end = _END_REMOVED not in labels.removed or bool(labels.end)
        if shows_end:
            found.append(_with_tags(record, labels.end))
        if has_start(record) and (_START_REMOVED not in labels.removed or labels.start):
            found.append(_with_tags(_start_of(record) if shows_end else _start_alone(record), labels.start))
    return found


def _with_tags(record: Record, tags: Mapping[str, str | None]) -> Record:
    return record._replace(tags=tuple(tags), tagged_by=_givers(tags))


def _start_of(end: Record) -> Record:
    name, seq = start_id(end.checkpoint_id), end.seq + 1
    return Record(name, end.run_id, seq, end.header, b"", b"", 0, None, (), end.sound)


def _start_alone(end: Record) -> Record:
    return end._replace(checkpoint_id=start_id(end.checkpoint_id), seq=end.seq + 1)


def collapse(checkpoints: Iterable[Record]) -> list[Record]:
    """Return the records that carry checkpoints, as ``expand`` shows them, and no others."""
    carriers: dict[CheckpointId, Record] = {}
    labels: dict[CheckpointId, _Labels] = {}
    for one in checkpoints:
        name = end_id(one.checkpoint_id) if is_start_id(one.checkpoint_id) else one.checkpoint_id
        if not is_start_id(one.checkpoint_id):
            carriers[name] = one
            labels[name] = _Labels(_given(one), {}, (_START_REMOVED,) if has_start(one) else ())
        elif name in carriers:
            labels[name] = _Labels(labels[name].end, _given(one))
        else:
            carriers[name] = one._replace(checkpoint_id=name, seq=one.seq - 1)
            labels[name] = _Labels({}, _given(one), (_END_REMOVED,))
    return [labels[name].put_on(record) for name, record in carriers.items()]


def _given(checkpoint: Record) -> dict[str, str | None]:
    return {tag: checkpoint.tagged_by.get(tag) for tag in checkpoint.tags}


async def read_records(store: Store, run_id: RunId, first: int, last: int, depth: Depth) -> list[Record]:
    """Read the checkpoints of a run with ``first`` <= seq <= ``last``, in order of seq."""
    try:
        stored = await store.records(run_id, first, last, depth)
    except CheckpointCorrupt:
        if first == last and (start := await _read_start(store, run_id, first, depth)):
            return start  # where it is not, there is damage
        raise
    if first > 1 and (not stored or stored[0].seq > first):  # the record before may carry the first
        stored = await store.records(run_id, first - 1, last, depth)  # all at once, for records go meanwhile
    found = expand(stored)
    if found and found[0].seq < first:
        del found[0]
    if found and found[-1].seq > last:
        del found[-1]
    return found


async def _read_start(store: Store, run_id: RunId, seq: int, depth: Depth) -> list[Record]:
    return [one for one in expand(await store.records(run_id, seq - 1, seq - 1, depth)) if one.seq == seq]


async def find_checkpoint(store: Store, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
    """Return the run and seq of a checkpoint; None if there is none."""
    carrier = end_id(checkpoint_id) if is_start_id(checkpoint_id) else checkpoint_id
    place = await store.find(carrier)
    if place is None:
        return None
    run_id, seq = place
    for one in expand(await store.records(run_id, seq, seq, Depth.HEADERS)):
        if one.checkpoint_id == checkpoint_id:
            return run_id, one.seq
    return None


async def tag_checkpoint(
    store: Store,
    run_id: RunId,
    seq: int,
    tags: Sequence[str],
    drop: Sequence[str] | None = None,
    by: str = "",
) -> bool:
    """Take tags from a checkpoint, all without ``drop``, and add others; False if there is no such checkpoint."""
    found = await read_records(store, run_id, seq, seq, Depth.HEADERS)
    if not found:
        return False
    dropped = found[0].tags if drop is None else tuple(drop)
    if not tags and not dropped:
        return True
    if is_start_id(found[0].checkpoint_id):
        carrier, spell = seq - 1, _tag_of_start
    else:
        carrier, spell = seq, _tag_of_end
    return await store.tag(run_id, carrier, list(map(spell, tags)), list(map(spell, dropped)), by)


class RemovalPlan(NamedTuple):
    """The changes of stored records by which checkpoints are removed."""

    seqs: tuple[int, ...]
    """Those of records that go."""
    tags: tuple[Retag, ...]

    @classmethod
    def of(cls, records: Iterable[Record], gone: Container[CheckpointId]) -> RemovalPlan:
        """Plan the removal of checkpoints that ``records`` carry."""
        seqs: list[int] = []
        tags: list[Retag] = []
        for record in records:
            shown = expand([record])
            going = [one for one in shown if one.checkpoint_id in gone]
            if not going:
                continue
            labels = _Labels.of(record)
            if len(going) == len(shown):
                seqs.append(record.seq)
                if labels.removed:  # tags of people stay, so that they keep it
                    tags.append(Retag(record.seq, record.tags, labels._replace(removed=()).tags()))
            else:
                mark = _START_REMOVED if is_start_id(going[0].checkpoint_id) else _END_REMOVED
                marked = labels._replace(removed=(*labels.removed, mark))
                tags.append(Retag(record.seq, record.tags, marked.tags()))
        return cls(tuple(seqs), tuple(tags))


def carrier_of(checkpoint_id: CheckpointId, seq: int) -> tuple[CheckpointId, int]:
    """Return the id and seq of the record that carries a checkpoint."""
    return (end_id(checkpoint_id), seq - 1) if is_start_id(checkpoint_id) else (checkpoint_id, seq)


def seq_of_carrier(record: Record) -> int:
    """Return the seq of the record that carries a checkpoint."""
    return carrier_of(record.checkpoint_id, record.seq)[1]
