"""A checkpoint that is to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, Phase
from holdfast.checkpoint.format.changes import Renames
from holdfast.engine import state
from holdfast.engine.message import Delivery, Request
from holdfast.engine.snapshot import BufferKey, Delta, FurtherInput, Snapshot
from holdfast.engine.status import RunStatus
from holdfast.engine.value import Value
from holdfast.ids import ExecutorId, RequestId


class EditDraft(NamedTuple):
    """The changes that a person makes at a checkpoint, checked and captured."""

    writes: Mapping[state.Place, state.Put] = {}
    deliveries: tuple[Delivery, ...] | None = None
    """All deliveries, if one of them is another."""
    requests: Mapping[RequestId, Value | None] = {}
    """Other data of pending requests; None drops one."""

    def values(self) -> list[Value]:
        """Return the values that it brings."""
        values = [put.value for put in self.writes.values()]
        values += [delivery.value for delivery in self.deliveries or ()]
        return values + [data for data in self.requests.values() if data is not None]


class CheckpointDraft(NamedTuple):
    """A checkpoint that is to be made: the position of the run, and its changes since the one before.

    ``delta`` changed it at the end of a superstep (then ``before`` is the snapshot before that), ``responses`` came
    in before its start, ``given`` is the first snapshot of a run, ``further`` came in later.
    """

    phase: Phase
    superstep: int
    cause: Cause
    status: RunStatus
    before: Snapshot | None = None
    delta: Delta | None = None
    since_input: int | None = None
    happened: Sequence[tuple[ExecutorId | None, Value | tuple[str, str]]] = ()
    goes_on: bool = False
    """True if the next superstep follows at once: its start is derived from this checkpoint."""
    responses: Mapping[RequestId, Value] | None = None
    given: Snapshot | None = None
    fingerprint: str | None = None
    graph: Value | None = None
    """The description of the graph, with its fingerprint."""
    renames: Renames | None = None
    rounds: Mapping[BufferKey, Sequence[ExecutorId] | None] = {}
    """The sources that fan-ins wait for since the graph is another one; None for all that they have."""
    edits: EditDraft | None = None
    keyframe: bool = False
    further: FurtherInput | None = None
    by: str | None = None
    """The person or program that makes it."""
    answered_by: Mapping[RequestId, str] = {}
    """The persons or programs that gave ``responses``, as far as they said so."""
    asked_again: Sequence[Request] = ()
    """Requests whose answers could not be used."""
    ended: Sequence[tuple[ExecutorId, int]] = ()
    """The turns of the superstep, for the events of the checkpoint."""
    asked: Sequence[RequestId] | None = None
    """The requests that go outside with it; None for all that it brings."""

    def values(self) -> list[Value]:
        """Return the values that it brings."""
        values: list[Value] = []
        if self.responses:
            values += self.responses.values()
        if self.edits:
            values += self.edits.values()
        if self.given is not None:
            values += [delivery.value for delivery in self.given.deliveries]
        if self.further is not None:
            values += [delivery.value for delivery in self.further.deliveries]
        delta = self.delta
        if delta is not None:
            values += [delivery.value for delivery in delta.deliveries]
            if delta.answers:
                values += delta.answers.values()
            if delta.outputs:
                values += [output.value for output in delta.outputs]
            if delta.requests:
                values += [request.data for request in delta.requests]
            for change in delta.writes.values():
                if isinstance(change, state.Put):
                    values.append(change.value)
                elif isinstance(change, state.Append):
                    values += change.items
        return values
