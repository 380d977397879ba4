"""Checks if a run can go on with another graph than before, and translates the names in its checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.renames import Namer
from holdfast.checkpoint.journal import Contents
from holdfast.checkpoint.read.loader import BlobReader, Loaded
from holdfast.checkpoint.values import Encoder, restored
from holdfast.engine.message import Delivery, Request
from holdfast.engine.snapshot import BufferKey, Snapshot
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import GraphChanged, UnknownType
from holdfast.graph.alias import resolve_address, resolve_buffer_key, resolve_path
from holdfast.graph.edge import FanIn
from holdfast.graph.graph import Graph, ancestors, path_of
from holdfast.ids import ExecutorId

# That of an instance of a nested workflow, in a path: all have the same graph.
_NUMBER = re.compile(r"#\d+")

Description: TypeAlias = dict[str, Any]
"""A graph as ``Graph.description`` says it."""

# More differences than this are counted, not told.
_LISTED = 20
_LONGEST_LINE = 400


def namer_of(graph: Graph, before: FanInsBefore | None = None) -> Namer:
    """Return the translation of names in checkpoints into those of the graph.

    With the fan-ins of the graph ``before``, also the names of those that have other sources now.
    """

    def fan_in(path: str, was: str) -> str:
        name = resolve_buffer_key(graph, path, was)
        found = {} if before is None else before.at(resolve_path(graph, path))
        return next((key for key, old in found.items() if old.buffer_key == name), name)

    return Namer(
        lambda address: resolve_address(graph, address), lambda path: resolve_path(graph, path), fan_in
    )


async def graph_changed(
    graph: Graph, workflow_name: str, loaded: Loaded, encoder: Encoder, blobs: BlobReader
) -> GraphChanged:
    """Return the error for a checkpoint that another graph made, with the differences."""
    before = await described_before(loaded.manifest, encoder, blobs)
    fingerprints = f"fingerprint {loaded.manifest.fingerprint[:8]}, now {graph.fingerprint[:8]}"
    if before is None:
        listed = ""
    else:
        # Who goes on with the same graph need not wait for it.
        from holdfast.graph.describe.difference import describe_difference

        lines = describe_difference(before, graph.description, graph) or ["nothing that has a name"]
        more = [f"and {len(lines) - _LISTED:,} more differences"] if len(lines) > _LISTED else []
        listed = "".join(f"\n  - {_shortened(line)}" for line in [*lines[:_LISTED], *more])
    return GraphChanged(
        f"checkpoint {loaded.checkpoint_id} of run {loaded.header.run_id} was made by another graph of workflow "
        f"{workflow_name!r} ({fingerprints}); build the graph as it was, or go on with "
        f"'workflow.resume(..., allow_graph_change=True)'" + (f". What changed:{listed}" if listed else "")
    )


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


async def described_before(manifest: Manifest, encoder: Encoder, blobs: BlobReader) -> Description | None:
    """Return the description of the graph that made a checkpoint; None if it is not known."""
    if manifest.graph is None:
        return None
    value = restored(manifest.graph, encoder, blobs)
    while True:
        try:
            described: Description = json.loads(value.peek())
            return described
        except NotAtHand as absent:
            await absent.fetch()
        except (ValueError, RecursionError):  # no version of Holdfast wrote it
            return None


def check_homes(graph: Graph, workflow_name: str, snapshot: Snapshot) -> None:
    """Raise ``GraphChanged`` if something that the run holds has no place in the graph as it is now."""
    homeless = [f"a message to {d.target!r}" for d in snapshot.deliveries if not _has(graph, d.target)]
    homeless += [
        f"a message to {delivery.target!r}, which does not take a {_label(delivery.value)} any more"
        for delivery in snapshot.deliveries
        if _has(graph, delivery.target) and not _takes(graph, delivery)
    ]
    for request in snapshot.requests.values():
        if not _has(graph, request.executor_id):
            homeless.append(f"request {request.request_id!r} of {request.executor_id!r}")
        elif not _answers(graph, request):
            homeless.append(
                f"request {request.request_id!r} of {request.executor_id!r}, which has no response handler for it now"
            )
    homeless += [
        f"the state of executor {scope.owner!r}"
        for scope in snapshot.state
        if scope.owner is not None and not _has(graph, scope.owner)
    ]
    homeless += [f"what fan-in {key.fan_in} holds" for key in snapshot.buffers if not _joins(graph, key)]
    _refuse(homeless, workflow_name)


def rounds_under_way(
    graph: Graph, before: FanInsBefore, snapshot: Snapshot
) -> dict[BufferKey, tuple[ExecutorId, ...]]:
    """Return the sources that fan-ins wait for in the round under way, where these are not all that they have now.

    A round expects the sources with which it began. One that the fan-in got since is expected as well if something
    that the run holds can still reach it; one that it lost is not, unless it has sent.
    """
    addresses = [delivery.target for delivery in snapshot.deliveries]
    addresses += [request.executor_id for request in snapshot.requests.values()]
    addresses += [ExecutorId(key.path) for key in snapshot.buffers if key.path]
    moving_at: dict[str, set[ExecutorId]] = {"": set()}
    for address in addresses:
        for path in ("", *ancestors(path_of(address))):
            moving_at.setdefault(path, set()).add(_local(path, address))
    found: dict[BufferKey, tuple[ExecutorId, ...]] = {}
    for path, moving in moving_at.items():
        here, olds = graph.at(path), before.at(path)
        holding = [join for join in here.fan_ins if (path, join.buffer_key) in snapshot.buffers]
        for edge in here.fan_ins:
            key = BufferKey(path, edge.buffer_key)
            old = olds.get(edge.buffer_key)
            began: Sequence[ExecutorId] = snapshot.rounds.get(key) or (() if old is None else old.sources)
            held = snapshot.buffers.get(key, {})
            others = {join.target for join in holding if join is not edge}
            near = {*held, *_reached(here, moving | others, edge)}
            expected = [source for source in began if source in held or source in edge.sources]
            expected += [source for source in edge.sources if source not in began and source in near]
            ordered = tuple(expected) == edge.sources or (not held and {*expected} == {*edge.sources})
            if not ordered and near.intersection(expected):
                found[key] = tuple(expected)
    return found


def _local(path: str, address: str) -> ExecutorId:
    """Return the executor of the graph at ``path`` that has an address, or in which it lies."""
    return ExecutorId(address[len(path) :].partition("/")[0].partition("#")[0])


def _reached(graph: Graph, moving: Collection[ExecutorId], without: FanIn) -> set[ExecutorId]:
    """Return the executors that have messages, or can get one before a fan-in delivers."""
    reached: set[ExecutorId] = set()
    open_ends = [executor_id for executor_id in moving if executor_id]
    while open_ends:
        if (executor_id := open_ends.pop()) not in reached:
            reached.add(executor_id)
            for edge in graph.outgoing[executor_id]:
                open_ends += () if edge is without else edge.targets
    return reached


class FanInsBefore:
    """The fan-ins of the graph that a run was in before, under the names of now."""

    def __init__(self, graph: Graph, before: Description | None) -> None:
        self._graph = graph
        self._before = before
        self._known: dict[str, dict[str, FanIn]] = {}

    def at(self, path: str) -> dict[str, FanIn]:
        """Return the old fan-ins of the graph at ``path``, by their names of now.

        One with other sources is known by its target, and by some source that it had. One that is new is not there. All
        are the same if nothing is known of the graph before.
        """
        place = _NUMBER.sub("#", path)
        if place not in self._known:
            self._known[place] = self._found(path)
        return self._known[place]

    def _found(self, path: str) -> dict[str, FanIn]:
        if self._before is not None:
            return _fan_ins_at(self._graph, self._before, path)
        try:
            return {edge.buffer_key: edge for edge in self._graph.at(path).fan_ins}
        except KeyError:  # there is no such graph now
            return {}


def _fan_ins_at(graph: Graph, before: Description, path: str) -> dict[str, FanIn]:
    # Who goes on with the same graph need not wait for it.
    from holdfast.graph.describe.parser import parse_description

    here, now = parse_description(before), graph
    for segment in path.split("/")[:-1]:
        host = ExecutorId(segment.partition("#")[0])
        was = {now.aliases.get(ExecutorId(name), name): old for name, old in (here.executors or {}).items()}
        inside, nested = was.get(host), now.executors[host].nested if host in now.executors else None
        if inside is None or inside.nested is None or nested is None or inside.nested not in here.workflows:
            return {}
        here, now = parse_description(here.workflows[inside.nested], here.workflows), nested
    names = {str(old): str(new) for old, new in now.aliases.items()}
    edges = [edge.rename(names) for edge in here.edges or () if edge.kind == "fan-in"]
    olds = [FanIn.of(tuple(map(ExecutorId, e.sources)), ExecutorId(e.targets[0])) for e in edges]
    same = {edge.buffer_key: edge for edge in now.fan_ins}.keys() & {old.buffer_key for old in olds}
    found = {old.buffer_key: old for old in olds if old.buffer_key in same}
    left = [old for old in olds if old.buffer_key not in same]
    for edge in now.fan_ins:
        alike = [old for old in left if old.target == edge.target and {*old.sources} & {*edge.sources}]
        if edge.buffer_key not in same and alike:
            old = max(alike, key=lambda one: len({*one.sources} & {*edge.sources}))
            found[edge.buffer_key] = old
            left.remove(old)
    return found


def check_journal(graph: Graph, workflow_name: str, journal: Contents) -> None:
    """Raise ``GraphChanged`` if messages or requests of finished turns have no place in the graph as it is now."""
    homeless: list[str] = []
    for executor_id, turn in journal.turns.items():
        if not _has(graph, executor_id):
            homeless.append(f"what executor {executor_id!r} did")
            continue
        for sent in turn.outcome.messages:
            try:
                sent.value.peek()
            except UnknownType:
                homeless.append(
                    f"a message of {executor_id!r}, a {_label(sent.value)}, which is not declared any more"
                )
        homeless += [
            f"request {request.request_id!r} of {executor_id!r}, which has no response handler for it now"
            for request in turn.outcome.requests
            if not _answers(graph, request)
        ]
    _refuse(homeless, workflow_name)


def _refuse(homeless: Sequence[str], workflow_name: str) -> None:
    if homeless:
        raise GraphChanged(
            f"workflow {workflow_name!r} cannot go on with another graph: in it there is no place for "
            f"{', '.join(dict.fromkeys(homeless))}; keep these executors and edges, say how an executor is called now "
            f"with WorkflowBuilder.with_alias(old_id, executor), or go on from a checkpoint at which nothing of them "
            f"is left"
        )


def _has(graph: Graph, address: str) -> bool:
    try:
        return graph.locate(address).spec.nested is None
    except KeyError:
        return False


def _takes(graph: Graph, delivery: Delivery) -> bool:
    spec = graph.locate(delivery.target).spec
    try:
        if delivery.request is not None:
            return _answers(graph, delivery.request)
        return spec.dispatch.find(delivery.value.peek()) is not None
    except UnknownType:  # its class is not declared any more
        return False


def _answers(graph: Graph, request: Request) -> bool:
    spec = graph.locate(request.executor_id).spec
    try:
        return spec.answerer(request.data.peek(), request.response_type) is not None
    except UnknownType:
        return False


def _label(value: Value) -> str:
    """Return the name of a value's type, also of one whose class is not declared here."""
    ref = getattr(value, "ref", None)
    return value.type.__name__ if ref is None else ref.label


def _joins(graph: Graph, key: BufferKey) -> bool:
    try:
        return key.fan_in in {edge.buffer_key for edge in graph.at(key.path).fan_ins}
    except KeyError:
        return False
