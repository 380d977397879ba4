"""CheckpointStorage: the object through which users see and manage the runs in a store.

Its methods check their arguments and call the rooms beside it: ``read`` for lists and checkpoints, ``maintenance`` for
checks, repairs and removal, ``transfer`` for copies in files, ``diff`` for differences. Rooms that few programs enter
are imported on first use, so that ``import holdfast`` stays fast.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.checkpoint.arguments import (
    check_by,
    check_flag,
    check_key,
    check_limit,
    check_new_tag,
    check_progress,
    check_target,
    checked_event_retention,
    checked_retention,
    checked_tag,
    id_of_checkpoint,
    one_workflow_name,
    optional_run_id_of,
    run_id_of,
)
from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.inbox import GivenAnswers, cancel_run, leave_answers, leave_message
from holdfast.checkpoint.maintenance.prune import (
    PruneReport,
    delete_checkpoint,
    delete_run,
    prune_all,
    prune_one,
)
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.read.browser import CheckpointBrowser
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import LatestManifests
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.receipts import Receipt
from holdfast.checkpoint.retention import EventRetention, Retention
from holdfast.checkpoint.run_info import (
    RunInfo,
    begin_behind,
    count_runs,
    list_runs,
    make_run_query,
    run_info,
)
from holdfast.checkpoint.run_logs import RunLogs
from holdfast.checkpoint.store import Head, Store
from holdfast.engine.status import RunStatus
from holdfast.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from holdfast.checkpoint.diff.difference import CheckpointDiff
    from holdfast.checkpoint.events.events import WorkflowEvent
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring
    from holdfast.checkpoint.keys.sealed_store import SealedStore
    from holdfast.checkpoint.maintenance.old_runs import PruneRunsReport
    from holdfast.checkpoint.maintenance.problems import VerifyReport
    from holdfast.checkpoint.maintenance.repair import RepairReport
    from holdfast.checkpoint.maintenance.statistics import StorageStatistics
    from holdfast.checkpoint.maintenance.vacuum import VacuumReport
    from holdfast.checkpoint.pending_requests import RequestRecord
    from holdfast.checkpoint.transfer.run_copy import CopyReport
    from holdfast.checkpoint.upgrade import UpgradeReport, WorkflowBuild

_INTERNAL = frozenset({"catalog", "run_logs"})
"""Attributes of ``CheckpointStorage`` for other parts of Holdfast, which ``dir`` leaves out."""


class CheckpointStorage:
    """A store as users hold it: its runs and checkpoints can be listed, loaded, answered, checked and removed.

    Made as ``InMemoryCheckpointStorage``, ``FileCheckpointStorage``, ``SqliteCheckpointStorage``, by ``open_storage``,
    or for a store of your own as ``CheckpointStorage(store)``. All of them take ``keys``, a ``Keyring`` under which
    everything is encrypted and authenticated, and with keys an ``anchor``, a file or an object that remembers the
    newest head of each run, so that an older copy of the store is noticed. A store of your own that gets keys is made
    with ``keyed=True``.

    >>> import asyncio
    >>> from holdfast import open_storage
    >>> async def main():
    ...     async with open_storage("memory:") as storage:
    ...         return await storage.list_checkpoints()
    >>> asyncio.run(main())
    []
    """

    outlives_process = True
    """False if its runs are gone with the process."""

    def __init__(
        self,
        store: Store,
        retention: Retention | None = None,
        *,
        keys: Keyring | None = None,
        anchor: Anchor | str | os.PathLike[str] | None = None,
    ) -> None:
        self._sealed = _seal(store, keys, anchor)
        self.catalog = RunCatalog(store if self._sealed is None else self._sealed)
        """Finds runs and checkpoints; for workflows that resume runs."""
        self.run_logs = RunLogs(self.catalog, checked_retention(retention))
        """Opens the logs of runs; for workflows that drive them."""
        self._browser = CheckpointBrowser(self.catalog)
        self._latest = LatestManifests()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _INTERNAL)

    @property
    def store(self) -> Store:
        """The store beneath."""
        return self.catalog.store

    @property
    def read_only(self) -> bool:
        """True if the storage was opened with ``read_only=True``: what would write is refused."""
        return bool(getattr(self.store, "read_only", False))

    def _check_writable(self, verb: str) -> None:
        """Raise ``StorageError`` if the storage is read-only."""
        if self.read_only:
            self.store.refuse(repr(verb))  # type: ignore[attr-defined]

    @property
    def counters(self) -> Counters:
        """Numbers of commits, encoded values, blobs and more since the storage was made."""
        return self.catalog.counters

    @property
    def retention(self) -> Retention | None:
        """The retention of runs that are driven with this storage; None leaves it to each run."""
        return self.run_logs.retention

    @retention.setter
    def retention(self, retention: Retention | None) -> None:
        self.run_logs.retention = checked_retention(retention)

    @property
    def event_retention(self) -> EventRetention:
        """The events that are kept of runs which are driven with this storage, for ``watch``; it can be set."""
        return self.run_logs.event_retention

    @event_retention.setter
    def event_retention(self, retention: EventRetention) -> None:
        self.run_logs.event_retention = checked_event_retention(retention)

    async def open(self) -> None:
        """Make sure that the store is there and can be used; every other method does so by itself."""
        await self.store.open()

    async def close(self) -> None:
        """Release files and threads; everything that was committed stays."""
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # Looking at runs and checkpoints.

    async def list_runs(
        self,
        workflow_name: str | None = None,
        status: RunStatus | str | None = None,
        interrupted: bool | None = None,
        limit: int | None = 100,
        after: str | RunInfo | None = None,
        *,
        newest_first: bool = False,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        text: str | None = None,
        forked_from: str | None = None,
    ) -> list[RunInfo]:
        """Return the runs, oldest first by ``created``, or with ``newest_first`` the last ``updated`` first.

        ``after`` is the last run of the page before, or its id. Give the run itself where runs may move between pages:
        it knows where it was listed; an id means the place where that run is now. ``..._after`` includes its time,
        ``..._before`` does not; times have a time zone. ``text`` is looked for in run ids, workflow names, tags and
        reasons, in upper and lower case (``str.casefold``), never in values. ``forked_from`` is the id of a run: only
        forks of it are listed.
        """
        check_limit(limit)
        check_flag("newest_first", newest_first)
        times = (created_after, created_before, updated_after, updated_before)
        query = await make_run_query(self.catalog, workflow_name, status, times, text, forked_from)
        query = query._replace(limit=limit, newest=newest_first)
        if after is not None:
            query = await begin_behind(self.catalog, query, after)
        return await list_runs(self.store, query, interrupted)

    async def get_run(self, run_id: str) -> RunInfo:
        """Return the run with this id; raise ``RunNotFound`` if there is none."""
        return await run_info(self.store, await self.catalog.head(run_id))

    async def count_runs(
        self,
        workflow_name: str | None = None,
        status: RunStatus | str | None = None,
        interrupted: bool | None = None,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        text: str | None = None,
        forked_from: str | None = None,
    ) -> int:
        """Return the number of runs that ``list_runs`` would list with these arguments and without a limit."""
        times = (created_after, created_before, updated_after, updated_before)
        query = await make_run_query(self.catalog, workflow_name, status, times, text, forked_from)
        return await count_runs(self.store, query, interrupted)

    async def list_requests(
        self,
        workflow_name: str | None = None,
        run_id: str | None = None,
        limit: int | None = 100,
        after: str | RequestRecord | None = None,
    ) -> list[RequestRecord]:
        """Return the requests that wait for an answer, those that were asked first before others.

        Of all runs, of those of a workflow, or of one run, but not of runs that were cancelled. ``after`` is the last
        record of the page before, or its ``cursor``. The classes of the workflows need not be here: data is plain
        JSON, and a JSON Schema describes the answer. A damaged run is left out and logged, but raises where it is the
        one that is asked for.
        """
        from holdfast.checkpoint.pending_requests import list_requests

        check_limit(limit)
        return await list_requests(self.catalog, workflow_name, optional_run_id_of(run_id), limit, after)

    async def list_checkpoints(
        self,
        workflow_name: str | None = None,
        run_id: str | None = None,
        limit: int | None = None,
        after: str | CheckpointInfo | None = None,
        *,
        workflow_id: str | None = None,
        values: bool = False,
    ) -> list[Checkpoint]:
        """Return checkpoints, oldest first; ``after`` is the last one of the page before, or its id.

        ``workflow_id`` is a synonym of ``workflow_name``. A page of one run reads what it shows, not the whole run,
        unless the run has retention. With ``values`` they can be read at once, as of one that ``load`` gives: all
        records and blobs of the page are read for it, each once. A damaged run is left out of the list of all runs and
        logged, but raises with ``run_id``.
        """
        check_limit(limit)
        workflow_name = one_workflow_name(workflow_name, workflow_id)
        cursor = None if after is None else id_of_checkpoint(after)
        if run_id is None:
            return await self._browser.list_of_runs(workflow_name, cursor, limit, values)
        head = await self.catalog.head(run_id)
        return await self._browser.list_of_run(head, workflow_name, cursor, limit, values)

    async def get_latest(
        self, workflow_name: str | None = None, run_id: str | None = None
    ) -> Checkpoint | None:
        """Return the checkpoint that a run stands on: that run, or the one of this workflow that moved last."""
        return await self._browser.latest(workflow_name, optional_run_id_of(run_id))

    async def load(
        self, checkpoint_id: str | CheckpointInfo, values: bool = True, *, plain: bool = False
    ) -> Checkpoint:
        """Return a checkpoint with its values; without them they can be read one by one with ``read_state``.

        With ``plain`` values are plain JSON, as trees with the names of their types, so the classes of the workflow
        need not be here; docs/reference/json-forms.md describes them.
        """
        check_flag("plain", plain)
        return await self._browser.load(id_of_checkpoint(checkpoint_id), values, plain)

    async def draw_tree(self, run_id: str, ascii: bool = False, *, sizes: bool = False) -> str:
        """Draw the checkpoints of a run as a tree of text, with the run that it was forked from and all forks of these.

        Where nothing but supersteps happened, many checkpoints are one line. ``ascii`` draws without box characters,
        ``sizes`` adds the bytes that each checkpoint added.
        """
        check_flag("sizes", sizes)
        return await self._browser.draw_tree(await self.catalog.head(run_id), ascii, sizes)

    async def diff(
        self, checkpoint_a: str | CheckpointInfo, checkpoint_b: str | CheckpointInfo
    ) -> CheckpointDiff:
        """Return the difference between two checkpoints, of any runs and branches.

        Values that both have are not read, however big they are. The result is data, and text by ``str``.
        """
        from holdfast.checkpoint.diff.comparison import diff_checkpoints

        return await diff_checkpoints(
            self.catalog, id_of_checkpoint(checkpoint_a), id_of_checkpoint(checkpoint_b)
        )

    # Reaching a run that someone else may drive.

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        key: str | None = None,
        by: str | None = None,
    ) -> RunInfo:
        """Answer pending requests of a run, all or none, from any process; they are durable when this returns.

        Whoever drives the run takes the answers at its next checkpoint. If nobody does, they wait until the run is
        resumed: what this returns says how it stands. Raises ``RequestAlreadyAnswered`` if someone was faster.
        ``by`` says who answers. A ``key`` makes it once in the life of the run: the same answers with that key change
        nothing a second time, and others with that key are an error.

        Where the type of an answer is not known, the answer is plain JSON that fits the schema of the request, else
        ``InvalidResponse`` is raised. Whoever drives the run converts it; if the type refuses it, the request is asked
        again, with an ``UnusableAnswer`` warning.
        """
        self._check_writable("respond")
        if not isinstance(responses, Mapping):
            raise WrongType(
                f"responses are a dict of request ids and answers, not a {type(responses).__name__}"
            )
        if not responses:
            raise InvalidArgument(f"no response was given to run {run_id}; pass {{request_id: answer}}")

        check_key(key)
        given = GivenAnswers(responses, check_by(by), key)

        async def leave() -> Head:
            head = await self.catalog.head(run_id)
            encoder = self.catalog.encoder_for(head)
            blobs = self.catalog.blobs(head.family)
            return await leave_answers(self.store, head, blobs, encoder, given, self._latest)

        return await run_info(self.store, await steadily(leave))

    async def send(
        self,
        run_id: str,
        message: Any,
        target_id: str | None = None,
        *,
        key: str | None = None,
        by: str | None = None,
    ) -> RunInfo:
        """Send a further message into a run from any process: to its start executor, or to ``target_id``.

        It is durable when this returns. Whoever drives the run takes it before the next superstep; if nobody does, it
        waits until a ``Host`` or ``resume`` goes on with the run, whatever its status: what this returns says how it
        stands. A ``key`` makes it once in the life of the run: a message that was sent with that key before is not sent
        again, and another one with that key is an error. A message that no executor takes is dropped with a
        ``DeadLetter`` warning. ``by`` says who sent it.
        """
        self._check_writable("send")
        key, by, target_id = check_key(key), check_by(by), check_target(target_id)
        head = await self.catalog.head(run_id)
        value = self.catalog.encoder_for(head)(message, "message")
        return await run_info(self.store, await leave_message(self.store, head, value, target_id, key, by))

    async def cancel(self, run_id: str, *, key: str | None = None, by: str | None = None) -> RunInfo:
        """Cancel a run from any process: at once if nobody drives it, else whoever does ends it soon.

        A run that is over stays as it is. ``by`` says who cancels it (``RunInfo.by``). A ``key`` makes it once in the
        life of the run: a second call with that key changes nothing, whatever the run did since.
        """
        self._check_writable("cancel")
        by = check_by(by)
        receipt = None if check_key(key) is None else Receipt.of("cancel", str(key), None)
        head = await self.catalog.head(run_id)
        return await run_info(self.store, await cancel_run(self.store, head, by, receipt))

    def watch(
        self, run_id: str, after: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[WorkflowEvent, None]:
        """Give the durable events of a run, from any process: those that are kept, then each as it comes true.

        Ends when the run rests, unless ``follow`` waits on. Each event has an ``event_id``: ``after`` takes
        that of the last one that was seen. Where events are no longer kept, a ``WorkflowWarningEvent`` with
        ``MissedEvents`` stands in their place. Values of types that are unknown in this process are plain JSON, and
        events of unknown classes are ``PlainEvent``.
        """
        from holdfast.checkpoint.events.watch import EventPosition, watch_events

        check_flag("follow", follow)
        return watch_events(self.catalog, run_id_of(run_id), EventPosition.of(after), follow)

    async def list_events(
        self, run_id: str, after: str | None = None, limit: int = 1000
    ) -> list[WorkflowEvent]:
        """Return durable events of a run as ``watch`` gives them, but only those that are there now; may be empty.

        At most ``limit`` of them, behind the one with the id ``after``; a ``MissedEvents`` warning comes on top.
        """
        from holdfast.checkpoint.events.watch import EventPosition, EventWatch

        check_limit(limit)
        position = EventPosition.of(after)
        return await EventWatch(self.catalog, await self.catalog.head(run_id), position).read_page(limit)

    async def check_upgrade(
        self, workflow: WorkflowBuild, *, progress: Progress | None = None
    ) -> UpgradeReport:
        """Say which stored runs a build of a workflow can go on with, which not and why; nothing is changed.

        Looks at all runs with the name of the workflow but for those that are COMPLETED. ``progress`` is told how many
        runs of how many are done.
        """
        from holdfast.checkpoint.upgrade import check_upgrade

        check_progress(progress)
        return await check_upgrade(self, self.store, workflow, progress)

    # Looking after the storage.

    async def verify(self, run_id: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Check that everything stored is what was stored: a report, never an error about what it finds.

        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        from holdfast.checkpoint.maintenance.verify import verify_store

        check_progress(progress)
        return await verify_store(self.store, self.catalog.blobs, optional_run_id_of(run_id), progress)

    async def repair(
        self, run_id: str | None = None, *, progress: Progress | None = None, dry_run: bool = False
    ) -> RepairReport:
        """Repair what can be repaired, and say what cannot; with ``dry_run`` only say it.

        Make a copy of the storage before. Each run is repaired at once or not at all, so this may be interrupted
        anywhere; one that is driven now is left alone. ``progress`` is told how many runs of how many are done.
        """
        self._check_writable("repair")
        from holdfast.checkpoint.maintenance.repair import repair_store

        check_progress(progress)
        check_flag("dry_run", dry_run)
        return await repair_store(self.store, self.counters, optional_run_id_of(run_id), progress, dry_run)

    async def statistics(
        self, *, progress: Progress | None = None, measure_blobs: bool = False
    ) -> StorageStatistics:
        """Count what takes the room: by workflow, by run, and by scope of what runs hold where they stand.

        Reads records, page by page, and no blobs. ``measure_blobs`` reads those too, to say what they take as stored.
        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        from holdfast.checkpoint.maintenance.statistics import count_usage

        check_progress(progress)
        return await count_usage(self.store, self.catalog.blobs, progress, measure_blobs)

    async def tag(
        self,
        checkpoint_id: str | CheckpointInfo,
        *tags: str,
        remove: Sequence[str] = (),
        key: str | None = None,
        by: str | None = None,
    ) -> None:
        """Give a checkpoint tags, beside those that it has; one with a tag is kept, whatever the retention says.

        ``by`` says who gives them (``CheckpointInfo.tagged_by``); a tag that is there keeps who gave it first. Those to
        ``remove`` go in the same step. A ``key`` makes it once in the life of the run: a second call with that key
        changes nothing, and one with other tags is an error.
        """
        self._check_writable("tag")
        place = id_of_checkpoint(checkpoint_id)
        if isinstance(remove, str):
            raise InvalidArgument(f"remove={remove!r}: must be a list of tags, like [{remove!r}]")
        given, gone = tuple(map(check_new_tag, tags)), tuple(map(checked_tag, remove))
        if both := sorted({*given} & {*gone}):
            raise InvalidArgument(f"tag {both[0]!r} is both given and removed; say one of them")
        receipt = None if check_key(key) is None else Receipt.of("tag", str(key), [place, given, gone])
        await self.catalog.tag(place, given, gone, check_by(by), receipt)

    async def untag(self, checkpoint_id: str | CheckpointInfo, *tags: str) -> None:
        """Take tags from a checkpoint, all of them if none is named."""
        self._check_writable("untag")
        await self.catalog.tag(id_of_checkpoint(checkpoint_id), (), tags or None)

    async def prune(
        self,
        retention: Retention | None = None,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Remove the checkpoints that are not kept, and the values that nobody needs any more.

        Without ``retention`` each run has its own. With ``dry_run`` nothing is removed, and the report says what would
        be. May be interrupted anywhere. ``progress`` is told how many runs of how many are done. Damaged runs are left
        out and named in the report; values that they may need stay. One that ``run_id`` asks for raises.
        """
        self._check_writable("prune")
        checked_retention(retention)
        check_flag("dry_run", dry_run)
        check_progress(progress)
        if run_id is None:
            return await prune_all(self.catalog, retention, dry_run, progress)
        return await prune_one(self.catalog, await self.catalog.head(run_id), retention, dry_run, progress)

    async def prune_runs(
        self,
        older_than: timedelta = timedelta(days=30),
        status: RunStatus | str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PruneRunsReport:
        """Remove whole runs that are over, and whose last change is older, with the values that nobody else needs.

        Over are those that are COMPLETED, FAILED, CANCELLED or STOPPED; ``status`` narrows it to one of these. A run
        stays if it moves on, has a tag or letters that wait, or is damaged; so do forks of a removed one. With
        ``dry_run`` the report says what would go. May be interrupted anywhere. ``progress`` is told how many old runs
        of how many are done.
        """
        self._check_writable("prune_runs")
        from holdfast.checkpoint.maintenance.old_runs import OldRuns, prune_old_runs

        check_flag("dry_run", dry_run)
        check_progress(progress)
        return await prune_old_runs(self.catalog, OldRuns.of(older_than, status), dry_run, progress)

    async def vacuum(self, progress: Progress | None = None) -> VacuumReport:
        """Give the room that is not used any more back to the file system; return the bytes before and after.

        SQLite writes anew what is in use: readers go on, and writers wait for it; the report says for how long. It is
        refused, and changes nothing, if that would take longer than they wait, or if the disk has too little room. A
        directory loses temporary files, values without a run and lines that no longer count. Memory has nothing to
        give. It may be interrupted anywhere. ``progress`` is called with how much is done, and of how much.
        """
        from holdfast.checkpoint.maintenance.vacuum import vacuum_store

        self._check_writable("vacuum")
        check_progress(progress)
        return await vacuum_store(self.store, progress)

    async def delete(self, checkpoint_id: str | CheckpointInfo) -> None:
        """Remove one checkpoint; those that follow it stay. The one on which its run stands cannot be removed."""
        self._check_writable("delete")
        await delete_checkpoint(self.catalog, id_of_checkpoint(checkpoint_id))

    async def delete_run(self, run_id: str) -> None:
        """Remove a run with all its checkpoints; forks of it stay. One that is driven raises ``RunTaken``."""
        self._check_writable("delete_run")
        await delete_run(self.catalog, await self.catalog.head(run_id))

    async def rekey(self, new_keys: Keyring) -> None:
        """Lock a storage under keys with another keyring, in one step: its first key opens the storage from now on.

        Ids do not change, and runs go on meanwhile: give all processes the keyring before, as ``Keyring.rotate`` makes
        it. What is written later is encrypted with a new key of the store. What was written before is not encrypted
        anew: copy it to a new storage with ``copy_to`` if somebody may have both the old key and a copy of the store.
        """
        self._check_writable("rekey")
        from holdfast.checkpoint.keys.keyring import check_keys

        if self._sealed is None:
            raise InvalidArgument("rekey: this storage has no keys; copy its runs to one that has: 'copy_to'")
        await self._sealed.rekey(check_keys(new_keys))

    @property
    def _keys(self) -> Keyring | None:
        return None if self._sealed is None else self._sealed.keyring

    # Moving runs to other storages.

    async def export_run(
        self,
        run_id: str,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        *,
        plain: bool = False,
    ) -> RunInfo:
        """Write a run to one new file, with its whole history, its journal and the letters that wait for it.

        The run may move meanwhile: the file has it as it stood at one moment, which is what this returns. The file
        gets its name when it is complete. ``progress`` is called with how much is done, and of how much. That of a
        storage under keys is encrypted with its keyring, unless ``plain`` is true.
        """
        from holdfast.checkpoint.transfer.run_transfer import export_run

        check_flag("plain", plain)
        check_progress(progress)
        keys = None if plain else self._keys
        head = await export_run(self.store, run_id_of(run_id), path, progress, keys)
        return await run_info(self.store, head)

    async def import_run(
        self,
        path: str | os.PathLike[str],
        run_id: str | None = None,
        progress: Progress | None = None,
        *,
        plain: bool = False,
    ) -> RunInfo:
        """Bring in a run from a file that ``export_run`` made: all of it, or nothing where anything is wrong with it.

        It has the same ids here, and is not driven: one that was RUNNING is STOPPED. ``run_id`` makes sure that the
        file holds that run; a run cannot get another id. Raises ``RunExists``, unless all that the file holds is here.
        A storage under keys takes files that were encrypted with one of its keys, and others only with ``plain``.
        """
        self._check_writable("import_run")
        from holdfast.checkpoint.transfer.run_transfer import import_run

        check_flag("plain", plain)
        check_progress(progress)
        wanted, keys = optional_run_id_of(run_id), self._keys
        head = await import_run(self.store, path, wanted, progress, keys, plain or keys is None)
        return await run_info(self.store, head)

    async def copy_to(
        self, other: CheckpointStorage, progress: Progress | None = None, run_id: str | None = None
    ) -> CopyReport:
        """Copy all runs, or one, to another storage of any kind, with everything that ``export_run`` would take along.

        Runs that are there already are brought up to date, and those that moved on there are left alone and named in
        the report. It may be interrupted and called again. ``progress`` is told how many runs of how many are done.
        """
        from holdfast.checkpoint.transfer.run_copy import copy_runs

        if not isinstance(other, CheckpointStorage):
            raise WrongType(
                f"other={other!r}: give the storage to copy to, like SqliteCheckpointStorage('copy.db')"
            )
        check_progress(progress)
        other._check_writable("copy_to")
        return await copy_runs(self.store, other.store, optional_run_id_of(run_id), progress)


def _seal(
    store: Store, keys: Keyring | None, anchor: Anchor | str | os.PathLike[str] | None
) -> SealedStore | None:
    """Return a store under keys; None if there are none."""
    if keys is not None:
        from holdfast.checkpoint.keys.sealed_store import seal_store

        return seal_store(store, keys, anchor)
    if anchor is not None:
        raise InvalidArgument("anchor= needs keys=: without them anyone can make heads that seem to be new")
    return None
