"""Applies a superstep whose only turn sent one message along its one plain edge, as most turns do.

Without it W1, the chain without storage, takes a twentieth more. ``tests/properties/test_superstep.py`` shows that the
router gives the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine._fast import make_tuple
from holdfast.engine.message import Delivery
from holdfast.engine.snapshot import NO_RESPONSES, Delta, Snapshot
from holdfast.engine.state import combine, write
from holdfast.engine.value import Captor
from holdfast.graph.graph import Graph

if TYPE_CHECKING:
    from holdfast.engine.superstep import Outcome


def pass_on(
    graph: Graph, snapshot: Snapshot, outcome: Outcome, capture: Captor
) -> tuple[Snapshot, Delta] | None:
    """Return the next snapshot and the delta to it; None for all other supersteps. ``graph`` nests nothing."""
    source, messages, changes, outputs, requests, _ = outcome
    if len(messages) != 1 or outputs or requests:
        return None
    value, only = messages[0]
    target = graph.sole_targets.get(source)
    if target is None or only is not None or target.dispatch.find(value.peek()) is None:
        return None
    superstep, since_input, _, state, buffers, given_out, asked, answered, instances, rounds = snapshot
    deliveries = (make_tuple(Delivery, (target.id, value, source, None)),)
    writes = combine(state, ((source, changes),), capture) if changes else {}
    if writes:
        state = write(state, writes)
    delta = make_tuple(Delta, (deliveries, writes, {}, (), (), {}, (), {}, NO_RESPONSES))
    after = make_tuple(
        Snapshot,
        (
            superstep + 1,
            since_input + 1,
            deliveries,
            state,
            buffers,
            given_out,
            asked,
            answered,
            instances,
            rounds,
        ),
    )
    return after, delta
