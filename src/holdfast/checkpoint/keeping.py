"""What a workflow asks of a storage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.checkpoint.arguments import checked_retention, checkpoint_id_of, no_run, run_id_of
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.format.changes import Renames
from holdfast.checkpoint.format.record import corrupt, info_of
from holdfast.checkpoint.info import CheckpointInfo, moment
from holdfast.checkpoint.maintenance.prune import tidied
from holdfast.checkpoint.read.loading import Blobs, LatestManifests, Loaded, changes_of, load, whole
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import Depth, Head, Record, Store
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write.log import RunLog
from holdfast.checkpoint.write.records import Outside
from holdfast.checkpoint.write.tidying import Tidying
from holdfast.engine.limits import Limits
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound
from holdfast.ids import CheckpointId, RunId

_ANY_SIZE = 1 << 62


class RunKeeping:
    """What a workflow asks of a storage: the logs of its runs, where they stand, and what reads their values."""

    def __init__(self, store: Store, retention: Retention | None = None) -> None:
        self._store = store
        self.retention = checked_retention(retention)
        """Which checkpoints of the runs are kept that are driven with this storage; None leaves that to each run."""
        self._codecs: dict[str, Codec] = {}
        self._largest: dict[str, int] = {}
        self._anything = Codec()
        self._latest = LatestManifests()
        self.counters = Counters()
        """What was done so far, in numbers."""

    @property
    def store(self) -> Store:
        """The store beneath."""
        return self._store

    def learn(self, workflow_name: str, codec: Codec, max_value_size: int) -> None:
        """Take the types that a workflow declares, to read its checkpoints, and how large its values may be."""
        self._codecs[workflow_name] = codec
        self._largest[workflow_name] = max_value_size

    def codec_for(self, workflow_name: str) -> Codec:
        """What reads the checkpoints of a workflow: with its types if it was built here."""
        return self._codecs.get(workflow_name, self._anything)

    def encoder_for(self, workflow_name: str) -> Encoder:
        """What captures values for runs of a workflow that someone else drives."""
        limit = self._largest.get(workflow_name, Limits().max_value_size)
        return self.encoder(self.codec_for(workflow_name), limit)

    def encoder(self, codec: Codec, limit: int = _ANY_SIZE) -> Encoder:
        """What captures the values of a run."""
        return Encoder(codec, limit, self.counters)

    def new_log(
        self,
        run_id: RunId,
        workflow_name: str,
        encoder: Encoder,
        outside: Outside,
        retention: Retention | None = None,
    ) -> RunLog:
        """The log of a run that is not in the storage yet."""
        now = outside.now()
        head = Head(run_id, workflow_name, run_id, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now)
        head = self._with_retention(head, retention)
        # No checkpoint is older than its run, also where the clock goes back meanwhile: lists rely on it.
        return RunLog(self._store, encoder, outside, head, last_time=now - 1, tidying=self._tidying(outside))

    def _with_retention(self, head: Head, retention: Retention | None) -> Head:
        chosen = retention or self.retention
        return head if chosen is None else head._replace(retention=chosen.text())

    def _tidying(self, outside: Outside, due: bool = False) -> Tidying:
        async def tidy(head: Head) -> int:
            return await tidied(self._store, self.blobs(head.family), head, moment(outside.now()))

        return Tidying(tidy, due)

    async def load_log(
        self, head: Head, encoder: Encoder, outside: Outside, seq: int, retention: Retention | None = None
    ) -> tuple[RunLog, Loaded, Blobs]:
        """The log of a run that stands on a head, and one of its checkpoints to go on from."""
        blobs = self.blobs(head.family)
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        time = max(head.updated, loaded.header.time)
        head = self._with_retention(head, retention)
        tidying = self._tidying(outside, due=True)
        log = RunLog(self._store, encoder, outside, head, loaded.manifest, loaded.replay, time, tidying)
        return log, loaded, blobs

    def forked_log(
        self,
        run_id: RunId,
        origin: Head,
        loaded: Loaded,
        encoder: Encoder,
        outside: Outside,
        retention: Retention | None = None,
    ) -> RunLog:
        """The log of a run that is not in the storage yet and begins at a checkpoint of another."""
        now = outside.now()
        head = Head(
            run_id, origin.workflow_name, origin.family, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now
        )
        head = self._with_retention(head._replace(retention=origin.retention), retention)
        log = RunLog(
            self._store,
            encoder,
            outside,
            head,
            loaded.manifest,
            last_time=max(loaded.header.time, now - 1),
            tidying=self._tidying(outside),
        )
        log.stand_on(loaded.checkpoint_id)
        return log

    def blobs(self, family: RunId) -> Blobs:
        """The blobs of a family of runs."""
        return Blobs(self._store, family, self.counters)

    async def head(self, run_id: str) -> Head:
        """Where a run stands; raises ``RunNotFound``."""
        head = await self._store.head(run_id_of(run_id))
        if head is None:
            raise no_run(run_id)
        return head

    async def head_or_none(self, run_id: str) -> Head | None:
        """Where a run stands; None if there is no such run."""
        return await self._store.head(run_id_of(run_id))

    async def find(self, checkpoint_id: str) -> tuple[Head, int]:
        """The run of a checkpoint, and its seq there; raises ``CheckpointNotFound``."""
        found = await self._store.find(checkpoint_id_of(checkpoint_id))
        head = None if found is None else await self._store.head(found[0])
        if found is None or head is None or not await self._keeps(head, found[1]):
            raise not_found(checkpoint_id)
        return head, found[1]

    async def _keeps(self, head: Head, seq: int) -> bool:
        """Whether a checkpoint is kept; one that is not may still be there for a while."""
        if not head.retention or seq == head.seq:
            return True
        try:
            records = await self._store.records(head.run_id, 1, head.seq, Depth.HEADERS)
            return seq in kept_of(head, records)
        except CheckpointCorrupt:  # of others: whoever asks for one that can be read gets it
            return True

    async def info(self, head: Head, seq: int) -> CheckpointInfo:
        """What is known of a checkpoint of a run without reading any value."""
        return info_of(await self._record(head, seq))

    async def renames(self, head: Head, seq: int) -> Renames | None:
        """The executors that a checkpoint renamed, if it did."""
        records = await self._store.records(head.run_id, seq, seq, Depth.CHANGES)
        if not records:
            raise _no_record(head, seq)
        return changes_of(await whole(records[0], self.blobs(head.family)), Depth.CHANGES).renames

    async def _record(self, head: Head, seq: int) -> Record:
        records = await self._store.records(head.run_id, seq, seq, Depth.HEADERS)
        if not records:
            raise _no_record(head, seq)
        if seq == head.seq and records[0].checkpoint_id != head.checkpoint_id:
            raise corrupt(head.checkpoint_id, f"the run stands on it, but its record {seq} is another")
        return records[0]


def not_found(checkpoint_id: str) -> CheckpointNotFound:
    """What is said of a checkpoint that is not there."""
    return CheckpointNotFound(
        f"there is no checkpoint {checkpoint_id!r} in this storage, or its run does not keep it; "
        f"'await storage.list_checkpoints()' lists those that are there, and tags keep what retention would not"
    )


def _no_record(head: Head, seq: int) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"run {head.run_id!r} has no checkpoint number {seq}, though it is said to be there; "
        f"'await storage.verify()' lists what is affected"
    )


def kept_of(head: Head, records: Sequence[Record]) -> frozenset[int]:
    """The seqs of the records of a run that are kept."""
    if not head.retention:
        return frozenset(record.seq for record in records)
    now = datetime.now(UTC)
    return Retention.of_text(head.retention).kept(map(info_of, records), head.checkpoint_id, now)
