"""What scenarios share: a clock that a test moves, and places where runs are kept."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast import CheckpointStorage, InMemoryCheckpointStorage
from holdfast.testing import VirtualTime
from tests.support.durable import KINDS, Place


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    with VirtualTime() as time:
        yield time


@pytest.fixture
def storage() -> CheckpointStorage:
    return InMemoryCheckpointStorage()


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    await place.storage.close()
