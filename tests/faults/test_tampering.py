"""Samples of tampering: bits, cuts, swaps, removals and replays. ``make faults`` tries all of them."""

import re

import pytest

from tests.faults.tampering import CASES, COUNTS, ITEM_CASES, Case, attack_all, attack_items, make_target
from tests.stores.keyed_world import SECRETS
from tests.support.tampered import OPENERS
from tests.support.tampering_bugs import planted

CASES_OF_A_BUG = 2_000
"""So many are tried at most until a bug shows."""


@pytest.mark.parametrize("kind", OPENERS)
async def test_nothing_of_a_store_is_out_of_sight(kind: str) -> None:
    seen = repr((await make_target(kind, True)).before)
    assert [word for word in SECRETS if word.encode().hex() not in seen and word not in seen] == []


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("what", CASES)
async def test_a_changed_file_is_refused_or_shows_nothing_else(what: str, kind: str, keyed: bool) -> None:
    target = await make_target(kind, keyed)
    count = COUNTS[what](target)
    tally = await attack_all(target, list(CASES[what](target, range(0, count, count // 100))))
    assert tally.wrong == ()
    assert tally.refused > 2


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
async def test_an_id_with_a_capital_is_damage(keyed: bool) -> None:
    """The last digit of an id says if a checkpoint is derived from another one."""
    target, path = await make_target("file", keyed), "store/runs/first.jsonl"
    data = target.files[path]
    ends = [found.end() for found in re.finditer(rb'"checkpoint_id":"[0-9a-f]{64}', data)]
    cases = [Case(f"the id that ends at {end}", path, data[: end - 1] + b"A" + data[end:]) for end in ends]
    tally = await attack_all(target, cases)
    assert tally.wrong == ()
    assert tally.refused > 2


@pytest.mark.parametrize(
    ("what", "kind", "keyed", "bug"),
    [
        ("flips", "sqlite", True, "no tag is checked"),
        ("flips", "file", True, "no tag is checked"),
        ("flips", "file", False, "no line is summed"),
        ("cuts", "file", True, "no anchor is asked"),
    ],
)
async def test_changed_files_show_a_bug(what: str, kind: str, keyed: bool, bug: str) -> None:
    with planted(bug):
        target = await make_target(kind, keyed)
        step = max(COUNTS[what](target) // CASES_OF_A_BUG, 1)
        for begin in range(10):
            numbers = range(begin * step, COUNTS[what](target), 10 * step)
            if (await attack_all(target, list(CASES[what](target, numbers)), until_wrong=True)).wrong:
                return
    pytest.fail("the bug does not show")


@pytest.mark.parametrize("what", ITEM_CASES)
async def test_items_elsewhere_are_refused_or_show_nothing_else(what: str) -> None:
    tally = await attack_items(what, 5 if what == "swaps" else 1)
    assert tally.wrong == ()
    assert tally.refused > (5 if what == "copies" else 20)


@pytest.mark.parametrize(
    ("what", "bug"),
    [
        ("swaps", "no run is bound"),
        ("swaps", "no column of a head is bound"),
        ("swaps", "no place is bound"),
        ("removals", "no note is covered"),
        ("copies", "no run is bound"),
        ("replays", "no incarnation is bound"),
        ("replays", "no anchor is asked"),
        ("replays", "no deletion is remembered"),
    ],
)
async def test_items_elsewhere_show_a_bug(what: str, bug: str) -> None:
    assert (await attack_items(what, bug=bug)).wrong
