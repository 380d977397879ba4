"""The run as a picture that changes while it goes on, drawn with rich."""

import os
import sys
import textwrap
import time
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast import (
    CheckpointSavedEvent,
    ExecutorFailedEvent,
    OutputDeltaEvent,
    RequestInfoEvent,
    RunStatus,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.demo.other_decision import DecisionOutcomes
from holdfast.demo.progress import RunProgress, Stage, Station
from holdfast.demo.view import COMPARED, compared, line, parting, size, summary, told
from holdfast.demo.workflow import Report, WorkNote
from holdfast.graph.edge import Direct, Switch
from holdfast.ids import ExecutorId

_STYLES = {
    Stage.WAITING: "dim",
    Stage.EARLIER: "blue",
    Stage.RUNNING: "bold yellow",
    Stage.ASKING: "bold magenta",
    Stage.DONE: "green",
    Stage.FAILED: "bold red",
    Stage.NOT_TAKEN: "dim",
}
_MARKS = {
    Stage.WAITING: "○",
    Stage.EARLIER: "●",
    Stage.ASKING: "?",
    Stage.DONE: "●",
    Stage.FAILED: "✗",
    Stage.NOT_TAKEN: "·",
}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_PER_SECOND = 12
_UPPER_ROWS = 9
# Rows that are neither panels nor feed: title, frame of the feed, the cursor's line; and the question below.
_OTHER_ROWS, _QUESTION_ROWS = 1 + 2 + 1, 9
_SHORTEST_FEED, _LONGEST_FEED = 3, 14
# Columns that two panels need side by side; a narrower terminal has them one above the other, if it is high enough.
_SIDE_BY_SIDE = 78
_STATE_WIDTH = 11
# Columns of the feed that are not words: its frame, and the superstep before each line.
_FEED_FRAME = 7


def can_show() -> bool:
    """Return True if this terminal can move its cursor and has the characters of the picture."""
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


class LiveView:
    """Draws the executors, shared state, the messages and the last events anew after each event."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._console = Console()
        self._feed: list[Text] = []
        self._speech = ""
        self._before_speech = 0
        self._live = self._new_live()

    def _new_live(self) -> Live:
        return Live(
            console=self._console, get_renderable=self._picture, refresh_per_second=_FRAMES_PER_SECOND
        )

    def __enter__(self) -> None:
        self._live = self._new_live()
        _set_echo(False)
        self._live.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        _set_echo(True)

    def announce(self, text: str) -> None:
        self._feed.append(Text(text, style="bold cyan"))

    def show(self, event: WorkflowEvent) -> None:
        if isinstance(event, OutputDeltaEvent):
            self._hear(event)
        else:
            self._speech = ""
            self._feed.append(_fed(event, line(event), _style_of(event)))
        self._live.refresh()

    def _hear(self, event: OutputDeltaEvent) -> None:
        """Add words of a model to the lines that it has spoken."""
        if not self._speech:
            self._before_speech = len(self._feed)
            self._speech = f"{event.executor_id} says: "
        self._speech += event.data
        spoken = [
            part
            for spoken_line in self._speech.splitlines()
            for part in textwrap.wrap(spoken_line, self._console.width - _FEED_FRAME)
        ]
        self._feed[self._before_speech :] = [_fed(event, part, "bold white") for part in spoken]

    def present(self, report: Report) -> None:
        self._console.print(_listed("Question", told(report), "magenta"))

    def conclude(self) -> None:
        self._console.print(_listed("Summary", summary(self._progress), "green"))

    def compare(self, outcomes: DecisionOutcomes) -> None:
        table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
        for title, ratio in zip(COMPARED, (None, 1, 1), strict=True):
            table.add_column(title, ratio=ratio, style="" if title else "dim", no_wrap=not title)
        for row in compared(outcomes):
            table.add_row(*map(Text, row))
        self._console.print()
        self._console.print(Text(parting(outcomes), style="bold cyan"))
        self._console.print(table)

    def _picture(self) -> RenderableType:
        upper, taken = self._panels()
        # While the run goes on nothing is asked, so that its events have more room.
        below = 0 if self._progress.status is RunStatus.RUNNING else _QUESTION_ROWS
        rows = max(_SHORTEST_FEED, min(self._console.height - taken - _OTHER_ROWS - below, _LONGEST_FEED))
        return Group(self._title(), upper, _panel("Events", Group(*self._feed[-rows:]), rows + 2))

    def _panels(self) -> tuple[RenderableType, int]:
        """Return the panels above the events as the terminal has room for them, and their rows."""
        executors = _panel("Executors", self._executors(), _UPPER_ROWS)
        sizes = _panel("Shared state and messages", self._sizes(), _UPPER_ROWS)
        if self._console.width >= _SIDE_BY_SIDE:
            upper = Table.grid(expand=True)
            upper.add_column(ratio=1)
            upper.add_column(ratio=1)
            upper.add_row(executors, sizes)
            return upper, _UPPER_ROWS
        if self._console.height < 2 * _UPPER_ROWS + _SHORTEST_FEED + _OTHER_ROWS + _QUESTION_ROWS:
            return executors, _UPPER_ROWS
        return Group(executors, sizes), 2 * _UPPER_ROWS

    def _title(self) -> Text:
        progress = self._progress
        title = Text(" ").append(progress.workflow.name, style="bold")
        title.append(f"  superstep {progress.superstep}", style="bold cyan")
        return title.append(f"  {progress.status}", style="dim")

    def _executors(self) -> RenderableType:
        """The executors from the start on, each with its state; where ways part they are branches."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, overflow="ellipsis", width=_STATE_WIDTH)
        self._add_from(table, self._progress.workflow.graph.start, "", "", set())
        return table

    def _add_from(
        self, table: Table, here: ExecutorId, branch: str, indent: str, drawn: set[ExecutorId]
    ) -> None:
        """Add an executor and all that follow it; one that stands in the picture already is only named."""
        if here in drawn:
            table.add_row(Text(f"{branch}{here}", style="dim"))
            return
        drawn.add(here)
        self._add_station(table, branch, here)
        ways = self._ways(here)
        if len(ways) == 1:
            self._add_from(table, ways[0][1], indent, indent, drawn)
            return
        longest = max((len(label) for label, _ in ways), default=0)
        for label, target in ways:
            last = target is ways[-1][1]
            arrow = f"─ {label} {'─' * (longest - len(label) + 1)}▶ "
            below = indent + ("  " if last else "│ ")
            self._add_from(table, target, f"{indent}{'└' if last else '├'}{arrow}", below, drawn)

    def _ways(self, here: ExecutorId) -> list[tuple[str, ExecutorId]]:
        ways: list[tuple[str, ExecutorId]] = []
        for edge in self._progress.workflow.graph.outgoing[here]:
            match edge:
                case Direct():
                    ways.append((edge.label or "", edge.target))
                case Switch():
                    ways += [(case.label or "else", case.target) for case in edge.cases]
                case _:
                    pass
        return ways

    def _add_station(self, table: Table, branch: str, executor_id: str) -> None:
        station = self._progress.stations[executor_id]
        mark = _spinning() if station.stage is Stage.RUNNING else _MARKS[station.stage]
        named = Text(branch, style="dim").append(f"{mark} {executor_id}", style=_STYLES[station.stage])
        table.add_row(named, _state_of(station))

    def _sizes(self) -> RenderableType:
        progress = self._progress
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(justify="right", no_wrap=True)
        for key, amount in progress.state.items():
            table.add_row(Text(key, style="cyan"), Text(size(amount), style="bold cyan"))
        if not progress.state:
            table.add_row(Text("nothing in shared state", style="dim"))
        table.add_row()
        for message in progress.messages:
            table.add_row(f"{message.source or 'input'} → {message.target}", size(message.size))
        return table


def _fed(event: WorkflowEvent, words: str, style: str) -> Text:
    """Return a line of the feed."""
    superstep = Text(f"{event.superstep} ", style="dim", no_wrap=True, overflow="ellipsis")
    return superstep.append(words, style=style)


def _set_echo(is_on: bool) -> None:
    """Let the terminal show typed keys, Ctrl-C among them, or not: in the middle of a picture they move the cursor."""
    try:
        import termios
    except ModuleNotFoundError:  # Windows shows none
        return
    terminal = sys.stdin.fileno()
    if not os.isatty(terminal):
        return
    mode = termios.tcgetattr(terminal)
    mode[3] = mode[3] | termios.ECHO if is_on else mode[3] & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, mode)


