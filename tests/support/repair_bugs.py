"""Repairs that are bad at being killed, for a campaign to find."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.stores.file import run_file
from holdfast.stores.sqlite import row_writer, store


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


def _puts_aside_first(path: Path, aside: Path) -> None:
    """Takes the file of a run away, before there is another one."""
    aside.parent.mkdir(0o700, exist_ok=True)
    path.rename(aside)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "two-transactions": (store, "replace_run", _in_two_transactions),
    "puts-aside-first": (run_file, "copy_aside", _puts_aside_first),
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
