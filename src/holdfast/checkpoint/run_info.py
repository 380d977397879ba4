"""A run as a storage lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.info import moment
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.store import Head, Store
from holdfast.engine.status import RunStatus


@dataclass(frozen=True)
class RunInfo:
    """A run as a storage lists it.

    >>> from holdfast import RunStatus
    >>> RunInfo("r1", "Triage", RunStatus.WAITING, "ab12", 4, None, None).status
    <RunStatus.WAITING: 'waiting'>
    """

    run_id: str
    workflow_name: str
    status: RunStatus
    checkpoint_id: str
    """The checkpoint that it stands on."""
    seq: int
    created: Any
    updated: Any
    interrupted: bool = False
    """Whether it says that it is running, but its process lives no longer."""
    reason: str = ""
    """Why it failed."""
    wake_at: Any = None
    """When it goes on by itself, because a sleep or the time of a question is over; None if it does not."""
    waiting_for: tuple[str, ...] = ()
    """For a run that is WAITING: ``"answers"``, ``"time"`` (a sleep) or ``"messages"`` (of fan-ins); else empty."""


async def run_info(store: Store, head: Head, known: dict[str, bool] | None = None) -> RunInfo:
    """What a head says of its run, and whether anyone drives it; ``known`` is as for ``is_driven``."""
    return RunInfo(
        head.run_id,
        head.workflow_name,
        head.status,
        head.checkpoint_id,
        head.seq,
        moment(head.created),
        moment(head.updated),
        head.status is RunStatus.RUNNING and not await is_driven(store, head, known),
        head.reason,
        None if head.wake_at is None else moment(head.wake_at),
        tuple(head.waiting_for.split()),
    )
