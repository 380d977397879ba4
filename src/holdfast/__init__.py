"""Holdfast runs graph-shaped agent workflows in supersteps, with isolated state and a deterministic order."""

from typing import TYPE_CHECKING, Any

from holdfast.builder import Case, Default, WorkflowBuilder
from holdfast.engine.limits import Limits
from holdfast.errors import (
    ChangedAfterCapture,
    ConditionFailed,
    ExecutorFailed,
    ExecutorShared,
    ExecutorTimeout,
    GraphError,
    HoldfastError,
    HoldfastWarning,
    InvalidArgument,
    InvalidResponse,
    LimitExceeded,
    MissedEvents,
    NotCheckpointable,
    RequestAlreadyAnswered,
    RunEnded,
    StateConflict,
    StubbornHandler,
    SuperstepLimit,
    TurnOver,
    UnkeptField,
    UnknownRequest,
    UnroutedMessage,
    WaitingFanIn,
    WrongType,
)
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor, Recipe, executor
from holdfast.graph.handler import handler, response_handler
from holdfast.graph.nested import WorkflowExecutor
from holdfast.graph.policy import RetryPolicy
from holdfast.graph.request_info import RequestInfoExecutor
from holdfast.graph.state_key import Merge, StateKey
from holdfast.runtime.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    PendingRequest,
    RequestInfoEvent,
    Response,
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
    from holdfast.runtime.result import RunResult
    from holdfast.runtime.run import Run, RunStream

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
    "ExecutorShared",
    "ExecutorTimeout",
    "GraphError",
    "HoldfastError",
    "HoldfastWarning",
    "InvalidArgument",
    "InvalidResponse",
    "LimitExceeded",
    "Limits",
    "Merge",
    "MissedEvents",
    "NotCheckpointable",
    "PendingRequest",
    "Recipe",
    "RequestAlreadyAnswered",
    "RequestInfoEvent",
    "RequestInfoExecutor",
    "Response",
    "RetryPolicy",
    "Run",
    "RunEnded",
    "RunResult",
    "RunStatus",
    "RunStream",
    "StateConflict",
    "StateKey",
    "StubbornHandler",
    "SuperStepCompletedEvent",
    "SuperStepStartedEvent",
    "SuperstepLimit",
    "TurnOver",
    "UnkeptField",
    "UnknownRequest",
    "UnroutedMessage",
    "WaitingFanIn",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowCompletedEvent",
    "WorkflowContext",
    "WorkflowErrorEvent",
    "WorkflowEvent",
    "WorkflowExecutor",
    "WorkflowOutputEvent",
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "WorkflowWarningEvent",
    "WrongType",
    "executor",
    "handler",
    "response_handler",
]


def __getattr__(name: str) -> Any:
    # With these comes asyncio, which takes nearly as long to import as all the rest.
    if name in ("Run", "RunResult", "RunStream"):
        from holdfast.runtime import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
