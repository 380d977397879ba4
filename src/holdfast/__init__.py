"""Holdfast runs graph-shaped agent workflows in supersteps, with isolated state and a deterministic order."""

from typing import TYPE_CHECKING, Any

from holdfast.builder import Case, Default, WorkflowBuilder
from holdfast.engine.limits import Limits
from holdfast.engine.status import RunStatus
from holdfast.errors import (
    AlreadyResumed,
    ChangedAfterCapture,
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointUntrusted,
    ConditionFailed,
    DeadLetter,
    ExecutorFailed,
    ExecutorShared,
    ExecutorTimeout,
    GraphChanged,
    GraphError,
    HeadMoved,
    HoldfastError,
    HoldfastWarning,
    InvalidArgument,
    InvalidResponse,
    KeyReused,
    LimitExceeded,
    MissedEvents,
    NotCheckpointable,
    NotLoaded,
    RequestAlreadyAnswered,
    RunContextMissing,
    RunEnded,
    RunExists,
    RunNotFound,
    RunPoisoned,
    RunTaken,
    StateConflict,
    StateNotSet,
    StorageError,
    StoreDamaged,
    StubbornHandler,
    SuperstepLimit,
    TurnOver,
    UnkeptField,
    UnknownRequest,
    UnknownType,
    UnnamedWorkflow,
    UnroutedMessage,
    UnusableAnswer,
    WaitingFanIn,
    WrongType,
)
from holdfast.graph.context import RequestExpired, SubWorkflowRequest, WorkflowContext
from holdfast.graph.executor import Executor, Recipe, RequestInfoExecutor, WorkflowExecutor, executor
from holdfast.graph.handler import handler, response_handler
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.state_key import Merge, StateKey
from holdfast.workflow import Workflow

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint import Checkpoint
    from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
    from holdfast.checkpoint.codec import Codec
    from holdfast.checkpoint.codec.registry import checkpointable
    from holdfast.checkpoint.counters import Counters
    from holdfast.checkpoint.diff.difference import CheckpointDiff, Difference, DiffValue
    from holdfast.checkpoint.events.event_json import PlainEvent, event_from_dict
    from holdfast.checkpoint.events.events import (
        CheckpointSavedEvent,
        ExecutorCompletedEvent,
        ExecutorFailedEvent,
        ExecutorInvokedEvent,
        OutputDeltaEvent,
        PendingRequest,
        RequestInfoEvent,
        Response,
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
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring
    from holdfast.checkpoint.maintenance.old_runs import PruneRunsReport
    from holdfast.checkpoint.maintenance.problems import LostValue, Problem, VerifyReport
    from holdfast.checkpoint.maintenance.prune import PruneReport
    from holdfast.checkpoint.maintenance.repair import Repair, RepairReport
    from holdfast.checkpoint.maintenance.statistics import StorageStatistics, StorageUsage
    from holdfast.checkpoint.maintenance.vacuum import VacuumReport
    from holdfast.checkpoint.pending_requests import RequestRecord
    from holdfast.checkpoint.retention import EventRetention, Retention
    from holdfast.checkpoint.run_info import ForkOrigin, RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.store import Store
    from holdfast.checkpoint.transfer.run_copy import CopyReport, UncopiedRun
    from holdfast.checkpoint.upgrade import UpgradeCheck, UpgradeReport
    from holdfast.checkpoint.views import CheckpointSummary
    from holdfast.host import Host
    from holdfast.log_fields import RunLogFilter
    from holdfast.runtime.durable.fork_edits import ForkEdits
    from holdfast.runtime.run.result import RunResult
    from holdfast.runtime.run.run import Run
    from holdfast.runtime.run.stream import RunStream
    from holdfast.stores.file.storage import FileCheckpointStorage
    from holdfast.stores.memory import InMemoryCheckpointStorage
    from holdfast.stores.sqlite.storage import SqliteCheckpointStorage
    from holdfast.stores.storage_url import open_storage

__all__ = [
    "AlreadyResumed",
    "Anchor",
    "Case",
    "Cause",
    "ChangedAfterCapture",
    "Checkpoint",
    "CheckpointCorrupt",
    "CheckpointDiff",
    "CheckpointInfo",
    "CheckpointNotFound",
    "CheckpointSavedEvent",
    "CheckpointStorage",
    "CheckpointSummary",
    "CheckpointUntrusted",
    "Codec",
    "ConditionFailed",
    "CopyReport",
    "Counters",
    "DeadLetter",
    "Default",
    "DiffValue",
    "Difference",
    "EventRetention",
    "Executor",
    "ExecutorCompletedEvent",
    "ExecutorFailed",
    "ExecutorFailedEvent",
    "ExecutorInvokedEvent",
    "ExecutorShared",
    "ExecutorTimeout",
    "FileCheckpointStorage",
    "ForkEdits",
    "ForkOrigin",
    "GraphChanged",
    "GraphError",
    "HeadMoved",
    "HoldfastError",
    "HoldfastWarning",
    "Host",
    "InMemoryCheckpointStorage",
    "InvalidArgument",
    "InvalidResponse",
    "KeyReused",
    "Keyring",
    "LimitExceeded",
    "Limits",
    "LostValue",
    "Merge",
    "MissedEvents",
    "NotCheckpointable",
    "NotLoaded",
    "OutputDeltaEvent",
    "PendingRequest",
    "Phase",
    "PlainEvent",
    "Problem",
    "PruneReport",
    "PruneRunsReport",
    "Recipe",
    "Repair",
    "RepairReport",
    "RequestAlreadyAnswered",
    "RequestExpired",
    "RequestInfoEvent",
    "RequestInfoExecutor",
    "RequestRecord",
    "Response",
    "Retention",
    "RetryPolicy",
    "Run",
    "RunContextMissing",
    "RunEnded",
    "RunExists",
    "RunInfo",
    "RunLogFilter",
    "RunNotFound",
    "RunPoisoned",
    "RunResult",
    "RunStatus",
    "RunStream",
    "RunTaken",
    "SqliteCheckpointStorage",
    "StateConflict",
    "StateKey",
    "StateNotSet",
    "StorageError",
    "StorageStatistics",
    "StorageUsage",
    "Store",
    "StoreDamaged",
    "StubbornHandler",
    "SubWorkflowRequest",
    "SuperStepCompletedEvent",
    "SuperStepStartedEvent",
    "SuperstepLimit",
    "TurnOver",
    "UncopiedRun",
    "UnkeptField",
    "UnknownRequest",
    "UnknownType",
    "UnnamedWorkflow",
    "UnroutedMessage",
    "UnusableAnswer",
    "UpgradeCheck",
    "UpgradeReport",
    "VacuumReport",
    "VerifyReport",
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
    "checkpointable",
    "event_from_dict",
    "executor",
    "handler",
    "open_storage",
    "response_handler",
]


# Imported with the first run or storage, or when named: asyncio alone takes nearly as long to import as all the
# rest, and the events a tenth of it.
_LATER = {
    "Anchor": "checkpoint.keys.anchor",
    "Cause": "checkpoint.checkpoint_info",
    "Checkpoint": "checkpoint.checkpoint",
    "CheckpointDiff": "checkpoint.diff.difference",
    "CheckpointInfo": "checkpoint.checkpoint_info",
    "CheckpointSavedEvent": "checkpoint.events.events",
    "CheckpointStorage": "checkpoint.storage",
    "CheckpointSummary": "checkpoint.views",
    "Codec": "checkpoint.codec",
    "CopyReport": "checkpoint.transfer.run_copy",
    "UncopiedRun": "checkpoint.transfer.run_copy",
    "Counters": "checkpoint.counters",
    "DiffValue": "checkpoint.diff.difference",
    "Difference": "checkpoint.diff.difference",
    "EventRetention": "checkpoint.retention",
    "ExecutorCompletedEvent": "checkpoint.events.events",
    "ExecutorFailedEvent": "checkpoint.events.events",
    "ExecutorInvokedEvent": "checkpoint.events.events",
    "FileCheckpointStorage": "stores.file.storage",
    "ForkEdits": "runtime.durable.fork_edits",
    "ForkOrigin": "checkpoint.run_info",
    "Host": "host",
    "InMemoryCheckpointStorage": "stores.memory",
    "Keyring": "checkpoint.keys.keyring",
    "LostValue": "checkpoint.maintenance.problems",
    "OutputDeltaEvent": "checkpoint.events.events",
    "PendingRequest": "checkpoint.events.events",
    "PlainEvent": "checkpoint.events.event_json",
    "Phase": "checkpoint.checkpoint_info",
    "Problem": "checkpoint.maintenance.problems",
    "PruneReport": "checkpoint.maintenance.prune",
    "PruneRunsReport": "checkpoint.maintenance.old_runs",
    "Repair": "checkpoint.maintenance.repair",
    "RepairReport": "checkpoint.maintenance.repair",
    "RequestInfoEvent": "checkpoint.events.events",
    "RequestRecord": "checkpoint.pending_requests",
    "Response": "checkpoint.events.events",
    "Retention": "checkpoint.retention",
    "Run": "runtime.run.run",
    "RunInfo": "checkpoint.run_info",
    "RunLogFilter": "log_fields",
    "RunResult": "runtime.run.result",
    "RunStream": "runtime.run.stream",
    "SqliteCheckpointStorage": "stores.sqlite.storage",
    "StorageStatistics": "checkpoint.maintenance.statistics",
    "StorageUsage": "checkpoint.maintenance.statistics",
    "Store": "checkpoint.store",
    "SuperStepCompletedEvent": "checkpoint.events.events",
    "SuperStepStartedEvent": "checkpoint.events.events",
    "VacuumReport": "checkpoint.maintenance.vacuum",
    "UpgradeCheck": "checkpoint.upgrade",
    "UpgradeReport": "checkpoint.upgrade",
    "VerifyReport": "checkpoint.maintenance.problems",
    "WorkflowCompletedEvent": "checkpoint.events.events",
    "WorkflowErrorEvent": "checkpoint.events.events",
    "WorkflowEvent": "checkpoint.events.events",
    "WorkflowOutputEvent": "checkpoint.events.events",
    "WorkflowStartedEvent": "checkpoint.events.events",
    "WorkflowStatusEvent": "checkpoint.events.events",
    "WorkflowWarningEvent": "checkpoint.events.events",
    "checkpointable": "checkpoint.codec.registry",
    "event_from_dict": "checkpoint.events.event_json",
    "open_storage": "stores.storage_url",
}


# The module of this name would be found in place of a decorator like `executor`, and the mistake noticed much later.
globals().pop("workflow", None)


def __getattr__(name: str) -> Any:
    if name == "workflow":
        # An AttributeError would let the import go on to the module.
        raise ImportError(
            "holdfast has no 'workflow': the class is 'Workflow', and what makes one is 'WorkflowBuilder(...).build()'",
            name=__name__,
        )
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("holdfast")
        except PackageNotFoundError:  # the source is used without being installed
            return "0+unknown"
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
