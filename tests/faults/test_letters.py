"""Answers from other processes reach a run, whatever became of the process that drives it."""

from pathlib import Path

import pytest

from tests.faults.letters import SCENARIOS
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play


@pytest.mark.parametrize("store", ON_DISK)
def test_each_answer_counts_once(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "letters", "--store", store)
    assert code == 0, said
    assert said.count("well: ") == len(SCENARIOS)


@pytest.mark.parametrize(
    ("store", "planted", "name", "found"),
    [
        ("sqlite", "keeps-letters", "answered-in-superstep", "the run came to"),
        ("sqlite", "hasty-letters", "answered-by-one-who-dies", "the run came to ['waiting'"),
        ("file", "many-answers", "answered-while-nobody-is-there", "answered twice"),
    ],
)
def test_planted_bugs_are_found(store: str, planted: str, name: str, found: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "letters", "--store", store, "--planted", planted, name)
    assert code == 1, said
    assert f"WRONG: {name}" in said
    assert found in said
