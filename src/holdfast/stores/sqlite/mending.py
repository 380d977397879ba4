"""Heads and indexes of a damaged database, made anew from what is left."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.checkpoint.store import Mended


def mend(connection: sqlite3.Connection, namespace: str, dry_run: bool) -> Sequence[Mended]:
    """Make rows of runs that can be read, in the transaction that is open."""
    return ()
