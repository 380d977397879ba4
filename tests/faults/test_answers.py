"""Two processes answer one question at the same moment: one answer counts, once.

By hand, for longer: ``python -m tests.faults.answers --rounds 100``.
"""

from pathlib import Path

import pytest

from tests.faults.answers import WAYS
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

ROUNDS = 3 * len(WAYS)


@pytest.mark.parametrize("store", ON_DISK)
def test_one_of_two_answers_counts(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "answers", "--store", store, "--rounds", ROUNDS)
    assert code == 0, said
    assert f"{ROUNDS} questions" in said


@pytest.mark.parametrize(
    ("store", "planted", "found"),
    [("sqlite", "keeps-letters", "in its inbox again"), ("file", "many-answers", "2 answers were taken")],
)
def test_planted_bugs_are_found(store: str, planted: str, found: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "answers", "--store", store, "--rounds", len(WAYS), "--planted", planted)
    assert code == 1, said
    assert found in said
