"""The logs of runs, opened: of a new run, of a stored one, and of a fork."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import applied_supersteps, moment
from holdfast.checkpoint.format.event_row import PackedStep, StepEvents, count_messages, pack_step
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.replay import Replay
from holdfast.checkpoint.maintenance.prune import prune_run
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import BlobReader, Loaded, load
from holdfast.checkpoint.retention import EventRetention, Retention
from holdfast.checkpoint.store import Depth, Head
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write.event_rows import has_moved
from holdfast.checkpoint.write.log import RunLog
from holdfast.checkpoint.write.prune_schedule import PruneSchedule
from holdfast.checkpoint.write.records import ClockAndSalt, RecordMaker
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId


class LogStart(NamedTuple):
    """The beginning of a log: all that the run holds there, how much is replayed for it, and its time."""

    manifest: Manifest
    replay: Replay
    time: int
    prunes: bool = False
    """True if the run is pruned at the next keyframe, for it may have been left unpruned."""
    superstep: int = 0
    """The last superstep that was applied."""


class RunLogs:
    """Opens the logs of runs: of new ones, of stored ones and of forks.

    The retention that a method is given wins over that of the storage, and this over the one that the run has.
    """

    def __init__(self, catalog: RunCatalog, retention: Retention | None) -> None:
        self._catalog = catalog
        self.retention = retention
        self.event_retention = EventRetention()

    def new_log(
        self,
        run_id: RunId,
        workflow_name: str,
        encoder: Encoder,
        clock_and_salt: ClockAndSalt,
        retention: Retention | None = None,
    ) -> RunLog:
        """Return the log of a run that is not in the storage yet."""
        now = clock_and_salt.now()
        head = Head(run_id, workflow_name, run_id, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now)
        head = self._with_retention(head, retention)
        # No checkpoint is older than its run, also where the clock goes back meanwhile: lists rely on it.
        return self._open_log(head, encoder, clock_and_salt, LogStart(Manifest(), Replay(), now - 1))

    async def load_log(
        self,
        head: Head,
        encoder: Encoder,
        clock_and_salt: ClockAndSalt,
        seq: int,
        retention: Retention | None = None,
    ) -> tuple[RunLog, Loaded, BlobReader]:
        """Return the log of a stored run, and one of its checkpoints to go on from."""
        store, blobs = self._catalog.store, self._catalog.blobs(head.family)
        loaded = await load(store, blobs, head, seq, Depth.ALL)
        time = max(head.updated, loaded.header.time)
        head = self._with_retention(head, retention)
        start = LogStart(loaded.manifest, loaded.replay, time, True, applied_supersteps(loaded.header))
        log = self._open_log(head, encoder, clock_and_salt, start)
        log.submitted = await self._find_submitted(head, loaded)
        return log, loaded, blobs

    async def _find_submitted(self, head: Head, loaded: Loaded) -> PackedStep | None:
        """Return the input of a run that was submitted and has not moved since; None for any other run."""
        if head.seq > 1 or loaded.header.status is not RunStatus.WAITING:
            return None
        if await has_moved(self._catalog.store, head):
            return None
        invoked = count_messages(loaded.manifest.deliveries)
        step = StepEvents(loaded.checkpoint_id, loaded.header, loaded.info.new_bytes, invoked=invoked)
        return pack_step(step)

    def forked_log(
        self,
        run_id: RunId,
        origin: Head,
        loaded: Loaded,
        encoder: Encoder,
        clock_and_salt: ClockAndSalt,
        retention: Retention | None = None,
    ) -> RunLog:
        """Return the log of a new run that begins at a checkpoint of another."""
        now = clock_and_salt.now()
        head = Head(
            run_id, origin.workflow_name, origin.family, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now
        )
        begun_at = f"{loaded.checkpoint_id} {origin.run_id}"
        head = self._with_retention(head._replace(retention=origin.retention, origin=begun_at), retention)
        time = max(loaded.header.time, now - 1)
        start = LogStart(loaded.manifest, Replay(), time, superstep=applied_supersteps(loaded.header))
        log = self._open_log(head, encoder, clock_and_salt, start)
        log.stand_on(loaded.checkpoint_id)
        return log

    def _with_retention(self, head: Head, retention: Retention | None) -> Head:
        chosen = retention or self.retention
        return head if chosen is None else head._replace(retention=chosen.text())

    def _open_log(
        self, head: Head, encoder: Encoder, clock_and_salt: ClockAndSalt, start: LogStart
    ) -> RunLog:
        async def prune(head: Head) -> int:
            return await prune_run(self._catalog, head, moment(clock_and_salt.now()))

        schedule = PruneSchedule(prune, start.prunes)
        parent = head.checkpoint_id or None
        maker = RecordMaker(clock_and_salt, start.manifest, start.replay, parent, start.time, schedule)
        maker.superstep = start.superstep
        return RunLog(self._catalog.store, encoder, head, maker, schedule, self.event_retention)
