"""A short soak: nothing that a process or a store takes grows with the supersteps."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import soak
from tests.stores.keyed_world import MAKERS


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    for one in soak._LEAKED:
        if hasattr(one, "close"):
            one.close()
    soak._LEAKED.clear()


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("kind", MAKERS)
async def test_nothing_grows(kind: str, keyed: bool, quick_path: Path) -> None:
    assert soak.find_growth(await soak.soak(kind, quick_path, 640, keyed)) == []


@pytest.mark.parametrize(
    ("bug", "grows"), [("handles", "handles"), ("memory", "blocks"), ("nothing goes", "files")]
)
async def test_a_planted_leak_is_found(bug: str, grows: str, quick_path: Path) -> None:
    grown = soak.find_growth(await soak.soak("file", quick_path, 320, False, bug))
    assert [one for one in grown if one.startswith(grows)], grown


async def test_a_planted_leak_is_found_among_many_other_handles(quick_path: Path) -> None:
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
    try:
        grown = soak.find_growth(await soak.soak("file", quick_path, 320, False, "handles"))
    finally:
        for one in others:
            os.close(one)
    assert [one for one in grown if one.startswith("handles")], grown
