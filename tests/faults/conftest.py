"""Campaigns keep their files on a disk: what they kill, stop and race needs the time that a disk takes."""

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """The folder of a test."""
    return on_disk


@pytest.fixture
def quick_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where other tests have theirs, in memory if they can: for those that sync nothing."""
    return tmp_path_factory.mktemp("faults")
