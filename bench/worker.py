"""The process that runs one contestant: `python -m bench.worker <module> <variant>` in the side's own environment.

It reads one JSON object per line and answers each with one line:

    {"workload": "W2", "params": {"supersteps": 200}, "folder": "...", "fresh": true, "count": false}
    {"seconds": 0.05, "marks": [], "own": 0.0, "result": 200, "supersteps": 200, "events": 804, ...}

With `count` nothing is timed: bytes passed to write() are read at each superstep, and the run stands between two
marks that a tracer can see. Its first line says who it is: the Python version, package versions, and how it does
each workload. An answer with "error" is a traceback. The worker ends at the end of its input.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import platform
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from bench import marks, meters
from bench.contestants import Contestant, Entry, Job, Outcome, Run

MOMENT_SECONDS = 0.05
YOUNG, *OLDER = gc.get_threshold()


def introduce(contestant: Contestant) -> dict[str, Any]:
    """The worker's first line."""
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in contestant.packages},
        "entries": {name: entry.how for name, entry in contestant.entries.items()},
        "missing": dict(contestant.missing),
        "kill": contestant.kill,
        "power": contestant.power,
        "resume": contestant.resume.how if contestant.resume else None,
    }


async def timed(run: Run, repeat: bool) -> tuple[dict[str, Any], Outcome]:
    """The seconds of one run, timed within the event loop; with `repeat` the mean of as many as fill a moment.

    Between two measurements of a side the others have had the caches, so one short run would measure that: where
    runs are repeated, one goes before. Collection of garbage stays on, but starts from a clean heap; and what others
    left to be written, half a gigabyte by some, is on the disk by then, so that no sync has to wait for it.
    """
    if repeat:
        await run()
    os.sync()
    gc.collect()
    meters.forget_peak()
    marks.begin()
    begin = time.perf_counter()
    runs = 0
    while True:
        outcome = await run()
        runs += 1
        seconds = time.perf_counter() - begin
        if not repeat or seconds >= MOMENT_SECONDS:
            break
    passed = [] if repeat else [moment - begin for moment in marks.times]
    peak, own = meters.peak_memory(), 0.0 if repeat else marks.own_seconds()
    return {"seconds": seconds / runs, "marks": passed, "own": own, "peak": peak}, outcome


async def counted(run: Run) -> tuple[dict[str, Any], Outcome]:
    """The bytes passed to write() until the second superstep, and in all; the syncs stand between two marks."""
    readings: list[int] = []

    def watch(number: int) -> None:
        if number <= 2:
            readings.append(meters.passed_to_write())

    marks.begin(watch)
    before = meters.passed_to_write()
    meters.mark_for_tracer()
    outcome = await run()
    meters.mark_for_tracer()
    written = meters.passed_to_write() - before
    first = readings[1] - before if len(readings) > 1 else 0
    marks.begin()
    return {"seconds": 0.0, "marks": [], "written": written, "written_first": first}, outcome


async def perform(entry: Entry, job: Job, request: dict[str, Any]) -> dict[str, Any]:
    """One request."""
    gc.set_threshold(job.params.get("young", YOUNG), *OLDER)
    async with entry.prepare(job) as run:
        if request["count"]:
            found, outcome = await counted(run)
        else:
            found, outcome = await timed(run, not request["fresh"])
    found["stored"] = meters.stored(job.folder) if job.folder.exists() else 0
    found.update(vars(outcome))
    if entry.check is not None:
        found["result"] = await entry.check(job)
    return found


def serve(contestant: Contestant, requests: IO[str], answers: IO[str]) -> None:
    """Answer every request, all in one event loop."""

    def answer(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    answer(introduce(contestant))
    with asyncio.Runner() as runner:
        for line in requests:
            request = json.loads(line)
            job = Job(request["workload"], request["params"], Path(request["folder"]))
            try:
                found = runner.run(perform(contestant.entries[job.workload], job, request))
            except Exception:
                answer({"error": traceback.format_exc()})
            else:
                answer(found)


def main() -> None:
    """Keep the real standard output for answers: what a contestant prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = importlib.import_module(f"bench.contestants.{sys.argv[1]}").contestant(sys.argv[2])
    serve(contestant, sys.stdin, answers)


if __name__ == "__main__":
    main()
