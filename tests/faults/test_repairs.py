"""Who repairs a storage may be killed at any moment.

``HOLDFAST_KILLS`` sets how many kills there are; by hand: ``python -m tests.faults.repairs --store file --kills 200``.
"""

import os
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

KILLS = int(os.environ.get("HOLDFAST_KILLS", "6"))


@pytest.mark.parametrize("store", ON_DISK)
def test_a_repair_can_be_killed(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "repairs", "--store", store, "--kills", KILLS)
    assert code == 0, said


@pytest.mark.parametrize(("store", "planted"), [("sqlite", "two-transactions"), ("file", "puts-aside-first")])
def test_a_planted_bug_is_found(store: str, planted: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "repairs", "--store", store, "--planted", planted, "--each-step")
    assert code == 1, said
    assert "could be read before" in said
