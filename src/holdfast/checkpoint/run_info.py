"""RunInfo: a run as a storage lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from holdfast.checkpoint.arguments import check_text, microseconds_of, run_id_of, status_of
from holdfast.checkpoint.checkpoint_info import json_field, microseconds, moment
from holdfast.checkpoint.ownership import ask_for_owners, is_driven_by
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.store import Head, RunPosition, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId

_TIMES = ("created_after", "created_before", "updated_after", "updated_before")


class ForkOrigin(NamedTuple):
    """The run and the checkpoint at which a fork began.

    >>> ForkOrigin("r1", "ab12").run_id
    'r1'
    """

    run_id: str
    checkpoint_id: str


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
    by: str = ""
    """The person or program that cancelled it, as ``by=`` said."""
    traceback: str = field(default="", repr=False)
    """The files, lines and functions of the error with which it failed, and messages; at most 8,000 characters."""

    forked_from: ForkOrigin | None = None
    """For a fork, the run and the checkpoint at which it began; both may have been removed since."""
    restored_at: int | None = None
    """The ``seq`` of the checkpoint by which it last went back; those that it left behind are superseded."""

    def to_dict(self) -> dict[str, Any]:
        """Return the info as plain JSON; docs/reference/json-forms.md describes it."""
        origin = None if self.forked_from is None else self.forked_from._asdict()
        return {one.name: json_field(getattr(self, one.name)) for one in fields(self)} | {
            "forked_from": origin
        }


async def run_info(store: Store, head: Head) -> RunInfo:
    """Make the info of a run from its head, and ask the store if its owner lives."""
    known: dict[str, bool] = {}
    await ask_for_owners(store, [head], known)
    return _make_run_info(head, known)


def _make_run_info(head: Head, known: Mapping[str, bool]) -> RunInfo:
    return RunInfo(
        head.run_id,
        head.workflow_name,
        head.status,
        head.checkpoint_id,
        head.seq,
        moment(head.created),
        moment(head.updated),
        head.status is RunStatus.RUNNING and not is_driven_by(head, known),
        head.reason,
        None if head.wake_at is None else moment(head.wake_at),
        tuple(head.waiting_for.split()),
        head.by,
        head.traceback,
        _origin_of(head),
        head.restored or None,
    )


def _origin_of(head: Head) -> ForkOrigin | None:
    checkpoint_id, _, run_id = head.origin.partition(" ")
    return ForkOrigin(run_id, checkpoint_id) if run_id else None


async def make_run_query(
    catalog: RunCatalog,
    workflow_name: str | None,
    status: RunStatus | str | None,
    times: tuple[Any, Any, Any, Any],
    text: str | None,
    forked_from: str | None,
) -> RunQuery:
    """Make the query that users ask for; ``times`` are those of ``_TIMES``, in that order."""
    check_text(text)
    statuses = None if status is None else frozenset([status_of(status)])
    created_after, created_before, updated_after, updated_before = map(microseconds_of, _TIMES, times)
    query = RunQuery(
        workflow_name,
        statuses,
        created_after=created_after,
        created_before=created_before,
        updated_after=updated_after,
        updated_before=updated_before,
        text=text,
    )
    if forked_from is None:
        return query
    query = query._replace(forked_from=run_id_of(forked_from))
    origin = await catalog.head_or_none(forked_from)
    return query if origin is None else query._replace(family=origin.family)  # finds them fast


async def begin_behind(catalog: RunCatalog, query: RunQuery, run: str | RunInfo) -> RunQuery:
    """Let a query begin behind a run: behind the place where it was listed, or where the run with an id is now."""
    if isinstance(run, RunInfo):
        listed = microseconds(run.updated if query.newest else run.created)
        return query._replace(after=RunPosition(listed, RunId(run.run_id)))
    return query._replace(after=query.position_of(await catalog.head(run)))


async def list_runs(store: Store, query: RunQuery, interrupted: bool | None) -> list[RunInfo]:
    """Return the runs that a query asks for; only those that are interrupted, or not, if that is given."""
    if interrupted:
        query = _only_running(query)
    found: list[RunInfo] = []
    known: dict[str, bool] = {}
    limit = query.limit
    while True:
        wanted = None if limit is None else limit - len(found)
        page = await store.runs(query._replace(limit=wanted))
        await ask_for_owners(store, page, known)
        for head in page:
            run = _make_run_info(head, known)
            if interrupted is None or run.interrupted is interrupted:
                found.append(run)
        if wanted is None or len(page) < wanted or len(found) >= (limit or 0):
            return found
        query = query._replace(after=query.position_of(page[-1]))


async def count_runs(store: Store, query: RunQuery, interrupted: bool | None) -> int:
    """Return the number of runs that ``list_runs`` would return without a limit."""
    if interrupted is None:
        return await store.count_runs(query)
    running = await store.runs(_only_running(query))
    known: dict[str, bool] = {}
    await ask_for_owners(store, running, known)
    count = sum(not is_driven_by(head, known) for head in running)
    return count if interrupted else await store.count_runs(query) - count


def _only_running(query: RunQuery) -> RunQuery:
    """Return the query for those runs that can be interrupted."""
    return query._replace(statuses=(query.statuses or frozenset(RunStatus)) & {RunStatus.RUNNING})
