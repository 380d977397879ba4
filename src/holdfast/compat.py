"""The C# names of Microsoft Agent Framework's workflows in Python spelling, for programs that come from there.

A name keeps its words: ``PascalCase`` becomes ``snake_case``, and the ending ``Async`` goes. What Holdfast calls so
by itself (``ctx.queue_state_update``, ``run.watch_stream``, ``event.completion_info.checkpoint``) is not here; this
module holds the rest, and does nothing that ``Workflow``, ``Run`` and ``CheckpointStorage`` cannot do.
``docs/from-agent-framework.md`` has all names in one table.

>>> import asyncio
>>> from holdfast import SuperStepCompletedEvent, WorkflowBuilder, executor
>>> from holdfast.compat import Checkpointed, CheckpointManager, InProcessExecution, StreamingRun
>>> @executor
... def draft(topic: str) -> str:
...     return f"On {topic}"
>>> @executor
... def review(text: str) -> str:
...     return f"{text}, reviewed"
>>> workflow = WorkflowBuilder(name="Write").set_start_executor(draft).add_edge(draft, review).build()
>>> async def main():
...     manager = CheckpointManager.create_in_memory()
...     run: Checkpointed[StreamingRun] = await InProcessExecution.stream(workflow, "kelp", manager)
...     checkpoints = [
...         event.completion_info.checkpoint
...         async for event in run.run.watch_stream()
...         if isinstance(event, SuperStepCompletedEvent)
...     ]
...     await run.restore_checkpoint(checkpoints[0])
...     return (await run.run.wait_for_completion()).outputs
>>> asyncio.run(main())
['On kelp, reviewed']
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

from holdfast.checkpoint.arguments import checked_path
from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.codec.registry import checkpointable, mark_of
from holdfast.checkpoint.events.events import (
    PendingRequest,
    Response,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
)
from holdfast.checkpoint.retention import MultiAgentCheckpointRetention, Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Store
from holdfast.errors import InvalidArgument, WrongType
from holdfast.graph import executor as core
from holdfast.graph.context import WorkflowContext
from holdfast.runtime.run.run import Run
from holdfast.stores.file import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.workflow import Workflow

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", bound=Run)
    T = TypeVar("T", default=Any)
    T_Input = TypeVar("T_Input", default=Any)
    T_Output = TypeVar("T_Output", default=Any)
else:
    # The defaults of type variables are for type checkers only, so no backport is imported at run time.
    from typing import TypeVar

    R = TypeVar("R", bound=Run)
    T, T_Input, T_Output = TypeVar("T"), TypeVar("T_Input"), TypeVar("T_Output")

__all__ = [
    "CheckpointManager",
    "Checkpointed",
    "Executor",
    "ExternalRequest",
    "ExternalResponse",
    "IMessageHandler",
    "IResettableExecutor",
    "IWorkflowContext",
    "InProcessExecution",
    "MultiAgentCheckpointRetention",
    "ReflectingExecutor",
    "StreamingRun",
    "SuperStepCompletionInfo",
    "SuperStepStartInfo",
]


class Executor(core.Executor, Generic[T_Input, T_Output]):
    """An ``Executor`` that may name its input and output types; the annotations of its handlers decide.

    >>> from holdfast import WorkflowBuilder, handler
    >>> class Shout(Executor[str, str]):
    ...     @handler
    ...     async def handle(self, text: str, context: IWorkflowContext, ct=None) -> str:
    ...         return text.upper()
    >>> WorkflowBuilder(name="Shout").set_start_executor(Shout("shout")).build().run_sync("kelp").outputs
    ['KELP']
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Let the types be named; an alias of ``typing`` would leave a field in each instance."""
            return cls


class ReflectingExecutor(core.Executor, Generic[T]):
    """An executor whose handlers are found by what they are declared to take; every ``Executor`` is one.

    >>> ReflectingExecutor["GuessNumberExecutor"]("guess").id
    'guess'
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Let the class be named."""
            return cls


class IMessageHandler(Generic[T]):
    """Names a type that an executor handles; the annotations of its handlers decide.

    >>> class Both(Executor, IMessageHandler[str], IMessageHandler[int]):
    ...     pass
    >>> issubclass(Both, IMessageHandler)
    True
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Give a class of its own for each type: none may stand twice among the bases of another."""
            return type(cls.__name__, (cls,), {})


class IResettableExecutor(ABC):
    """An executor of which one instance serves one run after the other: ``reset`` is called in between.

    >>> class Counter(Executor, IResettableExecutor):
    ...     async def reset(self) -> None:
    ...         self.count = 0
    """

    @abstractmethod
    async def reset(self) -> None:
        """Forget what belongs to the last run."""


IWorkflowContext: TypeAlias = WorkflowContext
"""The context of a handler."""

SuperStepStartInfo: TypeAlias = SuperStepStartedEvent
"""The type of ``event.start_info``: the event itself, with its ``checkpoint``."""

SuperStepCompletionInfo: TypeAlias = SuperStepCompletedEvent
"""The type of ``event.completion_info``: the event itself, with its ``checkpoint``."""

StreamingRun: TypeAlias = Run
"""A run that can be watched; every ``Run`` can."""

ExternalRequest: TypeAlias = PendingRequest
"""A question to the outside: ``event.request`` of a ``RequestInfoEvent``."""

ExternalResponse: TypeAlias = Response
"""Its answer: ``request.create_response(value)``, for ``run.send_response``."""


class CheckpointManager(CheckpointStorage):
    """A ``CheckpointStorage`` that is made, and asked for checkpoints, by the names of a checkpoint manager.

    It is accepted wherever a storage is. Without a store it keeps checkpoints in memory.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> manager = CheckpointManager()
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(manager).build()
    >>> async def main():
    ...     await workflow.run(21)
    ...     latest = await manager.get_latest_checkpoint("Double")
    ...     restored = await manager.lookup_checkpoint(latest.run_id, latest)
    ...     return list(restored.outputs)
    >>> asyncio.run(main())
    [42]
    """

    default: ClassVar[CheckpointManager]
    """One manager in memory for the whole process; what it holds stays until the process ends."""

    def __init__(self, store: Store | None = None, retention: Retention | None = None) -> None:
        super().__init__(MemoryStore() if store is None else store, retention)

    @classmethod
    def create_in_memory(cls, retention: Retention | None = None) -> CheckpointManager:
        """Return a manager that keeps checkpoints in memory, as ``InMemoryCheckpointStorage()`` does."""
        return cls(None, retention)

    @classmethod
    def create_file_storage(
        cls, path: str | os.PathLike[str], retention: Retention | None = None
    ) -> CheckpointManager:
        """Return a manager that keeps checkpoints in a directory, as ``FileCheckpointStorage(path)`` does."""
        return cls(FileStore(checked_path("path", path)), retention)

    @classmethod
    def create_json(
        cls,
        store: str | os.PathLike[str] | Store | CheckpointStorage,
        options: Collection[type] | None = None,
        retention: Retention | None = None,
    ) -> CheckpointManager:
        """Return a manager that keeps checkpoints as JSON in the directory ``store``, or in a given store.

        ``options`` are classes whose values may be stored besides those that workflows declare, as if each were
        decorated with ``checkpointable``. How values are written is no option.
        """
        for kind in _classes(options):
            if mark_of(kind) is None:
                checkpointable(kind)
        if isinstance(store, str | os.PathLike):
            return cls.create_file_storage(store, retention)
        if isinstance(store, CheckpointStorage):
            return cls(store.store, retention or store.retention)
        if isinstance(store, type) or not hasattr(store, "commit"):
            raise WrongType(f"create_json({store!r}): give a directory, a storage, or a store of your own")
        return cls(store, retention)

    async def get_latest_checkpoint(self, workflow_name: str, ct: None = None) -> Checkpoint | None:
        """Return the latest checkpoint of this workflow's runs: ``get_latest``."""
        _no_token(ct)
        return await self.get_latest(workflow_name)

    async def lookup_checkpoint(
        self, run_id: str, checkpoint: str | CheckpointInfo, ct: None = None
    ) -> Checkpoint:
        """Return a checkpoint of a run with its values: ``load``."""
        _no_token(ct)
        return await self.load(await _of_run(checkpoint, run_id, self))

    async def commit_checkpoint(
        self, run_id: str, checkpoint: str | CheckpointInfo, ct: None = None
    ) -> CheckpointInfo:
        """Return the info of a checkpoint of this storage; its run committed it already, and nobody else can.

        Raises ``CheckpointNotFound`` for one of another storage.
        """
        _no_token(ct)
        return (await self.load(await _of_run(checkpoint, run_id, self), values=False)).info


