"""Running workflows and looking at what they report."""

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from holdfast import (
    ExecutorFailed,
    HoldfastError,
    Run,
    RunResult,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowEvent,
    WorkflowWarningEvent,
    executor,
)

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


async def soon(awaitable: Awaitable[T]) -> T:
    """Await what should end by itself; a hang becomes a failure of this test instead of holding all the others."""
    return await asyncio.wait_for(awaitable, timeout=30)


async def events_of(workflow: Workflow, message: object) -> list[WorkflowEvent]:
    """All events of a run that completes."""
    return [event async for event in workflow.run_stream(message)]


async def events_until_failure(workflow: Workflow, message: object) -> tuple[list[WorkflowEvent], Exception]:
    """All events of a run that fails, and what it fails with."""
    events = []
    try:
        async for event in workflow.run_stream(message):
            events.append(event)
    except HoldfastError as error:
        return events, error
    raise AssertionError("the run did not fail")


async def warnings_of(workflow: Workflow, message: object) -> list[WorkflowWarningEvent]:
    """The warnings of a run that completes."""
    return [event for event in await events_of(workflow, message) if isinstance(event, WorkflowWarningEvent)]


async def cause_of_failure(workflow: Workflow, message: object, kind: type[E]) -> E:
    """What a handler of the run raised, which must be a ``kind``."""
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(message))
    cause = caught.value.__cause__
    assert isinstance(cause, kind), repr(cause)
    return cause


async def outputs_of(workflow: Workflow, message: object) -> list[Any]:
    """The outputs of a run that completes."""
    result = await soon(workflow.run(message))
    assert result.status is RunStatus.COMPLETED
    return result.outputs


async def waiting(workflow: Workflow, message: object) -> RunResult:
    """The result of a run that waits for answers."""
    result = await soon(workflow.run(message))
    assert result.status is RunStatus.WAITING
    return result


async def taken(run: Run) -> list[WorkflowEvent]:
    """The events of a run, as one who watches takes them."""
    return [event async for event in run.watch_stream()]


async def pauses(count: int) -> None:
    """Let the others of this event loop have so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def shape(event: WorkflowEvent) -> tuple[Any, ...]:
    """An event without what differs from run to run: its run id and its time."""
    skipped = ("run_id", "timestamp")
    values = {
        field.name: getattr(event, field.name)
        for field in dataclasses.fields(event)
        if field.name not in skipped
    }
    shown = {
        name: repr(value) if isinstance(value, BaseException) else value for name, value in values.items()
    }
    return (type(event).__name__, *sorted(shown.items()))


def names(events: list[WorkflowEvent]) -> list[str]:
    """The events in a short form that is easy to read in a comparison.

    >>> from holdfast import ExecutorCompletedEvent, SuperStepStartedEvent
    >>> names([SuperStepStartedEvent(superstep=1), ExecutorCompletedEvent("a", superstep=1)])
    ['1 SuperStepStarted', '1 ExecutorCompleted a']
    """
    return [_name(event) for event in events]


def _name(event: WorkflowEvent) -> str:
    kind = type(event).__name__.removesuffix("Event")
    parts = [str(event.superstep), kind]
    for attribute in ("executor_id", "status", "data"):
        value = getattr(event, attribute, None)
        if value is not None:
            parts.append(str(value))
    return " ".join(parts)


async def events_and_error(run: Run) -> tuple[list[WorkflowEvent], BaseException | None]:
    """Return the events of a run and the error that it failed with, None if it did not."""
    events: list[WorkflowEvent] = []
    try:
        async for event in run.watch_stream():
            events.append(event)
    except Exception as error:
        return events, error
    return events, None


@executor
async def countdown(number: int) -> int | None:
    return number - 1 if number else None


def counting(limit: int = 100_000) -> Workflow:
    """Return a workflow that counts down to zero, a superstep for each number."""
    return (
        WorkflowBuilder(name="Counting", max_iterations=limit)
        .set_start_executor(countdown)
        .add_edge(countdown, countdown)
        .build()
    )
