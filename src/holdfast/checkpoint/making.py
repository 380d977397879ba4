"""Checkpoints become records, each behind the one before; now and then with a keyframe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.document import packed
from holdfast.checkpoint.folding import take_in
from holdfast.checkpoint.info import CheckpointInfo, Header
from holdfast.checkpoint.manifest import NOTHING, Changes, Manifest
from holdfast.checkpoint.packing import Entry, Packer
from holdfast.checkpoint.record import (
    ELSEWHERE,
    LARGEST_PART,
    id_of,
    packed_header,
    sealed,
    stored_form,
)
from holdfast.checkpoint.store import Head, Keyframe, Record
from holdfast.checkpoint.tidying import Tidying
from holdfast.ids import CheckpointId

# Deltas are replayed at each load: a keyframe bounds how many. Values that stand in records only have to be
# read again, not replayed, so a byte of them weighs less.
_KEYFRAME_BYTES = 64 * 1024
_VALUE_WEIGHT = 64


class Outside(NamedTuple):
    """What the log takes from the world: the time in microseconds, and salt."""

    now: Callable[[], int]
    salt: Callable[[], bytes]


class Replay(NamedTuple):
    """Where replay of the newest record begins, and how much there is to replay since."""

    first: int = 1
    weight: float = 0
    keyframe: float = 0
    """The size of the keyframe that it begins with, or of a record that is as good as one."""

    def after(self, changes: int, values: int) -> Replay:
        """The same after one more record with so many bytes.

        One that is far bigger than all before it holds nearly all that there is: a keyframe would only say it again.
        """
        own = changes + values / _VALUE_WEIGHT
        if own >= max(_KEYFRAME_BYTES, 2 * (self.weight + self.keyframe)):
            return Replay(self.first, self.weight, own)
        return Replay(self.first, self.weight + own, self.keyframe)

    @property
    def is_long(self) -> bool:
        """Whether it should begin anew."""
        return self.weight >= max(_KEYFRAME_BYTES, self.keyframe)


_Parts: TypeAlias = tuple[bytes, bytes, bytes, bytes, int]
"""Changes and values plain, as the id of a record covers them, and as they are stored; then the size of new blobs."""

_NOTHING: _Parts = (b"", b"", b"", b"", 0)


class Maker:
    """Makes the records of one run, each behind the one before, whether that was stored or not."""

    def __init__(
        self,
        outside: Outside,
        manifest: Manifest,
        parent: CheckpointId | None,
        replay: Replay,
        time: int,
        tidying: Tidying | None,
    ) -> None:
        self._outside = outside
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

    def make(
        self, head: Head, entries: Sequence[Entry], changes: Sequence[Changes], packer: Packer
    ) -> tuple[list[Record], list[CheckpointInfo]]:
        """Records for checkpoints that follow those of ``head``, all at about one time."""
        records: list[Record] = []
        made: list[CheckpointInfo] = []
        seq, last = head.seq, entries[-1]
        self.tick()
        for entry, changed in zip(entries, changes, strict=True):
            seq += 1
            if records:
                self.time += 1
            parts = self._nothing() if changed is NOTHING else self._parts(entry, changed, seq, packer)
            plain_changes, plain_values, stored_changes, stored_values, blobs = parts
            wanted = entry.keyframe or (entry is last and self._keyframe_is_due(head, blobs))
            if wanted:
                self._replay = Replay(seq)
            header = self._header(head, entry, seq)
            head_bytes = packed_header(header)
            checkpoint_id = self.parent = id_of(head_bytes, plain_changes, plain_values)
            size = len(head_bytes) + len(stored_changes) + len(stored_values) + blobs
            keyframe = None
            if wanted:
                keyframe = self._keyframe(checkpoint_id, packer)
                kept = len(keyframe.changes) + len(keyframe.values)
                self._replay = Replay(seq, keyframe=kept)
                size += kept + packer.new_blob_bytes()
            records.append(
                Record(
                    checkpoint_id, head.run_id, seq, head_bytes, stored_changes, stored_values, size, keyframe
                )
            )
            made.append(CheckpointInfo(checkpoint_id, header, size))
        return records, made

    def _nothing(self) -> _Parts:
        """The start of a superstep that follows at once."""
        self._manifest.happened = []
        return _NOTHING

    def _parts(self, entry: Entry, changed: Changes, seq: int, packer: Packer) -> _Parts:
        """Take in what a checkpoint changed; gives it as it is stored."""
        take_in(self._manifest, changed, entry.phase, entry.cause, seq, self.time)
        plain_changes, plain_values = packed(changed)
        changes, values = self._part(plain_changes, packer), self._part(plain_values, packer)
        self._replay = self._replay.after(len(plain_changes), len(plain_values))
        return plain_changes, plain_values, changes, values, packer.new_blob_bytes()

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
        )

    def _keyframe_is_due(self, head: Head, new_blob_bytes: int) -> bool:
        """Whether replay has become long, or room can be made behind a keyframe."""
        if self._replay.is_long:
            return True
        return bool(head.retention) and self._tidying is not None and self._tidying.due(head, new_blob_bytes)

    def _keyframe(self, checkpoint_id: CheckpointId, packer: Packer) -> Keyframe:
        for keys in self._manifest.state.values():
            for key, ref in keys.items():
                if ref.parts is not None:
                    compact = packer.compacted(ref)
                    self._manifest.exchange(keys, key, compact)
        changes, values = packed(self._manifest.as_changes())
        return Keyframe(
            self._part(sealed(checkpoint_id, changes, values), packer), self._part(values, packer)
        )

    def _part(self, plain: bytes, packer: Packer) -> bytes:
        if not plain:
            return plain
        stored = stored_form(plain)
        return stored if len(stored) <= LARGEST_PART else ELSEWHERE + packer.blob(plain)
