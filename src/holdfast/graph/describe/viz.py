"""Drawings of a graph, as Mermaid and DOT text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.graph.edge import Direct, FanIn, FanOut, MultiSelection, Switch
from holdfast.graph.graph import Graph


class _Arrow(NamedTuple):
    """One drawn line; ``tentative`` ones are taken only for some messages."""

    source: str
    target: str
    label: str | None = None
    tentative: bool = False


def to_mermaid(graph: Graph) -> str:
    """Draw the graph as a Mermaid flowchart; conditional routes are dotted, nested workflows stand in boxes."""
    names = _Names()
    return "\n".join(["flowchart TD", *_mermaid_lines(graph, "", names, "    ")]) + "\n"


def _mermaid_lines(graph: Graph, path: str, names: _Names, indent: str) -> Iterator[str]:
    for executor_id, spec in graph.executors.items():
        text = _escape(executor_id, _MERMAID)
        name = names[path + executor_id]
        if spec.nested is not None:
            yield f'{indent}subgraph {name}["{text}"]'
            yield from _mermaid_lines(spec.nested, f"{path}{executor_id}/", names, indent + "    ")
            yield f"{indent}end"
        else:
            shape = f'(["{text}"])' if executor_id == graph.start else f'["{text}"]'
            yield f"{indent}{name}{shape}"
    for join in _joins(graph, path):
        yield f'{indent}{names[join]}(("fan-in"))'
    for arrow in _arrows(graph, path):
        line = "-.->" if arrow.tentative else "-->"
        label = f'|"{_escape(arrow.label, _MERMAID)}"|' if arrow.label else ""
        yield f"{indent}{names[arrow.source]} {line}{label} {names[arrow.target]}"


def to_dot(graph: Graph, name: str) -> str:
    """Draw the graph in the DOT language of Graphviz; conditional routes are dashed, nested workflows are clusters."""
    head = [f"digraph {_quote(name)} {{", "    node [shape=box];"]
    return "\n".join([*head, *_dot_lines(graph, "", "    "), "}"]) + "\n"


def _dot_lines(graph: Graph, path: str, indent: str) -> Iterator[str]:
    for executor_id, spec in graph.executors.items():
        node = _quote(path + executor_id)
        label = f"label={_quote(executor_id)}" if path else ""
        if spec.nested is not None:
            inner = f"{path}{executor_id}/"
            yield f"{indent}subgraph {_quote('cluster ' + path + executor_id)} {{"
            yield f"{indent}    {node} [{', '.join(filter(None, [label, 'shape=folder']))}];"
            yield from _dot_lines(spec.nested, inner, indent + "    ")
            yield f"{indent}    {node} -> {_quote(inner + spec.nested.start)} [style=dotted];"
            yield f"{indent}}}"
        else:
            shape = "shape=oval" if executor_id == graph.start else ""
            attributes = ", ".join(filter(None, [label, shape]))
            yield f"{indent}{node}{f' [{attributes}]' if attributes else ''};"
    for join in _joins(graph, path):
        yield f'{indent}{_quote(join)} [shape=circle, label="fan-in"];'
    for arrow in _arrows(graph, path):
        attributes = f"label={_quote(arrow.label)}" if arrow.label else ""
        attributes = ", ".join(filter(None, [attributes, "style=dashed" if arrow.tentative else ""]))
        suffix = f" [{attributes}]" if attributes else ""
        yield f"{indent}{_quote(arrow.source)} -> {_quote(arrow.target)}{suffix};"


def _joins(graph: Graph, path: str) -> Iterator[str]:
    for position, edge in enumerate(graph.edges):
        if isinstance(edge, FanIn):
            yield _join(path, position)


def _join(path: str, position: int) -> str:
    # The double slash keeps it apart from every executor's path.
    return f"{path}fan-in//{position}"


def _arrows(graph: Graph, path: str) -> Iterator[_Arrow]:
    for position, edge in enumerate(graph.edges):
        join = _join(path, position)
        match edge:
            case Direct():
                conditional = edge.condition is not None
                label = edge.label or ("conditional" if conditional else None)
                yield _Arrow(path + edge.source, path + edge.target, label, conditional)
            case FanOut():
                yield from (_Arrow(path + edge.source, path + target) for target in edge.targets)
            case FanIn():
                yield from (_Arrow(path + source, join) for source in edge.sources)
                yield _Arrow(join, path + edge.target)
            case Switch():
                for number, case in enumerate(edge.cases, start=1):
                    fallback = f"case {number}" if case.condition else "default"
                    yield _Arrow(path + edge.source, path + case.target, case.label or fallback, True)
            case MultiSelection():
                for target in edge.targets:
                    yield _Arrow(path + edge.source, path + target, "selected", True)


class _Names(dict[str, str]):
    """Short node names without characters that Mermaid would take for syntax."""

    def __missing__(self, text: str) -> str:
        self[text] = name = f"n{len(self)}"
        return name


_MERMAID = {"#": "#35;", "&": "#amp;", '"': "#quot;", "\n": "<br>", "<": "#lt;", ">": "#gt;"}.get
_DOT = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get


def _quote(text: str) -> str:
    return '"' + _escape(text, _DOT) + '"'


def _escape(text: str, escape: Callable[[str, str], str]) -> str:
    return "".join(escape(character, character) for character in text)
