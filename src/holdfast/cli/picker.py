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

_UP, _DOWN = ("\x1b[A", "\x1bOA", "k"), ("\x1b[B", "\x1bOB", "j")
_ENTER, _LEAVE = ("\r", "\n"), ("q", "\x1b", "\x03", "\x04")
_KEY = re.compile(r"\x1b[\[O][A-Z]|.", re.DOTALL)
_HELP = "arrow keys or a number, Enter to choose, q to leave"


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
                    if key in _ENTER:
                        return self._chosen
                    if key in _LEAVE:
                        break
                    self._move(key)
                    self._draw()
        finally:
            self._erase()
        raise CommandError("nothing was chosen")

    def _move(self, key: str) -> None:
        if key.isdecimal():
            self._typed += key
            wanted = int(self._typed)
            if wanted not in self._numbers and int(key) in self._numbers:
                self._typed, wanted = key, int(key)
            if wanted in self._numbers:
                self._chosen = self._numbers.index(wanted)
            return
        self._typed = ""
        step = -1 if key in _UP else 1 if key in _DOWN else 0
        self._chosen = min(max(self._chosen + step, 0), len(self._lines) - 1)

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        height = max(1, size.lines - 3)
        first = min(max(0, self._chosen - height // 2), max(0, len(self._lines) - height))
        shown = range(first, min(first + height, len(self._lines)))
        rows = [
            f"  {self._title}",
            *(f"{'>' if row == self._chosen else ' '} {self._lines[row]}" for row in shown),
        ]
        self._erase()
        for row in [*rows, _HELP]:
            sys.stderr.write(cut(row, size.columns - 1).rstrip() + "\n")
        sys.stderr.flush()
        self._drawn = len(rows) + 1

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\x1b[J")
            sys.stderr.flush()
        self._drawn = 0


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
