"""Folding what a checkpoint changed into what the run held before: the same when it is written and when it is read."""

from __future__ import annotations

from holdfast.checkpoint.format.changes import Changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.renames import rename
from holdfast.checkpoint.info import Cause, Phase


def take_in(manifest: Manifest, changes: Changes, phase: Phase, cause: Cause, seq: int, time: int) -> None:
    """Fold in what the checkpoint ``seq`` changed, as its header says."""
    if changes.renames is not None:
        rename(manifest, changes.renames)
    manifest.fold(changes, phase is Phase.END and cause is Cause.SUPERSTEP, seq)
    if cause is Cause.INPUT and changes.deliveries:
        manifest.keep_input(changes.deliveries[0].value)
    if cause is Cause.RESTORE or cause is Cause.FORK:
        manifest.ask_again(seq, time)
