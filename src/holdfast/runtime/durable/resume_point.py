"""Loads stored runs: from the records of a checkpoint to the point from which a run can move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.derived_starts import find_checkpoint
from holdfast.checkpoint.format.changes import Renames
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.renames import rename, renames_of
from holdfast.checkpoint.journal import Contents, read_journal
from holdfast.checkpoint.read.loader import BlobReader, Loaded
from holdfast.checkpoint.read.snapshots import snapshot_of
from holdfast.checkpoint.receipts import Receipt
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import RunLog
from holdfast.checkpoint.write.records import ClockAndSalt
from holdfast.engine.persistent import Layered
from holdfast.engine.router import release_complete
from holdfast.engine.snapshot import BufferKey, Snapshot, status_at_rest
from holdfast.engine.state import Scope
from holdfast.engine.status import RunStatus
from holdfast.engine.value import NotAtHand, Value, missing_of
from holdfast.graph.state_key import MergeRule, find_declared_merge
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.config import WorkflowDefinition
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
from holdfast.runtime.step.runner import ResumePoint


class RunLoader:
    """Loads runs of one workflow from one storage, and makes the recorders with which they go on."""

    def __init__(self, workflow: WorkflowDefinition, storage: CheckpointStorage, encoder: Encoder) -> None:
        self._graph = workflow.graph
        self._name = workflow.name
        self._config = workflow.config
        self._catalog, self._logs = storage.catalog, storage.run_logs
        self._encoder = encoder
        self._clock_and_salt = ClockAndSalt(workflow.environment.microseconds(), workflow.environment.salt)

    # Recorders.

    def record_new(
        self, run_id: RunId, first: Sequence[CheckpointDraft], receipt: Receipt | None = None
    ) -> Recorder:
        """Return the recorder of a run that is not in the storage yet; ``first`` are its first checkpoints.

        Its first commit keeps the ``receipt`` of the call that starts it.
        """
        log = self._logs.new_log(
            run_id, self._name, self._encoder, self._clock_and_salt, self._config.retention
        )
        log.receipt = receipt
        return self._recorder(log, first)

    def record_fork(
        self,
        run_id: RunId,
        head: Head,
        loaded: Loaded,
        first: Sequence[CheckpointDraft],
        receipt: Receipt | None = None,
    ) -> Recorder:
        """Return the recorder of a new run that begins at a checkpoint of another one; ``receipt`` is as for that."""
        retention = self._config.retention
        log = self._logs.forked_log(run_id, head, loaded, self._encoder, self._clock_and_salt, retention)
        log.receipt = receipt
        return self._recorder(log, first)

    def _recorder(
        self, log: RunLog, first: Sequence[CheckpointDraft], resumption: Resumption | None = None
    ) -> Recorder:
        log.team_size = self._config.team_size or ()
        return Recorder(log, self._merge_for, self._config.durability, first, resumption)

    def describe_graph(self) -> Value:
        """Return the description of the graph, as it is stored with the first checkpoint."""
        return self._encoder(self._graph.description_text, "graph")

    def _merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """Return the merge that is declared for a key of shared state, by the workflow or by a ``StateKey``."""
        if scope.owner is not None:
            return None
        try:
            rule = self._graph.at(scope.path).merge_for(scope.name, key)
        except KeyError:
            rule = None
        return rule or find_declared_merge(scope.name, key)

    # Stored runs.

    async def resume(
        self, head: Head, seq: int, allow_graph_change: bool, again: bool = False
    ) -> ResumePoint:
        """Return the point from which a run goes on at a checkpoint.

        With ``again`` the run gets a new checkpoint there, even if it stands there already, and its journal is
        discarded.
        """
        log, loaded, blobs = await self.load(head, seq)
        if not again and seq != head.seq and await self._follows_at_once(head, loaded):
            log, loaded, blobs = await self.load(head, head.seq)
        snapshot, new = await self.restore_snapshot(loaded, blobs, allow_graph_change)
        first: list[CheckpointDraft] = []
        back = again or loaded.checkpoint_id != head.checkpoint_id
        if back or (new.changed and not is_finished(loaded.manifest)):
            log.stand_on(loaded.checkpoint_id)
            cause = Cause.RESTORE if back else Cause.EDIT
            first, snapshot = self.repeat_checkpoint(cause, loaded, snapshot, new)
            first += draft_start(first[-1], snapshot)

        async def journal() -> Contents:
            notes, digests = await unbundled(await self._catalog.store.notes(head.run_id), blobs)
            contents = read_journal(notes, self._encoder, blobs, self._merge_for, namer_of(self._graph).named)
            contents = contents._replace(digests=contents.digests | digests)
            await fetch_values([value for turn in contents.turns.values() for value in turn.sent()])
            if new.changed:
                check_journal(self._graph, self._name, contents)
            return contents

        began = await self._began(head, loaded.info, new.renames) if not back else None
        recorder = self._recorder(log, first, Resumption(loaded.info, journal, not back, began))
        return ResumePoint(snapshot, recorder, True)

    def repeat_checkpoint(
        self, cause: Cause, loaded: Loaded, snapshot: Snapshot, new: NewGraph
    ) -> tuple[list[CheckpointDraft], Snapshot]:
        """Return the entries for a run at an old checkpoint: restored, with another graph, or as a fork.

        With another graph a fan-in may have lost the source for which it waited: then it delivers. The start of the
        superstep to come is left to ``draft_start``.
        """
        header = loaded.header
        again = CheckpointDraft(
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
            given = CheckpointDraft(
                header.phase, header.superstep, Cause.EDIT, RunStatus.RUNNING, snapshot, delta, 0
            )
            entries, snapshot = [again, given], after
        entries[-1] = entries[-1]._replace(status=status_there(snapshot))
        return entries, snapshot

    async def load(self, head: Head, seq: int) -> tuple[RunLog, Loaded, BlobReader]:
        """Return the log of a run and one of its checkpoints."""
        return await self._logs.load_log(
            head, self._encoder, self._clock_and_salt, seq, self._config.retention
        )

    async def _began(self, head: Head, info: CheckpointInfo, now: Renames | None) -> Beginning | None:
        """Return where the superstep to come began, before others went on with it, with other graphs."""
        if info.phase is not Phase.START:
            return None
        renamings = [now]
        while info.cause is Cause.EDIT and info.parent_id is not None:
            found = await find_checkpoint(self._catalog.store, info.parent_id)
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

    async def restore_snapshot(
        self, loaded: Loaded, blobs: BlobReader, allow_graph_change: bool
    ) -> tuple[Snapshot, NewGraph]:
        """Return the snapshot of a checkpoint, and what its run needs to go on with another graph."""
        manifest, header = loaded.manifest, loaded.header
        new, before = NewGraph(), FanInsBefore(self._graph, None)
        if not self._graph.recognises(manifest.fingerprint):
            if not allow_graph_change:
                raise await graph_changed(self._graph, self._name, loaded, self._encoder, blobs)
            new = NewGraph(True, self._graph.fingerprint, self.describe_graph())
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
        await fetch_values(_needed_soon(snapshot))
        if new.changed and not is_finished(manifest):
            check_homes(self._graph, self._name, snapshot)
            rounds = rounds_under_way(self._graph, before, snapshot)
            new = new._replace(rounds={**dict.fromkeys(snapshot.rounds), **rounds})
            snapshot = snapshot._replace(rounds=Layered(dict(rounds)))
        return snapshot._replace(since_input=0), new

    async def _follows_at_once(self, head: Head, loaded: Loaded) -> bool:
        """Return True if the run stands at the start of the superstep right behind this checkpoint."""
        newest = await self._catalog.info(head, head.seq)
        return newest.parent_id == loaded.checkpoint_id and (newest.phase, newest.cause) == (
            Phase.START,
            Cause.SUPERSTEP,
        )


def draft_start(last: CheckpointDraft, snapshot: Snapshot) -> list[CheckpointDraft]:
    """Return the start of the superstep to come behind the last entry, if there is one and it is not there yet."""
    if last.phase is Phase.START or not snapshot.deliveries:
        return []
    return [CheckpointDraft(Phase.START, snapshot.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)]


def status_there(snapshot: Snapshot) -> RunStatus:
    """Return the status of a run at a snapshot, between two supersteps."""
    return RunStatus.RUNNING if snapshot.deliveries else status_at_rest(snapshot)


class NewGraph(NamedTuple):
    """The change of the graph since a checkpoint, for the next checkpoint to store."""

    changed: bool = False
    fingerprint: str | None = None
    description: Value | None = None
    renames: Renames | None = None
    rounds: Mapping[BufferKey, Sequence[ExecutorId] | None] = {}


def is_finished(manifest: Manifest) -> bool:
    """Return True if nothing is left to do for a run with this manifest."""
    return not (manifest.deliveries or manifest.requests or manifest.buffers)


def _needed_soon(snapshot: Snapshot) -> list[Value]:
    """Return all values but those of the state, which may be big and are read when someone asks."""
    values = [delivery.value for delivery in snapshot.deliveries]
    values += [d.request.data for d in snapshot.deliveries if d.request is not None]
    values += [request.data for request in snapshot.requests.values()]
    values += [output.value for output in snapshot.outputs]
    values += [v for buffer in snapshot.buffers.values() for chain in buffer.values() for v in chain]
    return values


async def fetch_values(values: list[Value]) -> None:
    """Fetch the values that are not in memory."""
    while missing := missing_of(values):
        await NotAtHand(missing).fetch()
