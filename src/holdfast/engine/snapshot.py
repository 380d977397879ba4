"""The snapshot: all that a run needs to go on, and the deltas between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.engine._fast import make_tuple
from holdfast.engine.message import Delivery, Expiry, Output, Request
from holdfast.engine.persistent import GONE, Chain, Layered
from holdfast.engine.state import EMPTY_STATE, Append, Drop, Place, Put, Scope, State, Write, write
from holdfast.engine.status import RunStatus
from holdfast.engine.value import JoinedValue, Value
from holdfast.ids import ExecutorId, RequestId

Buffer: TypeAlias = Mapping[ExecutorId, Chain[Value]]
"""The messages of each source that a fan-in holds until all have sent."""


class BufferKey(NamedTuple):
    """Names the buffer of a fan-in: the path of its graph, and what it joins there."""

    path: str
    fan_in: str


NO_RESPONSES: Mapping[RequestId, Value] = {}


class Snapshot(NamedTuple):
    """A run between two supersteps; it is never changed, only followed by another.

    ``superstep`` is the number of the last superstep, 0 before the first. ``since_input`` counts supersteps
    since the last external input. ``deliveries`` says who gets what next, in order. ``instances`` counts for
    each nested workflow how often it was started. ``answered`` holds the ids of requests that were answered.
    ``rounds`` has the sources that a fan-in waits for where these are not all that it has: its round began in another
    graph.
    """

    superstep: int = 0
    since_input: int = 0
    deliveries: tuple[Delivery, ...] = ()
    state: State = EMPTY_STATE
    buffers: Layered[BufferKey, Buffer] = Layered()
    outputs: Chain[Output] = Chain.of()
    requests: Layered[RequestId, Request] = Layered()
    answered: Layered[RequestId, bool] = Layered()
    instances: Layered[ExecutorId, int] = Layered()
    rounds: Layered[BufferKey, tuple[ExecutorId, ...]] = Layered()


class Delta(NamedTuple):
    """The changes of one superstep."""

    deliveries: tuple[Delivery, ...] = ()
    writes: Mapping[Place, Write] = {}
    buffers: Mapping[BufferKey, Buffer | None] = {}
    outputs: tuple[Output, ...] = ()
    requests: tuple[Request, ...] = ()
    instances: Mapping[ExecutorId, int | None] = {}
    dropped: tuple[Scope, ...] = ()
    rounds: Mapping[BufferKey, None] = {}
    """The rounds of ``Snapshot.rounds`` that are over."""
    answers: Mapping[RequestId, Value] = {}
    """Answers of executors to pending requests of nested workflows; they are delivered behind the deliveries."""


def advance(snapshot: Snapshot, delta: Delta) -> Snapshot:
    """Return the snapshot after a superstep that changed ``delta``."""
    superstep, since_input, _, state, buffers, outputs, requests, answered, instances, rounds = snapshot
    deliveries, writes, buffered, given_out, asked, started, dropped, over, answers = delta
    if writes:
        state = write(state, writes)
    if dropped:
        state = state.change(dict.fromkeys(dropped, GONE))
    if buffered:
        buffers = buffers.change({key: buffer or GONE for key, buffer in buffered.items()})
    if given_out:
        outputs = outputs.extend(given_out)
    if asked:
        requests = requests.change({request.request_id: request for request in asked})
    if answers:
        deliveries = (
            *deliveries,
            *(
                Delivery(requests[known].executor_id, value, None, requests[known])
                for known, value in answers.items()
            ),
        )
        requests = requests.change(dict.fromkeys(answers, GONE))
        answered = answered.change(dict.fromkeys(answers, True))
    if started:
        instances = instances.change({host: count or GONE for host, count in started.items()})
    if over:
        rounds = rounds.change(dict.fromkeys(over, GONE))
    superstep, since_input = superstep + 1, since_input + 1
    return make_tuple(
        Snapshot,
        (
            superstep,
            since_input,
            deliveries,
            state,
            buffers,
            outputs,
            requests,
            answered,
            instances,
            rounds,
        ),
    )


ANSWERED_KEPT = 1_000
"""The ids of so many requests that were answered are kept when a run at rest gets further input."""


class FurtherInput(NamedTuple):
    """The changes that a further input makes before the next superstep."""

    deliveries: tuple[Delivery, ...]
    """All deliveries of that superstep, also those that were on their way."""
    instances: Mapping[ExecutorId, int | None] = {}
    renews: bool = False
    """True if the run had come to rest: its outputs are those since this input."""


def take_input(snapshot: Snapshot, given: FurtherInput) -> Snapshot:
    """Return the snapshot after further input came in."""
    outputs, answered = snapshot.outputs, snapshot.answered
    if given.renews:
        outputs = Chain.of()
        if answered.size > ANSWERED_KEPT:
            answered = Layered(dict(islice(answered.items(), answered.size - ANSWERED_KEPT, None)))
    return snapshot._replace(
        since_input=0,
        deliveries=given.deliveries,
        outputs=outputs,
        answered=answered,
        instances=snapshot.instances.change({host: count or GONE for host, count in given.instances.items()})
        if given.instances
        else snapshot.instances,
    )


def deliver_answers(snapshot: Snapshot, responses: Mapping[RequestId, Value]) -> Snapshot:
    """Return the snapshot after responses came in: each is delivered to the executor that asked.

    They are delivered in the order in which the requests were made, whoever answered first.
    """
    ordered = (
        responses if len(responses) == 1 else [known for known in snapshot.requests if known in responses]
    )
    deliveries = [
        Delivery(request.executor_id, responses[request_id], None, request)
        for request_id in ordered
        for request in (snapshot.requests[request_id],)
    ]
    return snapshot._replace(
        since_input=0,
        deliveries=(*snapshot.deliveries, *deliveries),
        requests=snapshot.requests.change(dict.fromkeys(responses, GONE)),
        answered=snapshot.answered.change(dict.fromkeys(responses, True)),
    )


def with_expiries(snapshot: Snapshot, expiries: Mapping[RequestId, Expiry | None]) -> Snapshot:
    """Return the snapshot with other expiries of its requests."""
    changed = {
        key: request._replace(expiry=expiries[key])
        for key, request in snapshot.requests.items()
        if key in expiries and expiries[key] != request.expiry
    }
    return snapshot._replace(requests=snapshot.requests.change(changed)) if changed else snapshot


def status_at_rest(snapshot: Snapshot) -> RunStatus:
    """Return the status of a run that has nothing to deliver."""
    return RunStatus.WAITING if snapshot.requests.size or snapshot.buffers.size else RunStatus.COMPLETED


K = TypeVar("K")
V = TypeVar("V")


def compute_delta(before: Snapshot, after: Snapshot) -> Delta:
    """Return one delta for all supersteps between two snapshots, of which at most the last answers requests.

    ``advance`` makes the later snapshot of it, but for the numbers of supersteps: with the same values, which are
    compared by identity, and in the same order. What came and went in between is in neither.
    """
    answers = [one for one in after.deliveries if _is_new_answer(one, before)]
    answered = {one.request.request_id: one.request for one in answers if one.request is not None}
    asked = [request for key, request in answered.items() if key not in before.requests]
    return Delta(
        after.deliveries[: len(after.deliveries) - len(answers)],
        _state_writes(before.state, after.state),
        {
            **_removed_keys(before.buffers, after.buffers),
            **{key: after.buffers[key] for key in _changed_keys(before.buffers, after.buffers)},
        },
        tuple(islice(after.outputs, len(before.outputs), None)),
        (*asked, *(after.requests[key] for key in _changed_keys(before.requests, after.requests))),
        {
            **_removed_keys(before.instances, after.instances),
            **{
                host: after.instances[host]
                for host in _changed_keys(before.instances, after.instances, _equal)
            },
        },
        tuple(scope for scope in before.state if scope not in after.state),
        _removed_keys(before.rounds, after.rounds),
        {one.request.request_id: one.value for one in answers if one.request is not None},
    )


def _is_new_answer(delivery: Delivery, before: Snapshot) -> bool:
    request = delivery.request
    return request is not None and delivery.source is None and request.request_id not in before.answered


def _state_writes(before: State, after: State) -> dict[Place, Write]:
    writes: dict[Place, Write] = {}
    for scope in _changed_keys(before, after):
        held: Mapping[str, Value] = before.get(scope, {})
        keys = after[scope]
        writes.update({(scope, key): Drop() for key in held if key not in keys})
        writes.update({(scope, key): _write(held.get(key), keys[key]) for key in _changed_keys(held, keys)})
    return writes


def _write(held: Value | None, value: Value) -> Write:
    """Return an append where a value only grew: its stored part need not be stored again."""
    if isinstance(value, JoinedValue):
        base, tail = value.parts()
        if base is not None and base is held:
            return Append(tail)
        if isinstance(held, JoinedValue):
            old_base, old_tail = held.parts()
            known = len(old_tail)
            if base is old_base and known and _begins_with(tail, old_tail):
                return Append(Chain.of(tuple(islice(tail, known, None))))
    return Put(value)


def _begins_with(longer: Chain[Value], shorter: Chain[Value]) -> bool:
    """Return True if one chain was extended from another; items are never replaced, so the last one decides."""
    return next(islice(longer, len(shorter) - 1, None), None) is shorter.last


def _is(one: object, other: object) -> bool:
    return one is other


def _equal(one: object, other: object) -> bool:
    return one == other


def _removed_keys(before: Mapping[K, Any], after: Mapping[K, Any]) -> dict[K, None]:
    return {key: None for key in before if key not in after}


def _changed_keys(
    before: Mapping[K, V], after: Mapping[K, V], same: Callable[[object, object], bool] = _is
) -> Iterator[K]:
    """Yield the keys that have to be set, in order: a key that is set comes behind those that are left alone."""
    known = iter(before)
    keys = iter(after)
    for key in keys:
        if key in before and same(before[key], after[key]) and key in known:  # goes on to that key
            continue
        yield key
        yield from keys
