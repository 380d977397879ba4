"""Checkpoints become records, each behind the one before; now and then with a keyframe."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.format.changes import NOTHING, Changes
from holdfast.checkpoint.format.document import packed
from holdfast.checkpoint.format.folding import take_in
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import (
    ELSEWHERE,
    LARGEST_PART,
    RAW,
    WORTH_COMPRESSING,
    Heading,
    id_of,
    sealed,
    stored_form,
)
from holdfast.checkpoint.format.replay import Replay
from holdfast.checkpoint.info import CheckpointInfo, Header, pack_header, start_id
from holdfast.checkpoint.store import Head, Keyframe, Record
from holdfast.checkpoint.write.encode import Names, Plain
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.tidying import Tidying
from holdfast.engine._fast import make_tuple
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest


class Outside(NamedTuple):
    """What the log takes from the world: the time in microseconds, and salt."""

    now: Callable[[], int]
    salt: Callable[[], bytes]


_Parts: TypeAlias = tuple[bytes, bytes, bytes, bytes, int]
"""Changes and values plain, as the id of a record covers them, and as they are stored; then the size of new blobs."""

_NOTHING: _Parts = (b"", b"", b"", b"", 0)
_NO_BLOBS: Mapping[Digest, bytes] = {}

Made: TypeAlias = tuple[tuple[Record, ...], Sequence[CheckpointInfo], RunStatus, Mapping[Digest, bytes]]
"""Records, what can be told of them, how the run stands at the last, and the blobs that came with them."""


class Maker:
    """Makes the records of one run, each behind the one before, whether that was stored or not."""

    def __init__(
        self,
        outside: Outside,
        heading: Heading,
        manifest: Manifest,
        parent: CheckpointId | None,
        replay: Replay,
        time: int,
        tidying: Tidying | None,
    ) -> None:
        self._outside = outside
        self._heading = heading
        self._tidying = tidying
        self._manifest = manifest
        self.parent = parent
        """The checkpoint that the next record follows."""
        self.time = time
        """That of the newest record, or later: times of a run only grow."""
        self._replay = replay

    def tick(self) -> int:
        """The time, if it is later than the last that was told, else the next microsecond behind that."""
        self.time = max(self._outside.now(), self.time + 1)
        return self.time

    def make(self, head: Head, entries: Sequence[Entry], changes: Sequence[Changes], names: Names) -> Made:
        """Records for checkpoints that follow those of ``head``, all at about one time."""
        records: list[Record] = []
        infos: list[CheckpointInfo] = []
        last = entries[-1]
        self.tick()
        for entry, changed in zip(entries, changes, strict=True):
            seq = head.seq + len(infos) + 1
            if records:
                self.time += 1
            parts = self._nothing() if changed is NOTHING else self._parts(entry, changed, seq, names)
            wanted = entry.keyframe or (entry is last and self._keyframe_is_due(head, parts[-1]))
            if wanted:
                self._replay = Replay(seq)
            header = self._header(head, entry, seq)
            record = self._record(head, seq, pack_header(header), parts, names if wanted else None)
            records.append(record)
            infos.append(CheckpointInfo(record.checkpoint_id, record.header, record.new_bytes))
            if entry.goes_on:
                infos.append(self._follow(record))
        return tuple(records), infos, last.status, names.blobs

    def step(self, head: Head, superstep: int, plain: Plain, noted: Container[Digest]) -> Made:
        """The same for the plain end of a superstep, and the start of the next at once; ``noted`` as in ``Names``."""
        deliveries, writes, changes, values = plain
        manifest, pack, salt, seq = self._manifest, self._heading.packed, self._outside.salt, head.seq + 1
        assert self.parent is not None, "it follows the input at least"
        time = self.tick()
        manifest.fold_plain(deliveries, writes)
        names: Names | None = None  # most need none
        if len(changes) < WORTH_COMPRESSING and len(values) < WORTH_COMPRESSING:
            self._replay.add(len(changes), len(values))
            parts = changes, values, RAW + changes, RAW + values if values else b"", 0
        else:
            names = Names(manifest, noted)
            parts = self._stored(changes, values, names)
        keyframe = None
        if self._keyframe_is_due(head, parts[-1]):
            keyframe = names = names or Names(manifest, noted)
            self._replay = Replay(seq)
        standing = len(deliveries), len(manifest.requests), self._replay.first
        header = pack(seq, superstep, bytes.fromhex(self.parent), time, standing, salt())
        end = self._record(head, seq, header, parts, keyframe)
        ended = CheckpointInfo(end.checkpoint_id, header, end.new_bytes)
        started = self._follow(end)
        return (end,), (ended, started), RunStatus.RUNNING, _NO_BLOBS if names is None else names.blobs

    def _follow(self, end: Record) -> CheckpointInfo:
        """Let the start of the next superstep follow an end at once; it is derived, and no record."""
        self._manifest.happened = []
        self.time += 1
        self.parent = start_id(end.checkpoint_id)
        return CheckpointInfo(self.parent, end.header, 0)

    def _header(self, head: Head, entry: Entry, seq: int) -> Header:
        manifest = self._manifest
        return Header(
            head.run_id,
            head.workflow_name,
            seq,
            entry.superstep,
            entry.phase,
            entry.cause,
            self.parent,
            self.time,
            entry.status,
            len(manifest.deliveries),
            len(manifest.requests),
            self._replay.first,
            self._outside.salt(),
            entry.goes_on,
        )

    def _record(self, head: Head, seq: int, header: bytes, parts: _Parts, names: Names | None) -> Record:
        """The record of a checkpoint, with a keyframe if there are names for one."""
        plain_changes, plain_values, changes, values, blobs = parts
        checkpoint_id = self.parent = id_of(header, plain_changes, plain_values)
        size = len(header) + len(changes) + len(values) + blobs
        keyframe = None
        if names is not None:
            keyframe, plain_size = self._keyframe(checkpoint_id, names)
            self._replay = Replay(seq, plain_size)
            size += len(keyframe.changes) + len(keyframe.values) + names.new_blob_bytes()
        return make_tuple(
            Record, (checkpoint_id, head.run_id, seq, header, changes, values, size, keyframe, (), True)
        )

    def _nothing(self) -> _Parts:
        """The start of a superstep at which nothing changed."""
        self._manifest.happened = []
        return _NOTHING

    def _parts(self, entry: Entry, changed: Changes, seq: int, names: Names) -> _Parts:
        """Take in what a checkpoint changed; gives it as it is stored."""
        take_in(self._manifest, changed, entry.phase, entry.cause, seq, self.time)
        return self._stored(*packed(changed), names)

    def _stored(self, changes: bytes, values: bytes, names: Names) -> _Parts:
        self._replay.add(len(changes), len(values))
        stored_changes, stored_values = self._part(changes, names), self._part(values, names)
        return changes, values, stored_changes, stored_values, names.new_blob_bytes()

    def _keyframe_is_due(self, head: Head, new_blob_bytes: int) -> bool:
        """Whether replay has become long, or room can be made behind a keyframe."""
        if self._replay.is_long:
            return True
        return bool(head.retention) and self._tidying is not None and self._tidying.due(head, new_blob_bytes)

    def _keyframe(self, checkpoint_id: CheckpointId, names: Names) -> tuple[Keyframe, int]:
        """All that the run holds, and how many bytes it has before they are compressed or put elsewhere."""
        for keys in self._manifest.state.values():
            for key, ref in keys.items():
                if ref.parts is not None:
                    compact = names.compacted(ref)
                    self._manifest.exchange(keys, key, compact)
        changes, values = packed(self._manifest.as_changes())
        changes = sealed(checkpoint_id, changes, values)
        keyframe = Keyframe(self._part(changes, names), self._part(values, names))
        return keyframe, len(changes) + len(values)

    def _part(self, plain: bytes, names: Names) -> bytes:
        stored = stored_form(plain)
        return stored if len(stored) <= LARGEST_PART else ELSEWHERE + names.blob(plain)
