"""Runs that are stored: new, resumed, restored or forked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

from holdfast.checkpoint.arguments import id_of_checkpoint
from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.ownership import Claim, holder_of
from holdfast.checkpoint.read.loading import Loaded
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.values import restored
from holdfast.checkpoint.write.entry import Entry
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.state import Place, Put, Scope, write
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import begin
from holdfast.engine.value import Value
from holdfast.errors import GraphError, InvalidArgument, RunExists, WrongType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.state_key import StateKey
from holdfast.ids import RunId
from holdfast.runtime.durable.ownership import free_to_drive, take_away
from holdfast.runtime.durable.resume_point import NewGraph, Standing, Standings, at_hand
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.run.run import Answers, Run
from holdfast.runtime.step.runner import Runner

EditKey: TypeAlias = "tuple[str, str] | str | StateKey[Any]"
Edits: TypeAlias = Mapping[Any, Any]
"""Other values for shared state: by ``(scope_name, key)``, a ``StateKey``, or a key of the default shared scope."""


class Durable(Standings):
    """Makes runs of one workflow in one storage."""

    def new_run(self, message: Any, run_id: RunId) -> Run:
        """A run with this input; its first checkpoint is made when it is opened."""
        snapshot = begin(self._graph, self._name, message, self._limits, self._encoder)
        log = self._logs.new_log(run_id, self._name, self._encoder, self._outside, self._retention)
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

    async def has_same_input(self, message: Any, run_id: str) -> bool:
        """Whether there is such a run, with this input; raises ``RunExists`` if its input is another."""
        given = begin(self._graph, self._name, message, self._limits, self._encoder).deliveries[0].value

        async def look() -> tuple[bool, Value | None]:
            head = await self._catalog.head_or_none(run_id)
            if head is None:
                return False, None
            self._check_name(head)
            _, loaded, blobs = await self._load_log(head, head.seq)
            if loaded.manifest.input is None:
                return True, None
            stored = restored(loaded.manifest.input, self._encoder, blobs)
            await at_hand([stored])
            return True, stored

        found, stored = await steadily(look)
        if found and (stored is None or not self._is_same(given, stored)):
            raise RunExists(
                f"run {run_id!r} is in this storage already, with another input; choose another id, or go on with that "
                f"run by 'workflow.resume(run_id=...)'"
            )
        return found

    def _is_same(self, given: Any, stored: Any) -> bool:
        """Compare two values as the classes of now read them, which may have changed since one was stored."""

        def read_now(value: Any) -> bytes:
            return self._encoder.encode(self._encoder.decode(value.data))

        return given.data == stored.data or read_now(given) == read_now(stored)

    async def driven_here(self, run_id: str) -> Run | None:
        """The object of this process that drives a run, if there is one."""
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
    ) -> Run:
        """A run that goes on from where it stands, or from a checkpoint of it, with answers to its requests.

        One that moves is taken over only once it is known that it can go on here; then all is read again.
        """
        self._graph_may_change = allow_graph_change

        async def look() -> tuple[RunId, Standing]:
            if checkpoint is None:
                assert run_id is not None
                head = await self._catalog.head(run_id)
                seq = head.seq
            else:
                head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            at_head = seq == head.seq and checkpoint is None
            resumed = "run_id=..." if checkpoint is None else "checkpoint"
            head = await free_to_drive(self._catalog.store, head, take_over, resumed)
            seq = head.seq if at_head else seq
            return head.run_id, await self._standing(head, seq, allow_graph_change)

        async def resumed(claim: Claim | None = None) -> tuple[Run, Claim, Head]:
            found, standing = await steadily(look)
            recorder = standing.recorder
            if claim is not None:
                recorder.use_claim(claim)
            run = self._run(found, standing)
            if responses is not None and responses != {}:
                run.take(responses)
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
        """Take a run away from whoever drives it now; whether it stands otherwise than it was looked at."""
        driver = await self.driven_here(looked_at.run_id)
        stand_still = nullcontext if driver is None else driver.stand_still
        return await take_away(self._catalog.store, looked_at, claim, stand_still)

    def _run(self, run_id: RunId, standing: Standing) -> Run:
        log = EventLog()
        runner = self._runner(
            run_id, standing.snapshot, self._encoder, log, standing.recorder, standing.resumed
        )
        return Run(self._name, run_id, runner, log, self)

    async def runner_at(self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog) -> Runner:
        """What drives a run from another checkpoint of it on."""
        await free_to_drive(self._catalog.store, await self._catalog.head(run_id), False, "checkpoint")
        standing = await self._own(checkpoint, run_id)
        return self._runner(run_id, standing.snapshot, self._encoder, log, standing.recorder, True)

    async def runner_where_it_stands(self, run_id: RunId, log: EventLog) -> Runner:
        """What goes on with a run that nobody drives."""
        head = await free_to_drive(self._catalog.store, await self._catalog.head(run_id), False)
        standing = await self._standing(head, head.seq, self._graph_may_change)
        return self._runner(run_id, standing.snapshot, self._encoder, log, standing.recorder, True)

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        await self._own(checkpoint, run_id)

    async def _own(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> Standing:
        async def look() -> Standing:
            head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            if head.run_id != run_id:
                raise InvalidArgument(
                    f"checkpoint {id_of_checkpoint(checkpoint)} belongs to run {head.run_id}, not to {run_id}; begin a "
                    f"new run there with 'workflow.fork(checkpoint)'"
                )
            return await self._standing(head, seq, self._graph_may_change, again=True)

        return await steadily(look)

    async def forked_run(
        self, checkpoint: str | CheckpointInfo, edits: Edits, run_id: RunId, allow_graph_change: bool
    ) -> Run:
        """A new run that begins where another one stood, with some of its state changed."""
        if not isinstance(edits, Mapping):
            raise WrongType(
                f"edits are a dict like {{('scope', 'key'): value}}, not a {type(edits).__name__}"
            )

        async def look() -> tuple[Head, Loaded, Snapshot, NewGraph]:
            head, seq = await self._catalog.find(id_of_checkpoint(checkpoint))
            self._check_name(head)
            _, loaded, blobs = await self._load_log(head, seq)
            return head, loaded, *await self._snapshot(loaded, blobs, allow_graph_change)

        head, loaded, snapshot, new = await steadily(look)
        first, snapshot = self._standing_again(Cause.FORK, loaded, snapshot, new)
        if edits:
            writes = {_place(key): Put(self._edited(key, value)) for key, value in edits.items()}
            snapshot = snapshot._replace(state=write(snapshot.state, writes))
            edit = Entry(
                first[0].phase, first[0].superstep, Cause.EDIT, first[0].status, since_input=0, edits=writes
            )
            first[1:1] = [edit]
        log = self._logs.forked_log(run_id, head, loaded, self._encoder, self._outside, self._retention)
        return self._run(run_id, Standing(snapshot, self._recorder(log, first), True))

    def _edited(self, key: EditKey, value: Any) -> Value:
        if isinstance(key, StateKey):
            self._encoder.allow(key.type, f"state key {key.name!r}")
            key.check(value)
        return self._encoder(value, f"edit of {key!r}")

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
