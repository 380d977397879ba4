"""The interface of every view of a run, and the words that all of them use."""

import os
from types import TracebackType
from typing import Protocol

from examples.incident_triage.other_decision import Outcome, Outcomes
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
    def compare(self, outcomes: Outcomes) -> None: ...


def line(event: WorkflowEvent) -> str:
    """Return an event in one line."""
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
    """Return the result of the run, as names and texts."""
    in_state = sum(progress.state.values())
    fetches = progress.place.fetched_by()
    return [
        ("Decision", "; ".join(progress.outputs) or "none"),
        ("Supersteps", str(progress.superstep)),
        ("Shared state", f"{size(in_state)} in {', '.join(progress.state)}"),
        *_travelled([message.size for message in progress.messages], in_state),
        ("Fetched", f"{'once' if len(fetches) == 1 else f'{len(fetches)} times'}: {'; '.join(fetches)}"),
        ("Decided by", f"process {os.getpid()}"),
    ]


def _travelled(sizes: list[int], in_state: int) -> list[tuple[str, str]]:
    """Return the line about messages: none, where an earlier process had come to the end already."""
    if not sizes:
        return []
    return [
        ("Messages", f"{len(sizes)} seen by this process, the longest {max(sizes):,} B"),
        ("Kept in place", f"{in_state // sum(sizes):,} bytes for each byte that travelled"),
    ]


def parting(outcomes: Outcomes) -> str:
    """Return the line for the checkpoint at which the two decisions part."""
    before = outcomes.before
    return f"Back to checkpoint {before.seq}, before the decision, and on from there with the other one, as a fork:"


COMPARED = ("", "as decided", "otherwise")


def compared(outcomes: Outcomes) -> list[tuple[str, str, str]]:
    """Return the outcomes of the two decisions, side by side, under the titles of ``COMPARED``."""
    columns = [_told_outcome(outcome) for outcome in (outcomes.decided, outcomes.otherwise)]
    return [(name, columns[0][name], columns[1][name]) for name in columns[0]]


def _told_outcome(outcome: Outcome) -> dict[str, str]:
    return {
        "Run": outcome.run_id,
        "Answer": "yes" if outcome.paged else "no",
        "Decision": outcome.decision,
        "Shared state": size(outcome.state),
        "Checkpoints": f"{outcome.checkpoints}, which added {size(outcome.added)}",
    }
