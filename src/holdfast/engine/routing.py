"""Who gets a message: decided once, when the superstep that sent it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine.chain import Chain
from holdfast.engine.message import Delivery, Sent
from holdfast.engine.snapshot import Buffer
from holdfast.engine.value import Joined, Value
from holdfast.errors import ConditionFailed
from holdfast.graph.edge import Direct, Edge, FanIn, FanOut, MultiSelection, Switch, describe
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId


class Router:
    """Routes the messages of one superstep; holds what they make of the fan-in buffers."""

    __slots__ = ("_buffers", "_changed", "_graph", "deliveries")

    def __init__(self, graph: Graph, buffers: Mapping[str, Buffer]) -> None:
        self._graph = graph
        self._buffers = buffers
        self._changed: dict[str, dict[ExecutorId, tuple[Value, ...]]] = {}
        self.deliveries: list[Delivery] = []

    def route(self, source: ExecutorId, sent: Sent) -> bool:
        """Deliver or buffer the message; False if no edge took it."""
        value, only = sent
        sole = self._graph.sole_targets.get(source)
        if sole is not None and only is None:
            if not self._takes(sole, value):
                return False
            self.deliveries.append(Delivery(sole, value, source))
            return True
        taken = False
        for edge in self._graph.outgoing[source]:
            if isinstance(edge, FanIn):
                if only is None or only == edge.target:
                    self._buffer(edge, source, value)
                    taken = True
                continue
            for target in self._chosen(edge, value):
                if only is None or only == target:
                    self.deliveries.append(Delivery(target, value, source))
                    taken = True
        return taken

    def _chosen(self, edge: Direct | FanOut | Switch | MultiSelection, value: Value) -> Iterable[ExecutorId]:
        """The targets that this edge leads the message to."""
        if isinstance(edge, Direct):
            return (edge.target,) if self._goes(edge, edge.target, edge.condition, value) else ()
        if isinstance(edge, FanOut):
            return [target for target in edge.targets if self._takes(target, value)]
        if isinstance(edge, Switch):
            for case in edge.cases:
                if self._goes(edge, case.target, case.condition, value):
                    return (case.target,)
            return ()
        return self._selected(edge, value)

    def _takes(self, target: ExecutorId, value: Value) -> bool:
        return self._graph.executors[target].dispatch.find(value.peek()) is not None

    def _goes(self, edge: Edge, target: ExecutorId, condition: Any, value: Value) -> bool:
        """Whether ``target`` takes the message, and if so whether the condition holds; in this order, so that
        a condition sees only messages of types that its target has a handler for."""
        if not self._takes(target, value):
            return False
        return condition is None or _asked(edge, target, lambda message: bool(condition(message)), value)

    def _selected(self, edge: MultiSelection, value: Value) -> list[ExecutorId]:
        takers = [target for target in edge.targets if self._takes(target, value)]
        if not takers:
            return []
        known = [str(target) for target in edge.targets]
        answer = _asked(edge, None, edge.selection, value, list(known))
        chosen = None if isinstance(answer, str) or not isinstance(answer, Iterable) else list(answer)
        if chosen is None or any(target not in known for target in chosen):
            raise ConditionFailed(
                f"{describe(edge)}: its selection must return a list of ids out of {known}, "
                f"but it returned {answer if chosen is None else chosen!r}",
                executor_id=edge.source,
            )
        return [target for target in takers if target in chosen]

    def _buffer(self, edge: FanIn, source: ExecutorId, value: Value) -> None:
        key = edge.buffer_key
        buffer = self._changed.get(key)
        if buffer is None:
            buffer = self._changed[key] = dict(self._buffers.get(key, {}))
        buffer[source] = (*buffer.get(source, ()), value)

    def release(self) -> dict[str, Buffer | None]:
        """Deliver what the fan-ins hold whose sources have all sent; what that makes of the buffers."""
        changed: dict[str, Buffer | None] = dict(self._changed)
        for edge in self._graph.fan_ins if changed else ():
            buffer = changed.get(edge.buffer_key)
            if buffer is not None and len(buffer) == len(edge.sources):
                parts = [value for source in edge.sources for value in buffer[source]]
                self.deliveries.append(Delivery(edge.target, Joined(None, Chain.of(parts))))
                changed[edge.buffer_key] = None
        return changed


def _asked(edge: Edge, target: ExecutorId | None, function: Any, value: Value, *more: Any) -> Any:
    """The answer of a condition or selection; its error says where it stands and what it was asked about."""
    message = value.load()
    try:
        return function(message, *more)
    except Exception as error:
        asked = "selection" if isinstance(edge, MultiSelection) else "condition"
        to = f" for target {target!r}" if target is not None and isinstance(edge, Switch) else ""
        raise ConditionFailed(
            f"{describe(edge)}: its {asked}{to} raised {error!r} for the message {brief(message)}; "
            f"it must give an answer for every message of the types that the target takes",
            executor_id=edge.sources[0],
        ) from error


def brief(message: object) -> str:
    """A message as an error or warning shows it: with its type, never too long."""
    try:
        text = repr(message)
    except Exception as error:
        text = f"<repr failed: {error!r}>"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{text} ({type(message).__name__})"


_LONGEST = 120
