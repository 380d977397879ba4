"""Parses the description of a graph, whichever version of Holdfast wrote it.

Missing parts are None; parts that this version does not know are kept as text, so that two can be compared. Nothing
here raises because of the contents of a description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from holdfast.graph.edge import EdgeKind
from holdfast.graph.typing.match import show_value

TYPES = ("accepts", "sends", "yields")
_EXECUTOR_KEYS = frozenset({"id", *TYPES, "answers", "nested", "lifetime"})
_GRAPH_KEYS = frozenset({"start", "executors", "edges", "workflows"})
_TO_SEVERAL = (EdgeKind.FAN_OUT, EdgeKind.MULTI_SELECTION)
_LONGEST = 120


class EdgeTarget(NamedTuple):
    """One target of an edge, for messages that meet its condition if it has one."""

    target: str
    conditional: bool = False
    label: str | None = None
    rest: str = ""


class DescribedEdge(NamedTuple):
    """An edge of any kind; one of an unknown kind has none, and only ``rest``."""

    kind: EdgeKind | None
    sources: tuple[str, ...] = ()
    edge_targets: tuple[EdgeTarget, ...] = ()
    rest: str = ""
    """The parts that this version does not know, as text."""

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(edge_target.target for edge_target in self.edge_targets)

    def rename(self, names: Mapping[str, str]) -> DescribedEdge:
        """Return the edge with its executors renamed by ``names``."""
        sources = tuple(names.get(source, source) for source in self.sources)
        edge_targets = tuple(
            edge_target._replace(target=names.get(edge_target.target, edge_target.target))
            for edge_target in self.edge_targets
        )
        return self._replace(sources=sources, edge_targets=edge_targets)


class DescribedExecutor(NamedTuple):
    """An executor: its types as far as they are known, the fingerprint of what it nests, and unknown keys."""

    id: str
    types: Mapping[str, tuple[str, ...]]
    answers: frozenset[tuple[str, str]]
    nested: str | None
    lifetime: str
    others: Mapping[str, str]


class DescribedGraph(NamedTuple):
    """A graph; None is what the description does not say. ``workflows`` are those of the outermost graph."""

    start: str | None
    executors: Mapping[str, DescribedExecutor] | None
    edges: tuple[DescribedEdge, ...] | None
    workflows: Mapping[str, object]
    others: Mapping[str, str]


def parse_description(description: object, workflows: Mapping[str, object] | None = None) -> DescribedGraph:
    """Parse a description for comparison; that of a nested workflow needs the ``workflows`` around it.

    >>> parse_description({"start": "a", "executors": [{"id": "a", "accepts": ["str"]}, "?"]}).executors["a"].types
    {'accepts': ('str',)}
    """
    said = description if isinstance(description, Mapping) else {}
    start, executors, edges = said.get("start"), said.get("executors"), said.get("edges")
    found = [_executor(executor) for executor in executors] if _is_list(executors) else None
    if workflows is None:
        inner = said.get("workflows")
        workflows = inner if isinstance(inner, Mapping) else {}
    return DescribedGraph(
        start if isinstance(start, str) else None,
        None if found is None else {executor.id: executor for executor in found if executor is not None},
        tuple(_edge(edge) for edge in edges) if _is_list(edges) else None,
        workflows,
        _unknown(said, _GRAPH_KEYS),
    )


def _executor(said: object) -> DescribedExecutor | None:
    if not isinstance(said, Mapping) or not isinstance(said.get("id"), str):
        return None
    answers = said.get("answers")
    nested = said.get("nested")
    return DescribedExecutor(
        said["id"],
        {key: tuple(map(_name, said[key])) for key in TYPES if _is_list(said.get(key))},
        frozenset(_answer(pair) for pair in answers) if _is_list(answers) else frozenset(),
        None if nested is None else _name(nested),
        _name(said.get("lifetime", "message")),
        _unknown(said, _EXECUTOR_KEYS),
    )


def _answer(said: object) -> tuple[str, str]:
    match said:
        case [request, response]:
            return _name(request), _name(response)
    return "?", show_value(said, _LONGEST)


def _edge(said: object) -> DescribedEdge:
    match said:
        case [EdgeKind.DIRECT, str(source), str(target), *rest]:
            return DescribedEdge(EdgeKind.DIRECT, (source,), (_edge_target([target, *rest]),))
        case [str(kind), str(source), targets, *rest] if kind in _TO_SEVERAL and _is_names(targets):
            return DescribedEdge(EdgeKind(kind), (source,), tuple(map(EdgeTarget, targets)), _rest(rest))
        case [EdgeKind.FAN_IN, sources, str(target), *rest] if _is_names(sources):
            return DescribedEdge(EdgeKind.FAN_IN, tuple(sources), (EdgeTarget(target),), _rest(rest))
        case [EdgeKind.SWITCH, str(source), cases, *rest] if _is_list(cases):
            edge_targets = tuple(_edge_target(case) for case in cases)
            return DescribedEdge(EdgeKind.SWITCH, (source,), edge_targets, _rest(rest))
    return DescribedEdge(None, rest=show_value(said, _LONGEST))


def _edge_target(said: object) -> EdgeTarget:
    match said:
        case [str(target), *rest]:
            conditional, label, *more = [*rest, None, None] if len(rest) < 2 else rest
            text = label if label is None or isinstance(label, str) else show_value(label, _LONGEST)
            return EdgeTarget(target, bool(conditional), text, _rest(more))
    return EdgeTarget("?", rest=show_value(said, _LONGEST))


def _rest(said: Sequence[object]) -> str:
    known = [part for part in said if part is not None]
    return show_value(known, _LONGEST) if known else ""


def _unknown(said: Mapping[Any, object], known: frozenset[str]) -> dict[str, str]:
    found = {_name(key): show_value(value, _LONGEST) for key, value in said.items() if key not in known}
    return dict(sorted(found.items()))


def _is_list(said: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(said, list | tuple)


def _is_names(said: object) -> TypeGuard[Sequence[str]]:
    return _is_list(said) and all(isinstance(part, str) for part in said)


def _name(said: object) -> str:
    """Return a text of one line that a terminal can show."""
    return said if isinstance(said, str) and said.isprintable() else show_value(said, _LONGEST)
