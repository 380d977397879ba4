"""Who prunes and sweeps may be killed at any moment, and others write and resume meanwhile.

``HOLDFAST_KILLS`` sets how many kills there are; by hand: ``python -m tests.faults.retention --kills 500``.
"""

import os
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

KILLS = int(os.environ.get("HOLDFAST_KILLS", "6"))


@pytest.mark.parametrize("scenario", ["killed-writers", "killed-sweeps", "beside-writers", "room"])
@pytest.mark.parametrize("store", ON_DISK)
def test_nothing_that_is_kept_is_lost(store: str, scenario: str, tmp_path: Path) -> None:
    kills = max(3, KILLS // 3) if scenario == "room" else KILLS
    code, said = play(tmp_path, "retention", "--store", store, "--kills", kills, scenario)
    assert code == 0, said


@pytest.mark.parametrize(
    ("planted", "scenario", "how"),
    [
        ("cutless", "killed-sweeps", "missing"),
        ("parents-first", "killed-writers", "missing"),
        ("boasts", "beside-writers", "the report says"),
        ("hoards", "room", "apparent"),
        ("scatters", "room", "allocated"),
    ],
)
def test_a_planted_bug_is_found(planted: str, scenario: str, how: str, tmp_path: Path) -> None:
    kills = 100 if scenario.startswith("killed") else 3
    code, said = play(tmp_path, "retention", "--planted", planted, "--kills", kills, scenario)
    assert code == 1, said
    assert how in said
