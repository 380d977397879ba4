"""Fixtures that several tests of stores share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores.sqlite import SqliteStore


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path of a SQLite database that does not exist yet."""
    return tmp_path / "runs.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[SqliteStore]:
    """A SQLite store, closed after the test."""
    store = SqliteStore(database)
    yield store
    await store.close()
