"""The run as lines of text, for where stdout is no terminal."""

import textwrap
from itertools import zip_longest
from types import TracebackType

from examples.incident_triage.other_decision import Outcomes
from examples.incident_triage.progress import Progress
from examples.incident_triage.view import COMPARED, compared, line, parting, size, summary, told
from examples.incident_triage.workflow import Report
from holdfast import SuperStepCompletedEvent, WorkflowEvent

_COLUMNS, _CELL = "{:<15}{:<42}{}", 40


class PlainView:
    """Prints each event with the state and the messages that it brought, and at last the summary."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._printed = 0

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def announce(self, text: str) -> None:
        print(text, flush=True)

    def show(self, event: WorkflowEvent) -> None:
        print(f"[{event.superstep}] {line(event)}", flush=True)
        if isinstance(event, SuperStepCompletedEvent) and event.state_updated:
            for key, amount in self._progress.state.items():
                print(f"[{event.superstep}]   state {key}: {size(amount)}")
        for message in self._progress.messages[self._printed :]:
            source = message.source or "input"
            print(f"[{event.superstep}]   message {source} -> {message.target}: {size(message.size)}")
        self._printed = len(self._progress.messages)

    def present(self, report: Report) -> None:
        print()
        for name, text in told(report):
            print(f"{name + ':':<15}{text}")

    def conclude(self) -> None:
        print()
        for name, text in summary(self._progress):
            print(f"{name + ':':<15}{text}")

    def compare(self, outcomes: Outcomes) -> None:
        print(f"\n{parting(outcomes)}\n")
        for name, *texts in [COMPARED, *compared(outcomes)]:
            cells = [[f"{name}:" if name else ""], *(textwrap.wrap(text, _CELL) for text in texts)]
            for row in zip_longest(*cells, fillvalue=""):
                print(_COLUMNS.format(*row).rstrip())
