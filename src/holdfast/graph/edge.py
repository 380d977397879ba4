"""Edges: the kinds of routes between executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from holdfast.ids import ExecutorId

Condition: TypeAlias = Callable[[Any], object]
"""Decides from a message; any true value takes the edge."""

Selection: TypeAlias = Callable[[Any, list[str]], Sequence[str]]
"""Picks target ids for a message from all target ids of the edge."""


class EdgeKind(StrEnum):
    """The names of the kinds of edges in descriptions of graphs, which are stored: a name never changes.

    >>> EdgeKind("fan-in") is EdgeKind.FAN_IN
    True
    """

    DIRECT = "direct"
    FAN_OUT = "fan-out"
    FAN_IN = "fan-in"
    SWITCH = "switch"
    MULTI_SELECTION = "multi-selection"


class Direct(NamedTuple):
    """From one executor to another, for messages that meet the condition."""

    source: ExecutorId
    target: ExecutorId
    condition: Condition | None = None
    label: str | None = None

    @property
    def sources(self) -> tuple[ExecutorId, ...]:
        return (self.source,)

    @property
    def targets(self) -> tuple[ExecutorId, ...]:
        return (self.target,)


class FanOut(NamedTuple):
    """From one executor to several, each of which gets the message."""

    source: ExecutorId
    targets: tuple[ExecutorId, ...]

    @property
    def sources(self) -> tuple[ExecutorId, ...]:
        return (self.source,)


class FanIn(NamedTuple):
    """From several executors to one, which gets a list once each source has sent something.

    The list holds all that the sources sent until then, in the order of the sources, then as sent.
    """

    sources: tuple[ExecutorId, ...]
    target: ExecutorId
    buffer_key: str
    """Names its buffer in snapshots: by what it joins, not by its position among the edges."""

    @classmethod
    def of(cls, sources: tuple[ExecutorId, ...], target: ExecutorId) -> FanIn:
        """Return the fan-in from ``sources`` to ``target``."""
        return cls(sources, target, f"{', '.join(map(repr, sources))} -> {target!r}")

    @property
    def targets(self) -> tuple[ExecutorId, ...]:
        return (self.target,)


class SwitchCase(NamedTuple):
    """One way out of a switch; the default has no condition."""

    condition: Condition | None
    target: ExecutorId
    label: str | None


class Switch(NamedTuple):
    """From one executor to the first case whose target takes the message and whose condition holds."""

    source: ExecutorId
    cases: tuple[SwitchCase, ...]

    @property
    def sources(self) -> tuple[ExecutorId, ...]:
        return (self.source,)

    @property
    def targets(self) -> tuple[ExecutorId, ...]:
        return tuple(case.target for case in self.cases)


class MultiSelection(NamedTuple):
    """From one executor to those of its targets that a function selects for the message."""

    source: ExecutorId
    targets: tuple[ExecutorId, ...]
    selection: Selection

    @property
    def sources(self) -> tuple[ExecutorId, ...]:
        return (self.source,)


# A new kind of edge is: a class and an EdgeKind in this module, and its name in _NAMES below; a method of
# WorkflowBuilder (builder.py); its checks (validate.py), and Graph where that looks at kinds (graph.py); its route
# (engine/router.py); its form as data (describe/description.py), back from that (describe/parser.py), and in words
# (describe/edge_difference.py); its arrows (describe/viz.py). docs/reference: edges.md, format.md, glossary.md.
Edge: TypeAlias = Direct | FanOut | FanIn | Switch | MultiSelection


def describe_edge(edge: Edge) -> str:
    """Return the edge as messages name it.

    >>> describe_edge(Direct(ExecutorId("a"), ExecutorId("b"), label="P0"))
    "edge 'a' -> 'b' [P0]"
    >>> describe_edge(FanIn.of((ExecutorId("a"), ExecutorId("b")), ExecutorId("c")))
    "fan-in 'a', 'b' -> 'c'"
    """
    sources = ", ".join(repr(str(source)) for source in edge.sources)
    targets = ", ".join(repr(str(target)) for target in edge.targets)
    label = f" [{edge.label}]" if isinstance(edge, Direct) and edge.label else ""
    return f"{_NAMES[type(edge)]} {sources} -> {targets}{label}"


_NAMES = {
    Direct: "edge",
    FanOut: EdgeKind.FAN_OUT,
    FanIn: EdgeKind.FAN_IN,
    Switch: EdgeKind.SWITCH,
    MultiSelection: EdgeKind.MULTI_SELECTION,
}
