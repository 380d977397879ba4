"""Stores under keys keep the promises of the port, whatever store lies beneath."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import CheckpointStorage, Keyring
from holdfast.checkpoint.store import Store
from holdfast.stores.file import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.conformance import DurableStoreConformance, Reopen, StoreConformance

KEYS = Keyring.generate()


def under_keys(store: Store) -> Store:
    return CheckpointStorage(store, keys=KEYS).store


class TestMemoryUnderKeys(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        return under_keys(MemoryStore(keyed=True))


class TestSqliteUnderKeys(DurableStoreConformance):
    def make(self, tmp_path: Path, namespace: str = "") -> Store:
        return SqliteStore(tmp_path / "runs.db", namespace, keyed=True)

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = under_keys(self.make(tmp_path))
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        made: list[Store] = []

        async def reopen(namespace: str = "") -> Store:
            made.append(under_keys(self.make(tmp_path, namespace)))
            return made[-1]

        yield reopen
        for store in made:
            await store.close()


class TestFilesUnderKeys(TestSqliteUnderKeys):
    def make(self, tmp_path: Path, namespace: str = "") -> Store:
        return FileStore(tmp_path / "store", namespace, keyed=True)
