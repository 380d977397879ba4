"""SqliteStore keeps the promises of the port, also where every blob or none is a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import DurableStoreConformance, Reopen


class TestSqliteStore(DurableStoreConformance):
    big_blob = 262_144

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", big_blob=self.big_blob)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        made: list[SqliteStore] = []

        async def reopen(namespace: str = "") -> Store:
            made.append(SqliteStore(tmp_path / "runs.db", namespace, big_blob=self.big_blob))
            return made[-1]

        yield reopen
        for store in made:
            await store.close()


class TestAllBlobsAreFiles(TestSqliteStore):
    big_blob = 0


class TestNoBlobIsAFile(TestSqliteStore):
    big_blob = 2**40
