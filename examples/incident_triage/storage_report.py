"""The contents of an incident's storage, read by a process that does not run it."""

import os
import sys
from pathlib import Path

from examples.incident_triage.other_decision import state_size
from examples.incident_triage.view import size
from examples.incident_triage.workflow import INCIDENT
from holdfast import SqliteCheckpointStorage

_COLUMNS = "{:<9}  {:>4}  {:>9}  {:<5}  {:<9}  {:<9}  {:>9}  {:>9}"


async def print_checkpoints(database: Path) -> None:
    """The checkpoints of the incident: what each added to the storage, and how much state it gives back."""
    async with SqliteCheckpointStorage(database) as storage:
        checkpoints = await storage.list_checkpoints()
    print(_COLUMNS.format("run", "seq", "superstep", "phase", "cause", "status", "added", "state").rstrip())
    for made in checkpoints:
        print(
            _COLUMNS.format(
                made.run_id,
                made.seq,
                made.superstep,
                made.phase,
                made.cause,
                made.status,
                size(made.new_bytes),
                size(state_size(made)),
            )
        )
    added = size(sum(made.new_bytes for made in checkpoints))
    held = size(sum(map(state_size, checkpoints)))
    print(
        f"{len(checkpoints)} checkpoints added {added} to {_shown(database)}; written whole, their state is {held}"
    )


async def print_tree(database: Path) -> None:
    """Print these checkpoints as a tree, with the heads of the runs."""
    async with SqliteCheckpointStorage(database) as storage:
        print(await storage.draw_tree(INCIDENT, ascii=not sys.stdout.encoding.lower().startswith("utf")))


async def is_interrupted(database: Path) -> bool:
    """Return True if the process of a stored run died."""
    async with SqliteCheckpointStorage(database) as storage:
        return bool(await storage.list_runs(interrupted=True))


def _shown(path: Path) -> str:
    short = os.path.relpath(path)
    return str(path) if short.startswith("..") else short
