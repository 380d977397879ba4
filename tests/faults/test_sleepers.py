"""Hosts that are killed while many runs sleep: none is lost, none is woken twice, and they cost no memory.

By hand, for longer: ``python -m tests.faults.sleepers --runs 10000`` and ``--memory 2000 10000``.
"""

from pathlib import Path

import pytest

from tests.support.fault_processes import play


@pytest.mark.parametrize(("store", "runs"), [("sqlite", 300), ("file", 80)])
def test_no_sleeper_is_lost_or_woken_twice(store: str, runs: int, tmp_path: Path) -> None:
    given = ("--store", store, "--runs", runs, "--kills", 4, "--spread", 1)
    code, said = play(tmp_path, "sleepers", *given)
    assert code == 0, said
    assert f"{runs} runs; asleep" in said


def test_a_sleeping_run_costs_its_host_no_memory(tmp_path: Path) -> None:
    code, said = play(tmp_path, "sleepers", "--memory", 60, 220, "--allocated")
    assert code == 0, said
    assert "bytes for each sleeping run" in said


@pytest.mark.parametrize(
    ("planted", "found"),
    [("forgets-runs", "the host does not wake them"), ("wakes-twice", "twice in one life of its host")],
)
def test_planted_bugs_are_found(planted: str, found: str, tmp_path: Path) -> None:
    given = ("--runs", 40, "--kills", 1, "--spread", 0.4, "--planted", planted)
    code, said = play(tmp_path, "sleepers", *given)
    assert code == 1, said
    assert found in said


def test_runs_that_stay_in_memory_are_found(tmp_path: Path) -> None:
    code, said = play(tmp_path, "sleepers", "--memory", 30, 60, "--allocated", "--planted", "holds-runs")
    assert code == 1, said
    assert "a sleeping run costs" in said
