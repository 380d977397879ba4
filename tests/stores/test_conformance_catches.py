"""The conformance suite is worth something: each planted bug fails the test that is there for it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from holdfast.checkpoint.store import (
    Store,
)
from holdfast.errors import HoldfastError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import DurableStoreConformance, StoreConformance
from tests.stores import (
    planted_claims,
    planted_commits,
    planted_due_runs,
    planted_durable,
    planted_events,
    planted_imports,
    planted_inbox,
    planted_journal,
    planted_needs,
    planted_processes,
    planted_records,
    planted_removal,
    planted_repairs,
)
from tests.stores.planted_durable import Kept
from tests.stores.planted_processes import Filed
from tests.support.store_parts import OtherProcessRules

TESTS = sorted(name for name in dir(StoreConformance) if name.startswith("test_"))
PROCESS_TESTS = sorted(name for name in dir(OtherProcessRules) if name.startswith("test_"))
DURABLE_TESTS = sorted(
    {name for name in dir(DurableStoreConformance) if name.startswith("test_")} - {*TESTS, *PROCESS_TESTS}
)


async def passes(test: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(test, 30)
    except (AssertionError, HoldfastError, RuntimeError, KeyError, TypeError, TimeoutError):
        return False
    return True


async def failing(make: Callable[[], Store], tests: Sequence[str] = TESTS) -> list[str]:
    suite = StoreConformance()
    return [name for name in tests if not await passes(getattr(suite, name)(make()))]


BUGS: list[tuple[type[MemoryStore], str]] = [
    *planted_commits.BUGS,
    *planted_records.BUGS,
    *planted_journal.BUGS,
    *planted_events.BUGS,
    *planted_inbox.BUGS,
    *planted_imports.BUGS,
    *planted_repairs.BUGS,
    *planted_removal.BUGS,
    *planted_due_runs.BUGS,
    *planted_claims.BUGS,
    *planted_needs.BUGS,
]


@pytest.mark.parametrize(("store", "test"), BUGS, ids=[f"{store.__name__}-{test}" for store, test in BUGS])
async def test_a_planted_bug_is_caught(store: type[MemoryStore], test: str) -> None:
    assert await failing(store, [test]) == [test]


@pytest.mark.parametrize(
    "store",
    [
        MemoryStore,
        *(
            planted_records.Listing,
            planted_records.BlobsOf,
            planted_records.RecordsOf,
            planted_records.Renaming,
        ),
        *(planted_journal.NotesOf, planted_journal.KeysOf, planted_inbox.LettersOf),
        planted_removal.SweepsOf,
    ],
)
async def test_what_the_bugs_are_planted_in_is_sound(store: type[MemoryStore]) -> None:
    assert await failing(store) == []


# ---------------------------------------------------------------- stores that outlive their object


async def failing_kept(kind: type[Kept], tests: Sequence[str] = DURABLE_TESTS) -> list[str]:
    failed = []
    for name in tests:
        place: dict[str, MemoryStore] = {}

        async def reopen(namespace: str = "", place: dict[str, MemoryStore] = place) -> Store:
            return kind(place, namespace)

        if not await passes(getattr(DurableStoreConformance(), name)(kind(place), reopen)):
            failed.append(name)
    return failed


DURABLE_BUGS: list[tuple[type[Kept], str]] = [
    *planted_durable.BUGS,
    *planted_imports.DURABLE_BUGS,
    *planted_removal.DURABLE_BUGS,
    *planted_due_runs.DURABLE_BUGS,
    *planted_claims.DURABLE_BUGS,
    *planted_needs.DURABLE_BUGS,
]


@pytest.mark.parametrize(
    ("store", "test"), DURABLE_BUGS, ids=[f"{store.__name__}-{test}" for store, test in DURABLE_BUGS]
)
async def test_a_planted_bug_of_a_durable_store_is_caught(store: type[Kept], test: str) -> None:
    assert await failing_kept(store, [test]) == [test]


async def test_what_the_durable_bugs_are_planted_in_is_sound() -> None:
    assert await failing_kept(Kept) == []


# ---------------------------------------------------------------- stores that other processes use


class Impatient(DurableStoreConformance):
    patience = 0.1


async def failing_filed(kind: type[Filed], path: Path, tests: Sequence[str]) -> list[str]:
    failed = []
    for name in tests:
        place = path / name

        async def reopen(namespace: str = "", place: Path = place) -> Store:
            return kind(place, namespace)

        if not await passes(getattr(Impatient(), name)(kind(place), reopen)):
            failed.append(name)
    return failed


@pytest.mark.parametrize(
    ("store", "test"),
    planted_processes.BUGS,
    ids=[f"{store.__name__}-{test}" for store, test in planted_processes.BUGS],
)
async def test_a_planted_bug_of_a_store_of_many_processes_is_caught(
    store: type[Filed], test: str, tmp_path: Path
) -> None:
    assert await failing_filed(store, tmp_path, [test]) == [test]


async def test_what_the_bugs_of_many_processes_are_planted_in_is_sound(tmp_path: Path) -> None:
    assert await failing_filed(Filed, tmp_path, PROCESS_TESTS) == []


def test_every_test_can_fail() -> None:
    assert {test for _, test in BUGS} == set(TESTS)
    assert {test for _, test in DURABLE_BUGS} == set(DURABLE_TESTS)
    assert {test for _, test in planted_processes.BUGS} == set(PROCESS_TESTS)
