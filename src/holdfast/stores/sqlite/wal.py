"""Room at the end of the write-ahead log, made before it is needed."""

from __future__ import annotations

import os
from pathlib import Path

LEAST = 64 * 1024
MOST = 1024 * 1024
"""How many bytes are added: the fewest at first, for a process may end soon, then twice as many as there are."""
_COMMITS = 4
"""How many go by before the log is looked at again: a process that makes fewer pays for nothing."""
_ZEROS = bytes(16 * 1024)


class Room:
    """The end of the log of one database; ``longest`` is where SQLite begins anew, or close to it."""

    def __init__(self, database: Path, longest: int) -> None:
        self._log = os.fspath(database) + "-wal"
        self._longest = longest
        self._end = 0
        self._commits = 0
        self.added = 0
        """How many bytes were added so far."""

    def make(self, commits: int) -> None:
        """Make room if none is left, in a transaction that may write: so nobody else is at the end of the log."""
        self._commits += commits
        if self._commits < _COMMITS:
            return
        self._commits = 0
        try:
            size = os.stat(self._log).st_size
            # Where the end is another one, frames went beyond it, or this is another log.
            if size != self._end and size < self._longest:
                wanted = max(2 * size, LEAST) if self.added else LEAST
                added = self._add(min(wanted, MOST, self._longest - size))
                self._end = size + added
                self.added += added
        except OSError:  # without room commits take longer, and a disk that is full they notice themselves
            self._end = 0

    def _add(self, count: int) -> int:
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        try:
            # A commit must not need more memory than others for it.
            return sum(os.write(log, _ZEROS[: count - begin]) for begin in range(0, count, len(_ZEROS)))
        finally:
            os.close(log)
