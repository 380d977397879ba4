"""Runs that are stored: new, resumed, restored or forked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase, microseconds
from holdfast.checkpoint.loading import Blobs, Loaded
from holdfast.checkpoint.log import Outside
from holdfast.checkpoint.packing import Entry
from holdfast.checkpoint.restoring import snapshot_of
from holdfast.checkpoint.storage import CheckpointStorage, id_of_checkpoint
from holdfast.checkpoint.store import Head
from holdfast.engine.limits import Limits
from holdfast.engine.snapshot import BufferKey, Snapshot, status_at_rest
from holdfast.engine.state import Place, Put, Scope, write
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import begin
from holdfast.engine.value import NotAtHand, Value, missing_of
from holdfast.errors import GraphChanged, GraphError, InvalidArgument, RunExists
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.graph import Graph
from holdfast.graph.state_key import StateKey
from holdfast.ids import RunId
from holdfast.runtime.environment import Environment
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.run import Run
from holdfast.runtime.runner import Runner

EditKey: TypeAlias = "tuple[str, str] | str | StateKey[Any]"
Edits: TypeAlias = Mapping[Any, Any]
"""Other values for shared state: by ``(scope_name, key)``, a ``StateKey``, or a key of the default shared scope."""


class Standing(NamedTuple):
    """Where a run is when it begins to move: its snapshot, and what makes its checkpoints."""

    snapshot: Snapshot
    recorder: Recorder
    resumed: bool


class Durable:
    """Makes runs of one workflow in one storage."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        limits: Limits,
        environment: Environment,
        storage: CheckpointStorage,
        codec: Codec,
        runner: Callable[..., Runner],
    ) -> None:
        self._graph = graph
        self._name = name
        self._limits = limits
        self._storage = storage
        self._encoder = storage.encoder(codec, limits.max_value_size)
        self._runner = runner
        self._graph_may_change = False
        self._outside = Outside(lambda: microseconds(environment.now()), environment.salt)

    def new_run(self, message: Any, run_id: RunId) -> Run:
        """A run with this input; its first checkpoint is made when it is opened."""
        snapshot = begin(self._graph, self._name, message, self._limits, self._encoder)
        log = self._storage.new_log(run_id, self._name, self._encoder, self._outside)
        given = Entry(
            Phase.START,
            1,
            Cause.INPUT,
            RunStatus.RUNNING,
            given=snapshot,
            fingerprint=self._graph.fingerprint,
        )
        return self._run(run_id, Standing(snapshot, Recorder(log, [given]), False))

    async def has_same_input(self, message: Any, run_id: str) -> bool:
        """Whether there is such a run, with this input; raises ``RunExists`` if its input is another."""
        head = await self._storage.head_or_none(run_id)
        if head is None:
            return False
        given = begin(self._graph, self._name, message, self._limits, self._encoder)
        _, first, blobs = await self._storage.load_log(head, self._encoder, self._outside, 1)
        stored = snapshot_of(first.manifest, 0, self._encoder, blobs)
        await _at_hand([delivery.value for delivery in stored.deliveries])
        if [d.value.data for d in given.deliveries] != [d.value.data for d in stored.deliveries]:  # type: ignore[attr-defined]
            raise RunExists(
                f"run {run_id!r} is in this storage already, with another input; choose another id, or go on with that "
                f"run by 'workflow.resume(run_id=...)'"
            )
        return True

    async def resumed_run(
        self, checkpoint: str | CheckpointInfo | None, run_id: str | None, allow_graph_change: bool
    ) -> Run:
        """A run that goes on from where it stands, or from a checkpoint of it."""
        if checkpoint is None:
            assert run_id is not None
            head = await self._storage.head(run_id)
            seq = head.seq
        else:
            head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
        self._graph_may_change = allow_graph_change
        standing = await self._standing(head, seq, allow_graph_change)
        return self._run(head.run_id, standing)

    def _run(self, run_id: RunId, standing: Standing) -> Run:
        log = EventLog()
        runner = self._runner(
            run_id, standing.snapshot, self._encoder, log, standing.recorder, standing.resumed
        )
        return Run(self._name, run_id, runner, log, self)

    async def runner_at(self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog) -> Runner:
        """What drives a run from another checkpoint of it on."""
        standing = await self._own(checkpoint, run_id)
        return self._runner(run_id, standing.snapshot, self._encoder, log, standing.recorder, True)

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        await self._own(checkpoint, run_id)

    async def _own(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> Standing:
        head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
        if head.run_id != run_id:
            raise InvalidArgument(
                f"checkpoint {id_of_checkpoint(checkpoint)} belongs to run {head.run_id}, not to {run_id}; begin a new "
                f"run there with 'workflow.fork(checkpoint)'"
            )
        return await self._standing(head, seq, self._graph_may_change)

    async def _standing(self, head: Head, seq: int, allow_graph_change: bool) -> Standing:
        """Where a run goes on, and the checkpoints that have to be made for that."""
        self._check_name(head)
        log, loaded, blobs = await self._storage.load_log(head, self._encoder, self._outside, seq)
        if seq != head.seq and await self._follows_at_once(head, loaded):
            log, loaded, blobs = await self._storage.load_log(head, self._encoder, self._outside, head.seq)
        snapshot = await self._snapshot(loaded, blobs, allow_graph_change)
        first: list[Entry] = []
        changed = loaded.manifest.fingerprint != self._graph.fingerprint
        finished = not snapshot.deliveries and not snapshot.requests
        if loaded.checkpoint_id != head.checkpoint_id or (changed and not finished):
            log.stand_on(loaded.checkpoint_id)
            first = _standing_again(
                Cause.RESTORE, loaded, snapshot, self._graph.fingerprint if changed else None
            )
        return Standing(snapshot, Recorder(log, first, loaded.info), True)

    async def _snapshot(self, loaded: Loaded, blobs: Blobs, allow_graph_change: bool) -> Snapshot:
        self._check_graph(loaded, allow_graph_change)
        header = loaded.header
        superstep = header.superstep - (header.phase is Phase.START)
        snapshot = snapshot_of(loaded.manifest, superstep, self._encoder, blobs)
        await _at_hand(_needed_soon(snapshot))
        if loaded.manifest.fingerprint != self._graph.fingerprint:
            self._check_homes(snapshot)
        return snapshot._replace(since_input=0)

    async def forked_run(
        self, checkpoint: str | CheckpointInfo, edits: Edits, run_id: RunId, allow_graph_change: bool
    ) -> Run:
        """A new run that begins where another one stood, with some of its state changed."""
        head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
        self._check_name(head)
        _, loaded, blobs = await self._storage.load_log(head, self._encoder, self._outside, seq)
        snapshot = await self._snapshot(loaded, blobs, allow_graph_change)
        first = _standing_again(Cause.FORK, loaded, snapshot, self._graph.fingerprint)
        if edits:
            writes = {_place(key): Put(self._edited(key, value)) for key, value in edits.items()}
            snapshot = snapshot._replace(state=write(snapshot.state, writes))
            first[1:1] = [first[0]._replace(cause=Cause.EDIT, edits=writes, keyframe=False, fingerprint=None)]
        log = self._storage.forked_log(run_id, head, loaded, self._encoder, self._outside)
        return self._run(run_id, Standing(snapshot, Recorder(log, first, None), True))

    def _edited(self, key: EditKey, value: Any) -> Value:
        if isinstance(key, StateKey):
            self._encoder.allow(key.type, f"state key {key.name!r}")
            key.check(value)
        return self._encoder(value, f"edit of {key!r}")

    async def _follows_at_once(self, head: Head, loaded: Loaded) -> bool:
        """Whether the run stands at the start of the superstep behind this checkpoint, where nothing came between."""
        newest = await self._storage.info(head, head.seq)
        return newest.parent_id == loaded.checkpoint_id and (newest.phase, newest.cause) == (
            Phase.START,
            Cause.SUPERSTEP,
        )

    def _check_name(self, head: Head) -> None:
        if head.workflow_name != self._name:
            raise GraphError(
                f"run {head.run_id} belongs to workflow {head.workflow_name!r}, not to {self._name!r}; resume it with "
                f"that workflow, and give workflows a name so that it stays the same"
            )

    def _check_graph(self, loaded: Loaded, allow_graph_change: bool) -> None:
        if loaded.manifest.fingerprint != self._graph.fingerprint and not allow_graph_change:
            raise GraphChanged(
                f"checkpoint {loaded.checkpoint_id} of run {loaded.header.run_id} was made by another graph of "
                f"workflow {self._name!r} (fingerprint {loaded.manifest.fingerprint[:8]}, now "
                f"{self._graph.fingerprint[:8]}); build the graph as it was, or say allow_graph_change=True"
            )

    def _check_homes(self, snapshot: Snapshot) -> None:
        """Raise ``GraphChanged`` if something that the run holds has no place in the graph as it is now."""
        homeless = [f"a message to {d.target!r}" for d in snapshot.deliveries if not self._has(d.target)]
        homeless += [
            f"request {request.request_id!r} of {request.executor_id!r}"
            for request in snapshot.requests.values()
            if not self._has(request.executor_id)
        ]
        homeless += [
            f"the state of executor {scope.owner!r}"
            for scope in snapshot.state
            if scope.owner is not None and not self._has(scope.owner)
        ]
        homeless += [f"what fan-in {key.fan_in} holds" for key in snapshot.buffers if not self._joins(key)]
        if homeless:
            raise GraphChanged(
                f"workflow {self._name!r} cannot go on with another graph: in it there is no place for "
                f"{', '.join(dict.fromkeys(homeless))}; keep these executors and edges, or go on from a checkpoint "
                f"at which nothing of them is left"
            )

    def _has(self, address: str) -> bool:
        try:
            self._graph.locate(address)
        except (KeyError, AssertionError):
            return False
        return True

    def _joins(self, key: BufferKey) -> bool:
        try:
            return key.fan_in in {edge.buffer_key for edge in self._graph.at(key.path).fan_ins}
        except (KeyError, AssertionError):
            return False


def _place(key: EditKey) -> Place:
    """The key of shared state that an edit names."""
    match key:
        case StateKey():
            return Scope(None, key.scope_name or DEFAULT_SHARED_SCOPE), key.name
        case str():
            return Scope(None, DEFAULT_SHARED_SCOPE), key
        case (str() as scope_name, str() as name) if scope_name:
            return Scope(None, scope_name), name
    raise InvalidArgument(
        f"edits: {key!r} names no state; write {{('scope', 'key'): value}}, or {{'key': value}} for the default "
        f"shared scope"
    )


def _standing_again(cause: Cause, loaded: Loaded, snapshot: Snapshot, fingerprint: str | None) -> list[Entry]:
    """The checkpoints with which a run stands where one stood before: back, with another graph, or as a fork."""
    header = loaded.header
    moves = bool(snapshot.deliveries)
    status = RunStatus.RUNNING if moves else status_at_rest(snapshot)
    back = Entry(
        header.phase,
        header.superstep,
        cause,
        status,
        since_input=0,
        fingerprint=fingerprint,
        keyframe=True,
    )
    if header.phase is Phase.END and moves:
        return [back, Entry(Phase.START, header.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)]
    return [back]


def _needed_soon(snapshot: Snapshot) -> list[Value]:
    """All values but those of the state, which may be big and are read when someone asks."""
    values = [delivery.value for delivery in snapshot.deliveries]
    values += [d.request.data for d in snapshot.deliveries if d.request is not None]
    values += [request.data for request in snapshot.requests.values()]
    values += [output.value for output in snapshot.outputs]
    values += [v for buffer in snapshot.buffers.values() for chain in buffer.values() for v in chain]
    return values


async def _at_hand(values: list[Value]) -> None:
    while missing := missing_of(values):
        await NotAtHand(missing).fetch()
