"""The storages over which the seeds are tried out."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import CheckpointStorage
from tests.seeds.storages import KINDS, OpenStorage, Storages


@pytest.fixture(params=KINDS)
async def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStorage]:
    """Opens the same checkpoints each time, as a new process would."""
    storages = Storages(request.param, tmp_path)
    yield storages.open
    await storages.close()


@pytest.fixture
def storage(open_again: OpenStorage) -> CheckpointStorage:
    """An empty storage of each kind."""
    return open_again()
