"""The process that runs one contestant: `python -m bench.worker <module>` in the side's own environment.

It reads one JSON object per line and answers each with one line:

    {"workload": "W1", "params": {"supersteps": 200}}
    {"seconds": 0.05, "result": 200, "supersteps": 200, "events": 804, "peak_rss": 71000000}

Its first line says who it is: the Python version, package versions, and how it does each workload.
An answer with "error" is a traceback. The worker ends at the end of its input.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import IO, Any

from bench.contestants import Contestant, Outcome

Run = Callable[[], Awaitable[Outcome]]

MOMENT_SECONDS = 0.05


def peak_rss() -> int:
    """The most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def introduce(contestant: Contestant) -> dict[str, Any]:
    """The worker's first line."""
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in contestant.packages},
        "entries": {
            name: {"how": entry.how, "durability": entry.durability}
            for name, entry in contestant.entries.items()
        },
    }


async def timed(run: Run) -> tuple[float, Outcome]:
    """The mean seconds of one run, timed within the event loop, over as many runs as fill a moment.

    Between two measurements of a side the others have had the caches, so one short run would measure that.
    Collection of garbage stays on, but starts from a clean heap.
    """
    gc.collect()
    begin = time.perf_counter()
    runs = 0
    while True:
        outcome = await run()
        runs += 1
        seconds = time.perf_counter() - begin
        if seconds >= MOMENT_SECONDS:
            return seconds / runs, outcome


def serve(contestant: Contestant, requests: IO[str], answers: IO[str]) -> None:
    """Answer every request, all in one event loop."""

    def answer(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    prepared: dict[str, Run] = {}
    answer(introduce(contestant))
    with asyncio.Runner() as runner:
        for line in requests:
            request = json.loads(line)
            try:
                if line not in prepared:
                    prepared[line] = contestant.entries[request["workload"]].prepare(request["params"])
                seconds, outcome = runner.run(timed(prepared[line]))
            except Exception:
                answer({"error": traceback.format_exc()})
            else:
                answer({"seconds": seconds, "peak_rss": peak_rss(), **vars(outcome)})


def main() -> None:
    """Keep the real standard output for answers: what a contestant prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant = importlib.import_module(f"bench.contestants.{sys.argv[1]}").CONTESTANT
    serve(contestant, sys.stdin, answers)


if __name__ == "__main__":
    main()
