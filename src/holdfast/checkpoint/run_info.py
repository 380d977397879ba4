"""RunInfo: a run as a storage lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.checkpoint_info import moment
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.store import Head, RunQuery, Store
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
    """The checkpoint that the run stands on."""
    seq: int
    created: Any
    updated: Any
    interrupted: bool = False
    """True if its status is RUNNING but the process that drove it lives no longer."""
    reason: str = ""
    """The reason why it failed."""
    wake_at: Any = None
    """The time when it goes on by itself, because a sleep or the time of a question is over; None if it does not."""
    waiting_for: tuple[str, ...] = ()
    """For a run that is WAITING: ``"answers"``, ``"time"`` (a sleep) or ``"messages"`` (of fan-ins); else empty."""


async def run_info(store: Store, head: Head, known: dict[str, bool] | None = None) -> RunInfo:
    """Make the info of a run from its head; ``known`` is as for ``is_driven``."""
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


async def list_runs(store: Store, query: RunQuery, interrupted: bool | None) -> list[RunInfo]:
    """Return the runs that a query asks for; only those that are interrupted, or not, if that is given."""
    if interrupted:  # only a run with status RUNNING can be
        query = query._replace(statuses=(query.statuses or frozenset(RunStatus)) & {RunStatus.RUNNING})
    found: list[RunInfo] = []
    known: dict[str, bool] = {}
    limit = query.limit
    while True:
        wanted = None if limit is None else limit - len(found)
        page = await store.runs(query._replace(limit=wanted))
        for head in page:
            run = await run_info(store, head, known)
            if interrupted is None or run.interrupted is interrupted:
                found.append(run)
        if wanted is None or len(page) < wanted or len(found) >= (limit or 0):
            return found
        query = query._replace(after=page[-1].run_id)
