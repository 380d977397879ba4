"""Where our microseconds go: our side of one workload, in this process, under cProfile.

With a store two threads work: the profiler sees the event loop's, the one that writes is told by its processor time.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.client import data_folder
from bench.contestants import Job
from bench.workloads import Params, Workload

REPEATS = 20


class Seconds(NamedTuple):
    """Of one run: by the clock, of this process's processors, and of the event loop's thread alone."""

    wall: float
    process: float
    thread: float


async def _once(workload: Workload, params: Params, profile: cProfile.Profile | None) -> Seconds:
    from bench.contestants.holdfast import contestant  # loads our side, which other commands do in a worker

    entries = {**contestant("none").entries, **contestant("sqlite").entries}
    if workload.id == "W5":
        entries["W5"] = contestant("none").entries["W5"]
    place = Path(tempfile.mkdtemp(dir=data_folder()))
    async with entries[workload.id].prepare(Job(workload.id, params, place / "store")) as run:
        begin = time.perf_counter(), time.process_time(), time.thread_time()
        if profile is not None:
            profile.enable()
        await run()
        if profile is not None:
            profile.disable()
        end = time.perf_counter(), time.process_time(), time.thread_time()
    shutil.rmtree(place)
    return Seconds(*(after - before for before, after in zip(begin, end, strict=True)))


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
    """A table by function: microseconds per superstep, scaled to the processor time without the profiler."""
    assert workload.supersteps is not None
    watch = cProfile.Profile()
    with asyncio.Runner() as runner:
        for _ in range(3):
            runner.run(_once(workload, params, None))
        plain = [runner.run(_once(workload, params, None)) for _ in range(REPEATS)]
        for _ in range(REPEATS):
            runner.run(_once(workload, params, watch))
    per = workload.supersteps(params)
    wall, process, thread = (statistics.median(one[part] for one in plain) / per * 1e6 for part in range(3))
    stats = pstats.Stats(watch).stats  # type: ignore[attr-defined]  # not in the stubs, but documented by its users
    # Waiting for the disk shows as time in the selector; it is none of ours.
    mine = {
        key: value for key, value in stats.items() if key[2] != "<method 'poll' of 'select.epoll' objects>"
    }
    total = sum(own for _, _, own, _, _ in mine.values())
    lines = [
        f"{workload.id}, for each superstep: {wall:.1f} us by the clock, {process:.1f} us of processors,",
        f"of which {thread:.1f} us in the event loop's thread (medians of {REPEATS} runs without the profiler).",
        "Shares are of the profiled time of that thread without waiting; small calls look dearer than they are;",
        "'us' is the share of the thread's time without the profiler.",
        "",
        f"{'us':>8}  {'own':>6}  {'with callees':>12}  {'calls':>8}  function",
    ]
    ranked = sorted(mine.items(), key=lambda item: -item[1][2])
    for (filename, line, name), (_, calls, own, cumulative, _) in ranked[:rows]:
        lines.append(
            f"{own / total * thread:8.2f}  {own / total:6.1%}  {cumulative / total:12.1%}  "
            f"{calls / REPEATS / per:8.2f}  {_place(filename, line, name)}"
        )
    return "\n".join(lines)
