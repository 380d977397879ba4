"""What lies in the storage of an incident, read by a process that does not run it."""

import os
from pathlib import Path

from examples.incident_triage.view import size
from holdfast import Checkpoint, SqliteCheckpointStorage

_COLUMNS = "{:>4}  {:>9}  {:<5}  {:<9}  {:<9}  {:>9}  {:>9}"


async def print_checkpoints(database: Path) -> None:
    """The checkpoints of the incident: what each added to the storage, and how much state it gives back."""
    async with SqliteCheckpointStorage(database) as storage:
        checkpoints = await storage.list_checkpoints()
    print(_COLUMNS.format("seq", "superstep", "phase", "cause", "status", "added", "state").rstrip())
    for made in checkpoints:
        print(
            _COLUMNS.format(
                made.seq,
                made.superstep,
                made.phase,
                made.cause,
                made.status,
                size(made.new_bytes),
                size(_state_size(made)),
            )
        )
    added = size(sum(made.new_bytes for made in checkpoints))
    held = size(sum(_state_size(made) for made in checkpoints))
    print(
        f"{len(checkpoints)} checkpoints added {added} to {_shown(database)}; written whole, their state is {held}"
    )


async def is_interrupted(database: Path) -> bool:
    """Whether a run lies there whose process died."""
    async with SqliteCheckpointStorage(database) as storage:
        return bool(await storage.list_runs(interrupted=True))


def _state_size(checkpoint: Checkpoint) -> int:
    return sum(sum(scope.sizes().values()) for scope in checkpoint.scopes.values())


def _shown(path: Path) -> str:
    short = os.path.relpath(path)
    return str(path) if short.startswith("..") else short
