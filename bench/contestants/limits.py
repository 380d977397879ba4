"""The limits: what asyncio itself costs, with no engine at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.contestants import Contestant, Entry, Outcome
from bench.workloads import Params


async def _one() -> int:
    return 1


def bare_await(params: Params) -> Callable[[], Awaitable[Outcome]]:
    """Await a coroutine, `count` times."""

    async def run() -> Outcome:
        total = 0
        for _ in range(params["count"]):
            total += await _one()
        return Outcome(total, 0, 0)

    return run


def task(params: Params) -> Callable[[], Awaitable[Outcome]]:
    """Create a task and await it, `count` times."""

    async def run() -> Outcome:
        total = 0
        for _ in range(params["count"]):
            total += await asyncio.create_task(_one())
        return Outcome(total, 0, 0)

    return run


def gather(params: Params) -> Callable[[], Awaitable[Outcome]]:
    """Gather `width` coroutines, `count` times."""

    async def run() -> Outcome:
        total = 0
        for _ in range(params["count"]):
            total += sum(await asyncio.gather(*(_one() for _ in range(params["width"]))))
        return Outcome(total, 0, 0)

    return run


CONTESTANT = Contestant(
    packages=(),
    entries={
        "L1": Entry(bare_await, "`await one()`"),
        "L2": Entry(task, "`await asyncio.create_task(one())`"),
        "L3": Entry(gather, "`await asyncio.gather(*(one() for _ in range(100)))`"),
    },
)
