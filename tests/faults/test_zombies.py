"""A process that was stopped, and whose run was taken over meanwhile, can do nothing to it when it wakes up."""

from pathlib import Path

import pytest

from tests.faults.zombies import SCENARIOS
from tests.support.durable import ON_DISK
from tests.support.fault_processes import play


@pytest.mark.parametrize("store", ON_DISK)
def test_what_a_process_does_that_lost_its_run_is_refused(store: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "zombies", "--store", store)
    assert code == 0, said
    assert said.count("well: ") == len(SCENARIOS)


@pytest.mark.parametrize(
    ("store", "name"), [("sqlite", "handler-takeover-meanwhile"), ("file", "handler-lease-afterwards")]
)
def test_planted_store_that_ignores_the_token(store: str, name: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "zombies", "--store", store, "--planted", "any-token", name)
    assert code == 1, said
    assert "a process whose run was taken changed it" in said, said


@pytest.mark.parametrize(
    ("store", "name"), [("sqlite", "effects-takeover-afterwards"), ("file", "effects-lease-meanwhile")]
)
def test_planted_effect_without_a_look_at_the_owner(store: str, name: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "zombies", "--store", store, "--planted", "no-look", name)
    assert code == 1, said
    assert "after the run was taken over" in said, said
