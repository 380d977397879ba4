"""Start checkpoints that follow an end at once: they are derived from its record, and no record is stored for them.

Stores hold the records of ends. All else reads, finds, tags and removes checkpoints through this module, which
shows each derived start as a record behind the one that carries it. A carrier goes when both its checkpoints are
removed; while one of them stays, a mark among the tags of the carrier says which of them was removed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
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
    """The tags of both checkpoints of a carrier, and those of them that were removed."""

    end: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def of(cls, tags: Sequence[str]) -> _Labels:
        """Read the tags of a record."""
        end: list[str] = []
        start: list[str] = []
        removed: list[str] = []
        for tag in tags:
            if tag.startswith(_OF_START):
                start.append(tag.removeprefix(_OF_START))
            elif tag in (_END_REMOVED, _START_REMOVED):
                removed.append(tag)
            else:
                end.append(tag.removeprefix(_OF_END))
        return cls(tuple(end), tuple(start), tuple(removed))

    def tags(self) -> tuple[str, ...]:
        """Return them as the tags of a record."""
        return (*map(_tag_of_end, self.end), *(_OF_START + tag for tag in self.start), *self.removed)


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
                found.append(_start_of(record, ()))
            continue
        labels = _Labels.of(record.tags)
        shows_end = _END_REMOVED not in labels.removed or bool(labels.end)
        if shows_end:
            found.append(record._replace(tags=labels.end))
        if has_start(record) and (_START_REMOVED not in labels.removed or labels.start):
            found.append(_start_of(record, labels.start) if shows_end else _start_alone(record, labels.start))
    return found


def _start_of(end: Record, tags: tuple[str, ...]) -> Record:
    name, seq = start_id(end.checkpoint_id), end.seq + 1
    return Record(name, end.run_id, seq, end.header, b"", b"", 0, None, tags, end.sound)


def _start_alone(end: Record, tags: tuple[str, ...]) -> Record:
    return end._replace(checkpoint_id=start_id(end.checkpoint_id), seq=end.seq + 1, tags=tags)


def collapse(checkpoints: Iterable[Record]) -> list[Record]:
    """Return the records that carry checkpoints, as ``expand`` shows them, and no others."""
    carriers: dict[CheckpointId, Record] = {}
    labels: dict[CheckpointId, _Labels] = {}
    for one in checkpoints:
        name = end_id(one.checkpoint_id) if is_start_id(one.checkpoint_id) else one.checkpoint_id
        if not is_start_id(one.checkpoint_id):
            carriers[name] = one
            labels[name] = _Labels(one.tags, (), (_START_REMOVED,) if has_start(one) else ())
        elif name in carriers:
            labels[name] = _Labels(labels[name].end, one.tags, ())
        else:
            carriers[name] = one._replace(checkpoint_id=name, seq=one.seq - 1)
            labels[name] = _Labels((), one.tags, (_END_REMOVED,))
    return [record._replace(tags=labels[name].tags()) for name, record in carriers.items()]


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
    store: Store, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None
) -> bool:
    """Take tags from a checkpoint, all without ``drop``, and add others; False if there is no such checkpoint."""
    found = await read_records(store, run_id, seq, seq, Depth.HEADERS)
    if not found:
        return False
    dropped = found[0].tags if drop is None else tuple(drop)
    if not tags and not dropped:
        return True
    if is_start_id(found[0].checkpoint_id):
        carrier, given, taken = seq - 1, _Labels(start=tuple(tags)), _Labels(start=dropped)
    else:
        carrier, given, taken = seq, _Labels(end=tuple(tags)), _Labels(end=dropped)
    return await store.tag(run_id, carrier, given.tags(), taken.tags())


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
            labels = _Labels.of(record.tags)
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
