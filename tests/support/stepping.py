"""Counting what a process does to a disk, so that it can die before any of it."""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from holdfast.stores.sqlite import connection
from tests.support.parts import Disk

_CHANGES = ("os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
_WRITES = ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "REINDEX", "COMMIT")


class Steps:
    """How many there were."""

    def __init__(self, last: int | None) -> None:
        self.taken = 0
        self._last = last

    def take(self) -> None:
        """Take one more, or die instead."""
        self.taken += 1
        if self.taken == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def count_steps(folder: Path, last: int | None) -> Steps:
    """Count changes of names beneath a folder, new files, syncs, and statements that write; for the life of a process.

    It dies before the step ``last``.
    """
    steps = Steps(last)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        new_file = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if (event in _CHANGES or new_file) and str(folder) in str(arguments):
            steps.take()

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if sql.startswith(_WRITES):
                steps.take()
            return super().execute(sql, *rest)

        def executemany(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            steps.take()
            return super().executemany(sql, *rest)

    sys.addaudithook(hook)
    connection.CONNECTION_CLASS = Connection
    Disk.sync = Disk.sync_data = lambda *_: steps.take()  # type: ignore[method-assign]  # a killed process needs none
    return steps
