"""The router: finds the receivers of each message, once, when the superstep that sent it is applied."""

from __future__ import annotations

from collections.abc import Iterable
from types import CoroutineType
from typing import Any

from holdfast.engine._fast import make_tuple
from holdfast.engine.message import Delivery, Output, Request, Sent, Unrouted
from holdfast.engine.persistent import Chain
from holdfast.engine.snapshot import Buffer, BufferKey, Delta, FurtherInput, Snapshot, advance
from holdfast.engine.value import ImmutableValue, JoinedValue, Value
from holdfast.errors import ConditionFailed
from holdfast.graph.context import SubWorkflowRequest
from holdfast.graph.edge import Direct, Edge, FanIn, FanOut, MultiSelection, Switch, describe_edge
from holdfast.graph.graph import Graph, host_of, path_of
from holdfast.graph.typing.match import show_value
from holdfast.ids import ExecutorId


class Router:
    """Routes the messages of one superstep; collects deliveries, buffers of fan-ins, outputs and unrouted messages."""

    __slots__ = (
        "_graph",
        "_snapshot",
        "buffered",
        "deliveries",
        "instances",
        "intermediate",
        "outputs",
        "unrouted",
    )

    def __init__(self, graph: Graph, snapshot: Snapshot) -> None:
        self._graph = graph
        self._snapshot = snapshot
        self.buffered: dict[BufferKey, tuple[FanIn, dict[ExecutorId, list[Value]]]] = {}
        self.deliveries: list[Delivery] = []
        self.outputs: list[Output] = []
        self.intermediate: list[Output] = []
        self.unrouted: list[Unrouted] = []
        self.instances: dict[ExecutorId, int] = {}

    def send(self, source: ExecutorId, sent: Sent) -> None:
        """Deliver or buffer a message; if no edge takes it, add it to ``unrouted``."""
        value, only = sent
        graph, path, local = self._graph, "", source
        if "/" in source:
            graph, path, spec = graph.locate(source)
            local = spec.id
        sole = graph.sole_targets.get(local)
        if sole is not None and only is None:
            if sole.dispatch.find(value.peek()) is None:
                self.unrouted.append(Unrouted(source, sent))
            elif path or sole.nested is not None:
                self._deliver(graph, path, sole.id, value, source)
            else:
                self.deliveries.append(make_tuple(Delivery, (sole.id, value, source, None)))
            return
        taken = False
        for edge in graph.outgoing[local]:
            if only is not None and only not in edge.targets:
                continue
            if isinstance(edge, FanIn):
                self._buffer(edge, path, local, value)
                taken = True
                continue
            for target in _choose_targets(graph, edge, value, path):
                if only is None or only == target:
                    self._deliver(graph, path, target, value, source)
                    taken = True
        if not taken:
            self.unrouted.append(Unrouted(source, sent))

    def give_out(self, output: Output) -> None:
        """Take a yielded value: an output of the workflow, or a message of the executor that nests the workflow.

        An intermediate one is only shown, and goes nowhere.
        """
        graph, path, local = self._graph, "", output.executor_id
        if "/" in local:
            graph, path, spec = graph.locate(local)
            local = spec.id
        while local not in graph.intermediate_from:
            if not path:
                self.outputs.append(output)
                return
            host = host_of(path)
            graph, path, spec = self._graph.locate(host)
            local = spec.id
            if local in graph.passing_on:
                self.send(host, Sent(output.value))
                return
            if graph.output_from is not None and local not in (*graph.output_from, *graph.intermediate_from):
                return
        self.intermediate.append(output)

    def offer(self, request: Request) -> bool:
        """Offer the request of a nested workflow to executors around it that answer such; return True if there are any.

        The innermost workflow around it comes first.
        """
        path = path_of(request.executor_id)
        while path:
            host = host_of(path)
            graph, path, spec = self._graph.locate(host)
            takers = [
                taker
                for edge in graph.outgoing[spec.id]
                for taker in _choose_takers(graph, edge, request, path)
            ]
            for taker in dict.fromkeys(takers):
                self.deliveries.append(Delivery(ExecutorId(path + taker), request.data, host, request))
            if takers:
                return True
        return False

    def _deliver(
        self, graph: Graph, path: str, target: ExecutorId, value: Value, source: ExecutorId | None
    ) -> None:
        """Bind a message to its target; a nested workflow is started anew unless it lasts, and gets the message."""
        address = target
        if path:
            address = ExecutorId(path + target)
        elif not graph.nests:
            self.deliveries.append(Delivery(target, value, source))
            return
        while (nested := (host := graph.executors[target]).nested) is not None:
            number = self.instances.get(address) or self._snapshot.instances.get(address, 0)
            if not host.lasting or not number:
                number += 1
                self.instances[address] = number
            graph, target = nested, nested.start
            address = ExecutorId(f"{address}#{number}/{target}")
        self.deliveries.append(Delivery(address, value, source))

    def _buffer(self, edge: FanIn, path: str, source: ExecutorId, value: Value) -> None:
        held = self.buffered.get((path, edge.buffer_key))  # type: ignore[call-overload]
        if held is None:
            held = self.buffered[BufferKey(path, edge.buffer_key)] = (edge, {})
        held[1].setdefault(source, []).append(value)

    def release(self) -> tuple[dict[BufferKey, Buffer | None], dict[BufferKey, None]]:
        """Deliver the messages of fan-ins whose sources have all sent.

        Gives what that makes of the buffers, and those of the snapshot's ``rounds`` that are over.
        """
        changed: dict[BufferKey, Buffer | None] = {}
        over: dict[BufferKey, None] = {}
        for key, graph, edge in self._in_graph_order():
            held, new = self._snapshot.buffers.get(key, {}), self.buffered[key][1]
            expected = expected_sources(self._snapshot, key, edge)
            if all(source in held or source in new for source in expected):
                # One that is not waited for may have sent as well.
                order = dict.fromkeys((*expected, *edge.sources))
                parts = [v for source in order for v in (*held.get(source, ()), *new.get(source, ()))]
                self._deliver(graph, key.path, edge.target, JoinedValue(None, Chain.of(parts)), None)
                changed[key] = None
                if key in self._snapshot.rounds:
                    over[key] = None
            else:
                grown = {
                    source: held.get(source, Chain.of()).extend(values) for source, values in new.items()
                }
                changed[key] = {**held, **grown}
        return changed, over

    def _in_graph_order(self) -> list[tuple[BufferKey, Graph, FanIn]]:
        joins = [(key, self._graph.at(key.path), edge) for key, (edge, _) in self.buffered.items()]
        return sorted(joins, key=lambda join: (join[0].path, join[1].fan_ins.index(join[2])))


