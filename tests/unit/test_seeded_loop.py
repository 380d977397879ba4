"""The seeded loop finds what it is for: code whose result depends on who is faster."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.seeded_loop import Deadlock, SeededLoop, run_seeded

SEEDS = range(30)


async def slow(name: int) -> int:
    for _ in range(3):
        await asyncio.sleep(0)
    return name


async def collect_in_order_of_the_plan() -> list[int]:
    tasks = [asyncio.create_task(slow(number)) for number in range(4)]
    return [await task for task in tasks]


async def collect_in_order_of_completion() -> list[int]:
    """The bug that the loop must notice."""
    tasks = [asyncio.create_task(slow(number)) for number in range(4)]
    return [await done for done in asyncio.as_completed(tasks)]


async def lose_updates() -> int:
    """Another one: between reading and writing others have their turn."""
    total = 0

    async def add() -> None:
        nonlocal total
        seen = total
        await asyncio.sleep(0)
        total = seen + 1

    await asyncio.gather(*(add() for _ in range(3)))
    return total


def results(work: Callable[[], Awaitable[object]]) -> set[str]:
    async def run() -> object:
        return await work()

    return {repr(run_seeded(run, seed)) for seed in SEEDS}


def test_order_of_the_plan_is_the_same_for_each_seed() -> None:
    assert results(collect_in_order_of_the_plan) == {"[0, 1, 2, 3]"}


def test_order_of_completion_is_noticed() -> None:
    assert len(results(collect_in_order_of_completion)) > 5


def test_order_of_completion_goes_unnoticed_in_the_usual_loop() -> None:
    seen = {tuple(asyncio.run(collect_in_order_of_completion())) for _ in range(5)}
    assert len(seen) == 1


def test_lost_updates_are_noticed() -> None:
    assert len(results(lose_updates)) > 1


def test_same_seed_gives_the_same_order() -> None:
    for seed in SEEDS:
        first = run_seeded(collect_in_order_of_completion, seed)
        assert run_seeded(collect_in_order_of_completion, seed) == first


def test_time_is_virtual_and_sleeps_end_in_their_order() -> None:
    ended = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((seconds, asyncio.get_running_loop().time()))

    async def run() -> None:
        delays = [3600.0 * number for number in range(5)]
        random.Random(1).shuffle(delays)
        await asyncio.gather(*map(sleep, delays))

    run_seeded(run, seed=1)
    assert ended == [(3600.0 * number, 3600.0 * number) for number in range(5)]


def test_timeouts_work() -> None:
    async def run() -> str:
        try:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timeout"
        return "never"

    assert run_seeded(run, seed=1) == "timeout"


def test_deadlock_is_an_error() -> None:
    async def run() -> None:
        await asyncio.Event().wait()

    loop = SeededLoop(1)
    coroutine = run()
    with pytest.raises(Deadlock):
        loop.run_until_complete(coroutine)
    (task,) = asyncio.all_tasks(loop)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_task_that_is_left_running_is_an_error() -> None:
    kept = []

    async def run() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(3600)))

    with pytest.raises(AssertionError, match="sleep"):
        run_seeded(run, seed=1)
    (task,) = kept
    task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
