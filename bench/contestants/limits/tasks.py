"""What asyncio itself costs, with no engine at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bench.contestants import Job, Outcome, Prepare, Run
from bench.scripts import Params


async def _one() -> int:
    return 1


def repeated(work: Callable[[Params], Awaitable[int]]) -> Prepare:
    """An entry from a coroutine that counts."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async def run() -> Outcome:
            return Outcome(await work(job.params), job.params.get("supersteps", 0))

        yield run

    return prepare


async def bare_await(params: Params) -> int:
    """Await a coroutine, `count` times."""
    total = 0
    for _ in range(params["count"]):
        total += await _one()
    return total


async def task(params: Params) -> int:
    """Create a task and await it, `count` times, or once for each superstep."""
    total = 0
    for _ in range(params.get("count") or params["supersteps"]):
        total += await asyncio.create_task(_one())
    return total


async def gather(params: Params) -> int:
    """Gather `width` coroutines, `count` times."""
    total = 0
    for _ in range(params["count"]):
        total += sum(await asyncio.gather(*(_one() for _ in range(params["width"]))))
    return total