def deliver_input(graph: Graph, value: Value) -> Router:
    """Return a router that has delivered the input of a run to its start."""
    router = Router(graph, Snapshot())
    router._deliver(graph, "", graph.start, value, None)
    return router


def route_input(graph: Graph, snapshot: Snapshot, target: ExecutorId, value: Value) -> FurtherInput:
    """Return what a further input changes that goes to an executor of the workflow itself."""
    router = Router(graph, snapshot)
    router._deliver(graph, "", target, value, None)
    deliveries = (*snapshot.deliveries, *router.deliveries)
    return FurtherInput(deliveries, router.instances, renews=not snapshot.deliveries)


def expected_sources(snapshot: Snapshot, key: BufferKey, edge: FanIn) -> tuple[ExecutorId, ...]:
    """Return the sources that must have sent before a fan-in delivers: those with which its round began."""
    sources: tuple[ExecutorId, ...] = snapshot.rounds.get(key, edge.sources)
    return sources


def release_complete(graph: Graph, snapshot: Snapshot) -> tuple[Snapshot, Delta] | None:
    """Deliver the messages of fan-ins that lost the source that they waited for; return None if there are none.

    Gives the snapshot with that, and what changed.
    """
    router = Router(graph, snapshot)
    for key, held in snapshot.buffers.items():
        edge = graph.at(key.path).fan_in(key.fan_in)
        if all(source in held for source in expected_sources(snapshot, key, edge)):
            router.buffered[key] = (edge, {})
    buffers, rounds = router.release()
    if not buffers:
        return None
    deliveries = (*snapshot.deliveries, *router.deliveries)
    delta = Delta(deliveries, buffers=buffers, instances=router.instances, rounds=rounds)
    after = advance(snapshot, delta)
    return after._replace(superstep=snapshot.superstep, since_input=snapshot.since_input), delta


