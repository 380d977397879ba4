"""Cancels from other processes end a run once, whatever became of the process that drives it."""

from pathlib import Path

import pytest

from tests.faults.cancels import SCENARIOS
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play


@pytest.mark.parametrize("store", ON_DISK)
def test_each_cancel_counts_once(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "cancels", "--store", store)
    assert code == 0, said
    assert said.count("well: ") == len(SCENARIOS)


@pytest.mark.parametrize(
    ("store", "planted", "name", "found"),
    [
        ("file", "keeps-letters", "cancelled-and-killed", "the run came to ['cancelled'"),
        ("sqlite", "nobody-lives", "cancelled-in-superstep", "the run that was cancelled is ['cancelled'"),
    ],
)
def test_planted_bugs_are_found(store: str, planted: str, name: str, found: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "cancels", "--store", store, "--planted", planted, name)
    assert code == 1, said
    assert f"WRONG: {name}" in said
    assert found in said