CheckpointManager.default = CheckpointManager()


@dataclass(frozen=True)
class Checkpointed(Generic[R]):
    """A run with its checkpoints; a ``Run`` has them itself, so this holds nothing else.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     checkpointed = await InProcessExecution.stream(workflow, 21, CheckpointManager())
    ...     await checkpointed.run.wait_for_completion()
    ...     return [checkpoint.phase.value for checkpoint in checkpointed.checkpoints]
    >>> asyncio.run(main())
    ['start', 'end']
    """

    run: R

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """``Run.checkpoints``."""
        return self.run.checkpoints

    @property
    def latest_checkpoint(self) -> CheckpointInfo | None:
        """``Run.latest_checkpoint``."""
        return self.run.latest_checkpoint

    async def restore_checkpoint(self, checkpoint: str | CheckpointInfo, ct: None = None) -> None:
        """Call ``Run.restore_checkpoint``."""
        _no_token(ct)
        await self.run.restore_checkpoint(checkpoint)


class InProcessExecution:
    """Starts and resumes runs in this process: ``Workflow.start`` and ``Workflow.resume`` by their other names.

    ``run_id`` may be given to a resume, as there; a checkpoint knows its run, so it only must not be another. With
    ``take_over=True`` a run that still moves is taken away from whoever drives it. ``ct`` stands where a cancellation
    token does there and is None: cancel the run, or the task that awaits.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     manager = CheckpointManager()
    ...     run = await InProcessExecution.run_streaming(workflow, 21, manager)
    ...     await run.wait_for_completion()
    ...     resumed = await InProcessExecution.resume_streaming(workflow, run.checkpoints[0], manager)
    ...     return (await resumed.wait_for_completion()).outputs
    >>> asyncio.run(main())
    [42]
    """

    @staticmethod
    async def stream(
        workflow: Workflow,
        message: Any,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
        ct: None = None,
    ) -> Checkpointed[StreamingRun]:
        """Start a run with ``message`` as its input."""
        return Checkpointed(
            await InProcessExecution.run_streaming(workflow, message, checkpoint_manager, run_id, ct)
        )

    @staticmethod
    async def run_streaming(
        workflow: Workflow,
        message: Any,
        checkpoint_manager: CheckpointStorage | None = None,
        run_id: str | None = None,
        ct: None = None,
    ) -> StreamingRun:
        """Start a run with ``message`` as its input; its checkpoints are its own."""
        _no_token(ct)
        return await workflow.start(message, run_id, checkpoint_manager)

    @staticmethod
    async def run(
        workflow: Workflow,
        message: Any,
        checkpoint_manager: CheckpointStorage | None = None,
        run_id: str | None = None,
        ct: None = None,
    ) -> Run:
        """Start a run with ``message`` as its input and let it go on until it waits or is over."""
        run = await InProcessExecution.run_streaming(workflow, message, checkpoint_manager, run_id, ct)
        await run.wait_for_completion()
        return run

    @staticmethod
    async def resume_stream(
        workflow: Workflow,
        from_checkpoint: str | CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
        ct: None = None,
        *,
        take_over: bool = False,
    ) -> Checkpointed[StreamingRun]:
        """Go on with a run from one of its checkpoints."""
        return Checkpointed(
            await InProcessExecution.resume_streaming(
                workflow, from_checkpoint, checkpoint_manager, run_id, ct, take_over=take_over
            )
        )

    @staticmethod
    async def resume_streaming(
        workflow: Workflow,
        from_checkpoint: str | CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
        ct: None = None,
        *,
        take_over: bool = False,
    ) -> StreamingRun:
        """Go on with a run from one of its checkpoints; its checkpoints are its own."""
        _no_token(ct)
        checkpoint = await _of_run(from_checkpoint, run_id, checkpoint_manager)
        return await workflow.resume(checkpoint, storage=checkpoint_manager, take_over=take_over)

    @staticmethod
    async def resume(
        workflow: Workflow,
        from_checkpoint: str | CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
        ct: None = None,
        *,
        take_over: bool = False,
    ) -> Checkpointed[Run]:
        """Go on with a run from one of its checkpoints until it waits or is over."""
        run = await InProcessExecution.resume_streaming(
            workflow, from_checkpoint, checkpoint_manager, run_id, ct, take_over=take_over
        )
        await run.wait_for_completion()
        return Checkpointed(run)


