"""Checkpoints of one run that were listed: their manifests are made when someone looks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint import Checkpoint, ReadBlobs
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.read.loader import fold_one, folded, lineage
from holdfast.checkpoint.store import Depth, Record
from holdfast.checkpoint.values import BlobSource, Encoder
from holdfast.ids import CheckpointId


class Reading(NamedTuple):
    """Reads more of a listed checkpoint: its encoder, its blobs and its whole manifest.

    ``values`` has the blobs of all checkpoints if they were listed with their values.
    """

    encoder: Encoder
    source: Callable[[CheckpointId], BlobSource]
    full: Callable[[Record], Awaitable[Manifest]]
    values: ReadBlobs | None = None


class Listing:
    """The records of one run. Going through its checkpoints in order folds each record once."""

    def __init__(self, records: Sequence[Record], reading: Reading) -> None:
        self._reading = reading
        self._depth = Depth.CHANGES if reading.values is None else Depth.ALL
        self._records = {record.checkpoint_id: record for record in records}
        self._last: tuple[CheckpointId, Manifest] | None = None

    def checkpoints(self, records: Iterable[Record]) -> list[Checkpoint]:
        """Return the checkpoints of these records; most are never asked for more than their header."""
        return [
            Checkpoint(record.checkpoint_id, read_header(record), record.new_bytes, record.tags, self)
            for record in records
        ]

    @property
    def values(self) -> ReadBlobs | None:
        """The blobs that were read, if values were."""
        return self._reading.values

    @property
    def encoder(self) -> Encoder:
        """The encoder that decodes values."""
        return self._reading.encoder

    def source(self, checkpoint_id: CheckpointId) -> BlobSource:
        """Return the source of the blobs of a checkpoint."""
        return self._reading.values or self._reading.source(checkpoint_id)

    async def full(self, checkpoint_id: CheckpointId) -> Manifest:
        """The manifest of a checkpoint with the content of small values."""
        return await self._reading.full(self._records[checkpoint_id])

    def manifest(self, checkpoint_id: CheckpointId) -> Manifest:
        """The manifest of a checkpoint; it is good until another is asked for."""
        if self._last is not None and self._last[0] == checkpoint_id:
            return self._last[1]
        record = self._records[checkpoint_id]
        if (
            self._last is not None
            and read_header(record).parent_id == self._last[0]
            and record.keyframe is None
        ):
            manifest, self._last = self._last[1], None  # half folded if it fails
            fold_one(manifest, record, self._depth)
        else:
            manifest = folded(lineage(self._records, checkpoint_id), self._depth)
        self._last = (checkpoint_id, manifest)
        return manifest
