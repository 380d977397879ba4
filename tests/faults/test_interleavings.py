"""Some orders in which messages, answers, cancels, hosts and owners meet a run; more are in the campaign."""

import pytest

from tests.faults.interleavings import PLANTED, SCENARIOS, planted, play_all


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_comes_to_a_run_counts_once(scenario: str) -> None:
    assert play_all([scenario], range(10)) == []


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    scenario, *_ = PLANTED[bug]
    with planted(bug):
        assert play_all([scenario], range(2_000), until_wrong=True) != []
