"""Selects runs by a query, for stores that have all heads at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.store import ClaimRequest, Head, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId

_Order: TypeAlias = tuple[int, RunId]
TagReader: TypeAlias = Callable[[RunId], Iterable[str]]
"""Returns the tags of all checkpoints of a run."""


def select_runs(heads: Iterable[Head], query: RunQuery, tags_of: TagReader) -> list[Head]:
    """Return the heads that a query selects, in its order."""
    order = _by_change if query.newest else by_age
    found = filter_runs(heads, query._replace(text=None), tags_of)
    if query.after is not None:
        time, run_id = query.after
        behind = (-time if query.newest else time), run_id
        found = [head for head in found if order(head) > behind]
    found.sort(key=order)
    if query.text is None:
        return found[: query.limit]
    texts = TextFilter(query.text)
    return list(islice((head for head in found if texts.matches(head, tags_of)), query.limit))


def filter_runs(heads: Iterable[Head], query: RunQuery, tags_of: TagReader) -> list[Head]:
    """Return the heads that a query selects, in any order; ``limit`` and ``after`` mean nothing here."""
    found = [head for head in heads if _matches(head, query)]
    if query.text is None:
        return found
    texts = TextFilter(query.text)
    return [head for head in found if texts.matches(head, tags_of)]


class TextFilter:
    """Finds a text in what people call a run: its id, the name of its workflow, its reason and its tags."""

    def __init__(self, text: str) -> None:
        self._wanted = text.casefold()

    def matches(self, head: Head, tags_of: TagReader) -> bool:
        """Return True if the text is in one of them; the tags are read only if it is in none of the others."""
        named = (head.run_id, head.workflow_name, head.reason)
        return any(map(self.is_in, named)) or any(map(self.is_in, tags_of(head.run_id)))

    def is_in(self, text: str) -> bool:
        """Return True if a text has it, in upper or lower case."""
        return self._wanted in text.casefold()


def sort_due_runs(heads: Iterable[Head], time: int, count_letters: Callable[[RunId], int]) -> list[Head]:
    """Return those of the runs that have something to do, in the order in which they should be woken."""
    found: list[tuple[int, RunId, Head]] = []
    for head in heads:
        if head.status is RunStatus.RUNNING:
            continue
        if count_letters(head.run_id) > head.letters_known:
            found.append((-1, head.run_id, head))
        elif head.status is RunStatus.WAITING and head.wake_at is not None and head.wake_at <= time:
            found.append((head.wake_at, head.run_id, head))
    return [head for _, _, head in sorted(found)]


def fits(head: Head, request: ClaimRequest) -> bool:
    """Return True if a run is of a workflow and of a build that a request asks for, and is not to be left out."""
    if head.workflow_name not in request.workflows or request.besides.get(head.run_id) == head.checkpoint_id:
        return False
    builds = request.workflows[head.workflow_name]
    return (builds is None or not head.fingerprint or head.fingerprint in builds) is request.fits


class RunClaim(NamedTuple):
    """A claim of a run: how the run stood when it was claimed, and when the claim ends at the latest."""

    checkpoint_id: str
    token: int
    letters: int
    until: int
    process: str

    def holds(self, head: Head, letters: int, request: ClaimRequest) -> bool:
        """Return True if the claim keeps others from the run now, if its process lives."""
        same = (self.checkpoint_id, self.token, self.letters) == (head.checkpoint_id, head.token, letters)
        return same and request.time < self.until <= latest_end(request)


def latest_end(request: ClaimRequest) -> int:
    """Return the end of the longest claim that is believed; others may have claimed a moment after the request."""
    return request.time + 2 * request.lease


def make_claim(head: Head, letters: int, request: ClaimRequest) -> RunClaim:
    """Return the claim of a run; if it has letters and sleeps, the claim ends when it wakes."""
    until = request.time + request.lease
    if head.wake_at is not None and request.time < head.wake_at < until:
        until = head.wake_at
    return RunClaim(head.checkpoint_id, head.token, letters, until, request.process)


def by_age(head: Head) -> _Order:
    """Order runs by their age, the oldest first."""
    return head.created, head.run_id


def _by_change(head: Head) -> _Order:
    return -head.updated, head.run_id


def _matches(head: Head, query: RunQuery) -> bool:
    return (
        (query.workflow_name is None or head.workflow_name == query.workflow_name)
        and (query.statuses is None or head.status in query.statuses)
        and (query.family is None or head.family == query.family)
        and (query.forked_from is None or head.origin.partition(" ")[2] == query.forked_from)
        and (query.created_after is None or head.created >= query.created_after)
        and (query.created_before is None or head.created < query.created_before)
        and (query.updated_after is None or head.updated >= query.updated_after)
        and (query.updated_before is None or head.updated < query.updated_before)
    )
