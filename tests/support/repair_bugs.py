"""Repairs that are bad at being killed, for a campaign to find."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.stores.file.arrival import written_whole
from holdfast.stores.file.mending import put_aside
from holdfast.stores.file.run_folder import RunFolder
from holdfast.stores.sqlite import row_writer, store
from tests.support.parts import Commit


def _in_two_transactions(connection: sqlite3.Connection, *rest: Any) -> None:
    """Commits that the rows of a run are gone, before it writes those that are left."""
    straight = row_writer._add_content

    def add_content(connection: sqlite3.Connection, *rest: Any) -> int:
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        return straight(connection, *rest)

    with patch.object(row_writer, "_add_content", add_content):
        _REPLACE_RUN(connection, *rest)


_REPLACE_RUN = row_writer.replace_run


def _puts_aside_first(self: RunFolder, commit: Commit, damaged: Path, mending: Path) -> None:
    """Takes the folder of a run away, before there is another one."""
    with self._lock, self._forgetting(), self._alone():
        tools = self._tools
        with tools.blobs.bringing(commit.head.family, commit.blobs):
            put_aside(self.path, damaged, tools.disk)
            written_whole(commit, self.path, tools.disk, tools.hints).rename(self.path)
        self._row.forget()
        self._row.catch_up()
        assert self._row.known.newest is not None
        tools.hints.forget(self.path)
        tools.hints.reached(self.path, self._row.known.newest)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "two-transactions": (store, "replace_run", _in_two_transactions),
    "puts-aside-first": (RunFolder, "replace", _puts_aside_first),
}
"""By name: what it puts in place of what."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug; none without a name."""
    if not name:
        yield
        return
    with patch.object(*PLANTED[name][:2], PLANTED[name][2]):
        yield
