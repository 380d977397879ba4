"""The checks of a graph; each error names the executor, the edge and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutinefunction
from types import GenericAlias

from holdfast.errors import GraphError
from holdfast.graph.edge import (
    Condition,
    Direct,
    Edge,
    FanIn,
    MultiSelection,
    Selection,
    Switch,
    describe_edge,
)
from holdfast.graph.graph import Graph
from holdfast.graph.spec import ExecutorSpec
from holdfast.graph.typing.annotations import find_uncallable_signature
from holdfast.graph.typing.match import can_match
from holdfast.graph.typing.types import TypeForm, is_anything, type_name
from holdfast.ids import ExecutorId


def validate(graph: Graph) -> None:
    """Raise ``GraphError`` for the first thing that is wrong with ``graph``."""
    _check_known(graph)
    _check_outputs(graph)
    _check_edges_distinct(graph)
    for edge in graph.edges:
        _check_functions(edge)
    _check_reachable(graph)
    for edge in graph.edges:
        _check_types(graph, edge)


def _check_known(graph: Graph) -> None:
    for edge in graph.edges:
        for executor_id in (*edge.sources, *edge.targets):
            if executor_id not in graph.executors:
                raise GraphError(
                    f"{describe_edge(edge)} names the executor {executor_id!r}, which is not in the workflow; "
                    f"known are {_join_ids(graph.executors)}; "
                    f"add it with register_executor(..., name={executor_id!r}) or put the executor itself in the edge"
                )


def _check_outputs(graph: Graph) -> None:
    """Refuse outputs from executors that are not there, or give nothing out, or are named for both kinds of outputs."""
    given = (
        ("with_output_from", graph.output_from or ()),
        ("with_intermediate_output_from", graph.intermediate_from),
    )
    for method, named in given:
        for executor_id in sorted(named):
            if executor_id not in graph.executors:
                raise GraphError(
                    f"{method} names {executor_id!r}, which is not in the workflow; "
                    f"known are {_join_ids(graph.executors)}"
                )
            if not graph.types_given_by(executor_id):
                raise GraphError(_why_no_output(graph, method, executor_id))
    both = sorted(graph.intermediate_from.intersection(graph.output_from or ()))
    if both:
        raise GraphError(
            f"with_output_from and with_intermediate_output_from both name {_join_ids(both)}; an output is one or the "
            f"other: name each executor in one of them"
        )


def _why_no_output(graph: Graph, method: str, executor_id: ExecutorId) -> str:
    declare = "let it call ctx.yield_output, declared as WorkflowContext[what it sends, what it yields], or "
    why = "it declares that it yields nothing"
    if graph.outgoing[executor_id]:
        targets = dict.fromkeys(target for edge in graph.outgoing[executor_id] for target in edge.targets)
        goes = f"along its edges, to {_join_ids(targets)}"
        if graph.executors[executor_id].nested is None:
            why += f", and what it returns goes {goes}"
        else:
            why, declare = f"the outputs of the workflow that it nests go {goes}", ""
    return (
        f"{method} names {executor_id!r}, which gives nothing out: {why}; {declare}leave it out of {method}"
    )


def _check_edges_distinct(graph: Graph) -> None:
    seen: set[tuple[object, ...]] = set()
    for edge in graph.edges:
        # Conditions by identity: they need not be hashable.
        identity = (type(edge), edge.sources, edge.targets, *map(id, _functions(edge)))
        if identity in seen:
            raise GraphError(
                f"{describe_edge(edge)} was added twice; remove one, or give them different conditions"
            )
        seen.add(identity)
        doubled = [
            name
            for group in (edge.sources, edge.targets)
            if len(set(group)) < len(group)
            for name in group
            if group.count(name) > 1
        ]
        if doubled and not isinstance(edge, Switch):
            raise GraphError(f"{describe_edge(edge)} names {doubled[0]!r} twice; name it once")


def _functions(edge: Edge) -> list[Condition | Selection | None]:
    match edge:
        case Direct():
            return [edge.condition]
        case Switch():
            return [case.condition for case in edge.cases]
        case MultiSelection():
            return [edge.selection]
        case _:
            return []


def _check_functions(edge: Edge) -> None:
    for function in _functions(edge):
        if function is None:
            continue
        if not callable(function):
            raise GraphError(
                f"{describe_edge(edge)}: its condition must be a function, but it is a {type(function).__name__}"
            )
        if iscoroutinefunction(function):
            raise GraphError(
                f"{describe_edge(edge)}: its condition is async, but routing is a pure function of the message; "
                f"do the awaiting in the executor {edge.sources[0]!r} and put the result in the message"
            )
        selects = isinstance(edge, MultiSelection)
        found = find_uncallable_signature(function, 2 if selects else 1)
        if found is not None:
            called = (
                "selection_func is called with the message and the target ids"
                if selects
                else "condition is called with the message"
            )
            raise GraphError(f"{describe_edge(edge)}: its {called}, but its signature is {found}")


def _check_reachable(graph: Graph) -> None:
    reached: set[ExecutorId] = set()
    waiting = [graph.start]
    while waiting:
        executor_id = waiting.pop()
        if executor_id not in reached:
            reached.add(executor_id)
            waiting += [target for edge in graph.outgoing[executor_id] for target in edge.targets]
    unreachable = [executor_id for executor_id in graph.executors if executor_id not in reached]
    if unreachable:
        raise GraphError(
            f"no path leads from the start executor {graph.start!r} to {_join_ids(unreachable)}; "
            f"add an edge to it or remove it"
        )


def _check_types(graph: Graph, edge: Edge) -> None:
    for source_id in edge.sources:
        source = graph.executors[source_id]
        targets = edge.targets
        if source.nested is not None and not isinstance(edge, FanIn):  # others may take its requests
            targets = tuple(target for target in targets if not graph.executors[target].takes_requests)
            if not targets:
                continue
        sends = source.sends()
        if not sends:
            raise GraphError(
                f"{describe_edge(edge)}: executor {source_id!r} declares that it sends nothing; annotate its context "
                f"as WorkflowContext[what it sends], give its handler a return type, or remove the edge"
            )
        if any(is_anything(form) for form in sends):
            continue
        arriving = tuple(GenericAlias(list, form) for form in sends) if isinstance(edge, FanIn) else sends
        for target_id in targets:
            _check_pair(edge, source_id, arriving, graph.executors[target_id])


def _check_pair(edge: Edge, source_id: str, arriving: tuple[TypeForm, ...], target: ExecutorSpec) -> None:
    if not any(can_match(sent, accepted) for sent in arriving for accepted in target.accepts):
        listed = " (a fan-in delivers a list)" if isinstance(edge, FanIn) else ""
        raise GraphError(
            f"{describe_edge(edge)}: {source_id!r} sends {_join_types(arriving)}{listed}, but {target.id!r} takes "
            f"{_join_types(target.accepts)}; give {target.id!r} a handler for it, or change what {source_id!r} sends"
        )


def _join_types(forms: tuple[TypeForm, ...]) -> str:
    return " or ".join(type_name(form) for form in forms)


def _join_ids(ids: Iterable[ExecutorId]) -> str:
    return ", ".join(repr(str(executor_id)) for executor_id in ids) or "none"
