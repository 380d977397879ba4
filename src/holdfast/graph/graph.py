"""The immutable graph of a workflow and its fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from holdfast.graph.edge import Direct, Edge, FanIn, FanOut, MultiSelection, Switch
from holdfast.graph.executor import ExecutorSpec
from holdfast.graph.state_key import MergeRule
from holdfast.graph.types import TypeForm, type_name
from holdfast.ids import ExecutorId


@dataclass(frozen=True)
class Graph:
    """Executors in graph order, the edges between them, and what is declared about outputs and state.

    Graph order is the order in which executors were first named, the start executor first. It decides
    every order that could matter: of turns, of merges, of events.
    """

    start: ExecutorId
    executors: Mapping[ExecutorId, ExecutorSpec]
    edges: tuple[Edge, ...]
    output_from: frozenset[ExecutorId] | None = None
    merges: Mapping[tuple[str, str | None], MergeRule] = field(default_factory=dict)

    @cached_property
    def order(self) -> dict[ExecutorId, int]:
        """The position of each executor in graph order."""
        return {executor_id: position for position, executor_id in enumerate(self.executors)}

    @cached_property
    def outgoing(self) -> dict[ExecutorId, tuple[Edge, ...]]:
        """The outgoing edges of each executor, in the order in which they were added."""
        found: dict[ExecutorId, list[Edge]] = {executor_id: [] for executor_id in self.executors}
        for edge in self.edges:
            for source in edge.sources:
                found[source].append(edge)
        return {executor_id: tuple(edges) for executor_id, edges in found.items()}

    @cached_property
    def sole_targets(self) -> dict[ExecutorId, ExecutorId]:
        """For executors with one plain outgoing edge, the most common case by far, where it leads."""
        return {
            executor_id: edges[0].target
            for executor_id, edges in self.outgoing.items()
            if len(edges) == 1 and isinstance(edges[0], Direct) and edges[0].condition is None
        }

    @cached_property
    def fan_ins(self) -> tuple[FanIn, ...]:
        """The fan-ins, in the order in which they were added."""
        return tuple(edge for edge in self.edges if isinstance(edge, FanIn))

    def merge_for(self, scope_name: str, key: str) -> MergeRule | None:
        """The merge declared for a key of a shared scope, or for the whole scope."""
        return self.merges.get((scope_name, key)) or self.merges.get((scope_name, None))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of executors, edges, declared types and labels: of nothing that a refactoring changes.

        Names of lambdas, bytecode, modules and the Python version do not enter it.
        """
        # Imported here because most programs never ask.
        import hashlib
        import json

        described = {
            "start": self.start,
            "executors": [self._described(spec) for spec in self.executors.values()],
            "edges": [_edge_described(edge) for edge in self.edges],
        }
        text = json.dumps(described, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @staticmethod
    def _described(spec: ExecutorSpec) -> dict[str, Any]:
        return {
            "id": spec.id,
            "accepts": _names(spec.accepts),
            "sends": _names(spec.sends()),
            "yields": _names(spec.yields()),
        }


def _names(forms: tuple[TypeForm, ...]) -> list[str]:
    return sorted(type_name(form) for form in forms)


def _edge_described(edge: Edge) -> list[Any]:
    match edge:
        case Direct():
            return ["direct", edge.source, edge.target, edge.condition is not None, edge.label]
        case FanOut():
            return ["fan-out", edge.source, edge.targets]
        case FanIn():
            return ["fan-in", edge.sources, edge.target]
        case Switch():
            cases = [[case.target, case.condition is not None, case.label] for case in edge.cases]
            return ["switch", edge.source, cases]
        case MultiSelection():
            return ["multi-selection", edge.source, edge.targets]
