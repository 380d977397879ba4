"""Output of commands: JSON for programs, tables and colour for people."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

# A column is never narrower than this; where a table cannot be that narrow, each row becomes a block of lines.
_NARROWEST = 8
_GAP = "  "
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
            click.echo(json.dumps(data, indent=2))
        else:
            self.write_lines(text())

    def write_record(self, data: Any, text: str) -> None:
        """Write one of many results as they come: a line of JSON, or a line of text."""
        click.echo(json.dumps(data) if self.is_json else text, color=self._is_coloured)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write lines for people."""
        whole = "\n".join(lines)
        if whole:
            click.echo(whole, color=self._is_coloured)

    def say(self, text: str) -> None:
        """Tell a person something beside the result; programs that read JSON do not see it."""
        if not self.is_json:
            click.echo(text, err=True)

    @property
    def draws_boxes(self) -> bool:
        """True if stdout can show characters that draw boxes."""
        return "utf" in self._encoding.lower()

    def draw_table(self, titles: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> list[str]:
        """Return a table; one that is too wide is cut, and where that leaves too little, rows become blocks."""
        cells = [[_cell(one) for one in row] for row in rows]
        widths = [
            max(len(title), *(width_of(row[index].text) for row in cells)) if cells else len(title)
            for index, title in enumerate(titles)
        ]
        room = None if self._width is None else self._width - len(_GAP) * (len(titles) - 1)
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
    while width_of(text) > width - 1:
        text = text[:-1]
    return text + "…" + " " * (width - 1 - width_of(text))


def width_of(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def age_of(time: datetime) -> str:
    """Return how long ago a time was, in its largest unit."""
    seconds = int((datetime.now(UTC) - time).total_seconds())
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
