"""The runner of all campaigns counts cases, what went wrong, and bugs that were caught."""

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


def test_every_campaign_is_there_and_has_bugs() -> None:
    names = {campaign.split()[0] for campaign in runner.list_campaigns()}
    assert names <= {runner._name_of(file) for path in runner.BUGS for file in runner._files(path)}
    assert len(names) >= 18
