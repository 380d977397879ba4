"""Where the runs of commits stand: remembered since the last commit, or found."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import TypeAlias

from holdfast.ids import RunId
from holdfast.stores.common.head_check import HeadPosition

Indexed: TypeAlias = tuple[int, int | None, str, str]
"""The columns of a run that are in indexes: created, wake_at, status and family."""

Standing: TypeAlias = tuple[int, HeadPosition, int, Indexed, int]
"""A run: its number, where it stands, its content, what is indexed, and whether it has notes or letters that wait."""

NOTES, LETTERS = 1, 2
"""Bits of the last field of those that have some."""

_MOST = 4096
"""How many runs are remembered."""


class Known:
    """Where runs stand that the thread which writes has written, as long as nobody else wrote.

    That is when SQLite trusts the pages in its cache: it reads nothing anew either. Runs that have notes or letters are
    not among them.
    """

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._runs: dict[RunId, Standing] = {}

    def forget(self) -> None:
        """Trust nothing of it: something else than a commit is written."""
        self._runs.clear()

    def runs(self, connection: sqlite3.Connection) -> dict[RunId, Standing]:
        """What may be trusted in the transaction that is open, to be kept right by who writes in it.

        A transaction that does not come to its end takes its connection with it, and what was remembered then.
        """
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or connection is not self._connection or len(self._runs) > _MOST:
            self._runs.clear()
            self._connection, self._version = connection, version
        return self._runs


def find_runs(connection: sqlite3.Connection, namespace: str, run_ids: list[RunId]) -> dict[RunId, Standing]:
    """What commits have to know of their runs; nothing of those that are not there."""
    # Some more of the same, so that there are few different statements.
    count = 1 << (len(run_ids) - 1).bit_length()
    names = (namespace, *run_ids, *run_ids[:1] * (count - len(run_ids)))
    return {
        run_id: (run, (checkpoint.hex(), token), content, tuple(indexed), has)
        for run_id, run, checkpoint, token, content, has, *indexed in connection.execute(
            _find_statement(count), names
        )
    }


@cache
def _find_statement(count: int) -> str:
    # Whether it has notes, and whether letters wait, is asked here: statements of their own take three times as long.
    return (
        "SELECT run, id, checkpoint, token, content, "
        f"EXISTS (SELECT 1 FROM notes WHERE run = runs.id) * {NOTES} + "
        f"EXISTS (SELECT 1 FROM letters WHERE run = runs.id AND data IS NOT NULL) * {LETTERS}, "
        f"created, wake_at, status, family FROM runs WHERE namespace = ? AND run IN ({', '.join('?' * count)})"
    )
