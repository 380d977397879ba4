"""Where a stored run stands when it begins to move: from its records to a snapshot, and what makes its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.format.changes import Renames
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.renames import rename, renames_of
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Contents, read_journal
from holdfast.checkpoint.read.loading import Blobs, Loaded
from holdfast.checkpoint.read.restoring import snapshot_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.log import RunLog
from holdfast.checkpoint.write.records import Outside
from holdfast.engine.durability import Durability
from holdfast.engine.limits import Limits
from holdfast.engine.persistent import Layered
from holdfast.engine.router import release_complete
from holdfast.engine.snapshot import BufferKey, Snapshot, status_at_rest
from holdfast.engine.state import Scope
from holdfast.engine.status import RunStatus
from holdfast.engine.value import NotAtHand, Value, missing_of
from holdfast.graph.graph import Graph
from holdfast.graph.state_key import MergeRule, find_declared_merge
from holdfast.ids import ExecutorId
from holdfast.runtime.durable.checkpoint_trail import Beginning
from holdfast.runtime.durable.graph_change import (
    FanInsBefore,
    check_homes,
    check_journal,
    described_before,
    graph_changed,
    namer_of,
    rounds_under_way,
)
from holdfast.runtime.durable.recorder import Recorder, Resumption
from holdfast.runtime.environment import Environment
from holdfast.runtime.step.runner import Runner


class Standing(NamedTuple):
    """Where a run is when it begins to move: its snapshot, and what makes its checkpoints."""

    snapshot: Snapshot
    recorder: Recorder
    resumed: bool


class Standings:
    """Finds where runs of one workflow in one storage stand."""

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
        self._catalog, self._logs = storage.catalog, storage.run_logs
        self._encoder = self._catalog.encoder(codec, limits.max_value_size)
        self._runner = runner
        self._retention = retention
        self._durability = durability
        self._graph_may_change = False
        self._outside = Outside(environment.microseconds(), environment.salt)

    def _recorder(
        self, log: RunLog, first: Sequence[Entry], resumption: Resumption | None = None
    ) -> Recorder:
        return Recorder(log, self._merge_for, self._durability, first, resumption)

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
        return rule or find_declared_merge(scope.name, key)

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
        if back or (new.changed and not is_finished(loaded.manifest)):
            log.stand_on(loaded.checkpoint_id)
            first, snapshot = self._standing_again(
                Cause.RESTORE if back else Cause.EDIT, loaded, snapshot, new
            )

        async def journal() -> Contents:
            notes, digests = await unbundled(await self._catalog.store.notes(head.run_id), blobs)
            contents = read_journal(notes, self._encoder, blobs, self._merge_for, namer_of(self._graph).named)
            contents = contents._replace(digests=contents.digests | digests)
            await at_hand([value for turn in contents.turns.values() for value in turn.sent()])
            if new.changed:
                check_journal(self._graph, self._name, contents)
            return contents

        began = await self._began(head, loaded.info, new.renames) if not back else None
        recorder = self._recorder(log, first, Resumption(loaded.info, journal, not back, began))
        return Standing(snapshot, recorder, True)

    def _standing_again(
        self, cause: Cause, loaded: Loaded, snapshot: Snapshot, new: NewGraph
    ) -> tuple[list[Entry], Snapshot]:
        """The checkpoints with which a run stands where one stood before: back, with another graph, or as a fork.

        With another graph a fan-in may have lost the source for which it waited: then it delivers.
        """
        header = loaded.header
        again = Entry(
            header.phase,
            header.superstep,
            cause,
            RunStatus.RUNNING,
            since_input=0,
            fingerprint=new.fingerprint,
            graph=new.description,
            renames=new.renames,
            rounds=new.rounds,
            keyframe=True,
        )
        entries = [again]
        released = release_complete(self._graph, snapshot) if new.changed else None
        if released is not None:
            after, delta = released
            given = Entry(header.phase, header.superstep, Cause.EDIT, RunStatus.RUNNING, snapshot, delta, 0)
            entries, snapshot = [again, given], after
        if not snapshot.deliveries:
            entries[-1] = entries[-1]._replace(status=status_at_rest(snapshot))
        elif header.phase is Phase.END:
            entries.append(Entry(Phase.START, header.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING))
        return entries, snapshot

    async def _load_log(self, head: Head, seq: int) -> tuple[RunLog, Loaded, Blobs]:
        return await self._logs.load_log(head, self._encoder, self._outside, seq, self._retention)

    async def _began(self, head: Head, info: CheckpointInfo, now: Renames | None) -> Beginning | None:
        """Where the superstep to come began, before others went on with it, with other graphs."""
        if info.phase is not Phase.START:
            return None
        renamings = [now]
        while info.cause is Cause.EDIT and info.parent_id is not None:
            found = await self._catalog.store.find(info.parent_id)
            if found is None or found[0] != head.run_id:
                break
            parent = await self._catalog.info(head, found[1])
            if parent.phase is not Phase.START:
                break
            renamings.append(await self._catalog.renames(head, info.seq))
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
    ) -> tuple[Snapshot, NewGraph]:
        manifest, header = loaded.manifest, loaded.header
        new, before = NewGraph(), FanInsBefore(self._graph, None)
        if not self._graph.recognises(manifest.fingerprint):
            if not allow_graph_change:
                raise await graph_changed(self._graph, self._name, loaded, self._encoder, blobs)
            new = NewGraph(True, self._graph.fingerprint, self._description())
        if new.changed and not is_finished(manifest):
            described = await described_before(manifest, self._encoder, blobs)
            before = FanInsBefore(self._graph, described)
            renames = renames_of(manifest, namer_of(self._graph, before))
            new = new._replace(renames=renames)
            if renames is not None:
                manifest = (
                    manifest.copy()
                )  # that of the log gets the new names with the record that says them
                rename(manifest, renames)
        superstep = header.superstep - (header.phase is Phase.START)
        snapshot = snapshot_of(manifest, superstep, self._encoder, blobs)
        await at_hand(_needed_soon(snapshot))
        if new.changed and not is_finished(manifest):
            check_homes(self._graph, self._name, snapshot)
            rounds = rounds_under_way(self._graph, before, snapshot)
            new = new._replace(rounds={**dict.fromkeys(snapshot.rounds), **rounds})
            snapshot = snapshot._replace(rounds=Layered(dict(rounds)))
        return snapshot._replace(since_input=0), new

    async def _follows_at_once(self, head: Head, loaded: Loaded) -> bool:
        """Whether the run stands at the start of the superstep behind this checkpoint, where nothing came between."""
        newest = await self._catalog.info(head, head.seq)
        return newest.parent_id == loaded.checkpoint_id and (newest.phase, newest.cause) == (
            Phase.START,
            Cause.SUPERSTEP,
        )


class NewGraph(NamedTuple):
    """What a checkpoint has to say of a graph that is not the one before."""

    changed: bool = False
    fingerprint: str | None = None
    description: Value | None = None
    renames: Renames | None = None
    rounds: Mapping[BufferKey, Sequence[ExecutorId] | None] = {}


def is_finished(manifest: Manifest) -> bool:
    """Tell whether nothing is left to do for a run that holds this."""
    return not (manifest.deliveries or manifest.requests or manifest.buffers)


def _needed_soon(snapshot: Snapshot) -> list[Value]:
    """All values but those of the state, which may be big and are read when someone asks."""
    values = [delivery.value for delivery in snapshot.deliveries]
    values += [d.request.data for d in snapshot.deliveries if d.request is not None]
    values += [request.data for request in snapshot.requests.values()]
    values += [output.value for output in snapshot.outputs]
    values += [v for buffer in snapshot.buffers.values() for chain in buffer.values() for v in chain]
    return values


async def at_hand(values: list[Value]) -> None:
    """Fetch those of the values that are not in memory."""
    while missing := missing_of(values):
        await NotAtHand(missing).fetch()
