"""Runs that are stored: new, resumed, restored or forked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from holdfast.checkpoint.arguments import check_by, check_key, id_of_checkpoint
from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.inbox import message_receipt
from holdfast.checkpoint.ownership import Claim, holder_of
from holdfast.checkpoint.read.loader import Loaded
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.receipts import Receipt, resume_receipt, was_called
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.upgrade import UpgradeCheck, UpgradeVerdict
from holdfast.checkpoint.values import restored
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import begin
from holdfast.engine.value import Value
from holdfast.errors import (
    AlreadyResumed,
    GraphChanged,
    GraphError,
    HoldfastError,
    InvalidArgument,
    RunExists,
)
from holdfast.ids import RunId
from holdfast.runtime.config import NO_RUN_CONTEXT, ForkCall, ResumeCall, RunContext, WorkflowDefinition
from holdfast.runtime.durable.fork_edits import ForkEditor, ForkEdits
from holdfast.runtime.durable.resume_point import NewGraph, RunLoader, draft_start, fetch_values
from holdfast.runtime.durable.run_owner import check_undriven, take_away
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.run.run import Run
from holdfast.runtime.step.runner import ResumePoint, Runner


class StoredRuns:
    """Makes runs of one workflow in one storage: new, resumed, restored or forked; all get the same run context."""

    def __init__(
        self,
        workflow: WorkflowDefinition,
        storage: CheckpointStorage,
        codec: Codec,
        run_context: RunContext = NO_RUN_CONTEXT,
    ) -> None:
        # The storage of these runs, which may be another than that with which the workflow was built.
        self._workflow = workflow._replace(config=workflow.config._replace(storage=storage))
        self._catalog = storage.catalog
        self._encoder = self._catalog.encoder(codec, workflow.config.limits.max_value_size)
        self._loader = RunLoader(workflow, storage, self._encoder)
        self._run_context = run_context
        self._graph_may_change = False

    def new_run(self, message: Any, run_id: RunId, by: str | None = None) -> Run:
        """Return a run with this input; its first checkpoint is made when it is opened."""
        snapshot = self._begin(message)
        given = self._draft_input(snapshot, RunStatus.RUNNING, by)
        return self._run(run_id, ResumePoint(snapshot, self._loader.record_new(run_id, [given])))

    async def submit(
        self, message: Any, run_id: RunId, by: str | None = None, key: str | None = None
    ) -> None:
        """Store a run with this input that waits for the present moment, so that a host goes on with it."""
        given = self._draft_input(self._begin(message), RunStatus.WAITING, by)
        key = check_key(key)
        receipt = None if key is None else self._receipt_of_start(message, key)
        recorder = self._loader.record_new(run_id, [given], receipt)
        recorder.sleep_until(self._workflow.environment.microseconds()())
        try:
            await recorder.open(moves=False, superstep=1)
        finally:
            recorder.release_claim()

    def _draft_input(self, snapshot: Snapshot, status: RunStatus, by: str | None) -> CheckpointDraft:
        return CheckpointDraft(
            Phase.START,
            1,
            Cause.INPUT,
            status,
            given=snapshot,
            fingerprint=self._workflow.graph.fingerprint,
            graph=self._loader.describe_graph(),
            by=check_by(by),
        )

    def _begin(self, message: Any) -> Snapshot:
        workflow = self._workflow
        return begin(workflow.graph, workflow.name, message, workflow.config.limits, self._encoder)

    async def has_run(self, run_id: str) -> bool:
        """Return True if there is such a run of this workflow; raise ``GraphError`` if it is of another one."""
        head = await self._catalog.head_or_none(run_id)
        if head is not None:
            self._check_name(head)
        return head is not None

    async def was_submitted(self, message: Any, run_id: RunId, key: str) -> bool:
        """Return True if a run was submitted with this key and input; raise if the key had another input."""
        self._check_name(await self._catalog.head(run_id))
        return await was_called(self._catalog.store, run_id, self._receipt_of_start(message, key))

    def _receipt_of_start(self, message: Any, key: str) -> Receipt:
        """Return the receipt of the input of a run: the same as if that were sent to the run with the key."""
        return message_receipt(self._encoder(message, "message"), None, key)

    async def has_same_input(self, message: Any, run_id: str) -> bool:
        """Return True if there is such a run, with this input; raise ``RunExists`` if its input is another."""
        given = self._begin(message).deliveries[0].value

        async def look() -> tuple[bool, Value | None]:
            head = await self._catalog.head_or_none(run_id)
            if head is None:
                return False, None
            self._check_name(head)
            _, loaded, blobs = await self._loader.load(head, head.seq)
            if loaded.manifest.input is None:
                return True, None
            stored = restored(loaded.manifest.input, self._encoder, blobs)
            await fetch_values([stored])
            return True, stored

        found, stored = await steadily(look)
        if found and (stored is None or not self._is_same(given, stored)):
            raise RunExists(
                f"run {run_id!r} is in this storage already, with another input; choose another id, or go on with that "
                f"run by 'workflow.resume(run_id=...)'"
            )
        return found

    def _is_same(self, given: Any, stored: Any) -> bool:
        """Compare two values as today's classes read them: these may have changed since one was stored."""

        def read_now(value: Any) -> bytes:
            return self._encoder.encode(self._encoder.decode(value.data))

        return given.data == stored.data or read_now(given) == read_now(stored)

    async def driven_here(self, run_id: str) -> Run | None:
        """Return the object of this process that drives a run, if there is one."""
        head = await self._catalog.head_or_none(run_id)
        driver = None if head is None or head.status is not RunStatus.RUNNING else holder_of(head.owner)
        return driver if isinstance(driver, Run) else None

    async def resumed_run(self, call: ResumeCall) -> Run:
        """Return a run that goes on from its head, or from a checkpoint of it, with answers to its requests.

        A run that moves is taken over only once it is known that it can go on here; then all is read again. Raises
        ``AlreadyResumed`` if the call has a key and was made before.
        """
        self._graph_may_change = call.allow_graph_change
        check_by(call.by)
        receipt = _receipt_of(call)
        run, claim, head = await self._resume(call, receipt)
        if not call.take_over:
            return run
        try:
            moved = await self._take_away(head, claim, partial(self._check_not_resumed, head.run_id, receipt))
            return (await self._resume(call, receipt, claim))[0] if moved else run
        except BaseException:
            claim.release()  # if the run was taken away, it is interrupted now
            raise

    async def _resume(
        self, call: ResumeCall, receipt: Receipt | None, claim: Claim | None = None
    ) -> tuple[Run, Claim, Head]:
        """Return a run that goes on as a call says, with its claim, which may own it already, and its head."""
        point = await steadily(partial(self._point_of, call, receipt))
        recorder = point.recorder
        assert recorder is not None, "stored runs have one"
        recorder.sign(call.by)
        if receipt is not None:
            recorder.use_receipt(receipt)
        if claim is not None:
            recorder.use_claim(claim)
        run = self._run(recorder.head.run_id, point)
        if call.responses is not None and call.responses != {}:
            run.take(call.responses, call.by)
        return run, recorder.claim, recorder.head

    async def _point_of(self, call: ResumeCall, receipt: Receipt | None) -> ResumePoint:
        """Return the point from which a run goes on as a call says."""
        if call.checkpoint is None:
            assert call.run_id is not None, "a call names a checkpoint or a run"
            head = await self._catalog.head(call.run_id)
            seq = None
        else:
            head, seq = await self._catalog.find(id_of_checkpoint(call.checkpoint))
        self._check_name(head)
        await self._check_not_resumed(head.run_id, receipt)
        resumed = "run_id=..." if seq is None else "checkpoint"
        head = await check_undriven(self._catalog.store, head, call.take_over, resumed)
        # Once more behind the reading of the head: so of two calls with one key only one can move it.
        await self._check_not_resumed(head.run_id, receipt)
        return await self._loader.resume(head, head.seq if seq is None else seq, call.allow_graph_change)

    async def _check_not_resumed(self, run_id: RunId, receipt: Receipt | None) -> None:
        """Raise ``AlreadyResumed`` if a call with this receipt was made, ``KeyReused`` if another with its key was."""
        if receipt is not None and await was_called(self._catalog.store, run_id, receipt):
            raise AlreadyResumed(
                f"run {run_id!r} was resumed with key={receipt.key!r} before, so nothing was done now; "
                f"'await storage.get_run({run_id!r})' shows how it stands"
            )

    async def _take_away(self, looked_at: Head, claim: Claim, check: Callable[[], Awaitable[None]]) -> bool:
        """Take a run away from whoever drives it now; return True if the run moved since it was looked at."""
        driver = await self.driven_here(looked_at.run_id)
        stand_still = nullcontext if driver is None else driver.stand_still
        return await take_away(self._catalog.store, looked_at, claim, stand_still, check)

    def _run(self, run_id: RunId, point: ResumePoint) -> Run:
        log = EventLog()
        return Run(self._workflow.name, run_id, self._runner(run_id, point, log), log, self)

    def _runner(self, run_id: RunId, point: ResumePoint, log: EventLog) -> Runner:
        return Runner(self._workflow, run_id, point, self._encoder, log, self._run_context)

    async def runner_at(
        self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog, by: str | None
    ) -> Runner:
        """Return a runner that drives a run from another checkpoint of it; ``by`` says who goes back."""
        await check_undriven(self._catalog.store, await self._catalog.head(run_id), False, "checkpoint")
        point = await self._resume_own(checkpoint, run_id)
        assert point.recorder is not None, "stored runs have one"
        point.recorder.sign(by)
        return self._runner(run_id, point, log)

    async def has_letters(self, run_id: RunId) -> bool:
        """Return True if answers or messages wait in the inbox of a run."""
        return bool(await self._catalog.store.inbox(run_id))

    async def runner_at_head(self, run_id: RunId, log: EventLog) -> Runner:
        """Return a runner that goes on with a run that nobody drives; raise ``RunTaken`` if someone does."""
        head = await check_undriven(self._catalog.store, await self._catalog.head(run_id), False)
        point = await self._loader.resume(head, head.seq, self._graph_may_change)
        return self._runner(run_id, point, log)

    async def check_upgrade(self, head: Head) -> UpgradeCheck:
        """Return if and how this build can go on with a run; nothing is changed."""

        async def look(allow_graph_change: bool) -> None:
            point = await self._loader.resume(head, head.seq, allow_graph_change)
            assert point.recorder is not None, "stored runs have one"
            await point.recorder.read_journal()

        reason = ""
        for allow_graph_change in (False, True):
            try:
                await steadily(partial(look, allow_graph_change))
            except HoldfastError as error:
                reason = str(error)
                if not isinstance(error, GraphChanged):
                    break
            else:
                verdict: UpgradeVerdict = "with a graph change" if allow_graph_change else "goes on"
                return UpgradeCheck(head.run_id, head.status, verdict, reason)
        return UpgradeCheck(head.run_id, head.status, "cannot go on", reason)

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        await self._resume_own(checkpoint, run_id)

    async def _resume_own(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> ResumePoint:
        async def look() -> ResumePoint:
            head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            if head.run_id != run_id:
                raise InvalidArgument(
                    f"checkpoint {id_of_checkpoint(checkpoint)} belongs to run {head.run_id}, not to {run_id}; begin a "
                    f"new run there with 'workflow.fork(checkpoint)'"
                )
            return await self._loader.resume(head, seq, self._graph_may_change, again=True)

        return await steadily(look)

    async def forked_run(self, call: ForkCall, run_id: RunId) -> Run:
        """Return a new run that begins at a checkpoint of another one, edited."""
        check_by(call.by)
        given = ForkEdits.of({} if call.edits is None else call.edits)

        async def look() -> tuple[Head, Loaded, Snapshot, NewGraph]:
            head, seq = await self._catalog.find(id_of_checkpoint(call.checkpoint))
            self._check_name(head)
            _, loaded, blobs = await self._loader.load(head, seq)
            return head, loaded, *await self._loader.restore_snapshot(loaded, blobs, call.allow_graph_change)

        head, loaded, snapshot, new = await steadily(look)
        first, snapshot = self._loader.repeat_checkpoint(Cause.FORK, loaded, snapshot, new)
        editor = ForkEditor(self._workflow, self._encoder, call.by)
        more, snapshot = editor.draft(given, first[-1], snapshot)
        first += more
        first += draft_start(first[-1], snapshot)
        recorder = self._loader.record_fork(run_id, head, loaded, first, call.receipt)
        recorder.sign(call.by)
        return self._run(run_id, ResumePoint(snapshot, recorder, True))

    def _check_name(self, head: Head) -> None:
        if head.workflow_name != self._workflow.name:
            raise GraphError(
                f"run {head.run_id} belongs to workflow {head.workflow_name!r}, not to {self._workflow.name!r}; resume "
                f"it with that workflow, and give workflows a name so that it stays the same"
            )


def _receipt_of(call: ResumeCall) -> Receipt | None:
    """Return the receipt of a call with a key; None for one without."""
    if check_key(call.key) is None:
        return None
    if call.responses:
        raise InvalidArgument(
            f"key={call.key!r} makes a resume once, not the answers that come with it; give these with "
            f"'storage.respond(run_id, responses, key=...)' first"
        )
    place = None if call.checkpoint is None else id_of_checkpoint(call.checkpoint)
    return resume_receipt(str(call.key), place, call.allow_graph_change, call.take_over)