async def _of_run(
    checkpoint: str | CheckpointInfo, run_id: str | None, storage: CheckpointStorage
) -> str | CheckpointInfo:
    """Return the checkpoint; raise ``InvalidArgument`` if it belongs to another run."""
    if run_id is None:
        return checkpoint
    info = (await storage.load(checkpoint, values=False)).info if isinstance(checkpoint, str) else checkpoint
    if info.run_id != run_id:
        raise InvalidArgument(
            f"checkpoint {info.checkpoint_id[:12]}... belongs to run {info.run_id!r}, not to {run_id!r}; "
            f"give that run's id, or leave it out"
        )
    return info


def _classes(options: Any) -> list[type]:
    kinds = [] if options is None else options
    listed = isinstance(kinds, list | tuple | set | frozenset)
    if not listed or not all(isinstance(kind, type) for kind in kinds):
        raise InvalidArgument(
            f"create_json(..., options={options!r}): the options are classes whose values may be stored, like "
            f"[Order, Customer]; how they are written is no option"
        )
    return list(kinds)


def _no_token(ct: None) -> None:
    """Refuse a cancellation token: it would be accepted and do nothing."""
    if ct is not None:
        raise InvalidArgument(
            f"ct={ct!r}: there are no cancellation tokens in Python, pass None or leave it out; to cancel, call "
            f"run.cancel(), or cancel the task that awaits"
        )
