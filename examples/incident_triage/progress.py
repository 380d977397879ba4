"""What is known of the run so far: gathered from its events and the snapshots between its supersteps."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from examples.incident_triage.workflow import Note
from holdfast import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    RequestInfoEvent,
    Run,
    RunStatus,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStatusEvent,
)


class Stage(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    ASKING = "waits for an answer"
    DONE = "done"
    FAILED = "failed"
    NOT_TAKEN = "not taken"


@dataclass
class Station:
    """An executor and how far it is."""

    stage: Stage = Stage.WAITING
    seconds: float | None = None
    note: Note | None = None
    began: datetime | None = None


@dataclass(frozen=True)
class Passed:
    """A message that went to an executor, with its size in bytes; the input of the run has no source."""

    source: str | None
    target: str
    size: int


@dataclass
class Progress:
    workflow: Workflow
    stations: dict[str, Station] = field(default_factory=dict)
    status: RunStatus = RunStatus.RUNNING
    superstep: int = 0
    messages: list[Passed] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    """The bytes of each key of shared state, as ``scope/key``."""
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stations = {executor_id: Station() for executor_id in self.workflow.graph.executors}

    def take(self, event: WorkflowEvent, run: Run) -> None:
        self.superstep = event.superstep
        match event:
            case ExecutorInvokedEvent():
                self.stations[event.executor_id] = Station(Stage.RUNNING, began=event.timestamp)
            case Note():
                self.stations[event.executor_id].note = event
            case ExecutorCompletedEvent():
                self._finish(event.executor_id, Stage.DONE, event.timestamp)
            case ExecutorFailedEvent():
                self._finish(event.executor_id, Stage.FAILED, event.timestamp)
            case RequestInfoEvent():
                self.stations[event.executor_id].stage = Stage.ASKING
            case SuperStepCompletedEvent():
                self.measure(run)
            case WorkflowOutputEvent():
                self.outputs.append(event.data)
            case WorkflowStatusEvent():
                self._end(event.status)
            case _:
                pass

    def measure(self, run: Run) -> None:
        """Note what is on its way and what lies in shared state.

        To be called before the first event and when a superstep is completed: a stream holds its run there until
        the event has been dealt with, so the snapshot is the one that belongs to the event.
        """
        for delivery in run.snapshot.deliveries:
            self.messages.append(Passed(delivery.source, delivery.target, _size(delivery.value.peek())))
        self.state = {
            f"{scope.name}/{key}": _size(value.peek())
            for scope, keys in run.snapshot.state.items()
            if scope.owner is None
            for key, value in keys.items()
        }

    def _finish(self, executor_id: str, stage: Stage, now: datetime) -> None:
        station = self.stations[executor_id]
        station.stage = stage
        if station.began is not None:
            station.seconds = (now - station.began).total_seconds()

    def _end(self, status: RunStatus) -> None:
        self.status = status
        if status is RunStatus.COMPLETED:
            for station in self.stations.values():
                if station.stage is Stage.WAITING:
                    station.stage = Stage.NOT_TAKEN


def _size(value: object) -> int:
    text = value if isinstance(value, str) else repr(value)
    return len(text) if text.isascii() else len(text.encode())
