"""DBOS: an async workflow function whose steps are journaled in SQLite.

It keeps no state: what a step returns is stored once, and a workflow that goes on reads all of it and plays itself
again. So a script's state is a local variable of the workflow, and each step returns what is new.
"""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench import marks
from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run, make
from bench.rounds import number_of
from bench.scripts import SCRIPTS, Again, AppendItem, AppendText, Put, Script, Set, summary

STATE = ("W3", "W4", "W8", "W9", "W10")
RUN = "run"
_scripts: dict[str, Script] = {}
_states: dict[str, Any] = {}


@DBOS.step()
async def add(number: int) -> int:
    """One superstep of the chain."""
    return number + 1


@DBOS.workflow()
async def chain(count: int) -> int:
    """W2."""
    number = 0
    for _ in range(count):
        number = await add(number)
    return number


@DBOS.step()
async def work(number: int, index: int) -> int:
    """One of the fan's many."""
    return number + index


@DBOS.step()
async def hub(answers: list[int], width: int) -> int:
    """Checks a round and gives the number of the next one."""
    return number_of(answers, width) + 1


@DBOS.workflow()
async def fan(width: int, rounds: int) -> int:
    """W5."""
    number, total = 0, 0
    while number < rounds:
        answers = await asyncio.gather(*(work(number, index) for index in range(width)))
        total = sum(answers)
        number = await hub(answers, width)
    return total


@DBOS.step()
async def play(workload: str, index: int) -> list[Any]:
    """One superstep of a script: gives what is new."""
    marks.enter()
    found: list[Any] = []
    for operation in _scripts[workload][index]:
        match operation:
            case Set(key, value):
                found.append(("set", key, value))
            case AppendItem(key, item):
                found.append(("item", key, item))
            case AppendText(key, text) | Again(key, text):
                found.append(("text", key, text))
            case Put(entries):
                found.append(("put", "keys", dict(entries)))
    return found


def fold(state: dict[str, Any], news: list[Any]) -> None:
    """What is new becomes part of the state."""
    for kind, key, value in news:
        if kind == "set":
            state[key] = value
        elif kind == "item":
            state.setdefault(key, []).append(value)
        elif kind == "text":
            state[key] += value
        else:
            state.setdefault(key, {}).update(value)


@DBOS.workflow()
async def scripted(workload: str, supersteps: int) -> int:
    """A script, with its state in a local variable."""
    state: dict[str, Any] = {}
    for index in range(supersteps):
        fold(state, await play(workload, index))
    _states[workload] = state
    return supersteps


@asynccontextmanager
async def launched(folder: Path) -> AsyncIterator[None]:
    """DBOS on a database of its own, in WAL mode, which is faster than its default and as durable."""
    make(folder)
    path = folder / "runs.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
            "application_version": "bench",
        }
    )
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()


def prepared(workload: str) -> Prepare:
    """One workflow."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        params = job.params
        if workload in SCRIPTS:
            _scripts[workload] = SCRIPTS[workload](params)
        async with launched(job.folder):

            async def run() -> Outcome:
                with SetWorkflowID(RUN):
                    if workload == "W2":
                        count = params["supersteps"]
                        return Outcome(await chain(count), count)
                    if workload == "W5":
                        result = await fan(params["width"], params["rounds"])
                        return Outcome(result, 2 * params["rounds"] + 1)
                    count = len(_scripts[workload])
                    return Outcome(None, await scripted(workload, count))

            yield run

    return prepare


async def checked(job: Job) -> Any:
    """The state that the workflow ended with: nothing but the outputs of steps is stored."""
    return summary(_states.pop(job.workload))


@asynccontextmanager
async def many(job: Job) -> AsyncIterator[Run]:
    """Many workflows side by side."""
    _scripts["W7"] = SCRIPTS["W7"](job.params)
    count = len(_scripts["W7"])
    async with launched(job.folder):

        async def one(number: int) -> int:
            with SetWorkflowID(f"run-{number}"):
                return await scripted("W7", count)

        async def run() -> Outcome:
            found = await asyncio.gather(*(one(number) for number in range(job.params["runs"])))
            return Outcome(sum(result == count for result in found), sum(found))

        yield run


async def open_empty(job: Job) -> None:
    """Launch on a new database."""
    async with launched(job.folder):
        assert await DBOS.list_workflows_async() == []


async def resume(job: Job) -> None:
    """Launching goes on with what was interrupted."""
    _scripts[job.workload] = SCRIPTS[job.workload](job.params)
    async with launched(job.folder):
        handle = await DBOS.retrieve_workflow_async(RUN)
        await handle.get_result()


async def listing(job: Job, _: int | None) -> int:
    """List the steps without their outputs, through its client, which goes on with nothing."""
    from dbos import DBOSClient

    client = DBOSClient(system_database_url=f"sqlite:///{job.folder / 'runs.db'}")
    return len(await asyncio.to_thread(client.list_workflow_steps, RUN, load_output=False))


def contestant(_: str) -> Contestant:
    """DBOS, without tracing."""
    where = "SQLite in WAL mode (synchronous=FULL), which is faster than the rollback journal of its default"
    how = f"an async `@DBOS.workflow` that awaits one `@DBOS.step` for each superstep; {where}"
    entries = {
        **{name: Entry(prepared(name), how) for name in ("W2", "W5")},
        **{name: Entry(prepared(name), f"{how}; a step returns what is new", checked) for name in STATE},
        "W7": Entry(many, f"`asyncio.gather` of workflows; {where}"),
    }
    missing = {
        "W1": "it always stores",
        "W8-whole": "it has no state that could be stored as a whole",
    }
    nothing = "nothing that a step returned; the step under way runs again"
    how_resumed = "`DBOS.launch()` goes on by itself; `DBOSClient.list_workflow_steps(load_output=False)`"
    return Contestant(
        ("dbos", "sqlalchemy"),
        entries,
        nothing,
        nothing,
        missing,
        Resume(prepared_any, open_empty, resume, listing, how_resumed),
    )


@asynccontextmanager
async def prepared_any(job: Job) -> AsyncIterator[Run]:
    """The workload that the job names."""
    async with prepared(job.workload)(job) as run:
        yield run
