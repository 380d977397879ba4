"""Selects runs by a query, for stores that have all heads at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from holdfast.checkpoint.store import Head, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId

_Order: TypeAlias = tuple[int, RunId]


def select_runs(heads: Iterable[Head], query: RunQuery) -> list[Head]:
    """Return the heads that a query selects, in its order."""
    order = _by_change if query.newest else _by_age
    ordered = sorted(heads, key=order)
    # If the run of the last page was removed, its place is unknown: the listing begins anew.
    after = next((order(head) for head in ordered if head.run_id == query.after), None)
    wanted = [head for head in ordered if _matches(head, query) and (after is None or order(head) > after)]
    return wanted[: query.limit]


def select_due_runs(
    heads: Iterable[Head], workflow_name: str, time: int, limit: int, has_letters: Callable[[RunId], bool]
) -> list[Head]:
    """Return the runs of a workflow that have something to do, in the order in which they should be woken."""
    found: list[tuple[int, RunId, Head]] = []
    for head in heads:
        if head.status is not RunStatus.WAITING or head.workflow_name != workflow_name:
            continue
        if has_letters(head.run_id):
            found.append((-1, head.run_id, head))
        elif head.wake_at is not None and head.wake_at <= time:
            found.append((head.wake_at, head.run_id, head))
    return [head for _, _, head in sorted(found)[:limit]]


def _by_age(head: Head) -> _Order:
    return head.created, head.run_id


def _by_change(head: Head) -> _Order:
    return -head.updated, head.run_id


def _matches(head: Head, query: RunQuery) -> bool:
    return (
        (query.workflow_name is None or head.workflow_name == query.workflow_name)
        and (query.statuses is None or head.status in query.statuses)
        and (query.family is None or head.family == query.family)
        and (query.since is None or head.updated >= query.since)
    )
