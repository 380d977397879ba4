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
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Store
from holdfast.errors import InvalidArgument
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.runtime.events import PendingRequest, Response
from holdfast.runtime.run import Run
from holdfast.stores.file import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.workflow import Workflow

__all__ = [
    "CheckpointManager",
    "Checkpointed",
    "ExternalRequest",
    "ExternalResponse",
    "IWorkflowContext",
    "InProcessExecution",
    "MultiAgentCheckpointRetention",
    "ReflectingExecutor",
    "StreamingRun",
]

ReflectingExecutor: TypeAlias = Executor
"""An executor whose handlers are found by what they are declared to take; every ``Executor`` is one."""

IWorkflowContext: TypeAlias = WorkflowContext
"""What a handler is given beside its message."""

StreamingRun: TypeAlias = Run
"""A run that can be watched; every ``Run`` can."""

ExternalRequest: TypeAlias = PendingRequest
"""A question to the outside: ``event.request`` of a ``RequestInfoEvent``."""

ExternalResponse: TypeAlias = Response
"""Its answer: ``request.create_response(value)``, for ``run.send_response``."""

R = TypeVar("R", bound=Run)


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

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(MemoryStore() if store is None else store)

    @classmethod
    def create_in_memory(cls) -> CheckpointManager:
        """A new manager in memory: the same as ``InMemoryCheckpointStorage()``."""
        return cls()

    @classmethod
    def create_file_storage(cls, path: str | os.PathLike[str]) -> CheckpointManager:
        """A manager that keeps checkpoints in a directory: the same as ``FileCheckpointStorage(path)``."""
        return cls(FileStore(path))

    @classmethod
    def create_json(cls, store: str | os.PathLike[str]) -> CheckpointManager:
        """A manager that keeps checkpoints as JSON documents; ``store`` is the directory in which they are.

        There are no options for the serializer: a type can be stored because the workflow declares it, or because it
        is decorated with ``checkpointable``.
        """
        return cls(FileStore(store))

    async def get_latest_checkpoint(self, workflow_name: str) -> Checkpoint | None:
        """The checkpoint on which the run of this workflow stands that moved last: ``get_latest``."""
        return await self.get_latest(workflow_name)

    async def lookup_checkpoint(self, run_id: str, checkpoint: CheckpointInfo) -> Checkpoint:
        """A checkpoint of a run with its values: ``load``."""
        return await self.load(_of_run(checkpoint, run_id))

    async def commit_checkpoint(self, run_id: str, checkpoint: CheckpointInfo) -> CheckpointInfo:
        """The info of a checkpoint that is in here; its run committed it when it made it, and nobody else can.

        Raises ``CheckpointNotFound`` for one of another storage.
        """
        return (await self.load(_of_run(checkpoint, run_id), values=False)).info


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

    async def restore_checkpoint(self, checkpoint: CheckpointInfo) -> None:
        """``Run.restore_checkpoint``."""
        await self.run.restore_checkpoint(checkpoint)


class InProcessExecution:
    """Starts and resumes runs in this process: ``Workflow.start`` and ``Workflow.resume`` by their other names.

    ``run_id`` may be given to a resume, as there; a checkpoint knows its run, so it only must not be another.

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
    ) -> Checkpointed[StreamingRun]:
        """Start a run with ``message`` as its input."""
        return Checkpointed(await workflow.start(message, run_id, checkpoint_manager))

    @staticmethod
    async def run_streaming(
        workflow: Workflow,
        message: Any,
        checkpoint_manager: CheckpointStorage | None = None,
        run_id: str | None = None,
    ) -> StreamingRun:
        """Start a run with ``message`` as its input; its checkpoints are its own."""
        return await workflow.start(message, run_id, checkpoint_manager)

    @staticmethod
    async def run(
        workflow: Workflow,
        message: Any,
        checkpoint_manager: CheckpointStorage | None = None,
        run_id: str | None = None,
    ) -> Run:
        """Start a run with ``message`` as its input and let it go on until it waits or is over."""
        run = await workflow.start(message, run_id, checkpoint_manager)
        await run.wait_for_completion()
        return run

    @staticmethod
    async def resume_stream(
        workflow: Workflow,
        from_checkpoint: CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
    ) -> Checkpointed[StreamingRun]:
        """Go on with a run from one of its checkpoints."""
        checkpoint = _of_run(from_checkpoint, run_id)
        return Checkpointed(await workflow.resume(checkpoint, storage=checkpoint_manager))

    @staticmethod
    async def resume_streaming(
        workflow: Workflow,
        from_checkpoint: CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
    ) -> StreamingRun:
        """Go on with a run from one of its checkpoints; its checkpoints are its own."""
        checkpoint = _of_run(from_checkpoint, run_id)
        return await workflow.resume(checkpoint, storage=checkpoint_manager)

    @staticmethod
    async def resume(
        workflow: Workflow,
        from_checkpoint: CheckpointInfo,
        checkpoint_manager: CheckpointStorage,
        run_id: str | None = None,
    ) -> Checkpointed[Run]:
        """Go on with a run from one of its checkpoints, to wait for what comes of it."""
        return await InProcessExecution.resume_stream(workflow, from_checkpoint, checkpoint_manager, run_id)


class MultiAgentCheckpointRetention:
    """Which checkpoints are kept, by the names that the workflow stores of HPD-Agent have for it.

    >>> MultiAgentCheckpointRetention.LATEST_ONLY
    Retention.latest_only()
    >>> from holdfast import InMemoryCheckpointStorage
    >>> InMemoryCheckpointStorage(MultiAgentCheckpointRetention.FULL_HISTORY).retention.keeps_all
    True
    """

    LATEST_ONLY: ClassVar[Retention] = Retention.latest_only()
    """Only the latest checkpoint of a run is kept."""
    FULL_HISTORY: ClassVar[Retention] = Retention.full_history()
    """Every checkpoint is kept."""


def _of_run(checkpoint: CheckpointInfo, run_id: str | None) -> CheckpointInfo:
    if run_id is not None and checkpoint.run_id != run_id:
        raise InvalidArgument(
            f"checkpoint {checkpoint.checkpoint_id[:12]}... belongs to run {checkpoint.run_id!r}, not to {run_id!r}; "
            f"give that run's id, or leave it out"
        )
    return checkpoint
