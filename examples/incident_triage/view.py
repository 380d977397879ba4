"""What every view of a run can do, and the words that all of them use."""

import os
from types import TracebackType
from typing import Protocol

from examples.incident_triage.progress import Progress
from examples.incident_triage.workflow import Note, Report
from holdfast import (
    CheckpointSavedEvent,
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    RequestInfoEvent,
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


class View(Protocol):
    """Shows a run: within ``with`` each event after the progress took it, then what came of it.

    While a person is asked the view is left, and it is entered again when the run goes on.
    """

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def announce(self, text: str) -> None: ...
    def show(self, event: WorkflowEvent) -> None: ...
    def present(self, report: Report) -> None: ...
    def conclude(self) -> None: ...


def line(event: WorkflowEvent) -> str:
    """What happened, in one line."""
    match event:
        case WorkflowStartedEvent():
            return f"workflow {event.workflow_name} started"
        case WorkflowStatusEvent():
            return f"status: {event.status}"
        case SuperStepStartedEvent():
            return f"superstep {event.superstep} started"
        case SuperStepCompletedEvent():
            changed = ", state changed" if event.state_updated else ""
            return f"superstep {event.superstep} completed{changed}"
        case CheckpointSavedEvent(checkpoint=made):
            place = f"{made.phase} of superstep {made.superstep}"
            return f"checkpoint {made.seq} is durable: {place}, {size(made.new_bytes)}"
        case ExecutorInvokedEvent():
            return f"{event.executor_id} has its turn"
        case Note():
            return f"{event.executor_id}: {event.text}"
        case ExecutorCompletedEvent():
            return f"{event.executor_id} completed"
        case ExecutorFailedEvent():
            return f"{event.executor_id} failed: {event.error!r}"
        case RequestInfoEvent():
            return f"{event.executor_id} asks a person (request {event.request_id})"
        case WorkflowOutputEvent():
            return f"{event.executor_id} gave out: {event.data}"
        case WorkflowWarningEvent():
            return f"warning: {event.message}"
        case WorkflowErrorEvent():
            return f"error: {event.error}"
        case WorkflowCompletedEvent():
            return "workflow completed"
        case _:
            return type(event).__name__


def told(report: Report) -> list[tuple[str, str]]:
    """A report, as names and texts."""
    return [
        ("Priority", report.priority),
        ("Service", report.service),
        ("Errors", report.errors),
        ("Burst", report.burst),
    ]


def size(amount: int) -> str:
    """A number of bytes for people."""
    return f"{amount / 1e6:.1f} MB" if amount >= 100_000 else f"{amount:,} B"


def summary(progress: Progress) -> list[tuple[str, str]]:
    """What came of the run, as names and texts."""
    in_state = sum(progress.state.values())
    passed = sum(message.size for message in progress.messages)
    longest = max(message.size for message in progress.messages)
    fetches = progress.place.fetched_by()
    return [
        ("Decision", "; ".join(progress.outputs) or "none"),
        ("Supersteps", str(progress.superstep)),
        ("Shared state", f"{size(in_state)} in {', '.join(progress.state)}"),
        ("Messages", f"{len(progress.messages)} seen by this process, the longest {longest:,} B"),
        ("Kept in place", f"{in_state // passed:,} bytes for each byte that travelled"),
        ("Fetched", f"{'once' if len(fetches) == 1 else f'{len(fetches)} times'}: {'; '.join(fetches)}"),
        ("Decided by", f"process {os.getpid()}"),
    ]
