"""Fixtures that several tests of stores share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores.file import FileStore
from holdfast.stores.sqlite import SqliteStore
from tests.support.store_parts import RunFile, RunGlance


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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory for a file store, which is not there yet."""
    return tmp_path / "store"


@pytest.fixture
async def files(directory: Path) -> AsyncIterator[FileStore]:
    """A file store."""
    store = FileStore(directory)
    yield store
    await store.close()


@pytest.fixture
async def others(directory: Path) -> AsyncIterator[FileStore]:
    """Another one on the same directory, as other processes have, which knows nothing yet."""
    store = FileStore(directory)
    yield store
    await store.close()


@pytest.fixture
def peeks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs whose last line is read from now on."""
    names: list[str] = []
    genuine = RunFile.peek

    def peek(file: RunFile) -> RunGlance:
        names.append(file.path.stem)
        return genuine(file)

    monkeypatch.setattr(RunFile, "peek", peek)
    return names
