"""A superstep as two pure functions: ``plan`` gives the turns, ``apply`` makes the next snapshot of their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.engine._fast import make_tuple
from holdfast.engine._fast_superstep import pass_on
from holdfast.engine.limits import Limits
from holdfast.engine.message import Delivery, Output, Request, Sent, Unrouted, offered_request
from holdfast.engine.router import Router, brief, deliver_input, expected_sources
from holdfast.engine.snapshot import NO_RESPONSES, Buffer, BufferKey, Delta, Snapshot, advance
from holdfast.engine.state import NO_CHANGES, Changes, combine
from holdfast.engine.value import Captor, Copier, Value
from holdfast.errors import InvalidArgument, LimitExceeded, WrongType
from holdfast.graph.graph import Graph, ancestors, host_of, path_of
from holdfast.graph.spec import ExecutorSpec
from holdfast.graph.typing.types import type_name
from holdfast.ids import ExecutorId, RequestId


class Turn(NamedTuple):
    """One executor's work in one superstep: all its messages, in order."""

    executor_id: ExecutorId
    deliveries: tuple[Delivery, ...]


class Outcome(NamedTuple):
    """The messages, changes, outputs and requests of a turn, and its responses to requests of nested workflows."""

    executor_id: ExecutorId
    messages: Sequence[Sent] = ()
    changes: Changes = NO_CHANGES
    outputs: Sequence[Output] = ()
    requests: Sequence[Request] = ()
    responses: Mapping[RequestId, Value] = NO_RESPONSES


class Applied(NamedTuple):
    """The result of a superstep: the next snapshot, and the delta to it.

    ``unrouted`` are the messages that reached nobody, ``finished`` the paths of nested workflows that came to
    their end, ``intermediate`` the outputs that are only shown. ``asked`` are the requests that go outside now: not
    those that are offered to an executor, but those that it was offered before and did not answer.
    """

    snapshot: Snapshot
    delta: Delta
    unrouted: Sequence[Unrouted] = ()
    finished: frozenset[str] = frozenset()
    intermediate: Sequence[Output] = ()
    asked: Sequence[Request] = ()


class WaitingJoin(NamedTuple):
    """A fan-in that holds messages, and the sources that it waits for."""

    key: BufferKey
    missing: tuple[ExecutorId, ...]


def begin(
    graph: Graph, name: str, message: object, limits: Limits, capture: Captor | None = None
) -> Snapshot:
    """Return the snapshot of a run that was given its input and has done nothing yet."""
    find_target(graph, name, message)
    router = deliver_input(graph, (capture or Copier(limits.max_value_size))(message, "input"))
    given = Snapshot(deliveries=tuple(router.deliveries))
    started = router.instances
    return given._replace(instances=given.instances.change(started)) if started else given


def find_target(graph: Graph, name: str, message: object, target_id: str | None = None) -> ExecutorId:
    """Return the executor that takes an input, the start if none is named; raise ``WrongType`` if it does not."""
    target = find_executor(graph, name, target_id)
    if target.dispatch.find(message) is None:
        takes = " or ".join(type_name(form) for form in target.accepts)
        where = f"starts at {target.id!r}, which" if target_id is None else f"has {target.id!r}, which"
        raise WrongType(
            f"workflow {name!r} {where} takes {takes}, "
            f"but its input is a {type(message).__name__}: {brief(message).rpartition(' (')[0]}"
        )
    return target.id


def find_executor(graph: Graph, name: str, target_id: str | None = None) -> ExecutorSpec:
    """Return an executor of a workflow, the start if none is named; raise ``InvalidArgument`` if there is none."""
    target = graph.executors.get(ExecutorId(graph.start if target_id is None else target_id))
    if target is None:
        known = ", ".join(repr(str(executor_id)) for executor_id in graph.executors)
        raise InvalidArgument(
            f"workflow {name!r} has no executor {target_id!r} to send a message to; it has {known}"
        )
    return target


