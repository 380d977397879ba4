"""A list on the terminal from which a person picks a line, with arrow keys or by its number."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import cut

_EVERYTHING = 1_000_000_000
# Keys that move, by how many lines; those of a page move by as many as are shown.
_STEPS = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "k"), -1),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "j"), 1),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~"), -_EVERYTHING),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~"), _EVERYTHING),
}
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1}
_BACKSPACE = ("\x7f", "\x08")
_ENTER, _LEAVE = ("\r", "\n"), ("q", "\x1b", "\x03", "\x04")
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_HELP = "arrows or a number, Enter; q to leave"


class Picker:
    """Shows lines, each with its number, on stderr, and follows the keys that are typed."""

    def __init__(self, title: str, lines: Sequence[str], numbers: Sequence[int]) -> None:
        self._title, self._lines, self._numbers = title, lines, numbers
        self._chosen = len(lines) - 1
        self._typed = ""
        self._drawn = 0

    def pick(self) -> int:
        """Return the index of the line that a person chose; raise if there is no terminal or nothing was chosen."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(
                "there is no terminal to choose at; name the checkpoint, like RUN@SEQ", ExitCode.USAGE
            )
        try:
            with _typed_keys() as keys:
                self._draw()
                for key in keys:
                    if key in _ENTER and not self._is_unknown():
                        return self._chosen
                    if key in _LEAVE:
                        break
                    self._move(key)
                    self._draw()
        finally:
            self._erase()
        raise CommandError("nothing was chosen")

    def _is_unknown(self) -> bool:
        """Return True if a number was typed that no line has."""
        return bool(self._typed) and int(self._typed) not in self._numbers

    def _move(self, key: str) -> None:
        if key.isdecimal() or key in _BACKSPACE:
            self._typed = self._typed[:-1] if key in _BACKSPACE else (self._typed + key)[-9:]
            if self._typed and not self._is_unknown():
                self._chosen = self._numbers.index(int(self._typed))
        elif key not in _ENTER:
            self._typed = ""
            step = _STEPS.get(key, 0) + _PAGES.get(key, 0) * _height()
            self._chosen = min(max(self._chosen + step, 0), len(self._lines) - 1)

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        height = _height()
        first = min(max(0, self._chosen - height // 2), max(0, len(self._lines) - height))
        shown = range(first, min(first + height, len(self._lines)))
        rows = [
            f"  {self._title}",
            *(f"{'>' if row == self._chosen else ' '} {self._lines[row]}" for row in shown),
        ]
        self._erase()
        last = f"there is no number {self._typed}" if self._is_unknown() else _HELP
        for row in [*rows, last]:
            sys.stderr.write(cut(row, size.columns - 1).rstrip() + "\n")
        sys.stderr.flush()
        self._drawn = len(rows) + 1

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
            sys.stderr.flush()
        self._drawn = 0


def _height() -> int:
    """Return how many lines are shown at a time."""
    return max(1, shutil.get_terminal_size().lines - 3)


@contextmanager
def _typed_keys() -> Iterator[Iterator[str]]:
    """Give the keys as they are typed; those that were typed before are dropped, for they are no answer."""
    if sys.platform == "win32":
        yield iter(click.getchar, "")
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        # Several keys may come at once, where someone is fast.
        parts = iter(lambda: os.read(terminal, 64).decode(errors="replace"), "")
        yield (key for part in parts for key in _KEY.findall(part))
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
