"""A power cut loses nothing that was acknowledged.

``HOLDFAST_CUTS`` sets how many there are; by hand: ``python -m tests.faults.power_loss --store file``.
"""

import os
import re
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

CUTS = int(os.environ.get("HOLDFAST_CUTS", "10"))


@pytest.mark.parametrize("store", ON_DISK)
def test_power_may_be_cut_at_any_moment(store: str, quick_path: Path) -> None:
    code, said = play(quick_path, "power_loss", "--store", store, "--count", CUTS)
    assert code == 0, said
    assert f" {CUTS} of " in said


@pytest.mark.parametrize(
    ("store", "planted", "how", "only"),
    [
        ("sqlite", "no-log-sync", "acknowledged", "what is sure"),
        ("sqlite", "no-folder-sync", "large value", "what is sure"),
        ("file", "no-folder-sync", "acknowledged", "what is sure"),
        ("file", "no-line-sync", "acknowledged", "what is sure"),
        ("file", "names-first", "verify says|is damaged", "what is sure"),
        ("file", "mark-first", "lines are missing|is damaged", "luck"),
    ],
)
def test_a_planted_bug_is_found(store: str, planted: str, how: str, only: str, quick_path: Path) -> None:
    arguments = ["--store", store, "--planted", planted, "--seed", 1, "--only", only]
    if only != "luck":
        arguments += ["--count", 40]
    code, said = play(quick_path, "power_loss", *arguments)
    assert code == 1, said
    assert re.search(f"WRONG: .*({how})", said), said