def _spinning() -> str:
    return _SPINNER[int(time.monotonic() * _FRAMES_PER_SECOND) % len(_SPINNER)]


def _state_of(station: Station) -> RenderableType:
    style = _STYLES[station.stage]
    if station.stage is Stage.RUNNING and station.note is not None and station.note.done is not None:
        return ProgressBar(total=1.0, completed=station.note.done, width=_STATE_WIDTH)
    timed = station.seconds is not None and station.stage is not Stage.ASKING
    seconds = f" {station.seconds:.2f} s" if timed else ""
    return Text(f"{station.stage}{seconds}", style=style)


def _listed(title: str, rows: list[tuple[str, str]], colour: str) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, Text(text, style="bold" if name in ("Decision", "Priority") else ""))
    return Panel(table, title=title, title_align="left", border_style=colour, box=box.ROUNDED)


def _panel(title: str, content: RenderableType, height: int) -> Panel:
    return Panel(
        content, title=title, title_align="left", height=height, border_style="blue", box=box.ROUNDED
    )


def _style_of(event: WorkflowEvent) -> str:
    match event:
        case SuperStepStartedEvent() | SuperStepCompletedEvent():
            return "cyan"
        case CheckpointSavedEvent():
            return "blue"
        case WorkNote():
            return "italic"
        case RequestInfoEvent():
            return "bold magenta"
        case WorkflowOutputEvent():
            return "bold green"
        case ExecutorFailedEvent() | WorkflowErrorEvent() | WorkflowWarningEvent():
            return "bold red"
        case _:
            return ""