def plan(graph: Graph, snapshot: Snapshot) -> tuple[Turn, ...]:
    """Return the turns of the next superstep: executors in graph order, each with its messages as they were sent."""
    deliveries = snapshot.deliveries
    if len(deliveries) == 1:
        return (make_tuple(Turn, (deliveries[0].target, deliveries)),)
    by_target: dict[ExecutorId, list[Delivery]] = {}
    for delivery in deliveries:
        by_target.setdefault(delivery.target, []).append(delivery)
    if graph.nests:
        ordered = sorted(by_target, key=graph.position)
    else:
        ordered = sorted(by_target, key=graph.order.__getitem__)
    return tuple(Turn(target, tuple(by_target[target])) for target in ordered)


def apply(
    graph: Graph,
    snapshot: Snapshot,
    outcomes: Sequence[Outcome],
    limits: Limits,
    capture: Captor | None = None,
) -> Applied:
    """Route the messages of all turns, combine their writes, and collect their outputs and requests.

    ``outcomes`` are in the order of the plan. Raises ``ConditionFailed`` or ``StateConflict``; then nothing
    came of the superstep and the same outcomes can be applied again. So they can after ``NotAtHand``, which a merge
    raises where it needs a value that is not in memory. Merged values are captured by ``capture``, else copied.
    """
    capture = capture or Copier(limits.max_value_size)
    if len(outcomes) == 1 and not graph.nests:
        passed = pass_on(graph, snapshot, outcomes[0], capture)
        if passed is not None:
            return make_tuple(Applied, (*passed, _NONE_UNROUTED, _NO_PATHS, (), ()))
    router = Router(graph, snapshot)
    changed: list[tuple[ExecutorId, Changes]] = []
    requests: tuple[Request, ...] = ()
    for executor_id, messages, changes, outputs, asked, _ in outcomes:
        for sent in messages:
            router.send(executor_id, sent)
        for output in outputs:
            router.give_out(output)
        if changes:
            changed.append((executor_id, changes))
        if asked:
            requests += tuple(asked)
    to_tell: Sequence[Request] = requests
    if requests:
        _check_ids(requests, snapshot)
        if graph.nests:
            to_tell = [request for request in requests if not router.offer(request)]
    buffers, rounds = router.release() if router.buffered else _NOTHING_RELEASED
    if len(router.deliveries) > limits.max_deliveries:
        raise _too_many_deliveries(router.deliveries, snapshot, limits)
    writes = combine(snapshot.state, changed, capture) if changed else {}
    deliveries, outputs = tuple(router.deliveries), tuple(router.outputs)
    answers = _answers_of(outcomes, snapshot) if graph.nests else NO_RESPONSES
    delta = make_tuple(
        Delta, (deliveries, writes, buffers, outputs, requests, router.instances, (), rounds, answers)
    )
    after = advance(snapshot, delta)
    if not graph.nests:
        found = (router.unrouted, _NO_PATHS, router.intermediate, to_tell)
        return make_tuple(Applied, (after, delta, *found))
    applied = _drop_finished(graph, after, delta, snapshot, outcomes, router.unrouted)
    left = _left_unanswered(snapshot, after)
    return applied._replace(intermediate=router.intermediate, asked=[*left, *to_tell])


_NOTHING_RELEASED: tuple[dict[BufferKey, Buffer | None], dict[BufferKey, None]] = ({}, {})
_NO_PATHS: frozenset[str] = frozenset()
_NONE_UNROUTED: Sequence[Unrouted] = ()


def _check_ids(requests: Sequence[Request], snapshot: Snapshot) -> None:
    """Raise ``InvalidArgument`` if two turns chose the same id for their requests."""
    by_id: dict[str, Request] = {}
    for request in requests:
        other = by_id.setdefault(request.request_id, request)
        if other is not request or request.request_id in snapshot.requests:
            raise InvalidArgument(
                f"executor {request.executor_id!r} asked with the request id {request.request_id!r}, which another "
                f"pending request of {other.executor_id!r} has; give each its own, or leave request_id out"
            )


