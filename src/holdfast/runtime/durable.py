"""Runs that are stored: new, resumed, restored or forked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.arguments import id_of_checkpoint
from holdfast.checkpoint.bundles import unbundled
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Contents, read_journal
from holdfast.checkpoint.loading import Blobs, Loaded
from holdfast.checkpoint.log import RunLog
from holdfast.checkpoint.looking import steadily
from holdfast.checkpoint.making import Outside
from holdfast.checkpoint.manifest import Renames
from holdfast.checkpoint.owner import holder_of
from holdfast.checkpoint.packing import Entry
from holdfast.checkpoint.renaming import rename, renames_of
from holdfast.checkpoint.restoring import snapshot_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Depth, Head
from holdfast.engine.durability import Durability
from holdfast.engine.limits import Limits
from holdfast.engine.snapshot import Snapshot, status_at_rest
from holdfast.engine.state import Place, Put, Scope, write
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import begin
from holdfast.engine.value import NotAtHand, Value, missing_of
from holdfast.errors import GraphError, InvalidArgument, RunExists, WrongType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.graph import Graph
from holdfast.graph.state_key import MergeRule, StateKey, declared_merge
from holdfast.ids import RunId
from holdfast.runtime.checkpoints import Beginning
from holdfast.runtime.environment import Environment
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.graph_change import check_homes, check_journal, graph_changed, namer_of
from holdfast.runtime.ownership import free_to_drive
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
        retention: Retention | None = None,
        durability: Durability = "sync",
    ) -> None:
        self._graph = graph
        self._name = name
        self._limits = limits
        self._storage = storage
        self._encoder = storage.encoder(codec, limits.max_value_size)
        self._runner = runner
        self._retention = retention
        self._durability = durability
        self._graph_may_change = False
        self._outside = Outside(environment.microseconds(), environment.salt)

    def new_run(self, message: Any, run_id: RunId) -> Run:
        """A run with this input; its first checkpoint is made when it is opened."""
        snapshot = begin(self._graph, self._name, message, self._limits, self._encoder)
        log = self._storage.new_log(run_id, self._name, self._encoder, self._outside, self._retention)
        given = Entry(
            Phase.START,
            1,
            Cause.INPUT,
            RunStatus.RUNNING,
            given=snapshot,
            fingerprint=self._graph.fingerprint,
            graph=self._description(),
        )
        return self._run(run_id, Standing(snapshot, self._recorder(log, [given]), False))

    def _recorder(self, log: RunLog, first: Sequence[Entry], *before: Any) -> Recorder:
        return Recorder(log, self._merge_for, self._durability, first, *before)

    def _description(self) -> Value:
        return self._encoder(self._graph.description_text, "graph")

    def _merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """The merge that is declared for a key of shared state, by the workflow or by a ``StateKey``."""
        if scope.owner is not None:
            return None
        try:
            rule = self._graph.at(scope.path).merge_for(scope.name, key)
        except KeyError:
            rule = None
        return rule or declared_merge(scope.name, key)

    async def has_same_input(self, message: Any, run_id: str) -> bool:
        """Whether there is such a run, with this input; raises ``RunExists`` if its input is another."""
        head = await self._storage.head_or_none(run_id)
        if head is None:
            return False
        self._check_name(head)
        given = begin(self._graph, self._name, message, self._limits, self._encoder)

        async def look() -> Snapshot | None:
            if not await self._storage.store.records(head.run_id, 1, 1, Depth.HEADERS):
                return None  # retention removed it, and with it what could be compared
            _, first, blobs = await self._storage.load_log(head, self._encoder, self._outside, 1)
            stored = snapshot_of(first.manifest, 0, self._encoder, blobs)
            await _at_hand([delivery.value for delivery in stored.deliveries])
            return stored

        stored = await steadily(look)
        if stored is not None and _messages(given) != _messages(stored):
            raise RunExists(
                f"run {run_id!r} is in this storage already, with another input; choose another id, or go on with that "
                f"run by 'workflow.resume(run_id=...)'"
            )
        return True

    async def driven_here(self, run_id: str) -> Run | None:
        """The object of this process that drives a run, if there is one."""
        head = await self._storage.head_or_none(run_id)
        driver = None if head is None or head.status is not RunStatus.RUNNING else holder_of(head.owner)
        return driver if isinstance(driver, Run) else None

    async def resumed_run(
        self,
        checkpoint: str | CheckpointInfo | None,
        run_id: str | None,
        allow_graph_change: bool,
        take_over: bool = False,
    ) -> Run:
        """A run that goes on from where it stands, or from a checkpoint of it."""
        self._graph_may_change = allow_graph_change

        async def look() -> tuple[RunId, Standing]:
            if checkpoint is None:
                assert run_id is not None
                head = await self._storage.head(run_id)
                seq = head.seq
            else:
                head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            at_head = seq == head.seq and checkpoint is None
            head = await free_to_drive(self._storage.store, head, take_over)
            seq = head.seq if at_head else seq
            return head.run_id, await self._standing(head, seq, allow_graph_change)

        return self._run(*await steadily(look))

    def _run(self, run_id: RunId, standing: Standing) -> Run:
        log = EventLog()
        runner = self._runner(
            run_id, standing.snapshot, self._encoder, log, standing.recorder, standing.resumed
        )
        return Run(self._name, run_id, runner, log, self)

    async def runner_at(self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog) -> Runner:
        """What drives a run from another checkpoint of it on."""
        await free_to_drive(self._storage.store, await self._storage.head(run_id), False)
        standing = await self._own(checkpoint, run_id)
        return self._runner(run_id, standing.snapshot, self._encoder, log, standing.recorder, True)

    async def runner_where_it_stands(self, run_id: RunId, log: EventLog) -> Runner:
        """What goes on with a run that nobody drives."""
        head = await free_to_drive(self._storage.store, await self._storage.head(run_id), False)
        standing = await self._standing(head, head.seq, self._graph_may_change)
        return self._runner(run_id, standing.snapshot, self._encoder, log, standing.recorder, True)

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        await self._own(checkpoint, run_id)

    async def _own(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> Standing:
        async def look() -> Standing:
            head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
            if head.run_id != run_id:
                raise InvalidArgument(
                    f"checkpoint {id_of_checkpoint(checkpoint)} belongs to run {head.run_id}, not to {run_id}; begin a "
                    f"new run there with 'workflow.fork(checkpoint)'"
                )
            return await self._standing(head, seq, self._graph_may_change, again=True)

        return await steadily(look)

    async def _standing(
        self, head: Head, seq: int, allow_graph_change: bool, again: bool = False
    ) -> Standing:
        """Where a run goes on, and the checkpoints that have to be made for that.

        With ``again`` it stands there anew, also where it stands already: what its journal holds is discarded.
        """
        log, loaded, blobs = await self._load_log(head, seq)
        if not again and seq != head.seq and await self._follows_at_once(head, loaded):
            log, loaded, blobs = await self._load_log(head, head.seq)
        snapshot, new = await self._snapshot(loaded, blobs, allow_graph_change)
        first: list[Entry] = []
        back = again or loaded.checkpoint_id != head.checkpoint_id
        finished = not snapshot.deliveries and not snapshot.requests
        if back or (new.changed and not finished):
            log.stand_on(loaded.checkpoint_id)
            first = _standing_again(Cause.RESTORE if back else Cause.EDIT, loaded, snapshot, new)

        async def journal() -> Contents:
            notes, digests = await unbundled(await self._storage.store.notes(head.run_id), blobs)
            contents = read_journal(notes, self._encoder, blobs, self._merge_for, namer_of(self._graph).named)
            contents = contents._replace(digests=contents.digests | digests)
            await _at_hand([value for turn in contents.turns.values() for value in turn.sent()])
            if new.changed:
                check_journal(self._graph, self._name, contents)
            return contents

        began = await self._began(head, loaded.info, new.renames) if not back else None
        recorder = self._recorder(log, first, loaded.info, journal, not back, began)
        return Standing(snapshot, recorder, True)

    async def _load_log(self, head: Head, seq: int) -> tuple[RunLog, Loaded, Blobs]:
        return await self._storage.load_log(head, self._encoder, self._outside, seq, self._retention)

    async def _began(self, head: Head, info: CheckpointInfo, now: Renames | None) -> Beginning | None:
        """Where the superstep to come began, before others went on with it, with other graphs."""
        if info.phase is not Phase.START:
            return None
        renamings = [now]
        while info.cause is Cause.EDIT and info.parent_id is not None:
            found = await self._storage.store.find(info.parent_id)
            if found is None or found[0] != head.run_id:
                break
            parent = await self._storage.info(head, found[1])
            if parent.phase is not Phase.START:
                break
            renamings.append(await self._storage.renames(head, info.seq))
            info = parent
        names: dict[str, str] = {}
        for renames in reversed(renamings):
            known = dict(names)
            for old, new in renames.names.items() if renames is not None else ():
                names.pop(old, None)
                names[new] = known.get(old, old)
        return Beginning(info.checkpoint_id, names)

    async def _snapshot(
        self, loaded: Loaded, blobs: Blobs, allow_graph_change: bool
    ) -> tuple[Snapshot, _Graph]:
        manifest, header = loaded.manifest, loaded.header
        new = _Graph()
        if manifest.fingerprint != self._graph.fingerprint:
            if not allow_graph_change:
                raise await graph_changed(self._graph, self._name, loaded, self._encoder, blobs)
            finished = not manifest.deliveries and not manifest.requests
            renames = None if finished else renames_of(manifest, namer_of(self._graph))
            new = _Graph(True, self._graph.fingerprint, self._description(), renames)
            if renames is not None:
                manifest = (
                    manifest.copy()
                )  # that of the log gets the new names with the record that says them
                rename(manifest, renames)
        superstep = header.superstep - (header.phase is Phase.START)
        snapshot = snapshot_of(manifest, superstep, self._encoder, blobs)
        await _at_hand(_needed_soon(snapshot))
        if new.changed and (snapshot.deliveries or snapshot.requests):
            check_homes(self._graph, self._name, snapshot)
        return snapshot._replace(since_input=0), new

    async def forked_run(
        self, checkpoint: str | CheckpointInfo, edits: Edits, run_id: RunId, allow_graph_change: bool
    ) -> Run:
        """A new run that begins where another one stood, with some of its state changed."""
        if not isinstance(edits, Mapping):
            raise WrongType(
                f"edits are a dict like {{('scope', 'key'): value}}, not a {type(edits).__name__}"
            )

        async def look() -> tuple[Head, Loaded, Snapshot, _Graph]:
            head, seq = await self._storage.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            _, loaded, blobs = await self._load_log(head, seq)
            return head, loaded, *await self._snapshot(loaded, blobs, allow_graph_change)

        head, loaded, snapshot, new = await steadily(look)
        first = _standing_again(Cause.FORK, loaded, snapshot, new)
        if edits:
            writes = {_place(key): Put(self._edited(key, value)) for key, value in edits.items()}
            snapshot = snapshot._replace(state=write(snapshot.state, writes))
            edit = Entry(
                first[0].phase, first[0].superstep, Cause.EDIT, first[0].status, since_input=0, edits=writes
            )
            first[1:1] = [edit]
        log = self._storage.forked_log(run_id, head, loaded, self._encoder, self._outside, self._retention)
        return self._run(run_id, Standing(snapshot, self._recorder(log, first), True))

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


class _Graph(NamedTuple):
    """What a checkpoint has to say of a graph that is not the one before."""

    changed: bool = False
    fingerprint: str | None = None
    description: Value | None = None
    renames: Renames | None = None


def _standing_again(cause: Cause, loaded: Loaded, snapshot: Snapshot, new: _Graph) -> list[Entry]:
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
        fingerprint=new.fingerprint,
        graph=new.description,
        renames=new.renames,
        keyframe=True,
    )
    if header.phase is Phase.END and moves:
        return [back, Entry(Phase.START, header.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)]
    return [back]


def _messages(snapshot: Snapshot) -> list[tuple[object, ...]]:
    return [(d.target, d.source, d.value.data) for d in snapshot.deliveries]  # type: ignore[attr-defined]


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
