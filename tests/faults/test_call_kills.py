"""Who tags, forks, restores, imports, exports or backs up may be killed at any system call.

``HOLDFAST_KILLS`` sets how many kills there are; by hand: ``python -m tests.faults.call_kills --store file``.
"""

import os
import re
from pathlib import Path

import pytest

from tests.support.durable import ON_DISK
from tests.support.fault_processes import play

KILLS = int(os.environ.get("HOLDFAST_KILLS", "12"))


@pytest.mark.parametrize("store", ON_DISK)
def test_any_system_call_may_be_the_last(store: str, quick_path: Path) -> None:
    code, said = play(quick_path, "call_kills", "--store", store, "--count", KILLS)
    assert code == 0, said
    happened = re.search(r"(\d+) of \d+ faults happened", said)
    assert happened is not None, said
    # Threads take turns as they like, so an act may be over before the call at which it was to be killed.
    assert int(happened[1]) >= 0.25 * KILLS


@pytest.mark.parametrize(
    ("store", "planted", "act"),
    [
        ("sqlite", "no-transactions", "restore, "),
        ("file", "writes-in-place", "run, "),
        ("file", "rewrites-in-place", "retain, killed amid "),
        ("file", "mark-first", "tag, "),
    ],
)
def test_a_planted_bug_is_found(store: str, planted: str, act: str, quick_path: Path) -> None:
    code, said = play(quick_path, "call_kills", "--store", store, "--planted", planted, "--only", act)
    assert code == 1, said
    assert f"WRONG: {act}" in said
