"""The loop that takes a run from superstep to superstep."""

from __future__ import annotations

import time
import types
from collections import deque
from collections.abc import Generator, Sequence

from holdfast.engine.limits import Limits
from holdfast.engine.message import Unrouted
from holdfast.engine.routing import brief
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Applied, Turn, apply, plan, waiting_fan_ins
from holdfast.errors import (
    ExecutorFailed,
    HoldfastError,
    HoldfastWarning,
    SuperstepLimit,
    UnroutedMessage,
    WaitingFanIn,
)
from holdfast.graph.graph import Graph
from holdfast.ids import RunId
from holdfast.runtime.context import Surroundings
from holdfast.runtime.environment import Environment
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.runtime.turns import Finished, Placed, Turns

# How long supersteps that never wait may keep the event loop to themselves.
_LONGEST_STRETCH_SECONDS = 0.005
_WARNINGS_KEPT = 1_000


@types.coroutine
def _pause() -> Generator[None, None, None]:
    """Let everything else that is ready have its turn; the bare form of ``asyncio.sleep(0)``."""
    yield


class Runner:
    """Drives one run: plan, run the turns, apply, until nothing is left to deliver."""

    def __init__(
        self,
        graph: Graph,
        snapshot: Snapshot,
        run_id: RunId,
        limits: Limits,
        max_iterations: int,
        environment: Environment,
        log: EventLog,
    ) -> None:
        self.snapshot = snapshot
        self.superstep = snapshot.superstep
        self.warnings: deque[HoldfastWarning] = deque(maxlen=_WARNINGS_KEPT)
        self._graph = graph
        self._limits = limits
        self._max_iterations = max_iterations
        self._run_id = run_id
        self._now = environment.now
        self._log = log
        executors = {spec.id: Placed(spec, spec.create()) for spec in graph.executors.values()}
        around = Surroundings(graph, limits, run_id, self.emit)
        self._turns = Turns(around, executors)

    async def drive(self) -> None:
        """Take supersteps until there is nothing to deliver; raises where one fails."""
        stretch = time.monotonic()
        while turns := plan(self._graph, self.snapshot):
            await self._superstep(turns)
            if self._log.holder is not None:
                await _pause()  # after this, a watcher that keeps up has taken all events
                if self._log.held:
                    await self._log.released()
            elif time.monotonic() - stretch > _LONGEST_STRETCH_SECONDS:
                await _pause()
                stretch = time.monotonic()
        self._warn_of_waiting_fan_ins()

    async def _superstep(self, turns: Sequence[Turn]) -> None:
        snapshot = self.snapshot
        self.superstep = snapshot.superstep + 1
        self._check_limit()
        events: list[WorkflowEvent] = [SuperStepStartedEvent()]
        for executor_id, deliveries in turns:
            events.append(ExecutorInvokedEvent(executor_id, len(deliveries)))
        self.emit(events)
        finished = await self._turns.run(turns, snapshot, self._report)
        outcomes = [turn.outcome for turn in finished if turn.outcome is not None]
        if len(outcomes) < len(turns):
            raise self._failure([turn for turn in finished if turn.error is not None])
        try:
            applied = apply(self._graph, snapshot, outcomes, self._limits)
        except HoldfastError as error:
            if isinstance(error, ExecutorFailed):
                error.superstep, error.run_id = self.superstep, self._run_id
            error.add_note(f"at the end of superstep {self.superstep} of run {self._run_id}")
            raise
        self._conclude(applied)

    def _check_limit(self) -> None:
        if self.snapshot.since_input >= self._max_iterations:
            targets = ", ".join(sorted({repr(str(d.target)) for d in self.snapshot.deliveries}))
            raise SuperstepLimit(
                "max_iterations",
                self._max_iterations,
                f"the run took {self._max_iterations} supersteps since its last input and still has messages for "
                f"{targets}; if this is no endless loop, allow more with WorkflowBuilder(max_iterations=...)",
            )

    def _report(self, finished: Finished) -> None:
        """Emit the events of a turn that is over."""
        executor_id = finished.turn.executor_id
        last = (
            ExecutorCompletedEvent(executor_id)
            if finished.error is None
            else ExecutorFailedEvent(executor_id, finished.error)
        )
        self.emit([*finished.events, last])

    def _failure(self, failed: Sequence[Finished]) -> ExecutorFailed:
        """The error of a superstep: that of the first turn that failed, with a note for each other."""
        first = failed[0]
        executor_id = first.turn.executor_id
        failure = ExecutorFailed(
            f"executor {executor_id!r} failed in superstep {self.superstep} of run {self._run_id}: {first.error!r}",
            executor_id=executor_id,
            superstep=self.superstep,
            run_id=self._run_id,
        )
        failure.__cause__ = first.error
        for other in failed[1:]:
            failure.add_note(f"executor {other.turn.executor_id!r} failed too: {other.error!r}")
        return failure

    def _conclude(self, applied: Applied) -> None:
        """Take the next snapshot as the run's own and tell what the superstep brought."""
        self.snapshot, delta, unrouted = applied
        events: list[WorkflowEvent] = []
        for message in unrouted:
            events.append(WorkflowWarningEvent(self._unrouted(message), message.source))
        for executor_id, value in delta.outputs:
            events.append(WorkflowOutputEvent(value.load(), executor_id))
        pending = bool(delta.deliveries) or bool(self.snapshot.buffers)
        events.append(SuperStepCompletedEvent(pending, False, bool(delta.writes)))
        self.emit(events)

    def _unrouted(self, message: Unrouted) -> UnroutedMessage:
        value, only = message.sent
        targets = [target for edge in self._graph.outgoing[message.source] for target in edge.targets]
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

    def _warn_of_waiting_fan_ins(self) -> None:
        for fan_in, missing in waiting_fan_ins(self._graph, self.snapshot).items():
            listed = ", ".join(repr(str(source)) for source in missing)
            warning = WaitingFanIn(
                f"the run is over, but fan-in {fan_in} holds messages and still waits for {listed}; "
                f"a fan-in delivers once each of its sources has sent something"
            )
            self.emit([WorkflowWarningEvent(warning)])

    def emit(self, events: Sequence[WorkflowEvent]) -> None:
        """Add events to the log, with the run, the superstep and the time."""
        now, run_id, superstep = self._now(), self._run_id, self.superstep
        for event in events:
            event.run_id = run_id
            event.superstep = superstep
            event.timestamp = now
            if type(event) is WorkflowWarningEvent:
                self.warnings.append(event.warning)
        self._log.emit(events)
