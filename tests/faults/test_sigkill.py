"""Processes that are killed at random moments lose nothing that was acknowledged.

``HOLDFAST_KILLS`` sets how many kills each store gets; by hand: ``python -m tests.faults.sigkill --kills 1000``.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.durable import ROOT

KILLS = int(os.environ.get("HOLDFAST_KILLS", "24"))


def campaign(store: str, kills: int, seed: int, folder: Path, durability: str = "sync") -> tuple[int, str]:
    """Play a campaign in a process of its own: it forks, which a process with threads must not."""
    command = [sys.executable, "-m", "tests.faults.sigkill", "--store", store, "--kills", str(kills)]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--folder", str(folder), "--durability", durability],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120 + kills * 5,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_killed_processes_lose_nothing(store: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    code, said = campaign(store, KILLS, seed, tmp_path)
    assert code == 0, (
        f"to play it again: python -m tests.faults.sigkill --store {store} --seed {seed}\n{said}"
    )
    counted = re.search(r"(\d+) kills, (\d+) of them before .*, (\d+) checkpoints acknowledged", said)
    assert counted is not None, said
    kills, idle, acknowledged = map(int, counted.groups())
    assert kills == KILLS
    # Else they were killed too early to show anything.
    assert idle < 0.9 * kills, said
    assert acknowledged > kills, said


def test_planted_store_that_acknowledges_too_early(tmp_path: Path) -> None:
    """20 ms before a commit is durable; the same campaign finds it."""
    code, said = campaign("hasty", KILLS, 1, tmp_path)
    assert code == 1, said
    assert re.search(r"WRONG: .*acknowledged", said), said


@pytest.mark.parametrize("store", ["sqlite", "file", "late"])
def test_nothing_is_lost_that_was_shown_before_the_process_was_killed(store: str, tmp_path: Path) -> None:
    """Commits go on in the background, one of the stores being slower than the engine."""
    seed = random.SystemRandom().randrange(1 << 32)
    code, said = campaign(store, KILLS // 3, seed, tmp_path, "async")
    assert code == 0, f"seed {seed}, durability async, store {store}\n{said}"
    counted = re.search(r"(\d+) checkpoints acknowledged", said)
    assert counted is not None, said
    assert int(counted.group(1)) > KILLS // 3, said


def test_run_that_is_committed_at_its_end_begins_anew(tmp_path: Path) -> None:
    code, said = campaign("sqlite", KILLS // 5, 1, tmp_path, "exit")
    assert code == 0, said


def test_planted_events_that_are_shown_before_they_are_durable(tmp_path: Path) -> None:
    code, said = campaign("early", KILLS, 1, tmp_path, "async")
    assert code == 1, said
    assert re.search(r"WRONG: .*acknowledged", said), said
