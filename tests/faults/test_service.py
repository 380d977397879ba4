"""The load on a killed server in its short form, and bugs that it finds; ``make faults`` has the long one."""

from pathlib import Path

import pytest

from tests.faults.service import campaign


def test_a_killed_server_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    assert campaign(tmp_path, clients=6, seconds=4, kills=2, seed=7) == []


@pytest.mark.parametrize(
    ("planted", "kills", "told"),
    [
        ("gap", 2, "the stream misses ['"),
        ("double", 2, "and has twice ['"),
        ("new-ids", 0, "were accepted"),
        ("leak", 0, "the memory of a server grew"),
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, planted: str, kills: int, told: str) -> None:
    found = campaign(tmp_path, clients=6, seconds=3, kills=kills, seed=7, planted=planted)
    assert any(told in problem for problem in found), found
