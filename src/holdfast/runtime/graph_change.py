"""Whether a run can go on with a graph that is not the one it was begun with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.journal import Contents
from holdfast.checkpoint.loading import Blobs, Loaded
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.renaming import Namer
from holdfast.checkpoint.values import Encoder, restored
from holdfast.engine.message import Delivery, Request
from holdfast.engine.snapshot import BufferKey, Snapshot
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import GraphChanged, UnknownType
from holdfast.graph.alias import renamed, renamed_buffer, renamed_path
from holdfast.graph.graph import Graph

# More differences than this are counted, not told.
_LISTED = 20
_LONGEST_LINE = 400


def namer_of(graph: Graph) -> Namer:
    """How names in checkpoints are translated into those of the graph."""
    return Namer(
        lambda address: renamed(graph, address),
        lambda path: renamed_path(graph, path),
        lambda path, fan_in: renamed_buffer(graph, path, fan_in),
    )


async def graph_changed(
    graph: Graph, workflow_name: str, loaded: Loaded, encoder: Encoder, blobs: Blobs
) -> GraphChanged:
    """The error for a checkpoint that another graph made: it says what is different."""
    before = await _described(loaded.manifest, encoder, blobs)
    fingerprints = f"fingerprint {loaded.manifest.fingerprint[:8]}, now {graph.fingerprint[:8]}"
    if before is None:
        listed = ""
    else:
        # Who goes on with the same graph need not wait for it.
        from holdfast.graph.difference import difference

        lines = difference(before, graph.description, graph) or ["nothing that has a name"]
        more = [f"and {len(lines) - _LISTED:,} more differences"] if len(lines) > _LISTED else []
        listed = "".join(f"\n  - {_shortened(line)}" for line in [*lines[:_LISTED], *more])
    return GraphChanged(
        f"checkpoint {loaded.checkpoint_id} of run {loaded.header.run_id} was made by another graph of workflow "
        f"{workflow_name!r} ({fingerprints}); build the graph as it was, or go on with "
        f"'workflow.resume(..., allow_graph_change=True)'" + (f". What changed:{listed}" if listed else "")
    )


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


async def _described(manifest: Manifest, encoder: Encoder, blobs: Blobs) -> dict[str, Any] | None:
    if manifest.graph is None:
        return None
    value = restored(manifest.graph, encoder, blobs)
    while True:
        try:
            described: dict[str, Any] = json.loads(value.peek())
            return described
        except NotAtHand as absent:
            await absent.fetch()


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


def check_journal(graph: Graph, workflow_name: str, journal: Contents) -> None:
    """The same for what finished turns of the superstep under way sent and asked."""
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
    """The type of a value, for people; also of one whose class is not declared here."""
    ref = getattr(value, "ref", None)
    return value.type.__name__ if ref is None else ref.label


def _joins(graph: Graph, key: BufferKey) -> bool:
    try:
        return key.fan_in in {edge.buffer_key for edge in graph.at(key.path).fan_ins}
    except KeyError:
        return False
