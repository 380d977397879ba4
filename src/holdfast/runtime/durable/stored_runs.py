"""Runs that are stored: new, resumed, restored or forked; and who may drive one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from holdfast.checkpoint.arguments import check_by, check_key, id_of_checkpoint
from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.inbox import start_letters, was_started_with
from holdfast.checkpoint.ownership import (
    Claim,
    holder_of,
    is_driven,
    is_held,
    process_of,
    this_process,
    wait_for_release,
)
from holdfast.checkpoint.read.loader import Loaded
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Commit, Expected, Head, Store
from holdfast.checkpoint.upgrade import UpgradeCheck, UpgradeVerdict
from holdfast.checkpoint.values import restored
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.event_rows import status_row
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import begin
from holdfast.engine.value import Value
from holdfast.errors import (
    GraphChanged,
    GraphError,
    HeadMoved,
    HoldfastError,
    InvalidArgument,
    RunExists,
    RunPoisoned,
    RunTaken,
)
from holdfast.ids import RunId
from holdfast.runtime.config import NO_RUN_CONTEXT, RunContext, WorkflowDefinition
from holdfast.runtime.durable.fork_edits import ForkEditor, ForkEdits
from holdfast.runtime.durable.resume_point import NewGraph, RunLoader, draft_start, fetch_values
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.run.run import Answers, Run
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
        opening = () if key is None else start_letters(self._encoder(message, "message"), key)
        recorder = self._loader.record_new(run_id, [given], opening)
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
        return await was_started_with(self._catalog.store, run_id, self._encoder(message, "message"), key)

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

    async def resumed_run(
        self,
        checkpoint: str | CheckpointInfo | None,
        run_id: str | None,
        allow_graph_change: bool,
        take_over: bool = False,
        responses: Answers | None = None,
        by: str | None = None,
    ) -> Run:
        """Return a run that goes on from its head, or from a checkpoint of it, with answers to its requests.

        A run that moves is taken over only once it is known that it can go on here; then all is read again.
        """
        self._graph_may_change = allow_graph_change
        check_by(by)

        async def look() -> tuple[RunId, ResumePoint]:
            if checkpoint is None:
                assert run_id is not None
                head = await self._catalog.head(run_id)
                seq = head.seq
            else:
                head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            at_head = seq == head.seq and checkpoint is None
            resumed = "run_id=..." if checkpoint is None else "checkpoint"
            head = await check_undriven(self._catalog.store, head, take_over, resumed)
            seq = head.seq if at_head else seq
            return head.run_id, await self._loader.resume(head, seq, allow_graph_change)

        async def resumed(claim: Claim | None = None) -> tuple[Run, Claim, Head]:
            found, point = await steadily(look)
            recorder = point.recorder
            assert recorder is not None, "stored runs have one"
            recorder.sign(by)
            if claim is not None:
                recorder.use_claim(claim)
            run = self._run(found, point)
            if responses is not None and responses != {}:
                run.take(responses, by)
            return run, recorder.claim, recorder.head

        run, claim, head = await resumed()
        if not take_over:
            return run
        try:
            return (await resumed(claim))[0] if await self._take_away(head, claim) else run
        except BaseException:
            claim.release()  # if the run was taken away, it is interrupted now
            raise

    async def _take_away(self, looked_at: Head, claim: Claim) -> bool:
        """Take a run away from whoever drives it now; return True if the run moved since it was looked at."""
        driver = await self.driven_here(looked_at.run_id)
        stand_still = nullcontext if driver is None else driver.stand_still
        return await take_away(self._catalog.store, looked_at, claim, stand_still)

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
                reason = (
                    str(error) if not allow_graph_change or not isinstance(error, GraphChanged) else reason
                )
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

    async def forked_run(
        self,
        checkpoint: str | CheckpointInfo,
        edits: Mapping[Any, Any] | ForkEdits,
        run_id: RunId,
        allow_graph_change: bool,
        by: str | None = None,
    ) -> Run:
        """Return a new run that begins at a checkpoint of another one, edited."""
        check_by(by)
        given = ForkEdits.of(edits)

        async def look() -> tuple[Head, Loaded, Snapshot, NewGraph]:
            head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            _, loaded, blobs = await self._loader.load(head, seq)
            return head, loaded, *await self._loader.restore_snapshot(loaded, blobs, allow_graph_change)

        head, loaded, snapshot, new = await steadily(look)
        first, snapshot = self._loader.repeat_checkpoint(Cause.FORK, loaded, snapshot, new)
        editor = ForkEditor(self._workflow, self._encoder, by)
        more, snapshot = editor.draft(given, first[-1], snapshot)
        first += more
        first += draft_start(first[-1], snapshot)
        recorder = self._loader.record_fork(run_id, head, loaded, first)
        recorder.sign(by)
        return self._run(run_id, ResumePoint(snapshot, recorder, True))

    def _check_name(self, head: Head) -> None:
        if head.workflow_name != self._workflow.name:
            raise GraphError(
                f"run {head.run_id} belongs to workflow {head.workflow_name!r}, not to {self._workflow.name!r}; resume "
                f"it with that workflow, and give workflows a name so that it stays the same"
            )


# Ownership: one process at a time drives a run, and the store decides which.

MOST_TAKEOVERS = 5
"""The number of processes in a row that may die with a run before its next checkpoint; then it is given up."""

_MOST_TRIES = 200
"""The number of tries to take a run away from an owner that commits meanwhile; two to five are usual."""

StandStill: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Keeps the owner of a run in this event loop from committing for a while."""


