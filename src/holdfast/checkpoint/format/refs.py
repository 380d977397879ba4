"""The values that changes name, each with its place in the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.format.changes import Changes, Grow, PutRef, Ref
from holdfast.engine.state import Scope


class StatePlace(NamedTuple):
    """A key of a scope."""

    scope: Scope
    key: str


class RunPlace(NamedTuple):
    """Something else that a run holds."""

    kind: str
    executor_id: str | None = None
    key: str | None = None


Place: TypeAlias = StatePlace | RunPlace


def placed_in(changes: Changes) -> Iterable[tuple[Place, Ref]]:
    """The values that changes name, with what each is to the run."""
    for delivered in changes.deliveries or ():
        yield RunPlace("message", delivered.target), delivered.value
        if delivered.request is not None:  # the question that a message answers
            asked = delivered.request
            yield RunPlace("request", asked.executor_id, asked.request_id), asked.data
    yield from ((RunPlace("output", executor_id), ref) for executor_id, ref in changes.outputs)
    yield from ((RunPlace("answer", None, request_id), ref) for request_id, ref, _ in changes.answers)
    for asked in changes.requests:
        yield RunPlace("request", asked.executor_id, asked.request_id), asked.data
    for request_id, ref in changes.request_edits:
        if ref is not None:
            yield RunPlace("request", None, request_id), ref
    for event in changes.happened:
        if event.event is not None:
            yield RunPlace("event", event.executor_id), event.event
    if changes.graph is not None:
        yield RunPlace("graph"), changes.graph
    if changes.input is not None:
        yield RunPlace("input"), changes.input
    for key, extended in changes.buffers:
        to = RunPlace("message", f"{key.path}{key.fan_in}")
        yield from ((to, ref) for _, refs in extended or () for ref in refs)
    for scope, name, written in changes.writes:
        place = StatePlace(scope, name)
        if isinstance(written, PutRef):
            yield place, written.ref
        elif isinstance(written, Grow):
            yield from ((place, part.ref) for part in written.parts)


def refs_in(changes: Changes) -> Iterable[Ref]:
    """The values that changes name."""
    return (ref for _, ref in placed_in(changes))
