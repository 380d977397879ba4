"""Views of the demo's run: their interface, the words that all of them use, and the one that prints lines.

The words between two processes and at the end are in ``supervisor``, those of questions in ``worker``.
"""

import os
import shutil
import textwrap
from itertools import zip_longest
from types import TracebackType
from typing import Protocol, TextIO

from holdfast import (
    CheckpointSavedEvent,
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    OutputDeltaEvent,
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
from holdfast.agents import AgentCallEvent
from holdfast.demo.other_decision import DecisionOutcome, DecisionOutcomes
from holdfast.demo.progress import RunProgress
from holdfast.demo.workflow import Report, WorkNote


class DemoView(Protocol):
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
    def compare(self, outcomes: DecisionOutcomes) -> None: ...


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
        case WorkNote():
            return f"{event.executor_id}: {event.text}"
        case AgentCallEvent():
            return f"{event.executor_id}: {_called(event)}"
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


def _called(event: AgentCallEvent) -> str:
    """Return a call of an agent in words."""
    name = f"tool {event.name}" if event.kind == "tool" else event.call.replace("model", "model call")
    if event.error is not None:
        return f"{name} failed: {event.error}"
    if event.replayed:
        return f"{name} is on record: not {'called' if event.kind == 'tool' else 'paid'} again"
    if event.usage is None:
        return f"{name} is done and on record"
    tokens = event.usage.input_tokens + event.usage.output_tokens
    return f"{name} is paid and on record, {tokens:,} tokens"


def told(report: Report) -> list[tuple[str, str]]:
    """A report, as names and texts."""
    return [
        ("Priority", report.priority),
        ("Service", report.service),
        ("Errors", report.errors),
        ("Burst", report.burst),
    ]


def say(text: str, out: TextIO) -> None:
    """Print a text, with lines that fit a terminal and no word broken; elsewhere it stays one line."""
    width = shutil.get_terminal_size().columns if out.isatty() else 0
    for line in (
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) if width else [text]
    ):
        print(line, file=out)


def size(amount: int) -> str:
    """A number of bytes for people."""
    return f"{amount / 1e6:.1f} MB" if amount >= 100_000 else f"{amount:,} B"


def summary(progress: RunProgress) -> list[tuple[str, str]]:
    """Return the result of the run, as names and texts."""
    in_state = sum(progress.state.values())
    fetches = progress.place.fetched_by()
    return [
        ("Decision", "; ".join(progress.outputs) or "none"),
        ("Supersteps", str(progress.superstep)),
        ("Shared state", f"{size(in_state)}, most in {max(progress.state, key=progress.state.__getitem__)}"),
        *_travelled([message.size for message in progress.messages], in_state),
        ("Fetched", f"{'once' if len(fetches) == 1 else f'{len(fetches)} times'}: {'; '.join(fetches)}"),
        ("Model", _paid(progress)),
        ("Decided by", f"process {os.getpid()}"),
    ]


def _paid(progress: RunProgress) -> str:
    """Return the calls of the model in words: by the count of its server, else by what this process saw."""
    bill = progress.place.read_bill()
    if bill.calls:
        return f"{bill}, as its server counted"
    recorded = sum(call.replayed for call in progress.model_calls)
    return f"{len(progress.model_calls) - recorded} calls by this process, {recorded} taken from the record"


def _travelled(sizes: list[int], in_state: int) -> list[tuple[str, str]]:
    """Return the line about messages: none, where an earlier process had come to the end already."""
    if not sizes:
        return []
    return [
        ("Messages", f"{len(sizes)} seen by this process, the longest {max(sizes):,} B"),
        ("Kept in place", f"{in_state // sum(sizes):,} bytes for each byte that travelled"),
    ]


def parting(outcomes: DecisionOutcomes) -> str:
    """Return the line for the checkpoint at which the two decisions part."""
    before = outcomes.before
    return f"Back to checkpoint {before.seq}, before the decision, and on from there with the other one, as a fork:"


COMPARED = ("", "as decided", "otherwise")


def compared(outcomes: DecisionOutcomes) -> list[tuple[str, str, str]]:
    """Return the outcomes of the two decisions, side by side, under the titles of ``COMPARED``."""
    columns = [_told_outcome(outcome) for outcome in (outcomes.decided, outcomes.otherwise)]
    return [(name, columns[0][name], columns[1][name]) for name in columns[0]]


def _told_outcome(outcome: DecisionOutcome) -> dict[str, str]:
    return {
        "Run": outcome.run_id,
        "Answer": "yes" if outcome.paged else "no",
        "Decision": outcome.decision,
        "Shared state": size(outcome.state),
        "Checkpoints": f"{outcome.checkpoints}, which added {size(outcome.added)}",
    }


_COLUMNS, _CELL = "{:<15}{:<42}{}", 40


class PlainView:
    """Prints lines, for where stdout is no terminal: events with the state and messages that they brought."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._printed = 0
        self._is_speaking = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def announce(self, text: str) -> None:
        print(text, flush=True)

    def show(self, event: WorkflowEvent) -> None:
        if isinstance(event, OutputDeltaEvent):
            return self._speak(event)
        if self._is_speaking:
            print()
            self._is_speaking = False
        print(f"[{event.superstep}] {line(event)}", flush=True)
        if isinstance(event, SuperStepCompletedEvent) and event.state_updated:
            for key, amount in self._progress.state.items():
                print(f"[{event.superstep}]   state {key}: {size(amount)}")
        for message in self._progress.messages[self._printed :]:
            source = message.source or "input"
            print(f"[{event.superstep}]   message {source} -> {message.target}: {size(message.size)}")
        self._printed = len(self._progress.messages)
        return None

    def _speak(self, event: OutputDeltaEvent) -> None:
        """Print the words of a model as they come."""
        speaker = f"[{event.superstep}] {event.executor_id} says: "
        print("" if self._is_speaking else speaker, end="")
        print(event.data.replace("\n", f"\n{speaker}"), end="", flush=True)
        self._is_speaking = True

    def present(self, report: Report) -> None:
        print()
        for name, text in told(report):
            print(f"{name + ':':<15}{text}")

    def conclude(self) -> None:
        print()
        for name, text in summary(self._progress):
            print(f"{name + ':':<15}{text}")

    def compare(self, outcomes: DecisionOutcomes) -> None:
        print(f"\n{parting(outcomes)}\n")
        for name, *texts in [COMPARED, *compared(outcomes)]:
            cells = [[f"{name}:" if name else ""], *(textwrap.wrap(text, _CELL) for text in texts)]
            for row in zip_longest(*cells, fillvalue=""):
                print(_COLUMNS.format(*row).rstrip())
