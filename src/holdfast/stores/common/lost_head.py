"""Rebuilds the head of a run from one of its checkpoints, if the head is lost or damaged."""

from __future__ import annotations

import time

from holdfast.checkpoint.checkpoint_info import Header, waiting_at
from holdfast.checkpoint.store import Head
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId


def rebuild_head(
    checkpoint_id: CheckpointId, header: Header, family: RunId, created: int, token: int, origin: str
) -> Head:
    """Return the head of a run that stands on this checkpoint and is not driven.

    The number of writers that there were is not known: the token is greater than any such number, so that writers who
    still believe to drive the run are refused. The run keeps all checkpoints, because its retention is lost.
    """
    now = time.time_ns() // 1_000
    status = RunStatus.STOPPED if header.status is RunStatus.RUNNING else header.status
    return Head(
        header.run_id,
        header.workflow_name,
        family,
        checkpoint_id,
        header.seq,
        max(token, now // 1_000_000) + 1,
        status,
        created,
        max(now, header.time + 1),
        waiting_for=" ".join(waiting_at(header)),
        origin=origin,
    )


WHAT_IS_LOST = (
    "how the run ended, if it did, and its retention; nobody drives it, and all checkpoints are kept"
)
"""Describes what a rebuilt head does not contain."""
