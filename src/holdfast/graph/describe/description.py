"""The description of a graph as plain data: its fingerprint is a digest of it, and people can compare it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.graph.edge import Direct, Edge, EdgeKind, FanIn, FanOut, MultiSelection, Switch
from holdfast.graph.typing.types import TypeForm, stored_type_name, type_name

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph
    from holdfast.graph.spec import ExecutorSpec


def describe_graph(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data: executors, edges, declared types and labels; nothing that a refactoring changes.

    An executor that nests a workflow has its fingerprint as ``nested``; ``workflows`` has the description of each
    of them by that fingerprint, also of those in deeper ones. So one that is nested in many places is described once.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> graph = WorkflowBuilder(name="Double").set_start_executor(double).build().graph
    >>> describe_graph(graph)["executors"]
    [{'id': 'double', 'accepts': ['int'], 'sends': ['int'], 'yields': []}]
    """
    description = dict(graph.own_description)
    if graph.nests:
        found: dict[str, Any] = {}
        _collect(graph, found, lambda nested: nested.own_description)
        description["workflows"] = found
    return description


def description_text(graph: Graph) -> str:
    """Return the description as JSON: compact, with sorted keys and in ASCII, so the same text for the same graph.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> description_text(WorkflowBuilder(name="Double").set_start_executor(double).build().graph)
    '{"edges":[],"executors":[{"accepts":["int"],"id":"double","sends":["int"],"yields":[]}],"start":"double"}'
    """
    import json

    # ASCII, because a label may hold half of a surrogate pair, which no encoding takes.
    return json.dumps(describe_graph(graph), sort_keys=True, separators=(",", ":"))


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain JSON for people and programs; unlike the description it may get more keys.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> graph_to_dict(WorkflowBuilder(name="Double").set_start_executor(double).build().graph)["executors"]
    [{'id': 'double', 'accepts': ['int'], 'sends': ['int'], 'yields': [], 'answers': [], 'nested': None}]
    """
    own = _own_dict(graph)
    found: dict[str, Any] = {}
    _collect(graph, found, _own_dict)
    return {**own, "workflows": found}


def _own_dict(graph: Graph) -> dict[str, Any]:
    executors = []
    for spec in graph.executors.values():
        described = _executor(spec, stored_type_name)
        answers = [{"request": asked, "response": answer} for asked, answer in described.get("answers", [])]
        executors.append({**described, "answers": answers, "nested": described.get("nested")})
    edges = [_edge_dict(edge) for edge in graph.edges]
    return {"start": str(graph.start), "executors": executors, "edges": edges}


def _edge_dict(edge: Edge) -> dict[str, Any]:
    kind, *parts = _edge(edge)
    match edge:
        case Direct():
            keys: tuple[str, ...] = ("source", "target", "condition", "label")
        case FanIn():
            keys = ("sources", "target")
        case Switch():
            cases = [
                {"target": target, "condition": condition, "label": label}
                for target, condition, label in parts[1]
            ]
            return {"kind": kind, "source": parts[0], "cases": cases}
        case FanOut() | MultiSelection():
            keys = ("source", "targets")
    return {"kind": kind, **dict(zip(keys, parts, strict=True))}


def fingerprint_of(graph: Graph) -> str:
    """Return the digest of the graph's description; nested graphs enter it as their own digests."""
    return _digest(graph.own_description)


def fingerprint_by_classes(graph: Graph) -> str:
    """Return the fingerprint of earlier versions, which called types by their classes and not by their stored names."""

    def describe_graph(spec: ExecutorSpec) -> dict[str, Any]:
        description = _executor(spec, type_name)
        if spec.nested is not None:
            description["nested"] = fingerprint_by_classes(spec.nested)
        return description

    return _digest({**graph.own_description, "executors": [*map(describe_graph, graph.executors.values())]})


def _digest(description: dict[str, Any]) -> str:
    # Imported here because most programs never ask.
    import hashlib
    import json

    text = json.dumps(description, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def own_description(graph: Graph) -> dict[str, Any]:
    """Return all that enters the fingerprint; any change here makes stored runs strangers to their workflows."""
    return {
        "start": graph.start,
        "executors": [_executor(spec, stored_type_name) for spec in graph.executors.values()],
        "edges": [_edge(edge) for edge in graph.edges],
    }


def _collect(graph: Graph, found: dict[str, Any], describe: Callable[[Graph], dict[str, Any]]) -> None:
    for spec in graph.executors.values():
        if spec.nested is not None and spec.nested.fingerprint not in found:
            found[spec.nested.fingerprint] = describe(spec.nested)
            _collect(spec.nested, found, describe)


def _executor(spec: ExecutorSpec, name: Callable[[TypeForm], str]) -> dict[str, Any]:
    description: dict[str, Any] = {
        "id": spec.id,
        "accepts": sorted(map(name, spec.accepts)),
        "sends": sorted({name(form) for form in spec.sends()}),
        "yields": sorted({name(form) for form in spec.yields()}),
    }
    if spec.answerers:
        description["answers"] = sorted(
            [name(handler.signature.request), name(handler.signature.accepts)] for handler in spec.answerers
        )
    if spec.nested is not None:
        description["nested"] = spec.nested.fingerprint
    if spec.lasting:
        description["lifetime"] = "run"
    return description


def _edge(edge: Edge) -> list[Any]:
    match edge:
        case Direct():
            return [EdgeKind.DIRECT.value, edge.source, edge.target, edge.condition is not None, edge.label]
        case FanOut():
            return [EdgeKind.FAN_OUT.value, edge.source, list(edge.targets)]
        case FanIn():
            return [EdgeKind.FAN_IN.value, list(edge.sources), edge.target]
        case Switch():
            cases = [[case.target, case.condition is not None, case.label] for case in edge.cases]
            return [EdgeKind.SWITCH.value, edge.source, cases]
        case MultiSelection():
            return [EdgeKind.MULTI_SELECTION.value, edge.source, list(edge.targets)]
