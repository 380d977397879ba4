"""Runs as their callers hold them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from holdfast.engine.snapshot import Snapshot
from holdfast.errors import HoldfastWarning
from holdfast.ids import RunId
from holdfast.runtime.event_log import EventLog
from holdfast.runtime.events import (
    RunStatus,
    WorkflowCompletedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
)
from holdfast.runtime.runner import Runner


@dataclass(slots=True)
class RunResult:
    """What came of a run.

    >>> RunResult(RunId("r1"), RunStatus.COMPLETED, ["done"]).get_outputs()
    ['done']
    """

    run_id: RunId
    status: RunStatus
    outputs: list[Any] = field(default_factory=list)
    warnings: list[HoldfastWarning] = field(default_factory=list)
    """What the run warned of, the last thousand at most."""

    def get_outputs(self) -> list[Any]:
        """The outputs, in order."""
        return self.outputs


class Run:
    """One execution of a workflow, in a task of its own; made by ``Workflow.start``.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... async def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     run = await workflow.start(21)
    ...     return await run.wait_for_completion()
    >>> asyncio.run(main()).outputs
    [42]
    """

    def __init__(self, workflow_name: str, run_id: RunId, runner: Runner, log: EventLog) -> None:
        self._workflow_name = workflow_name
        self._run_id = run_id
        self._runner = runner
        self._log = log
        self._status = RunStatus.RUNNING
        self._error: Exception | None = None
        self._leaving: RunStatus | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> RunId:
        """The id of the run."""
        return self._run_id

    @property
    def status(self) -> RunStatus:
        """Where the run stands."""
        return self._status

    @property
    def snapshot(self) -> Snapshot:
        """The run as it was after its last superstep."""
        return self._runner.snapshot

    def begin(self) -> None:
        """Let the run begin, once; needs a running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._drive(), name=f"holdfast run {self._run_id}")

    async def watch_stream(self) -> AsyncGenerator[WorkflowEvent, None]:
        """The run's events from its beginning; ends when the run has ended and all events were taken.

        Any number of watchers may watch, at any time; leaving never stops the run. Raises what the run failed with.
        """
        watcher = self._log.watch()
        while events := await self._log.take(watcher):
            for event in events:
                yield event
        self._raise_failure()

    async def wait_for_completion(self) -> RunResult:
        """Wait for the end of the run; raises what it failed with."""
        self.begin()
        assert self._task is not None
        await asyncio.wait([self._task])
        self._raise_failure()
        return self.result()

    def result(self) -> RunResult:
        """What came of the run so far."""
        outputs = [output.value.load() for output in self.snapshot.outputs]
        return RunResult(self._run_id, self._status, outputs, list(self._runner.warnings))

    async def cancel(self) -> None:
        """End the run as CANCELLED; what its current superstep did is discarded."""
        await self._leave(RunStatus.CANCELLED)

    async def close(self) -> None:
        """Leave the run: if it still goes on it ends as STOPPED."""
        await self._leave(RunStatus.STOPPED)

    async def _leave(self, status: RunStatus) -> None:
        if self._status.ended:
            return
        if self._task is None:
            self._end(status)
            self._log.close()
            return
        self._leaving = self._leaving or status
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _drive(self) -> None:
        self._emit(WorkflowStartedEvent(self._workflow_name))
        self._emit(WorkflowStatusEvent(self._status))
        try:
            await self._runner.drive()
        except asyncio.CancelledError:
            self._end(self._leaving or RunStatus.STOPPED)
            if self._leaving is None:
                raise
        except Exception as error:
            self._error = error
            self._end(RunStatus.FAILED)
            self._emit(WorkflowErrorEvent(error))
        else:
            self._end(RunStatus.COMPLETED)
            outputs = self.snapshot.outputs
            self._emit(WorkflowCompletedEvent(outputs.last.value.load() if outputs else None))
        finally:
            self._log.close()

    def _end(self, status: RunStatus) -> None:
        self._status = status
        self._emit(WorkflowStatusEvent(status))

    def _emit(self, event: WorkflowEvent) -> None:
        self._runner.emit([event])

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error


class RunStream(AsyncIterator[WorkflowEvent]):
    """The events of a run as they happen; made by ``Workflow.run_stream``.

    The run takes its next superstep when the events of the last one have been taken. Leaving the stream, by
    ``break``, ``aclose`` or the end of ``async with``, stops the run. After the last event it raises what the
    run failed with.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, WorkflowOutputEvent, executor
    >>> @executor
    ... async def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     async for event in workflow.run_stream(21):
    ...         if isinstance(event, WorkflowOutputEvent):
    ...             print(event.data)
    >>> asyncio.run(main())
    42
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events: AsyncGenerator[WorkflowEvent, None] | None = None

    @property
    def run(self) -> Run:
        """The run whose events these are."""
        return self._run

    def __aiter__(self) -> AsyncGenerator[WorkflowEvent, None]:
        # Not kept here: so a break drops the last reference, and with it Python closes the generator at once.
        return _held(self._run)

    def __anext__(self) -> Awaitable[WorkflowEvent]:
        if self._events is None:
            self._events = _held(self._run)
        return self._events.__anext__()

    async def aclose(self) -> None:
        """Leave the stream and stop the run."""
        if self._events is not None:
            await self._events.aclose()
        await self._run.close()

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _held(run: Run) -> AsyncGenerator[WorkflowEvent, None]:
    log = run._log
    watcher = log.watch(holding=True)
    run.begin()
    try:
        while events := await log.take(watcher):
            for event in events:
                yield event
        run._raise_failure()
    finally:
        log.leave(watcher)
        await run.close()
