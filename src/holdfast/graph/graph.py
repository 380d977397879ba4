"""The immutable graph of a workflow and its fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from holdfast.graph.describe.description import (
    describe_graph,
    description_text,
    fingerprint_by_classes,
    fingerprint_of,
    own_description,
)
from holdfast.graph.edge import Direct, Edge, FanIn
from holdfast.graph.spec import ExecutorSpec, distinct
from holdfast.graph.state_key import MergeRule
from holdfast.graph.typing.types import TypeForm, members
from holdfast.ids import ExecutorId


class ExecutorLocation(NamedTuple):
    """The location of an executor: its graph, the path of that graph and its spec there.

    The path of the outermost graph is empty, that of a nested one ends with a slash: ``"review#1/"``.
    """

    graph: Graph
    path: str
    spec: ExecutorSpec


def host_of(path: str) -> ExecutorId:
    """Return the address of the executor that nests the graph at ``path``.

    >>> host_of("outer#1/review#12/")
    'outer#1/review'
    """
    return ExecutorId(path.rpartition("#")[0])


def path_of(address: str) -> str:
    """Return the path of the graph that an address lies in.

    >>> path_of("review#1/draft"), path_of("draft")
    ('review#1/', '')
    """
    return address[: address.rfind("/") + 1]


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
    aliases: Mapping[ExecutorId, ExecutorId] = field(default_factory=dict)
    """Earlier ids of executors, which checkpoints may have, and their current ids; no part of the fingerprint."""
    intermediate_from: frozenset[ExecutorId] = frozenset()
    """The executors whose outputs are only shown on the way, and are no outputs of the workflow."""

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
    def sole_targets(self) -> dict[ExecutorId, ExecutorSpec]:
        """For executors with one plain outgoing edge, the most common case by far, where it leads."""
        return {
            executor_id: self.executors[edges[0].target]
            for executor_id, edges in self.outgoing.items()
            if len(edges) == 1 and isinstance(edges[0], Direct) and edges[0].condition is None
        }

    @cached_property
    def passing_on(self) -> frozenset[ExecutorId]:
        """The executors whose outgoing edges take what they return, or what the workflow that they nest gives out.

        Edges of a nested workflow that lead only to executors which take nothing but its requests do not.
        """
        return frozenset(
            executor_id
            for executor_id, edges in self.outgoing.items()
            if edges
            and (
                self.executors[executor_id].nested is None
                or not all(self._takes_only_requests(target) for edge in edges for target in edge.targets)
            )
        )

    def _takes_only_requests(self, executor_id: ExecutorId) -> bool:
        spec = self.executors[executor_id]
        return spec.takes_requests and len(spec.accepts) == 1 and len(members(spec.accepts[0])) == 1

    @cached_property
    def fan_ins(self) -> tuple[FanIn, ...]:
        """The fan-ins, in the order in which they were added."""
        return tuple(edge for edge in self.edges if isinstance(edge, FanIn))

    def fan_in(self, buffer_key: str) -> FanIn:
        """Return the fan-in with this buffer key; raise ``KeyError`` if there is none."""
        for edge in self.fan_ins:
            if edge.buffer_key == buffer_key:
                return edge
        raise KeyError(buffer_key)

    @cached_property
    def locations(self) -> dict[ExecutorId, ExecutorLocation]:
        """The locations of the executors of this graph, as the outermost."""
        return {spec.id: ExecutorLocation(self, "", spec) for spec in self.executors.values()}

    @cached_property
    def nests(self) -> bool:
        """True if any executor is a nested workflow."""
        return any(spec.nested is not None for spec in self.executors.values())

    @cached_property
    def has_lasting(self) -> bool:
        """True if any nested workflow, also in nested ones, is started once for all messages."""
        return any(
            spec.lasting or spec.nested.has_lasting
            for spec in self.executors.values()
            if spec.nested is not None
        )

    @cached_property
    def has_aliases(self) -> bool:
        """True if any executor, also in nested workflows, has an alias."""
        nested = [spec.nested for spec in self.executors.values() if spec.nested is not None]
        return bool(self.aliases) or any(graph.has_aliases for graph in nested)

    @cached_property
    def depth(self) -> int:
        """The number of graphs nested in each other, this one included."""
        return 1 + max((spec.nested.depth for spec in self.executors.values() if spec.nested), default=0)

    def at(self, path: str) -> Graph:
        """Return the graph at a path: this one, or a nested one; raise ``KeyError`` if there is none."""
        graph = self
        for segment in path.split("/")[:-1]:
            nested = graph.executors[ExecutorId(segment.partition("#")[0])].nested
            if nested is None:
                raise KeyError(f"{path}: {segment} nests nothing")
            graph = nested
        return graph

    def locate(self, address: str) -> ExecutorLocation:
        """Return the location of the executor with this address; raise ``KeyError`` if there is none."""
        path = path_of(address)
        graph = self.at(path)
        return ExecutorLocation(graph, path, graph.executors[ExecutorId(address[len(path) :])])

    def position(self, address: str) -> tuple[int, ...]:
        """Return the position of an address in graph order; nested ones stand at their host's place, oldest first."""
        if "/" not in address:
            return (self.order[ExecutorId(address)],)
        segment, _, rest = address.partition("/")
        host, _, number = segment.partition("#")
        nested = self.executors[ExecutorId(host)].nested
        assert nested is not None, f"{address}: {host} nests nothing"
        return (self.order[ExecutorId(host)], int(number), *nested.position(rest))

    def merge_for(self, scope_name: str, key: str) -> MergeRule | None:
        """Return the merge declared for a key of a shared scope, or for the whole scope."""
        return self.merges.get((scope_name, key)) or self.merges.get((scope_name, None))

    def output_types(self) -> tuple[TypeForm, ...]:
        """Return the types of the workflow's outputs."""
        forms: list[TypeForm] = []
        for executor_id in self.executors:
            chosen = self.output_from is None or executor_id in self.output_from
            if chosen and executor_id not in self.intermediate_from:
                forms += self.types_given_by(executor_id)
        return tuple(forms)

    def types_given_by(self, executor_id: ExecutorId) -> tuple[TypeForm, ...]:
        """Return the types that an executor gives out: what it yields and, without outgoing edges, what it returns."""
        spec = self.executors[executor_id]
        if executor_id in self.passing_on:
            return spec.yields()
        returned = spec.sends() if spec.nested else [f for h in spec.handlers for f in h.signature.returns]
        return distinct([*spec.yields(), *returned])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of executors, edges, declared types and labels: of nothing that a refactoring changes.

        Names of lambdas, bytecode, modules and the Python version do not enter it.
        """
        return fingerprint_of(self)

    def recognises(self, fingerprint: str) -> bool:
        """Return True if a run with this fingerprint belongs to this graph, also by the names that types had before."""
        return fingerprint == self.fingerprint or fingerprint in self.fingerprints

    @property
    def fingerprints(self) -> frozenset[str]:
        """The fingerprints of runs that belong to this graph."""
        return frozenset([self.fingerprint, fingerprint_by_classes(self)])

    @cached_property
    def own_description(self) -> dict[str, Any]:
        """The graph as plain data, without those that it nests."""
        return own_description(self)

    @property
    def description(self) -> dict[str, Any]:
        """The graph as plain data, for comparison with another (see ``describe_graph``)."""
        import copy

        return copy.deepcopy(describe_graph(self))

    @cached_property
    def description_text(self) -> str:
        """The description as JSON (see ``description_text``)."""
        return description_text(self)


def ancestors(path: str) -> Iterator[str]:
    """Yield the path itself and those around it, but for the outermost.

    >>> list(ancestors("outer#1/review#2/"))
    ['outer#1/review#2/', 'outer#1/']
    """
    while path:
        yield path
        path = path_of(path[:-1])
