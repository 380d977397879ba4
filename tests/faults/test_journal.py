"""Processes that are killed inside a superstep of ten turns: what was journaled is not done again.

``HOLDFAST_KILLS`` sets how many kills each store gets; by hand: ``python -m tests.faults.journal --kills 200``.
"""

import os
import random
import re
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

KILLS = int(os.environ.get("HOLDFAST_KILLS", "12"))


@pytest.mark.parametrize("store", ON_DISK)
def test_what_was_journaled_is_not_done_again(store: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    code, said = play(tmp_path, "journal", "--store", store, "--kills", KILLS, "--seed", seed)
    assert code == 0, said
    counted = re.search(r"(\d+) kills, (\d+) of them left a journal, .* (\d+) turns and effects not", said)
    assert counted is not None, said
    kills, inside, kept = map(int, counted.groups())
    assert kills == KILLS
    # Else they were killed too early or too late to show anything.
    assert inside > 0.2 * kills, said
    assert kept > kills / 2, said


@pytest.mark.parametrize(
    ("store", "planted", "found"),
    [
        ("sqlite", "hasty", "was acknowledged to its turn, but"),
        ("file", "no-journal", "though it was journaled|its turn was journaled"),
        ("sqlite", "other-keys", r"repeated with another key|turns had \d+ keys"),
    ],
)
def test_planted_bugs_are_found(store: str, planted: str, found: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "journal", "--store", store, "--planted", planted, "--kills", 100)
    assert code == 1, said
    assert re.search(f"WRONG: .*({found})", said), said
