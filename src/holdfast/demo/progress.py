"""The progress of a run so far, gathered from its events and the snapshots between its supersteps."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from holdfast import (
    Checkpoint,
    CheckpointStorage,
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
from holdfast.agents import AgentCallEvent
from holdfast.demo.incident import IncidentFolder
from holdfast.demo.workflow import WorkNote
from holdfast.graph.edge import Edge
from holdfast.ids import ExecutorId


class Stage(StrEnum):
    """Steps in the life of an executor, in words."""

    WAITING = "waiting"
    EARLIER = "done before"
    RUNNING = "running"
    ASKING = "asks"
    DONE = "done"
    FAILED = "failed"
    NOT_TAKEN = "not taken"


@dataclass
class Station:
    """An executor and how far it is."""

    stage: Stage = Stage.WAITING
    seconds: float | None = None
    note: WorkNote | None = None
    began: datetime | None = None


@dataclass(frozen=True)
class PassedMessage:
    """A message that went to an executor, with its size in bytes; the input of the run has no source."""

    source: str | None
    target: str
    size: int


@dataclass
class RunProgress:
    """Everything that a view shows of a run."""

    workflow: Workflow
    place: IncidentFolder
    stations: dict[str, Station] = field(default_factory=dict)
    status: RunStatus = RunStatus.RUNNING
    superstep: int = 0
    messages: list[PassedMessage] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    """The bytes of each key of shared state, as ``scope/key``."""
    outputs: list[str] = field(default_factory=list)
    model_calls: list[AgentCallEvent] = field(default_factory=list)
    """The model calls that this process saw: made, or taken from the journal."""
    _measured: bool = False

    def __post_init__(self) -> None:
        self.stations = {executor_id: Station() for executor_id in self.workflow.graph.executors}

    def went_before(self, left: Checkpoint) -> None:
        """WorkNote where an earlier process left the run: what led to the next turns was done by then."""
        self.superstep = left.superstep
        self._measure_state(left)
        outgoing = self.workflow.graph.outgoing
        ahead = {delivery.target_id for delivery in left.messages}
        ahead |= {request.executor_id for request in left.pending_requests}
        behind: set[ExecutorId] = set()
        while new := {
            source for source in outgoing if source not in behind and _leads(outgoing[source], ahead)
        }:
            behind |= new
            ahead |= new
        for executor_id in behind:
            self.stations[executor_id] = Station(Stage.EARLIER)

    async def take(self, event: WorkflowEvent, run: Run, storage: CheckpointStorage) -> None:
        self.superstep = event.superstep
        if not self._measured:
            self._measure_messages(run)
            self._measured = True
        match event:
            case ExecutorInvokedEvent():
                self.stations[event.executor_id] = Station(Stage.RUNNING, began=event.timestamp)
            case WorkNote():
                self.stations[event.executor_id].note = event
            case AgentCallEvent(kind="model", error=None):
                self.model_calls.append(event)
            case ExecutorCompletedEvent():
                self._finish(event.executor_id, Stage.DONE, event.timestamp)
            case ExecutorFailedEvent():
                self._finish(event.executor_id, Stage.FAILED, event.timestamp)
            case RequestInfoEvent():
                self.stations[event.executor_id].stage = Stage.ASKING
            case SuperStepCompletedEvent():
                self._measure_messages(run)
                if event.checkpoint is not None:
                    self._measure_state(await storage.load(event.checkpoint, values=False))
            case WorkflowOutputEvent():
                self.outputs.append(event.data)
            case WorkflowStatusEvent():
                self._end(event.status)
            case _:
                pass

    def _measure_messages(self, run: Run) -> None:
        """WorkNote what is on its way.

        A stream holds its run at the end of each superstep until the event has been dealt with, so the snapshot is
        the one that belongs to the event.
        """
        for delivery in run.snapshot.deliveries:
            self.messages.append(
                PassedMessage(delivery.source, delivery.target, _size(delivery.value.peek()))
            )

    def _measure_state(self, checkpoint: Checkpoint) -> None:
        """WorkNote what lies in shared state; no value is read for it."""
        self.state = {
            f"{name}/{key}": size
            for name, scope in checkpoint.scopes.items()
            for key, size in scope.sizes().items()
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


def _leads(edges: Iterable[Edge], ahead: set[ExecutorId]) -> bool:
    return any(target in ahead for edge in edges for target in edge.targets)


def _size(value: object) -> int:
    text = value if isinstance(value, str) else repr(value)
    return len(text) if text.isascii() else len(text.encode())
