"""The logs of runs: a workflow that drives a run writes its checkpoints through one."""

from __future__ import annotations

from holdfast.checkpoint.info import moment
from holdfast.checkpoint.maintenance.prune import prune_run
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loading import Blobs, Loaded, load
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import Depth, Head
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write.log import RunLog
from holdfast.checkpoint.write.records import Outside
from holdfast.checkpoint.write.tidying import Tidying
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId


class RunLogs:
    """Opens the logs of runs: of new ones, of stored ones and of forks.

    The retention that a method is given wins over that of the storage, and this over the one that the run has.
    """

    def __init__(self, catalog: RunCatalog, retention: Retention | None) -> None:
        self._catalog = catalog
        self.retention = retention

    def new_log(
        self,
        run_id: RunId,
        workflow_name: str,
        encoder: Encoder,
        outside: Outside,
        retention: Retention | None = None,
    ) -> RunLog:
        """Return the log of a run that is not in the storage yet."""
        now = outside.now()
        head = Head(run_id, workflow_name, run_id, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now)
        head = self._with_retention(head, retention)
        # No checkpoint is older than its run, also where the clock goes back meanwhile: lists rely on it.
        return RunLog(
            self._catalog.store, encoder, outside, head, last_time=now - 1, tidying=self._tidying(outside)
        )

    async def load_log(
        self, head: Head, encoder: Encoder, outside: Outside, seq: int, retention: Retention | None = None
    ) -> tuple[RunLog, Loaded, Blobs]:
        """Return the log of a stored run, and one of its checkpoints to go on from."""
        store, blobs = self._catalog.store, self._catalog.blobs(head.family)
        loaded = await load(store, blobs, head, seq, Depth.ALL)
        time = max(head.updated, loaded.header.time)
        head = self._with_retention(head, retention)
        tidying = self._tidying(outside, due=True)
        log = RunLog(store, encoder, outside, head, loaded.manifest, loaded.replay, time, tidying)
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
        """Return the log of a new run that begins at a checkpoint of another."""
        now = outside.now()
        head = Head(
            run_id, origin.workflow_name, origin.family, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now
        )
        head = self._with_retention(head._replace(retention=origin.retention), retention)
        log = RunLog(
            self._catalog.store,
            encoder,
            outside,
            head,
            loaded.manifest,
            last_time=max(loaded.header.time, now - 1),
            tidying=self._tidying(outside),
        )
        log.stand_on(loaded.checkpoint_id)
        return log

    def _with_retention(self, head: Head, retention: Retention | None) -> Head:
        chosen = retention or self.retention
        return head if chosen is None else head._replace(retention=chosen.text())

    def _tidying(self, outside: Outside, due: bool = False) -> Tidying:
        async def prune(head: Head) -> int:
            catalog = self._catalog
            return await prune_run(catalog.store, catalog.blobs(head.family), head, moment(outside.now()))

        return Tidying(prune, due)
