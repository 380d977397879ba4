"""A new process of W6: `python -m bench.resumer <what> <module> <variant> <workload> <params> <folder>`.

`build` plays a workload and is killed at the start of its last superstep but one. `open` imports the side and opens an
empty store. `resume` goes on, until the first executor runs. `list` lists all metadata, `page` that of as many
checkpoints as there were supersteps. Each but the first prints its seconds, counted from its first statement here.
"""

from time import perf_counter

BEGIN = perf_counter()

import asyncio  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NoReturn  # noqa: E402

from bench import marks, scripts  # noqa: E402
from bench.contestants import Job, Resume  # noqa: E402


def answer(seconds: float, count: int = 0) -> NoReturn:
    """Say what was measured, and end as a process does that is killed: nothing is closed or flushed behind it."""
    os.write(ANSWERS, (json.dumps({"seconds": seconds, "count": count}) + "\n").encode())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def kill_at(last: int) -> None:
    """Die at the start of a superstep."""

    def watch(number: int) -> None:
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    marks.begin(watch)


def forget_scripts(supersteps: int) -> None:
    """Whoever goes on needs only the length of a script: making its texts would take longer than going on."""
    for name in ("W3", "W4"):
        scripts.SCRIPTS[name] = lambda _: [[]] * supersteps


async def perform(what: str, side: Resume, job: Job) -> None:
    """Do one of the things above."""
    if what == "build":
        kill_at(job.params["supersteps"] - 1)
        async with side.build(job) as run:
            await run()
        raise AssertionError("the run ended before it was killed")
    forget_scripts(job.params["supersteps"])
    if what == "open":
        await side.open_empty(job)
        answer(perf_counter() - BEGIN)
    if what in ("list", "page"):
        begin = perf_counter()
        count = await side.listing(job, job.params["supersteps"] if what == "page" else None)
        answer(perf_counter() - begin, count)
    marks.begin(lambda _: answer(perf_counter() - BEGIN))
    await side.resume(job)
    raise AssertionError("the run ended without running an executor")


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)
    what, module, variant, workload, params, folder = sys.argv[1:]
    contestant = import_module(f"bench.contestants.{module}").contestant(variant)
    asyncio.run(perform(what, contestant.resume, Job(workload, json.loads(params), Path(folder))))
