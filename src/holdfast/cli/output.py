"""Output of commands: JSON for programs, tables and colour for people, and progress on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import click

from holdfast.cli.exit_codes import CommandError

# A column is never narrower than this; where a table cannot be that narrow, each row becomes a block of lines.
_NARROWEST = 8
_GAP = "  "
# Seconds between two lines: on a terminal one line is written over the other; in a log each stays.
_PAUSE_ON_TERMINAL, _PAUSE_IN_LOG = 0.1, 10.0
# The lines of an event behind the first, which begins with the time.
EVENT_INDENT = " " * 10
# A line with one coloured part, or none.
_COLOURED = re.compile(r"([^\x1b]*)(?:(\x1b\[\d+m)([^\x1b]*)(\x1b\[0m))?")
_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "waiting": "yellow",
    "failed": "red",
    "interrupted": "red",
    "cancelled": "magenta",
    "stopped": "magenta",
}


class Cell(NamedTuple):
    """A text of a table, with the colour in which it is shown on a terminal that has colours."""

    text: str
    colour: str | None = None


class Verbatim(str):
    """A line that is not wrapped, because its form matters: of a traceback, or of JSON."""


class CommandOutput:
    """Writes the result of a command to stdout, in the form that was asked for."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        is_terminal = sys.stdout.isatty()
        self._is_coloured = (
            is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        known = is_terminal or os.environ.get("COLUMNS")
        self._width = shutil.get_terminal_size().columns if known else None
        self._encoding = sys.stdout.encoding or "ascii"

    def write(self, data: Any, text: Callable[[], Iterable[str]]) -> None:
        """Write ``data`` as one JSON document, or the lines of ``text`` for people."""
        if self.is_json:
            self._emit(json.dumps(data, indent=2))
        else:
            self.write_lines(text())

    def write_raw(self, data: Any, text: Callable[[], Iterable[str]]) -> None:
        """Write as ``write`` does, but lines as they are, however long: other programs read them, too."""
        if self.is_json:
            self.write(data, text)
        else:
            self._emit_lines(text())

    def write_long(self, data: Any, text: Callable[[], Iterable[str]]) -> None:
        """Write as ``write`` does; a text that is longer than the terminal goes through a pager."""
        if self.is_json or not sys.stdout.isatty():
            self.write(data, text)
            return
        lines = [part for line in text() for part in self.wrap(line)]
        if len(lines) < shutil.get_terminal_size().lines:
            self._emit_lines(lines)
        else:
            click.echo_via_pager("\n".join(lines), color=self._is_coloured)

    def write_value(self, data: Any, value: Any) -> None:
        """Write one stored value: a text as it is, but without control characters on a terminal; else as JSON."""
        text = value if isinstance(value, str) else json.dumps(value, indent=2)
        if self.is_json or sys.stdout.isatty():
            self.write_raw(data, lambda: map(printable, text.split("\n")))
        else:
            self._emit(text, color=True)  # or click would take sequences of colours out of it

    def write_record(self, data: Any, text: str) -> None:
        """Write one of many results as they come: a line of JSON, or a line of text."""
        if self.is_json:
            self._emit(json.dumps(data))
        else:
            self._emit_lines(self.wrap(text, EVENT_INDENT))

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write lines for people, wrapped where the terminal is narrow."""
        self._emit_lines(part for line in lines for part in self.wrap(line))

    def wrap(self, line: str, indent: str | None = None) -> list[str]:
        """Return a line in lines that fit the terminal, as ``wrap_line`` makes them."""
        if self._width is None or isinstance(line, Verbatim):
            return [line]
        return wrap_line(line, self._width, indent)

    def _emit_lines(self, lines: Iterable[str]) -> None:
        whole = "\n".join(lines)
        if whole:
            self._emit(whole, color=self._is_coloured)

    def _emit(self, text: str, color: bool | None = None) -> None:
        """Write to stdout; raise ``CommandError`` where it takes no more, as a file on a full disk does."""
        try:
            click.echo(text, color=color)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(
                f"the result cannot be written to stdout: {error.strerror}; what the command changed stays changed"
            ) from error

    def say(self, text: str, indent: str | None = None) -> None:
        """Tell a person something beside the result; programs that read JSON do not see it."""
        if not self.is_json:
            if sys.stderr.isatty():
                text = "\n".join(wrap_line(text, shutil.get_terminal_size().columns, indent))
            try:
                click.echo(text, err=True, color=None if self._is_coloured else False)
            except BrokenPipeError:
                raise
            except OSError:  # a log on a full disk: no reason to end what is under way
                pass

    def room(self, most: int) -> int:
        """Return how many columns a line may take: those of the terminal, but at most so many."""
        return most if self._width is None else min(most, self._width)

    @property
    def draws_boxes(self) -> bool:
        """True if stdout can show characters that draw boxes."""
        return "utf" in self._encoding.lower()

    def draw_table(
        self, titles: Sequence[str], rows: Sequence[Sequence[Cell | str]], is_cut: bool = True
    ) -> list[str]:
        """Return a table, a line for each row.

        One that is too wide is cut, unless ``is_cut`` is False, and where that leaves too little, rows become blocks.
        """
        cells = [[_cell(one) for one in row] for row in rows]
        widths = [
            max(len(title), *(width_of(row[index].text) for row in cells)) if cells else len(title)
            for index, title in enumerate(titles)
        ]
        room = None if self._width is None or not is_cut else self._width - len(_GAP) * (len(titles) - 1)
        if room is not None and sum(widths) > room:
            if sum(min(width, _NARROWEST) for width in widths) > room:
                return self._draw_blocks(titles, cells)
            widths = _shrink(widths, room)
        lines = [_GAP.join(cut(title, width) for title, width in zip(titles, widths, strict=True)).rstrip()]
        lines += [
            _GAP.join(_paint(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return lines

    def _draw_blocks(self, titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
        lines: list[str] = []
        for row in rows:
            lines += [""] if lines else []
            lines += self.draw_fields({t.lower(): c for t, c in zip(titles, row, strict=True) if c.text})
        return lines

    def draw_fields(self, fields: Mapping[str, Cell | str]) -> list[str]:
        """Return names with their values, a line each, wrapped where the terminal is narrow."""
        longest = max((len(name) for name in fields), default=0)
        lines: list[str] = []
        for name, value in fields.items():
            cell = _cell(value)
            first, *more = self._wrap(cell.text, longest + len(_GAP))
            lines.append(f"{name:<{longest}}{_GAP}{_paint(Cell(first, cell.colour), 0)}")
            lines += [" " * (longest + len(_GAP)) + part for part in more]
        return lines

    def _wrap(self, text: str, indent: int) -> list[str]:
        """Return a text in lines that fit; none of it is left out."""
        if self._width is None or indent + width_of(text) <= self._width:
            return [text]
        import textwrap

        return textwrap.wrap(text, max(_NARROWEST, self._width - indent)) or [""]


class ProgressLine:
    """Shows progress while it is entered; calls of it are ``progress=`` of a storage.

    >>> line = ProgressLine("checking", "checkpoints", clock=lambda: 0.0)
    >>> line.text(50, 200, seconds=2.0)
    'checking: 50 of 200 checkpoints (25%), 25/s, 6s left'
    """

    def __init__(self, verb: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._unit = verb, unit
        self._clock = clock
        self._is_terminal = sys.stderr.isatty()
        self._began = self._shown = clock()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._shown < (_PAUSE_ON_TERMINAL if self._is_terminal else _PAUSE_IN_LOG):
            return
        self._shown = now
        text = self.text(done, total, now - self._began)
        with suppress(OSError):  # a log on a full disk
            if self._is_terminal:  # one line: of a longer one the terminal would keep a piece each time
                text = cut(text, shutil.get_terminal_size().columns - 1).rstrip()
                sys.stderr.write("\r" + text.ljust(self._width))
                self._width = len(text)
            else:
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def text(self, done: int, total: int, seconds: float) -> str:
        """Return a line of progress."""
        rate = done / seconds if seconds > 0 else 0.0
        left = f", {span_text(round((total - done) / rate))} left" if rate else ""
        share = f" ({100 * done // total}%)" if total else ""
        return f"{self._verb}: {done:,} of {total:,} {self._unit}{share}, {rate:,.0f}/s{left}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._width:  # the result is not to stand behind it
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()


def status_cell(status: str) -> Cell:
    """Return a status in its colour."""
    return Cell(status, _COLOURS.get(status))


def paint(text: str, colour: str | None) -> str:
    """Return a text in a colour, which ``CommandOutput`` takes off again where there are none."""
    return text if colour is None else click.style(text, fg=colour)


def printable(text: str) -> str:
    """Return a stored text as one line without characters that would command the terminal.

    >>> print(printable("a\\nb"), printable("kelp"))
    a\\nb kelp
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shorten(value: Any, most: int = 60) -> str:
    """Return a plain value as one short line of JSON."""
    return cut(printable(json.dumps(value, ensure_ascii=False)), most).rstrip()


def cut(text: str, width: int) -> str:
    """Return a text of exactly this width: filled with blanks, or cut with an ellipsis.

    >>> cut("kelp", 6), cut("seaweed", 4)
    ('kelp  ', 'sea…')
    """
    missing = width - width_of(text)
    if missing >= 0:
        return text + " " * missing
    taken = end = 0
    while taken + width_of(text[end]) <= width - 1:  # from the front: a value may be millions long
        taken += width_of(text[end])
        end += 1
    return text[:end] + "…" + " " * (width - 1 - taken)


def width_of(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def age_of(moment: datetime) -> str:
    """Return how long ago a moment was, in its largest unit."""
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    return f"in {span_text(-seconds)}" if seconds < 0 else f"{span_text(seconds)} ago"


def span_text(seconds: int) -> str:
    """Return a number of seconds in its largest unit.

    >>> span_text(7), span_text(150), span_text(7200), span_text(200_000)
    ('7s', '2m', '2h', '2d')
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def wrap_line(line: str, width: int, indent: str | None = None) -> list[str]:
    """Return a line in lines of this width, broken between words; each has the colour that the line has.

    Those behind the first are indented by ``indent``, or two more than the first.

    >>> wrap_line("  kelp and dulse", 12)
    ['  kelp and', '    dulse']
    """
    found = _COLOURED.fullmatch(line)
    if found is None:  # several colours: a row of a table, which fits
        return [line]
    before, start, text, end = found.groups("")
    if width_of(before + text) <= width:
        return [line]
    import textwrap

    if indent is None:
        plain = before + text
        indent = " " * (len(plain) - len(plain.lstrip(" ")) + 2)
    first, *more = textwrap.wrap(
        before + text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    if not start:
        return [first, *more]
    first = first[: len(before)] + start + first[len(before) :] + end
    return [first, *(indent + start + part[len(indent) :] + end for part in more)]


def _cell(value: Cell | str) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(printable(cell.text), cell.colour)


def _paint(cell: Cell, width: int) -> str:
    return paint(cut(cell.text, width) if width else cell.text, cell.colour)


def _shrink(widths: Sequence[int], room: int) -> list[int]:
    """Return widths that fit: the widest columns give most."""
    result = list(widths)
    while sum(result) > room:
        widest = max(range(len(result)), key=result.__getitem__)
        result[widest] -= 1
    return result
