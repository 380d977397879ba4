"""Where our microseconds go: our side of one workload, in this process, under cProfile."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.contestants import Outcome
from bench.workloads import Params, Workload

REPEATS = 20


async def _repeat(run: Callable[[], Awaitable[Outcome]], profile: cProfile.Profile | None) -> list[float]:
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        if profile is not None:
            profile.enable()
        await run()
        if profile is not None:
            profile.disable()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _place(filename: str, line: int, name: str) -> str:
    if filename.startswith("~"):
        return name
    path = Path(filename)
    parts = path.parts
    if "holdfast" in parts:
        start = len(parts) - 1 - parts[::-1].index("holdfast")
        return f"{'/'.join(parts[start:])}:{line} {name}"
    return f"{'/'.join(parts[-2:])}:{line} {name}"


def profile(workload: Workload, params: Params, rows: int = 40) -> str:
    """A table by function: microseconds per unit of the workload, scaled to the time without the profiler."""
    from bench.contestants.holdfast import CONTESTANT  # loads our side, which other commands do in a worker

    run = CONTESTANT.entries[workload.id].prepare(params)
    watch = cProfile.Profile()
    with asyncio.Runner() as runner:
        runner.run(_repeat(run, None))
        plain = statistics.median(runner.run(_repeat(run, None)))
        runner.run(_repeat(run, watch))
    per = workload.divisor(params)
    plain_us = plain / per * 1e6
    stats = pstats.Stats(watch).stats  # type: ignore[attr-defined]  # not in the stubs, but documented by its users
    total = sum(own for _, _, own, _, _ in stats.values())
    head = (
        f"{workload.id}: {plain_us:.1f} us per {workload.per} without the profiler (median of {REPEATS} runs); "
        f"{total / REPEATS / per * 1e6:.1f} us with it.\n"
        "Shares are of the profiled time, which makes many small calls look dearer than they are; "
        "'us' is the share of the time without the profiler.\n"
    )
    lines = [
        head,
        f"{'us':>8}  {'own':>6}  {'with callees':>12}  {'calls':>8}  function",
    ]
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])
    for (filename, line, name), (_, calls, own, cumulative, _) in ranked[:rows]:
        lines.append(
            f"{own / total * plain_us:8.2f}  {own / total:6.1%}  {cumulative / total:12.1%}  "
            f"{calls / REPEATS / per:8.2f}  {_place(filename, line, name)}"
        )
    return "\n".join(lines)
