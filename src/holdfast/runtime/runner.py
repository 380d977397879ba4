"""The loop that takes a run from superstep to superstep."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.answers import checked_answer
from holdfast.engine.limits import Limits
from holdfast.engine.message import Request, Unrouted
from holdfast.engine.routing import brief
from holdfast.engine.snapshot import Snapshot, answered, status_at_rest
from holdfast.engine.state import Scope
from holdfast.engine.superstep import Applied, Outcome, Turn, WaitingJoin, apply, plan, waiting_joins
from holdfast.engine.value import Captor, NotAtHand, Value
from holdfast.errors import (
    ExecutorFailed,
    HoldfastError,
    HoldfastWarning,
    SuperstepLimit,
    UnroutedMessage,
    WaitingFanIn,
)
from holdfast.graph.graph import Graph, Located, path_of
from holdfast.graph.matching import shown
from holdfast.ids import ExecutorId, RequestId, RunId
from holdfast.runtime.context import PRIVATE_SCOPES, Surroundings
from holdfast.runtime.environment import Environment
from holdfast.runtime.event_log import EventLog, pause
from holdfast.runtime.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    PendingRequest,
    RequestInfoEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.runtime.leases import Activity, Holder, check_free, regain, take
from holdfast.runtime.placed import Placed
from holdfast.runtime.turns import Finished, Turns

if TYPE_CHECKING:
    from holdfast.runtime.recorder import Recorder

# How long supersteps that never wait may keep the event loop to themselves.
_LONGEST_STRETCH_SECONDS = 0.005
_WARNINGS_KEPT = 1_000


class Runner:
    """Drives one run: plan, run the turns, apply, until nothing is left to deliver."""

    def __init__(
        self,
        graph: Graph,
        snapshot: Snapshot,
        run_id: RunId,
        limits: Limits,
        capture: Captor,
        max_iterations: int,
        environment: Environment,
        log: EventLog,
        shared: Mapping[ExecutorId, Placed],
        recorder: Recorder | None = None,
        resumed: bool = False,
    ) -> None:
        self.snapshot = snapshot
        self.superstep = snapshot.superstep
        self.warnings: deque[HoldfastWarning] = deque(maxlen=_WARNINGS_KEPT)
        self.left_behind = False
        self._graph = graph
        self._limits = limits
        self._capture = capture
        self._max_iterations = max_iterations
        self._run_id = run_id
        self._now = environment.now
        self._log = log
        self.recorder = recorder
        self.resumed = resumed
        self._said_again = False
        self._responses: dict[RequestId, Value] = {}
        self._answerers: list[asyncio.Future[bool]] = []
        self._holders: dict[str, Holder] = {}
        self._activity = Activity()
        self._nested: dict[str, list[ExecutorId]] = {}
        self._executors = dict(shared)
        if resumed:
            regain(graph, run_id)
        try:
            self._place_all(shared)
        except BaseException:
            self.let_go()
            raise
        around = Surroundings(limits, capture, run_id, self.emit, recorder is not None)
        self._turns = Turns(around, self._placed, environment.chance)

    # Executors

    def _placed(self, address: ExecutorId) -> Placed:
        return self._executors.get(address) or self._place(address, self._graph.locate(address))

    def _place_all(self, shared: Mapping[ExecutorId, Placed]) -> None:
        for spec in self._graph.executors.values():
            if spec.nested is not None:
                check_free(spec.nested, spec.id)
            elif spec.id not in shared:
                try:
                    self._place(spec.id, self._graph.located[spec.id])
                except HoldfastError:
                    raise
                except Exception as error:
                    raise ExecutorFailed(
                        f"executor {spec.id!r} could not be created for run {self._run_id}: {shown(error, 1_000)}",
                        executor_id=spec.id,
                        run_id=self._run_id,
                    ) from error

    def _place(self, address: ExecutorId, located: Located) -> Placed:
        instance = located.spec.create()
        used_before = False
        if located.spec.shared_instance is not None and not instance.shareable:
            holder = self._holders.setdefault(
                located.path, Holder(self._run_id, located.path, self._activity)
            )
            used_before = take(instance, address, holder)
        placed = self._executors[address] = Placed(address, located, instance)
        placed.to_reset = used_before
        placed.to_restore = self.resumed and keeps_something(self.snapshot, address)
        if located.path:
            self._nested.setdefault(located.path, []).append(address)
        return placed

    def _forget(self, finished: Iterable[str]) -> None:
        """Let go of the executors of nested workflows that came to their end."""
        for path in finished:
            if path in self._holders:
                self._holders.pop(path).free = True
            for address in self._nested.pop(path, ()):
                del self._executors[address]

    def let_go(self) -> None:
        """The run is over: its executor instances may serve another."""
        for holder in self._holders.values():
            holder.free = True

    def leave_behind(self) -> None:
        """A handler goes on though the run is over: nothing is heard of it, and it keeps its instances."""
        self.left_behind = True
        for holder in self._holders.values():
            holder.free = False

    def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel the superstep under way and the task that drives it."""
        task.cancel()
        self._turns.stop()

    # Questions

    @property
    def pending(self) -> list[PendingRequest]:
        """The requests that wait for an answer."""
        unanswered = [r for r in self.snapshot.requests.values() if r.request_id not in self._responses]
        return [_pending(request) for request in unanswered]

    def respond(self, responses: Mapping[RequestId, object] | Mapping[str, object]) -> None:
        """Take answers, all or none; they are delivered at the next barrier."""
        checked = {
            RequestId(request_id): checked_answer(
                self.snapshot, request_id, answer, self._capture, self._responses
            )
            for request_id, answer in responses.items()
        }
        self._responses.update(checked)

    async def _deliver_responses(self) -> None:
        responses = dict(self._responses)  # others may come while these are stored
        if self.recorder is not None:
            await self.recorder.answered(self.snapshot, responses)
        self._deliver(responses)

    def _deliver(self, responses: Mapping[RequestId, Value]) -> None:
        self.snapshot = answered(self.snapshot, responses)
        self._responses = {known: v for known, v in self._responses.items() if known not in responses}
        self._tell_answerers(True)

    async def answers_stored(self) -> bool:
        """Wait until the answers that were taken are stored; whether they were, before the run came to rest."""
        if not self._responses:
            return True
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answerers.append(stored)
        return await stored

    def drop_answers(self) -> None:
        """The run came to rest: answers that were not delivered are void."""
        self._responses = {}
        self._tell_answerers(False)

    def _tell_answerers(self, done: bool) -> None:
        for stored in self._answerers:
            if not stored.done():
                stored.set_result(done)
        self._answerers = []

    # Supersteps

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.snapshot.deliveries and not self.snapshot.requests

    @property
    def moves(self) -> bool:
        """Whether there is something to deliver."""
        return bool(self.snapshot.deliveries or self._responses)

    def again(self) -> list[WorkflowEvent]:
        """What a resumed run says again, once: its outputs if it is finished, and the requests that are pending."""
        if not self.resumed or self._said_again:
            return []
        self._said_again = True
        snapshot = self.snapshot
        if self.finished:
            return [
                WorkflowOutputEvent(value.load(), executor_id, True)
                for executor_id, value in snapshot.outputs
            ]
        return [RequestInfoEvent(pending) for pending in self.pending]

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it, and let executors be as they were; once."""
        recorder = self.recorder
        if recorder is None:
            return
        # Responses are committed next, and with them that the run moves.
        await recorder.open(bool(self.snapshot.deliveries) and not self._responses)
        recorder.raise_if_cancelled()
        if self.resumed and self.moves:
            for placed in list(self._executors.values()):
                if placed.to_restore:
                    await self._restore(placed)

    async def _restore(self, placed: Placed) -> None:
        try:
            await self._turns.restore(placed, self.snapshot)
        except Exception as error:
            raise ExecutorFailed(
                f"executor {placed.address!r} could not be restored in run {self._run_id}: {shown(error, 1_000)}",
                executor_id=placed.address,
                superstep=self.superstep,
                run_id=self._run_id,
                checkpoint=None if self.recorder is None else self.recorder.started,
            ) from error

    async def drive(self) -> None:
        """Take supersteps until there is nothing to deliver; raises where one fails."""
        self._activity.busy = True
        try:
            await self._drive()
        finally:
            self._activity.busy = False

    async def _drive(self) -> None:
        self._turns.stopping = False
        await self.open()
        driver = asyncio.current_task()
        assert driver is not None
        stretch = time.monotonic()
        while True:
            if self._responses:
                await self._deliver_responses()
            if self.recorder is not None:
                self.recorder.raise_if_cancelled()
            turns = plan(self._graph, self.snapshot)
            if not turns:
                if self.recorder is not None:
                    self.emit(self.recorder.news())
                    await self.recorder.rest(status_at_rest(self.snapshot), None)
                    if self._responses:  # they came while that was stored
                        continue
                break
            await self._superstep(turns, driver)
            holder = self._log.holder
            if holder is not None:
                await pause()
                if not (holder.waiting and holder.next == self._log.end):  # it does not keep up
                    await self._log.released()
            elif time.monotonic() - stretch > _LONGEST_STRETCH_SECONDS:
                await pause()
                stretch = time.monotonic()
        if not self.snapshot.requests and self.snapshot.buffers:
            self.emit(self._warnings_of(waiting_joins(self._graph, self.snapshot, frozenset([""]))))

    async def _superstep(self, turns: Sequence[Turn], driver: asyncio.Task[Any]) -> None:
        snapshot = self.snapshot
        self.superstep = snapshot.superstep + 1
        if snapshot.since_input >= self._max_iterations:
            raise self._too_many()
        recorder = self.recorder
        started = None if recorder is None else recorder.started
        events: list[WorkflowEvent] = [] if recorder is None else recorder.news()
        events.append(SuperStepStartedEvent(started))
        for executor_id, deliveries in turns:
            events.append(ExecutorInvokedEvent(executor_id, len(deliveries)))
        self.emit(events)
        if len(turns) == 1:
            finished, reported = [await self._turns.run_one(turns[0], snapshot, driver.cancelling())], 0
        else:
            finished, reported = await self._turns.run_all(turns, snapshot, self._report)
        events = self._ends_of(finished[reported:] if reported else finished)
        outcomes: list[Outcome] = []
        for turn in finished:
            if turn.outcome is not None:
                outcomes.append(turn.outcome)
        if len(outcomes) < len(turns):
            self.emit(events)
            raise self._failure([turn for turn in finished if turn.error is not None])
        try:
            try:
                applied = apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except NotAtHand as absent:
                applied = await self._applied_with(absent, snapshot, outcomes)
        except HoldfastError as error:
            self.emit(events)
            if isinstance(error, ExecutorFailed):
                error.superstep, error.run_id = self.superstep, self._run_id
            error.add_note(f"at the end of superstep {self.superstep} of run {self._run_id}")
            raise
        told = len(events)
        self._conclude(applied, events)
        if recorder is not None:
            await self._record(recorder, applied, finished, events, told)
        else:
            self.snapshot = applied.snapshot
        if applied.finished:
            self._forget(applied.finished)
        self.emit(events)

    async def _applied_with(
        self, absent: NotAtHand, snapshot: Snapshot, outcomes: Sequence[Outcome]
    ) -> Applied:
        """Apply outcomes that need values which are not at hand, as a merge into a value after a resume does."""
        while True:
            await absent.fetch()
            try:
                return apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except NotAtHand as more:
                absent = more

    async def _record(
        self,
        recorder: Recorder,
        applied: Applied,
        finished: Sequence[Finished],
        events: list[WorkflowEvent],
        told: int,
    ) -> None:
        """Make the superstep durable, with responses that came in meanwhile; only then it is the run's own.

        The events of what it brought begin at ``told``.
        """
        happened = [event for turn in finished for event in turn.events if not event.provisional]
        happened += [event for event in events[told:] if isinstance(event, WorkflowWarningEvent)]
        responses = dict(self._responses)
        made = await recorder.superstep(self.snapshot, applied, happened, responses)
        self.snapshot = applied.snapshot
        completed = events[-1]
        assert isinstance(completed, SuperStepCompletedEvent)
        completed.checkpoint = made[0]
        events[-1:-1] = recorder.news(1)
        if responses:
            self._deliver(responses)

    def _too_many(self) -> SuperstepLimit:
        targets = ", ".join(sorted({repr(str(d.target)) for d in self.snapshot.deliveries}))
        return SuperstepLimit(
            "max_iterations",
            self._max_iterations,
            f"the run took {self._max_iterations} supersteps since its last input and still has messages for "
            f"{targets}; if this is no endless loop, allow more with WorkflowBuilder(max_iterations=...)",
        )

    def _report(self, finished: Sequence[Finished]) -> None:
        """Emit the events of turns that are over, unless nothing counts any more."""
        if not self._turns.stopping:
            self.emit(self._ends_of(finished))

    def _ends_of(self, finished: Sequence[Finished]) -> list[WorkflowEvent]:
        """The events of turns that are over: those that they added, then how they ended."""
        events: list[WorkflowEvent] = []
        for (executor_id, _), _, error, added, attempt in finished:
            for event in added:
                if isinstance(event, WorkflowWarningEvent):
                    self.warnings.append(event.warning)
                events.append(event)
            if error is None:
                events.append(ExecutorCompletedEvent(executor_id))
            else:
                events.append(ExecutorFailedEvent(executor_id, error, attempt))
        return events

    def _failure(self, failed: Sequence[Finished]) -> ExecutorFailed:
        """The error of a superstep: that of the first turn that failed, with a note for each other."""
        first = failed[0]
        executor_id = first.turn.executor_id
        tried = f", after {first.attempt} attempts" if first.attempt > 1 else ""
        failure = ExecutorFailed(
            f"executor {executor_id!r} failed in superstep {self.superstep} of run {self._run_id}{tried}: "
            f"{shown(first.error, 1_000)}",
            executor_id=executor_id,
            superstep=self.superstep,
            run_id=self._run_id,
            checkpoint=None if self.recorder is None else self.recorder.started,
        )
        failure.__cause__ = first.error
        for other in failed[1:]:
            failure.add_note(f"executor {other.turn.executor_id!r} failed too: {shown(other.error, 1_000)}")
        return failure

    def _conclude(self, applied: Applied, events: list[WorkflowEvent]) -> None:
        """Add to ``events`` what the superstep brought; its completion is the last."""
        after, delta, unrouted, finished, waiting = applied
        for message in unrouted:
            events.append(self.warning(self._unrouted(message), message.source))
        for executor_id, value in delta.outputs:
            events.append(WorkflowOutputEvent(value.load(), executor_id))
        for request in delta.requests:
            events.append(RequestInfoEvent(_pending(request)))
        if finished:
            events += self._warnings_of(waiting)
        pending = bool(delta.deliveries) or after.buffers.size > 0
        events.append(SuperStepCompletedEvent(pending, after.requests.size > 0, bool(delta.writes)))

    def _unrouted(self, message: Unrouted) -> UnroutedMessage:
        value, only = message.sent
        graph, _, spec = self._graph.locate(message.source)
        targets = [target for edge in graph.outgoing[spec.id] for target in edge.targets]
        tried = ", ".join(repr(str(target)) for target in dict.fromkeys(targets))
        if only is not None:
            reason = f"it was sent to {only!r}, but the edge there did not take it"
        elif targets:
            reason = f"none of its edges (to {tried}) took it"
        else:
            reason = "it has no outgoing edges"
        return UnroutedMessage(
            f"executor {message.source!r} sent {brief(value.peek())}, which reaches nobody: {reason}; "
            f"add an edge to an executor that takes it, or yield_output it"
        )

    def _warnings_of(self, waiting: Sequence[WaitingJoin]) -> list[WorkflowEvent]:
        events: list[WorkflowEvent] = []
        for key, missing in waiting:
            listed = ", ".join(repr(str(source)) for source in missing)
            over = f"nested workflow {key.path[:-1]!r}" if key.path else "run"
            warning = WaitingFanIn(
                f"the {over} is over, but fan-in {key.fan_in} holds messages and still waits for {listed}; "
                f"a fan-in delivers once each of its sources has sent something"
            )
            events.append(self.warning(warning))
        return events

    def warning(self, warning: HoldfastWarning, executor_id: ExecutorId | None = None) -> WorkflowEvent:
        """The event for a warning, which is remembered for the result too."""
        self.warnings.append(warning)
        return WorkflowWarningEvent(warning, executor_id)

    def emit(self, events: Sequence[WorkflowEvent]) -> None:
        """Add events to the log, with the run, the superstep and the time."""
        if self.left_behind:
            return
        now, run_id, superstep = self._now(), self._run_id, self.superstep
        for event in events:
            event.run_id = run_id
            event.superstep = superstep
            event.timestamp = now
        self._log.emit(events)


def _pending(request: Request) -> PendingRequest:
    return PendingRequest(request.request_id, request.data.load(), request.response_type, request.executor_id)


def keeps_something(snapshot: Snapshot, address: ExecutorId) -> bool:
    """Whether an executor has anything in its private scopes."""
    path = path_of(address)
    return any(Scope(address, name, path) in snapshot.state for name in PRIVATE_SCOPES)