def _choose_targets(
    graph: Graph, edge: Direct | FanOut | Switch | MultiSelection, value: Value, path: str
) -> Iterable[ExecutorId]:
    """Choose the targets that this edge leads the message to."""
    try:
        if isinstance(edge, Direct):
            return (edge.target,) if _leads_to(graph, edge, edge.target, edge.condition, value) else ()
        if isinstance(edge, FanOut):
            return [target for target in edge.targets if _takes(graph, target, value)]
        if isinstance(edge, Switch):
            for case in edge.cases:
                if _leads_to(graph, edge, case.target, case.condition, value):
                    return (case.target,)
            return ()
        return _select(graph, edge, value)
    except ConditionFailed as failed:
        if not path:
            raise
        inside = f"in nested workflow {path[:-1]!r}: {failed}"
        address = ExecutorId(path + failed.executor_id)
        raise ConditionFailed(inside, executor_id=address) from failed.__cause__


def _choose_takers(graph: Graph, edge: Edge, request: Request, path: str) -> Iterable[ExecutorId]:
    """Choose the targets of an edge that a request of the workflow nested at its source is offered to."""
    takers = [target for target in edge.targets if graph.executors[target].takes_requests]
    if not takers or isinstance(edge, FanIn):
        return ()
    if isinstance(edge, Switch):  # conditions of other targets are not made for requests
        edge = edge._replace(cases=tuple(case for case in edge.cases if case.target in takers))
    message = message_of(request)
    return [t for t in _choose_targets(graph, edge, ImmutableValue(message), path) if t in takers]


def message_of(request: Request) -> SubWorkflowRequest:
    """Return the message with which a request is offered."""
    asker, data = str(request.executor_id), request.data.load()
    return SubWorkflowRequest(str(request.request_id), asker, data, request.response_type)


def _takes(graph: Graph, target: ExecutorId, value: Value) -> bool:
    return graph.executors[target].dispatch.find(value.peek()) is not None


def _leads_to(graph: Graph, edge: Edge, target: ExecutorId, condition: Any, value: Value) -> bool:
    """Return True if ``target`` takes the message and the condition holds.

    In this order, so that a condition sees only messages of types that its target has a handler for.
    """
    if not _takes(graph, target, value):
        return False
    return condition is None or _ask(edge, target, lambda message: _as_bool(condition(message)), value)


def _as_bool(answer: object) -> bool:
    if isinstance(answer, CoroutineType):
        answer.close()
        raise TypeError("it returned a coroutine, but routing awaits nothing")
    return bool(answer)


def _select(graph: Graph, edge: MultiSelection, value: Value) -> list[ExecutorId]:
    takers = [target for target in edge.targets if _takes(graph, target, value)]
    if not takers:
        return []
    known = [str(target) for target in edge.targets]
    answer = _ask(edge, None, edge.selection, value, list(known))
    chosen = None if isinstance(answer, str) or not isinstance(answer, Iterable) else list(answer)
    if chosen is None or any(target not in known for target in chosen):
        raise ConditionFailed(
            f"{describe_edge(edge)}: its selection must return a list of ids out of {known}, "
            f"but it returned {answer if chosen is None else chosen!r}",
            executor_id=edge.source,
        )
    return [target for target in takers if target in chosen]


def _ask(edge: Edge, target: ExecutorId | None, function: Any, value: Value, *more: Any) -> Any:
    """Call a condition or selection; its error names the edge and the message."""
    message = value.load()
    try:
        return function(message, *more)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        asked = "selection" if isinstance(edge, MultiSelection) else "condition"
        to = f" for target {target!r}" if target is not None and isinstance(edge, Switch) else ""
        raise ConditionFailed(
            f"{describe_edge(edge)}: its {asked}{to} raised {show_value(error, _LONGEST)} for the message "
            f"{brief(message)}; it must give an answer for every message of the types that the target takes",
            executor_id=edge.sources[0],
        ) from error


def brief(message: object) -> str:
    """Return a message as errors and warnings show it: with its type, never too long."""
    return f"{show_value(message, _LONGEST)} ({type(message).__name__})"


_LONGEST = 120
