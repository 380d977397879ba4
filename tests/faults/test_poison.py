"""Runs that kill whoever goes on with them are given up; those that come a bit further each time are not."""

from pathlib import Path

import pytest

from tests.faults.poison import SCENARIOS
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play


@pytest.mark.parametrize("store", ON_DISK)
def test_runs_whose_processes_die(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "poison", "--store", store)
    assert code == 0, said
    assert said.count("well: ") == len(SCENARIOS)


@pytest.mark.parametrize(
    ("store", "planted", "name", "found"),
    [
        ("sqlite", "no-count", "deadly-superstep", "-1 processes died before the run was given up"),
        ("file", "counts-on", "a-bit-each-time", "RunPoisoned: "),
        ("file", "nobody-lives", "dead-and-alive", "but seen was "),
    ],
)
def test_planted_bugs_are_found(store: str, planted: str, name: str, found: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "poison", "--store", store, "--planted", planted, name)
    assert code == 1, said
    assert f"WRONG: {name}" in said
    assert found in said
