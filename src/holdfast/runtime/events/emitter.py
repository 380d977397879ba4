"""Makes the events of a run and puts them into its log."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy

from holdfast.checkpoint.events.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    RequestInfoEvent,
    SuperStepCompletedEvent,
    WorkflowCompletedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.engine.superstep import Applied, WaitingJoin
from holdfast.errors import HoldfastWarning
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.events.notices import show_request, warn_of_unrouted, warn_of_waiting_fan_in
from holdfast.runtime.step.turn import FinishedTurn

_WARNINGS_KEPT = 1_000


class EventEmitter:
    """Makes the events of a run, and puts them into its log."""

    def __init__(
        self,
        graph: Graph,
        run_id: RunId,
        superstep: int,
        now: Callable[[], datetime.datetime],
        log: EventLog,
    ) -> None:
        self.superstep = superstep
        """The number of the superstep that comes next or is under way."""
        self.warnings: deque[HoldfastWarning] = deque(maxlen=_WARNINGS_KEPT)
        self.silent = False
        """True if nothing of the run counts any more, so that no event is added."""
        self._graph = graph
        self._run_id = run_id
        self._now = now
        self.log = log

    def emit(self, events: Sequence[WorkflowEvent]) -> None:
        """Add events to the log, with the run, the superstep and the time."""
        if self.silent:
            return
        now, run_id, superstep = self._now(), self._run_id, self.superstep
        for event in events:
            event.run_id = run_id
            event.superstep = superstep
            event.timestamp = now
        self.log.emit(events)

    def warning(self, warning: HoldfastWarning, executor_id: ExecutorId | None = None) -> WorkflowEvent:
        """Return the event for a warning, and remember the warning for the result."""
        self.warnings.append(warning)
        return WorkflowWarningEvent(warning, executor_id)

    def warn_of_waiting(self, joins: Sequence[WaitingJoin]) -> None:
        """Warn of each fan-in for whose messages the run waits."""
        self.emit([self.warning(warn_of_waiting_fan_in(join)) for join in joins])

    def ends_of(self, finished: Sequence[FinishedTurn]) -> list[WorkflowEvent]:
        """Return the events of turns that are over: those that they added, then their end."""
        events: list[WorkflowEvent] = []
        for (executor_id, _), _, error, added, attempt, again, until in finished:
            if until is not None:
                continue
            for event in added:
                if isinstance(event, WorkflowWarningEvent):
                    self.warnings.append(event.warning)
                if isinstance(event, WorkflowCompletedEvent):  # is shown when the run comes to rest
                    continue
                if again and hasattr(event, "replayed"):
                    event = copy(event)
                    event.replayed = True
                events.append(event)
            if error is None:
                events.append(ExecutorCompletedEvent(executor_id, again))
            else:
                events.append(ExecutorFailedEvent(executor_id, error, attempt))
        return events

    def conclude(self, applied: Applied, events: list[WorkflowEvent]) -> None:
        """Add to ``events`` the warnings, outputs and requests of a superstep; its completion is the last."""
        after, delta, unrouted, _, intermediate, asked = applied
        for message in unrouted:
            events.append(self.warning(warn_of_unrouted(self._graph, message), message.source))
        for executor_id, value in intermediate:
            events.append(WorkflowOutputEvent(value.load(), executor_id, intermediate=True))
        for executor_id, value in delta.outputs:
            events.append(WorkflowOutputEvent(value.load(), executor_id))
        for request in asked:
            events.append(RequestInfoEvent(show_request(request)))
        on_their_way = bool(delta.deliveries) or after.buffers.size > 0
        events.append(SuperStepCompletedEvent(on_their_way, after.requests.size > 0, bool(delta.writes)))