async def check_undriven(store: Store, head: Head, take_over: bool, resumed: str = "run_id=...") -> Head:
    """Return the head of a run that nobody drives; with ``take_over`` also of one that is driven.

    Raises ``RunTaken`` if another object or process drives the run, ``RunPoisoned`` if all that tried died.
    ``resumed`` is the argument of ``resume`` that the error shows.
    """
    if head.status is not RunStatus.RUNNING or take_over:
        return head
    if (
        process_of(head.owner) == this_process()
        and is_held(head.owner)
        and await wait_for_release(head.owner)
    ):
        head = await store.head(head.run_id) or head
    if await is_driven(store, head):
        raise RunTaken(
            f"run {head.run_id} is driven by {_name_owner(head.owner)}; wait until it is over, leave answers for it "
            f"with 'storage.respond', or take it away from there with 'workflow.resume({resumed}, take_over=True)'"
        )
    if head.takeovers >= MOST_TAKEOVERS:
        await _poison(store, head)
    return head


async def take_away(store: Store, looked_at: Head, claim: Claim, stand_still: StandStill) -> bool:
    """Make a claim the owner of a run that moves; return True if the run moved since it was looked at.

    From then on its owner before commits nothing more, so that the run stands still for whoever goes on with it. To
    read all of a run first, and to become its owner with the first commit, would be too slow: an owner that lives
    commits again meanwhile. It may do so between the two calls here as well, but not every time; one in this event
    loop would, so it stands still for all tries but the first. That one waits for nobody: its commit may hang.
    """
    await store.join()
    owner = ""
    for number in range(_MOST_TRIES):
        async with stand_still() if number else nullcontext():
            head = await store.head(looked_at.run_id)
            if head is None or head.status is not RunStatus.RUNNING:  # perhaps it came to its end since
                known = (looked_at.checkpoint_id, looked_at.token, looked_at.status)
                return head is None or (head.checkpoint_id, head.token, head.status) != known
            owner = head.owner
            taken = head._replace(token=head.token + 1, owner=claim.name)
            try:
                await store.commit(Commit(taken, Expected(head.checkpoint_id, head.token)))
            except HeadMoved:
                continue
            return True
    raise RunTaken(
        f"run {looked_at.run_id} is driven by {_name_owner(owner)}, which committed {_MOST_TRIES} times while the run "
        f"was to be taken away from there; try again, or stop it there"
    )


async def _poison(store: Store, head: Head) -> None:
    reason = (
        f"{head.takeovers} processes that took the run over died, or were killed, before its next checkpoint"
    )
    failed = head._replace(
        status=RunStatus.FAILED, token=head.token + 1, owner="", takeovers=0, reason=f"RunPoisoned: {reason}"
    )
    events = (await status_row(store, failed),)
    try:
        await store.commit(Commit(failed, Expected(head.checkpoint_id, head.token), events=events))
    except HeadMoved as error:
        raise RunTaken(f"run {head.run_id} was taken, or given up, by another process just now") from error
    raise RunPoisoned(
        f"run {head.run_id} is FAILED now: {reason}, so its next superstep probably kills whoever runs it (too much "
        f"memory, a crash in native code?). Find out why, then resume it once more, or from an earlier checkpoint"
    )


def _name_owner(owner: str) -> str:
    process = process_of(owner)
    if process == this_process():
        return (
            "another run object of this process ('workflow.start(..., if_exists=\"attach\")' gives that one)"
        )
    host, pid, _ = process.rsplit(":", 2) if process.count(":") >= 2 else (process, "?", "")
    return f"process {pid} on {host.rpartition('/')[2] or host}"
