"""All that a run needs to go on: the value between supersteps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from holdfast.engine.chain import Chain
from holdfast.engine.layered import GONE, Layered
from holdfast.engine.message import Delivery, Output
from holdfast.engine.state import EMPTY_STATE, Place, State, Write, write
from holdfast.engine.value import Value
from holdfast.ids import ExecutorId

Buffer: TypeAlias = Mapping[ExecutorId, tuple[Value, ...]]
"""What a fan-in holds for each source until all have sent."""


class Snapshot(NamedTuple):
    """The whole of a run between two supersteps; it is never changed, only followed by another.

    ``superstep`` is the number of the last superstep, 0 before the first. ``since_input`` counts supersteps
    since the last external input. ``deliveries`` says who gets what next, in order.
    """

    superstep: int = 0
    since_input: int = 0
    deliveries: tuple[Delivery, ...] = ()
    state: State = EMPTY_STATE
    buffers: Layered[str, Buffer] = Layered()
    outputs: Chain[Output] = Chain.of()


class Delta(NamedTuple):
    """What one superstep changed."""

    deliveries: tuple[Delivery, ...]
    writes: Mapping[Place, Write]
    buffers: Mapping[str, Buffer | None]
    outputs: tuple[Output, ...]


def advance(snapshot: Snapshot, delta: Delta) -> Snapshot:
    """The snapshot after a superstep that changed ``delta``."""
    buffers = snapshot.buffers
    if delta.buffers:
        buffers = buffers.changed({key: buffer or GONE for key, buffer in delta.buffers.items()})
    return Snapshot(
        snapshot.superstep + 1,
        snapshot.since_input + 1,
        delta.deliveries,
        write(snapshot.state, delta.writes) if delta.writes else snapshot.state,
        buffers,
        snapshot.outputs.extend(delta.outputs) if delta.outputs else snapshot.outputs,
    )
