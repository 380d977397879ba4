"""What scenarios share: a clock that a test moves, and places where runs are kept."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast import CheckpointStorage, InMemoryCheckpointStorage
from holdfast.testing import VirtualTime
from tests.support import journals
from tests.support.durable import KINDS, Place, storage_at


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


@pytest.fixture
async def stranger(place: Place) -> AsyncIterator[CheckpointStorage]:
    """Another storage on the same place, which never saw a workflow: that of a process that only answers."""
    if place.kind == "memory":
        yield CheckpointStorage(place.storage.store)
        return
    async with storage_at(place.kind, place.folder) as other:
        yield other


@pytest.fixture
def memory(tmp_path: Path) -> Place:
    return Place("memory", tmp_path)


@pytest.fixture
async def nothing_is_left_running() -> AsyncIterator[None]:
    """Fail if a task of a run remains after the test, whatever the test did with it."""
    yield
    gc.collect()
    for _ in range(20):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def nothing_ran() -> Iterator[None]:
    """Forget after the test what the workflows of ``tests/support/journals.py`` did."""
    yield
    journals.ran.clear()
    journals.broken.clear()
    journals.calls.clear()
