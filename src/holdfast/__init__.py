"""Holdfast runs graph-shaped agent workflows in supersteps, with isolated state and a deterministic order."""

from typing import TYPE_CHECKING, Any

from holdfast.builder import Case, Default, WorkflowBuilder
from holdfast.engine.limits import Limits
from holdfast.errors import (
    ChangedAfterCapture,
    ConditionFailed,
    ExecutorFailed,
    GraphError,
    HoldfastError,
    HoldfastWarning,
    InvalidArgument,
    LimitExceeded,
    MissedEvents,
    NotCheckpointable,
    StateConflict,
    SuperstepLimit,
    UnroutedMessage,
    WaitingFanIn,
    WrongType,
)
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor, Recipe, executor, handler
from holdfast.graph.state_key import Merge, StateKey
from holdfast.runtime.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    RunStatus,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowCompletedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
)
from holdfast.workflow import Workflow

if TYPE_CHECKING:
    from holdfast.runtime.run import Run, RunResult, RunStream

__all__ = [
    "Case",
    "ChangedAfterCapture",
    "ConditionFailed",
    "Default",
    "Executor",
    "ExecutorCompletedEvent",
    "ExecutorFailed",
    "ExecutorFailedEvent",
    "ExecutorInvokedEvent",
    "GraphError",
    "HoldfastError",
    "HoldfastWarning",
    "InvalidArgument",
    "LimitExceeded",
    "Limits",
    "Merge",
    "MissedEvents",
    "NotCheckpointable",
    "Recipe",
    "Run",
    "RunResult",
    "RunStatus",
    "RunStream",
    "StateConflict",
    "StateKey",
    "SuperStepCompletedEvent",
    "SuperStepStartedEvent",
    "SuperstepLimit",
    "UnroutedMessage",
    "WaitingFanIn",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowCompletedEvent",
    "WorkflowContext",
    "WorkflowErrorEvent",
    "WorkflowEvent",
    "WorkflowOutputEvent",
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "WorkflowWarningEvent",
    "WrongType",
    "executor",
    "handler",
]


def __getattr__(name: str) -> Any:
    # With these comes asyncio, half of the time that the import of the library would take.
    if name in ("Run", "RunResult", "RunStream"):
        from holdfast.runtime import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
