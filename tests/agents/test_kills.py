"""A process that is killed at any call of an agent: the next one goes on there, and repeats nothing recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ["agent_framework", "direct", "openai", "openai_agents", "pydantic_ai"]


def campaign(adapter: str, folder: Path, *plant: str) -> tuple[int, list[dict[str, object]]]:
    command = [sys.executable, "-m", "tests.agents.kills", adapter, str(folder / "kills"), *plant]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("adapter", LIBRARIES)
def test_kills_at_every_call(adapter: str, tmp_path: Path) -> None:
    code, report = campaign(adapter, tmp_path)
    assert report[-1]["wrong"] == 0, report
    assert code == 0
    kills = report[-1]["kills"]
    assert isinstance(kills, int)
    assert kills >= 18


def test_calls_that_are_named_by_order_are_caught(tmp_path: Path) -> None:
    """A planted bug: tools of one round begin in another order in the next process, and get each other's results."""
    code, report = campaign("direct", tmp_path, "names-by-order")
    assert code == 1
    assert report[-1]["wrong"] != 0
