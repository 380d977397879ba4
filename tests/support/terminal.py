"""A person at a terminal: types keys, and sees the screen that the programs there make of their output."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pexpect
import pyte

PATIENCE_SECONDS = 60


class Terminal:
    """A pseudo-terminal with a program in it, and the screen that a person sees.

    ``screen`` is what stands there now, ``text`` everything that was written, with its control sequences.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        cwd: Path | None = None,
        **env: str,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1)
        self._stream = pyte.Stream(self._screen)
        kept = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self._child = pexpect.spawn(
            command[0],
            list(command[1:]),
            dimensions=(lines, columns),
            cwd=None if cwd is None else str(cwd),
            env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PAGER": "cat", **env},
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
        )
        self.text = ""

    @property
    def pid(self) -> int:
        """The process that was started."""
        assert self._child.pid is not None
        return self._child.pid

    @property
    def screen(self) -> list[str]:
        """The lines that stand on the screen, without blanks at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def scrolled(self) -> list[str]:
        """The lines that left the screen at its top, and those that stand there."""
        left = [
            "".join(row[column].data for column in range(self._screen.columns))
            for row in self._screen.history.top
        ]
        return [line.rstrip() for line in left] + self.screen

    def wait_for_count(self, text: str, count: int) -> None:
        """Wait until a text was written so many times."""
        self.wait_until(lambda: self.text.count(text) >= count, f"{text!r}, {count} times")

    def wait_for(self, text: str) -> None:
        """Wait until a text stands on the screen."""
        self.wait_until(lambda: any(text in line for line in self.screen), f"{text!r} on the screen")

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Read on until something is so."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < limit, f"no {what}:\n" + "\n".join(self.scrolled)
            assert self._read(), f"ended without {what}:\n" + "\n".join(self.scrolled)

    def press(self, keys: str) -> None:
        """Type keys."""
        self._child.send(keys)

    def interrupt(self) -> None:
        """Press Ctrl-C until somebody listens: Python notices late what comes right before it begins to read."""
        before = len(self.text)
        self._child.sendintr()
        for _ in range(PATIENCE_SECONDS):
            if not self._read(1) or "interrupt" in self.text[before:] or "stopped" in self.text[before:]:
                return
            if len(self.text) == before:
                self._child.sendintr()

    def kill(self) -> None:
        """Kill the program without a warning, and all that it started."""
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Read until the program ends and return its exit code, negative for a signal."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while self._read():
            assert time.monotonic() < limit, "it does not end:\n" + "\n".join(self.scrolled)
        self._child.close()
        return -self._child.signalstatus if self._child.signalstatus else int(self._child.exitstatus or 0)

    def _read(self, seconds: float = 0.2) -> bool:
        """Take what comes next; False at the end."""
        try:
            part = self._child.read_nonblocking(65_536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.text += part
        self._stream.feed(part)
        return True
