"""Verify notices random damage and names what is affected, all else loads as before, and repair makes nothing worse.

By hand, for longer: ``python -m tests.faults.corruption --store file --count 500``.
"""

from pathlib import Path

import pytest

from tests.faults.corruption import campaign
from tests.support.corruption_bugs import PLANTED

COUNT = {"sqlite": 24, "file": 8}


@pytest.mark.parametrize("kind", COUNT)
async def test_every_corruption_is_noticed_or_cannot_be_seen(kind: str, tmp_path: Path) -> None:
    assert await campaign(kind, tmp_path, range(COUNT[kind]), repair_every=4) == []


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    kind, only, _ = PLANTED[bug]
    assert await campaign(kind, tmp_path, range(150), only, bug) != []