def _too_many_deliveries(deliveries: Sequence[Delivery], snapshot: Snapshot, limits: Limits) -> LimitExceeded:
    return LimitExceeded(
        "max_deliveries",
        limits.max_deliveries,
        f"superstep {snapshot.superstep + 1} makes {len(deliveries):,} deliveries, more than the "
        f"{limits.max_deliveries:,} allowed; send fewer messages, or allow more with Limits(max_deliveries=...)",
    )


def _drop_finished(
    graph: Graph,
    after: Snapshot,
    delta: Delta,
    before: Snapshot,
    outcomes: Sequence[Outcome],
    unrouted: Sequence[Unrouted],
) -> Applied:
    """Drop the state of nested workflows for which nothing is left to do.

    One whose fan-ins hold messages is not over: it waits for more of them, as a run does.
    """
    over = {path for outcome in outcomes for path in ancestors(path_of(outcome.executor_id))}
    alive = chain(
        (path_of(delivery.target) for delivery in after.deliveries),
        (key.path for key in after.buffers),
        (path_of(request.executor_id) for request in after.requests.values()),
    )
    while over and (path := next(alive, None)) is not None:  # there may be many more than it takes
        over.difference_update(ancestors(path))
    if over and graph.has_lasting:
        over = _without_lasting(graph, over, after)
    if not over:
        return Applied(after, delta, unrouted)
    finished = frozenset(over)
    delta = delta._replace(
        dropped=tuple(scope for scope in after.state if scope.path in finished),
        instances={
            **delta.instances,
            **{host: None for host in after.instances if path_of(host) in finished},
        },
        rounds={**delta.rounds, **{key: None for key in after.rounds if key.path in finished}},
    )
    return Applied(advance(before, delta), delta, unrouted, finished)


def _answers_of(outcomes: Sequence[Outcome], before: Snapshot) -> Mapping[RequestId, Value]:
    """Return the responses of turns to pending requests, in the order of these; the first in graph order counts."""
    found: dict[RequestId, Value] = {}
    for outcome in outcomes:
        for request_id, value in outcome.responses.items():
            if request_id in before.requests:
                found.setdefault(request_id, value)
    if len(found) < 2:
        return found
    return {known: found[known] for known in before.requests if known in found}


def _left_unanswered(before: Snapshot, after: Snapshot) -> Sequence[Request]:
    """Return the requests that were offered in this superstep and are still pending."""
    offered = dict.fromkeys(
        request.request_id
        for delivery in before.deliveries
        if (request := offered_request(delivery)) is not None
    )
    return [after.requests[key] for key in offered if key in after.requests]


def _without_lasting(graph: Graph, over: set[str], after: Snapshot) -> set[str]:
    """Return the paths that end: a lasting nested workflow does not end by itself, only with the one around it."""
    ending: set[str] = set()
    for path in sorted(over, key=len):  # outer ones first
        host = host_of(path)
        if path_of(host) in ending or not graph.locate(host).spec.lasting:
            ending.add(path)
    for host in sorted(after.instances, key=len) if ending else ():
        if path_of(host) in ending and graph.locate(host).spec.lasting:
            ending.add(f"{host}#{after.instances[host]}/")
    return ending


def find_waiting_joins(graph: Graph, snapshot: Snapshot) -> tuple[WaitingJoin, ...]:
    """Return the fan-ins that hold messages and wait for more."""
    return tuple(
        WaitingJoin(
            key,
            tuple(
                source
                for source in expected_sources(snapshot, key, graph.at(key.path).fan_in(key.fan_in))
                if source not in buffer
            ),
        )
        for key, buffer in snapshot.buffers.items()
    )
