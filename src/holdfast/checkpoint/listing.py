"""Checkpoints of one run that were listed: their manifests are made when someone looks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.loading import fold_one, folded, lineage
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import read_header
from holdfast.checkpoint.store import Depth, Record
from holdfast.ids import CheckpointId


class Listing:
    """The records of one run, without values. Going through its checkpoints in order folds each record once."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {record.checkpoint_id: record for record in records}
        self._last: tuple[CheckpointId, Manifest] | None = None

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
            fold_one(manifest, record, Depth.CHANGES)
        else:
            manifest = folded(lineage(self._records, checkpoint_id), Depth.CHANGES)
        self._last = (checkpoint_id, manifest)
        return manifest
