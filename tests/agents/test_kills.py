"""A process that is killed at any call of an agent: the next one goes on there, and repeats nothing recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ["agent_framework", "direct", "langchain", "openai", "openai_agents", "pydantic_ai"]


TEAMS = ["agent_workflow", "concurrent", "group_chat", "handoff", "planner", "sequential"]


def campaign(
    subject: str, folder: Path, *plant: str, program: str = "kills"
) -> tuple[int, list[dict[str, object]]]:
    command = [sys.executable, "-m", f"tests.agents.{program}", subject, str(folder / "kills"), *plant]
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


@pytest.mark.parametrize(
    ("adapter", "plant"),
    [("direct", "names-by-order"), ("direct", "errors-not-recorded"), ("langchain", "errors-not-recorded")],
)
def test_a_planted_bug_is_caught(adapter: str, plant: str, tmp_path: Path) -> None:
    """Planted bugs: tools get each other's results in the next process, which begins them in another order; an error
    that the model was told of is forgotten, so that its tool is called again.
    """
    code, report = campaign(adapter, tmp_path, plant)
    assert code == 1
    assert report[-1]["wrong"] != 0


@pytest.mark.parametrize("team", TEAMS)
def test_teams_killed_at_every_model_call(team: str, tmp_path: Path) -> None:
    code, report = campaign(team, tmp_path, program="team_kills")
    assert report[-1]["wrong"] == 0, report
    assert code == 0
    kills = report[-1]["kills"]
    assert isinstance(kills, int)
    assert kills >= 6


def test_teams_whose_calls_are_not_recorded_are_caught(tmp_path: Path) -> None:
    """A planted bug: each turn begins with an empty journal."""
    code, report = campaign("sequential", tmp_path, "nothing-recorded", program="team_kills")
    assert code == 1
    assert report[-1]["wrong"] != 0


@pytest.mark.parametrize("adapter", LIBRARIES)
def test_an_approval_with_other_arguments_from_another_process(adapter: str, tmp_path: Path) -> None:
    code, report = campaign(adapter, tmp_path, program="approvals")
    assert report == [{"wrong": []}]
    assert code == 0


def test_arguments_of_a_person_that_are_not_used_are_caught(tmp_path: Path) -> None:
    """A planted bug: the tool is called as the model wanted it."""
    code, report = campaign("direct", tmp_path, "arguments-not-used", program="approvals")
    assert code == 1
    assert "begin charge 5" in str(report[-1]["wrong"])
