"""How far a long piece of work is, on standard error."""

from __future__ import annotations

import sys
import time


class Progress:
    """One line that is overwritten on a terminal, one every few seconds elsewhere; each says the time so far."""

    def __init__(self, every: float = 5.0) -> None:
        self._live = sys.stderr.isatty()
        self._every = every
        self._begin = time.monotonic()
        self._next = self._begin

    def __call__(self, text: str) -> None:
        """Show the newest state of a long piece of work."""
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._begin), 60)
        text = f"[{minutes}:{seconds:02}] {text}"
        if self._live:
            print(f"\r\x1b[K{text[:120]}", end="", file=sys.stderr, flush=True)
        elif now >= self._next:
            self._next = now + self._every
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the live line away."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
