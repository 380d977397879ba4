"""MemoryStore keeps the promises of the port."""

import pytest

from holdfast.checkpoint.store import Store
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import StoreConformance
from tests.support.store_parts import begin


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


async def test_two_stores_share_nothing() -> None:
    one, two = MemoryStore("same"), MemoryStore("same")
    await begin(one, "r")
    assert await two.head(RunId("r")) is None
    assert (await one.open()).store_id != (await two.open()).store_id


async def test_a_closed_store_says_so() -> None:
    store = MemoryStore()
    await store.close()
    with pytest.raises(StorageError, match="this MemoryStore is closed"):
        await store.head(RunId("r"))
