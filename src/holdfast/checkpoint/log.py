"""The log of one run: every checkpoint becomes a record, and the head moves with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.document import packed
from holdfast.checkpoint.info import CheckpointInfo, Phase
from holdfast.checkpoint.manifest import Changes, Manifest
from holdfast.checkpoint.owner import this_process
from holdfast.checkpoint.packing import Entry, Packer
from holdfast.checkpoint.record import (
    ELSEWHERE,
    Header,
    header_info,
    id_of,
    packed_header,
    sealed,
    stored_form,
)
from holdfast.checkpoint.store import Blob, Commit, Expected, Head, Keyframe, Record, Store
from holdfast.checkpoint.values import Encoder
from holdfast.engine.status import RunStatus
from holdfast.engine.value import NotAtHand
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import CheckpointId, RunId

# Values of more than this are encoded, hashed and compressed in a thread.
_HEAVY = 64 * 1024
# A part of a record that is bigger than this becomes a blob, so that every backend can take the commit.
_LARGEST_PART = 256 * 1024
# Deltas are replayed at each load: a keyframe bounds how many. Values that stand in records only have to be
# read again, not replayed, so a byte of them weighs less.
_KEYFRAME_BYTES = 64 * 1024
VALUE_WEIGHT = 64


class Outside(NamedTuple):
    """What the log takes from the world: the time in microseconds, and salt."""

    now: Callable[[], int]
    salt: Callable[[], bytes]


class Replay(NamedTuple):
    """Where replay of the newest record begins, and how much there is to replay since."""

    first: int = 1
    weight: float = 0
    keyframe: int = 0
    """The size of the keyframe that it begins with."""


_FROM_THE_START = Replay()


class RunLog:
    """Writes the checkpoints of one run. One writer at a time: the head tells whether it is still this one."""

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        outside: Outside,
        head: Head,
        manifest: Manifest | None = None,
        replay: Replay = _FROM_THE_START,
        last_time: int = 0,
    ) -> None:
        self.head = head
        self._store = store
        self._encoder = encoder
        self._outside = outside
        self._manifest = manifest or Manifest()
        self._replay = replay
        self._last_time = last_time
        self._parent: CheckpointId | None = head.checkpoint_id or None
        self._acquired = False

    @property
    def run_id(self) -> RunId:
        """The run."""
        return self.head.run_id

    @property
    def encoder(self) -> Encoder:
        """What captures the values of the run."""
        return self._encoder

    @property
    def _counters(self) -> Counters:
        return self._encoder.counters

    @property
    def since_input(self) -> int:
        """Supersteps since the last input, as the newest checkpoint has it."""
        return self._manifest.since_input

    def stand_on(self, checkpoint_id: CheckpointId) -> None:
        """Let the next record follow the checkpoint that was loaded instead of the head."""
        self._parent = checkpoint_id

    async def append(self, entries: Sequence[Entry]) -> list[CheckpointInfo]:
        """Make checkpoints durable, all or none; then they are what the run stands on.

        Raises ``HeadMoved`` if another writer took the run, ``StorageError`` if it cannot be stored.
        """
        packer, changes = await self._changes(entries)
        made: list[CheckpointInfo] = []
        records: list[Record] = []
        for entry, changed in zip(entries, changes, strict=True):
            last = entry is entries[-1]
            record, info = self._record(entry, changed, packer, last, len(records))
            records.append(record)
            made.append(info)
        blobs = tuple(Blob(digest, data) for digest, data in packer.blobs.items())
        newest = records[-1]
        await self._commit(newest.checkpoint_id, newest.seq, entries[-1].status, "", tuple(records), blobs)
        self._counters.checkpoints += len(records)
        self._counters.new_bytes += sum(record.new_bytes for record in records)
        self._counters.blobs_written += len(blobs)
        return made

    async def set_status(self, status: RunStatus, reason: str = "") -> None:
        """Change only what the head says of the run."""
        self._last_time = max(self._outside.now(), self._last_time + 1)
        await self._commit(self.head.checkpoint_id, self.head.seq, status, reason)

    async def _changes(self, entries: Sequence[Entry]) -> tuple[Packer, list[Changes]]:
        heavy = any(getattr(value, "size_hint", 0) > _HEAVY for entry in entries for value in entry.values())
        while True:
            try:
                return await asyncio.to_thread(self._packed, entries) if heavy else self._packed(entries)
            except NotAtHand as absent:
                await absent.fetch()

    def _packed(self, entries: Sequence[Entry]) -> tuple[Packer, list[Changes]]:
        packer = Packer(self._manifest, self._encoder)
        return packer, [packer.changes(entry) for entry in entries]

    def _record(
        self, entry: Entry, changed: Changes, packer: Packer, last: bool, before: int
    ) -> tuple[Record, CheckpointInfo]:
        manifest = self._manifest
        manifest.fold(changed, entry.phase is Phase.END and entry.delta is not None)
        plain = packed(changed)
        seq = self.head.seq + 1 + before
        weight = self._replay.weight + len(plain[0]) + len(plain[1]) / VALUE_WEIGHT
        wanted = entry.keyframe or (last and weight >= max(_KEYFRAME_BYTES, self._replay.keyframe))
        self._replay = Replay(seq) if wanted else self._replay._replace(weight=weight)
        self._last_time = max(self._outside.now(), self._last_time + 1)
        header = Header(
            self.run_id,
            self.head.workflow_name,
            seq,
            entry.superstep,
            entry.phase,
            entry.cause,
            self._parent,
            self._last_time,
            entry.status,
            len(manifest.deliveries),
            len(manifest.requests),
            self._replay.first,
            self._outside.salt(),
        )
        head = packed_header(header)
        checkpoint_id = self._parent = id_of(head, *plain)
        changes, values = (self._part(part, packer) for part in plain)
        keyframe = self._keyframe(checkpoint_id, packer) if wanted else None
        size = (
            len(head) + len(changes) + len(values) + self._replay.keyframe * wanted + packer.new_blob_bytes()
        )
        record = Record(checkpoint_id, self.run_id, seq, head, changes, values, size, keyframe)
        return record, header_info(checkpoint_id, header, size)

    def _keyframe(self, checkpoint_id: CheckpointId, packer: Packer) -> Keyframe:
        for keys in self._manifest.state.values():
            for key, ref in keys.items():
                if ref.parts is not None:
                    compact = packer.compacted(ref)
                    self._manifest.exchange(keys, key, compact)
        changes, values = packed(self._manifest.as_changes())
        keyframe = Keyframe(
            self._part(sealed(checkpoint_id, changes, values), packer), self._part(values, packer)
        )
        self._replay = self._replay._replace(keyframe=len(keyframe.changes) + len(keyframe.values))
        return keyframe

    def _part(self, plain: bytes, packer: Packer) -> bytes:
        stored = stored_form(plain)
        return stored if len(stored) <= _LARGEST_PART else ELSEWHERE + packer.blob(plain)

    async def _commit(
        self,
        checkpoint_id: CheckpointId,
        seq: int,
        status: RunStatus,
        reason: str,
        records: tuple[Record, ...] = (),
        blobs: tuple[Blob, ...] = (),
    ) -> None:
        current = self.head
        head = Head(
            current.run_id,
            current.workflow_name,
            current.family,
            checkpoint_id,
            seq,
            current.token + (not self._acquired),
            status,
            current.created,
            self._last_time,
            this_process() if status is RunStatus.RUNNING else "",
            reason=reason,
        )
        expected = Expected(current.checkpoint_id, current.token) if current.checkpoint_id else None
        try:
            await self._store.commit(Commit(head, expected, records, blobs))
        except HeadMoved:
            raise
        except StorageError as error:
            await self._reread(head, error)
        self._counters.commits += 1
        self.head = head
        self._acquired = True

    async def _reread(self, head: Head, error: StorageError) -> None:
        """After a commit that may have happened or not: the head tells."""
        try:
            there = await self._store.head(self.run_id)
        except StorageError:
            raise error from None
        if there is None or (there.checkpoint_id, there.token, there.status) != (
            head.checkpoint_id,
            head.token,
            head.status,
        ):
            raise error
