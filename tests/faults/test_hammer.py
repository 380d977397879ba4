"""Eight processes use one store, while two at a time want the same run.

By hand, for longer: ``python -m tests.faults.hammer --rounds 100``.
"""

import re
from pathlib import Path

import pytest

from tests.faults.hammer import MODES
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

ROUNDS = 2 * len(MODES)


@pytest.mark.parametrize("store", ON_DISK)
def test_each_fight_has_one_winner_and_nothing_is_lost(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "hammer", "--store", store, "--rounds", ROUNDS)
    assert code == 0, said
    counted = re.search(r"(\d+) winners, (\d+) times two .*, beside (\d+) runs of (\d+)", said)
    assert counted is not None, said
    winners, doubles, runs, processes = map(int, counted.groups())
    assert (winners, doubles, processes) == (ROUNDS + 1, 0, 8)
    assert runs >= processes, said


@pytest.mark.parametrize("store", ON_DISK)
def test_planted_store_that_ignores_the_token(store: str, tmp_path: Path) -> None:
    arguments = ["--store", store, "--rounds", ROUNDS, "--processes", 1, "--planted", "any-token"]
    code, said = play(tmp_path, "hammer", *arguments)
    assert code == 1, said
    # The one who lost the run commits too, or what it wants to commit is there already.
    assert re.search(
        "WRONG: .*(two drive|committed the same superstep|seqs only grow|UNIQUE constraint)", said
    ), said


def test_planted_file_store_without_locks(tmp_path: Path) -> None:
    arguments = ["--store", "file", "--rounds", ROUNDS, "--processes", 1, "--planted", "no-lock"]
    code, said = play(tmp_path, "hammer", *arguments)
    assert code == 1, said
    assert "WRONG: " in said


def test_planted_store_that_takes_the_living_for_dead(tmp_path: Path) -> None:
    """Two drive the run at the same time then, but only one of them can commit."""
    code, said = play(tmp_path, "hammer", "--rounds", ROUNDS, "--processes", 1, "--planted", "nobody-lives")
    assert code == 0, said
    counted = re.search(r"(\d+) winners, (\d+) times two at the same time", said)
    assert counted is not None, said
    assert int(counted[1]) == ROUNDS + 1
    assert int(counted[2]) >= ROUNDS / len(MODES)
