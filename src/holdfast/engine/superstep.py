"""A superstep as two pure functions: ``plan`` says whose turn it is, ``apply`` what comes of the turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.limits import Limits
from holdfast.engine.message import Delivery, Output, Sent, Unrouted
from holdfast.engine.routing import Router, brief
from holdfast.engine.snapshot import Delta, Snapshot, advance
from holdfast.engine.state import NO_CHANGES, Changes, combine
from holdfast.engine.value import capture
from holdfast.errors import LimitExceeded, WrongType
from holdfast.graph.graph import Graph
from holdfast.graph.types import type_name
from holdfast.ids import ExecutorId


class Turn(NamedTuple):
    """One executor's work in one superstep: all its messages, in order."""

    executor_id: ExecutorId
    deliveries: tuple[Delivery, ...]


class Outcome(NamedTuple):
    """What a turn produced."""

    executor_id: ExecutorId
    messages: Sequence[Sent] = ()
    changes: Changes = NO_CHANGES
    outputs: Sequence[Output] = ()


class Applied(NamedTuple):
    """What came of a superstep: the next snapshot, what changed, and the messages that reached nobody."""

    snapshot: Snapshot
    delta: Delta
    unrouted: tuple[Unrouted, ...]


def begin(graph: Graph, name: str, message: object, limits: Limits) -> Snapshot:
    """The snapshot of a run that was given its input and has done nothing yet."""
    start = graph.executors[graph.start]
    if start.dispatch.find(message) is None:
        takes = " or ".join(type_name(form) for form in start.accepts)
        raise WrongType(
            f"workflow {name!r} starts at {start.id!r}, which takes {takes}, "
            f"but its input is a {type(message).__name__}: {brief(message).rpartition(' (')[0]}"
        )
    value = capture(message, "input", limits.max_value_size)
    return Snapshot(deliveries=(Delivery(start.id, value),))


def plan(graph: Graph, snapshot: Snapshot) -> tuple[Turn, ...]:
    """The turns of the next superstep: executors in graph order, each with its messages as they were sent."""
    deliveries = snapshot.deliveries
    if len(deliveries) == 1:
        return (Turn(deliveries[0].target, deliveries),)
    by_target: dict[ExecutorId, list[Delivery]] = {}
    for delivery in deliveries:
        by_target.setdefault(delivery.target, []).append(delivery)
    order = graph.order
    return tuple(
        Turn(target, tuple(by_target[target])) for target in sorted(by_target, key=order.__getitem__)
    )


def apply(graph: Graph, snapshot: Snapshot, outcomes: Sequence[Outcome], limits: Limits) -> Applied:
    """What comes of the turns: messages are routed, writes combined, outputs collected.

    ``outcomes`` are in the order of the plan. Raises ``ConditionFailed`` or ``StateConflict``; then nothing
    came of the superstep and the same outcomes can be applied again.
    """
    router = Router(graph, snapshot.buffers)
    unrouted: list[Unrouted] = []
    changed: list[tuple[ExecutorId, Changes]] = []
    outputs: list[Output] = []
    for executor_id, messages, changes, yielded in outcomes:
        for sent in messages:
            if not router.route(executor_id, sent):
                unrouted.append(Unrouted(executor_id, sent))
        if changes:
            changed.append((executor_id, changes))
        outputs += yielded
    buffers = router.release()
    if len(router.deliveries) > limits.max_deliveries:
        raise LimitExceeded(
            "max_deliveries",
            limits.max_deliveries,
            f"superstep {snapshot.superstep + 1} makes {len(router.deliveries):,} deliveries, more than the "
            f"{limits.max_deliveries:,} allowed; send fewer messages, or allow more with Limits(max_deliveries=...)",
        )
    writes = combine(snapshot.state, changed, limits.max_value_size) if changed else {}
    delta = Delta(tuple(router.deliveries), writes, buffers, tuple(outputs))
    return Applied(advance(snapshot, delta), delta, tuple(unrouted))


def waiting_fan_ins(graph: Graph, snapshot: Snapshot) -> Mapping[str, tuple[ExecutorId, ...]]:
    """For each fan-in that holds messages, the sources that it still waits for."""
    return {
        edge.buffer_key: tuple(
            source for source in edge.sources if source not in snapshot.buffers[edge.buffer_key]
        )
        for edge in graph.fan_ins
        if edge.buffer_key in snapshot.buffers
    }
