"""Makes the records of a run from its checkpoints, now and then with a keyframe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Header, Phase, pack_header, start_id
from holdfast.checkpoint.format.changes import NOTHING, Changes
from holdfast.checkpoint.format.document import pack_changes
from holdfast.checkpoint.format.event_row import (
    PackedStep,
    StepEvents,
    count_messages,
    pack_step,
)
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import id_of, seal_keyframe
from holdfast.checkpoint.format.renames import fold_record
from holdfast.checkpoint.format.replay import Replay
from holdfast.checkpoint.format.stored_form import ELSEWHERE, LARGEST_PART, stored_form
from holdfast.checkpoint.store import Head, Keyframe, Record
from holdfast.checkpoint.write._fast import (
    HeaderTemplate,
    PlainChanges,
    pack_plain_step,
    plain_header_values,
)
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.encode import ValueNamer
from holdfast.checkpoint.write.prune_schedule import PruneSchedule
from holdfast.engine._fast import make_tuple
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, ExecutorId, RequestId


class ClockAndSalt(NamedTuple):
    """The sources of time, in microseconds, and of random salt."""

    now: Callable[[], int]
    salt: Callable[[], bytes]


class MadeRecords(NamedTuple):
    """Records that are to be committed together."""

    records: tuple[Record, ...]
    infos: Sequence[CheckpointInfo]
    """Their checkpoints, with the starts that are derived from them."""
    status: RunStatus
    """The status of the run at the last of them."""
    blobs: Mapping[Digest, bytes]
    """Blobs in stored form that the records bring."""
    steps: Sequence[PackedStep] = ()
    """The events of the records."""


_Parts: TypeAlias = tuple[bytes, bytes, bytes, bytes, int]
"""Changes and values plain, as the id of a record covers them, and as they are stored; then the size of new blobs."""

_NOTHING: _Parts = (b"", b"", b"", b"", 0)


_NO_GIVERS: Mapping[str, str] = {}


class RecordMaker:
    """Makes the records of one run, each behind the one before, whether that was stored or not."""

    def __init__(
        self,
        clock_and_salt: ClockAndSalt,
        manifest: Manifest,
        replay: Replay,
        parent: CheckpointId | None,
        time: int,
        schedule: PruneSchedule | None,
    ) -> None:
        self._clock_and_salt = clock_and_salt
        self.manifest = manifest
        """All that the run holds at the newest record."""
        self._replay = replay
        self.parent = parent
        """The checkpoint that the next record follows."""
        self.time = time
        """The time of the newest record, or later: times of a run only grow."""
        self.superstep = 0
        """The last superstep that was applied."""
        self._schedule = schedule
        self._template: HeaderTemplate | None = None

    def tick(self) -> int:
        """Return the time, or one microsecond after the last time that was returned if that is later."""
        self.time = max(self._clock_and_salt.now(), self.time + 1)
        return self.time

    def make(
        self, head: Head, entries: Sequence[CheckpointDraft], changes: Sequence[Changes], namer: ValueNamer
    ) -> MadeRecords:
        """Make records for checkpoints that follow those of ``head``, all at about one time."""
        records: list[Record] = []
        infos: list[CheckpointInfo] = []
        steps: list[PackedStep] = []
        last = entries[-1]
        self.tick()
        for entry, changed in zip(entries, changes, strict=True):
            seq = head.seq + len(infos) + 1
            if records:
                self.time += 1
            parts = self._nothing() if changed is NOTHING else self._fold(entry, changed, seq, namer)
            wanted = entry.keyframe or (entry is last and self._keyframe_is_due(head, parts[-1]))
            if wanted:
                self._replay = Replay(seq)
            header = self._make_header(head, entry, seq)
            record = self._make_record(head, seq, pack_header(header), parts, namer if wanted else None)
            records.append(record)
            steps.append(pack_step(self._step_events(entry, changed, record, header)))
            self.superstep = entry.superstep if entry.phase is Phase.END else entry.superstep - 1
            infos.append(CheckpointInfo(record.checkpoint_id, record.header, record.new_bytes))
            if entry.goes_on:
                infos.append(self._derive_start(record))
        return MadeRecords(tuple(records), infos, last.status, namer.blobs, steps)

    def make_plain(
        self,
        head: Head,
        superstep: int,
        plain: PlainChanges,
        namer: ValueNamer,
        ended: Sequence[tuple[ExecutorId, int]] = (),
    ) -> MadeRecords:
        """Make the record of an end that changed little and that the next superstep follows at once."""
        deliveries, writes, changes, values = plain
        manifest, seq = self.manifest, head.seq + 1
        assert self.parent is not None, "it follows the input at least"
        if self._template is None:
            self._template = HeaderTemplate(head.run_id, head.workflow_name)
        time = self.tick()
        manifest.fold_plain(deliveries, writes)
        parts = self._store(changes, values, namer)
        framer = namer if self._keyframe_is_due(head, parts[-1]) else None
        if framer is not None:
            self._replay = Replay(seq)
        standing = len(deliveries), len(manifest.requests), self._replay.first
        parent, salt = bytes.fromhex(self.parent), self._clock_and_salt.salt()
        header = self._template.pack(seq, superstep, parent, time, standing, salt)
        record = self._make_record(head, seq, header, parts, framer)
        info = CheckpointInfo(record.checkpoint_id, header, record.new_bytes)
        infos = info, self._derive_start(record)
        self.superstep = superstep
        header_fields = plain_header_values(seq, superstep, parent, time, standing, salt)
        made = record.checkpoint_id, record.new_bytes, header_fields
        step = pack_plain_step(made, ended, bool(writes), bool(manifest.buffers), deliveries)
        return make_tuple(MadeRecords, ((record,), infos, RunStatus.RUNNING, namer.blobs, (step,)))

    def _derive_start(self, end: Record) -> CheckpointInfo:
        """Let the start of the next superstep follow an end at once; no record is made for it."""
        self.manifest.happened = []
        self.time += 1
        self.parent = start_id(end.checkpoint_id)
        return CheckpointInfo(self.parent, end.header, 0)

    def _make_record(
        self, head: Head, seq: int, header: bytes, parts: _Parts, namer: ValueNamer | None
    ) -> Record:
        """Make the record of a checkpoint, with a keyframe if there is a namer for one."""
        plain_changes, plain_values, changes, values, blobs = parts
        checkpoint_id = self.parent = id_of(header, plain_changes, plain_values)
        size = len(header) + len(changes) + len(values) + blobs
        keyframe = None
        if namer is not None:
            keyframe, plain_size = self._make_keyframe(checkpoint_id, namer)
            self._replay = Replay(seq, plain_size)
            size += len(keyframe.changes) + len(keyframe.values) + namer.new_blob_bytes()
        return make_tuple(
            Record,
            (checkpoint_id, head.run_id, seq, header, changes, values, size, keyframe, (), True, _NO_GIVERS),
        )

    def _make_header(self, head: Head, entry: CheckpointDraft, seq: int) -> Header:
        manifest = self.manifest
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
            self._clock_and_salt.salt(),
            entry.by,
            entry.goes_on,
        )

    def _step_events(
        self, entry: CheckpointDraft, changed: Changes, record: Record, header: Header
    ) -> StepEvents:
        """Return the events of a checkpoint that was folded into the manifest just now."""
        manifest = self.manifest
        if entry.asked is not None:
            asked: Iterable[RequestId] = entry.asked
        elif entry.cause in (Cause.FORK, Cause.RESTORE):  # which ask again
            asked = manifest.requests
        else:
            asked = [*(one.request_id for one in changed.requests), *changed.asked_again]
        requests = [manifest.requests[known] for known in asked if known in manifest.requests]
        begins = entry.phase is Phase.START or entry.goes_on
        return StepEvents(
            record.checkpoint_id,
            header,
            record.new_bytes,
            entry.ended,
            changed.happened,
            changed.outputs,
            [(one, manifest.schemas.get(one.form)) for one in requests],
            bool(changed.writes) and entry.phase is Phase.END,
            bool(manifest.buffers),
            count_messages(manifest.deliveries) if begins else (),
        )

    def _nothing(self) -> _Parts:
        """Fold a start at which nothing changed."""
        self.manifest.happened = []
        return _NOTHING

    def _fold(self, entry: CheckpointDraft, changed: Changes, seq: int, namer: ValueNamer) -> _Parts:
        """Fold the changes of a checkpoint into the manifest; return them as they are stored."""
        fold_record(self.manifest, changed, entry.phase, entry.cause, seq, self.time)
        return self._store(*pack_changes(changed), namer)

    def _store(self, changes: bytes, values: bytes, namer: ValueNamer) -> _Parts:
        self._replay.add(len(changes), len(values))
        stored_changes, stored_values = _store_part(changes, namer), _store_part(values, namer)
        return changes, values, stored_changes, stored_values, namer.new_blob_bytes()

    def _keyframe_is_due(self, head: Head, new_blob_bytes: int) -> bool:
        """Return True if replay has become long, or room can be made behind a keyframe."""
        if self._replay.is_long:
            return True
        return (
            bool(head.retention) and self._schedule is not None and self._schedule.due(head, new_blob_bytes)
        )

    def _make_keyframe(self, checkpoint_id: CheckpointId, namer: ValueNamer) -> tuple[Keyframe, int]:
        """Make a keyframe of all that the run holds; return also its bytes before they are compressed or put away."""
        for keys in self.manifest.state.values():
            for key, ref in keys.items():
                if ref.parts is not None:
                    self.manifest.exchange(keys, key, namer.compact(ref))
        changes, values = pack_changes(self.manifest.as_changes())
        changes = seal_keyframe(checkpoint_id, changes, values)
        keyframe = Keyframe(_store_part(changes, namer), _store_part(values, namer))
        return keyframe, len(changes) + len(values)


def _store_part(plain: bytes, namer: ValueNamer) -> bytes:
    stored = stored_form(plain)
    return stored if len(stored) <= LARGEST_PART else ELSEWHERE + namer.store_blob(plain)
