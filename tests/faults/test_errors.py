"""A system call that fails may end a run, but nothing that is acknowledged then is missing on the disk.

``HOLDFAST_ERRORS`` sets how many fail; by hand: ``python -m tests.faults.errors --store file --only "sync "``.
"""

import os
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

ERRORS = int(os.environ.get("HOLDFAST_ERRORS", "3"))


@pytest.mark.parametrize("group", ["sync ", ""])
@pytest.mark.parametrize("store", ON_DISK)
def test_any_system_call_may_fail(store: str, group: str, quick_path: Path) -> None:
    code, said = play(quick_path, "errors", "--store", store, "--only", group, "--count", ERRORS)
    assert code == 0, said


@pytest.mark.parametrize("store", ON_DISK)
def test_planted_store_that_swallows_errors(store: str, quick_path: Path) -> None:
    # Among the first twenty are those of the first large value, in this order.
    arguments = ["--store", store, "--planted", "swallows-errors", "--only", "sync EIO twice at 1"]
    code, said = play(quick_path, "errors", *arguments)
    assert code == 1, said
    assert "after a power cut" in said
