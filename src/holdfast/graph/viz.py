"""Drawing a graph as Mermaid or DOT text."""

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
    """The graph as a Mermaid flowchart; conditional routes are dotted."""
    names = _Names()
    lines = ["flowchart TD"]
    for executor_id in graph.executors:
        text = _escaped(executor_id, _MERMAID)
        shape = f'(["{text}"])' if executor_id == graph.start else f'["{text}"]'
        lines.append(f"    {names[executor_id]}{shape}")
    for join in _joins(graph):
        lines.append(f'    {names[join]}(("fan-in"))')
    for arrow in _arrows(graph):
        line = "-.->" if arrow.tentative else "-->"
        label = f'|"{_escaped(arrow.label, _MERMAID)}"|' if arrow.label else ""
        lines.append(f"    {names[arrow.source]} {line}{label} {names[arrow.target]}")
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph, name: str) -> str:
    """The graph in the DOT language of Graphviz; conditional routes are dashed."""

    def quoted(text: str) -> str:
        return '"' + _escaped(text, _DOT) + '"'

    lines = [f"digraph {quoted(name)} {{", "    node [shape=box];"]
    for executor_id in graph.executors:
        style = " [shape=oval]" if executor_id == graph.start else ""
        lines.append(f"    {quoted(executor_id)}{style};")
    for join in _joins(graph):
        lines.append(f'    {quoted(join)} [shape=circle, label="fan-in"];')
    for arrow in _arrows(graph):
        attributes = [f"label={quoted(arrow.label)}"] if arrow.label else []
        attributes += ["style=dashed"] if arrow.tentative else []
        suffix = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f"    {quoted(arrow.source)} -> {quoted(arrow.target)}{suffix};")
    return "\n".join([*lines, "}"]) + "\n"


def _joins(graph: Graph) -> Iterator[str]:
    for position, edge in enumerate(graph.edges):
        if isinstance(edge, FanIn):
            yield _join(position)


def _join(position: int) -> str:
    # The slash keeps it apart from every executor's id.
    return f"fan-in/{position}"


def _arrows(graph: Graph) -> Iterator[_Arrow]:
    for position, edge in enumerate(graph.edges):
        match edge:
            case Direct():
                conditional = edge.condition is not None
                yield _Arrow(
                    edge.source,
                    edge.target,
                    edge.label or ("conditional" if conditional else None),
                    conditional,
                )
            case FanOut():
                yield from (_Arrow(edge.source, target) for target in edge.targets)
            case FanIn():
                yield from (_Arrow(source, _join(position)) for source in edge.sources)
                yield _Arrow(_join(position), edge.target)
            case Switch():
                for number, case in enumerate(edge.cases, start=1):
                    fallback = f"case {number}" if case.condition else "default"
                    yield _Arrow(edge.source, case.target, case.label or fallback, True)
            case MultiSelection():
                yield from (_Arrow(edge.source, target, "selected", True) for target in edge.targets)


class _Names(dict[str, str]):
    """Short node names without characters that Mermaid would take for syntax."""

    def __missing__(self, text: str) -> str:
        self[text] = name = f"n{len(self)}"
        return name


_MERMAID = {'"': "#quot;", "\n": "<br>", "<": "#lt;", ">": "#gt;"}.get
_DOT = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get


def _escaped(text: str, escape: Callable[[str, str], str]) -> str:
    return "".join(escape(character, character) for character in text)
