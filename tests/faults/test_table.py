"""The runner of all campaigns counts cases, what went wrong, and bugs that were caught."""

from pathlib import Path

import pytest

from tests.faults import __main__ as runner


def test_a_campaign_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = runner.play("tampering removals")
    assert (outcome.name, outcome.violations) == ("tampering", 0)
    assert outcome.cases > 20
    wrong = runner.play("tampering removals --planted unknown")
    assert wrong.violations == 1  # it did not even begin


def test_all_that_campaigns_say_is_counted() -> None:
    for said, cases in (
        (["seed 1: 1000 kills, 3 of them before a checkpoint was told of, 4 runs"], 1000),
        (["sqlite: 480 of 500 were noticed; of the others nothing can be seen"], 500),
        (["sqlite, seed 3: 998 of 1200 faults happened, 0 did harm"], 998),
        (["value: 1,000 executions", "fuzz: 1,300,000 executions"], 1_300_000),
        (["well: one", "WRONG: two: it failed", "well: three"], 3),
        (["3 winners, 4 times two at the same time"], 3),
        (["sqlite: 200000 supersteps, in the end Wear(...)"], 200_000),
        (["something else"], 1),
    ):
        assert runner.count_cases([line + "\n" for line in said]) == cases


def test_the_table_fails_for_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    fine = [runner.Outcome("zombies", 10, 0), runner.Outcome("zombies", 5, 0)]
    assert runner.print_table(fine, {"zombies": (4, 4)})
    assert "zombies                    15           0               4 of 4" in capsys.readouterr().out
    assert not runner.print_table(fine, {"zombies": (3, 4)})
    assert not runner.print_table(fine, {})
    assert not runner.print_table(
        [*fine, runner.Outcome("poison", 1, 1)], {"zombies": (4, 4), "poison": (1, 1)}
    )


def test_campaigns_that_went_well_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that went wrong are, and all of another version."""
    played: list[str] = []
    wrong = {"letters": 1}
    trees = ["one"]

    def play(campaign: str) -> runner.Outcome:
        played.append(campaign)
        return runner.Outcome(campaign, 5, wrong.get(campaign, 0), 1.5)

    monkeypatch.setattr(runner, "play", play)
    monkeypatch.setattr(runner, "_find_trees", lambda: trees[-1])
    for _ in range(2):
        results = runner.Results(tmp_path / "results.jsonl")
        assert [results.play(name) for name in ("poison", "letters")] == [
            runner.Outcome("poison", 5, 0, 1.5),
            runner.Outcome("letters", 5, wrong.get("letters", 0), 1.5),
        ]
        wrong.clear()
    assert played == ["poison", "letters", "letters"]
    trees.append("another")
    assert runner.Results(tmp_path / "results.jsonl").known() == {}


def test_every_campaign_is_there_and_has_bugs() -> None:
    names = {campaign.split()[0] for campaign in runner.list_campaigns()}
    assert names <= {runner._name_of(file) for path in runner.BUGS for file in runner._files(path)}
    assert len(names) >= 18
