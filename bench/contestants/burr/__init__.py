"""Burr: a state machine of async actions, run with `app.aiterate`, without a persister or on SQLite."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from burr import telemetry
from burr.core import ApplicationBuilder, Graph, GraphBuilder, State, action, default, expr

from bench import marks
from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run, make
from bench.scripts import SCRIPTS, Again, AppendItem, AppendText, Put, Script, Set, summary

telemetry.disable_telemetry()
STATE = ("W3", "W4", "W8", "W9", "W10")
RUN = "run"
FIELDS = ("index", "counter", "log", "history", "text", "keys")
EMPTY: dict[str, Any] = {"index": 0, "counter": None, "log": None, "history": [], "text": None, "keys": {}}


@asynccontextmanager
async def persister_at(variant: str, folder: Path) -> AsyncIterator[Any]:
    """The persister of a variant; in WAL mode, which is faster than the default and as durable."""
    if variant == "none":
        yield None
        return
    from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

    make(folder)
    async with AsyncSQLitePersister.from_values(db_path=str(folder / "runs.db")) as persister:
        await persister.connection.execute("PRAGMA journal_mode=WAL")
        await persister.initialize()
        yield persister


@action(reads=["number"], writes=["number"])
async def step(state: State) -> State:
    """One superstep of the chain."""
    return state.update(number=state["number"] + 1)


def _chain(count: int) -> ApplicationBuilder:
    names = [f"step_{index}" for index in range(count)]
    return ApplicationBuilder().with_actions(**dict.fromkeys(names, step)).with_transitions(*pairwise(names))


def linear(variant: str) -> Prepare:
    """W1 and W2."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        count = job.params["supersteps"]
        async with persister_at(variant, job.folder) as persister:

            async def build() -> Any:
                builder = _chain(count).with_state(number=0).with_entrypoint("step_0")
                if persister is not None:
                    builder = builder.with_identifiers(app_id=RUN).with_state_persister(persister)
                return await builder.abuild()

            app = await build()

            async def run() -> Outcome:
                app.update_state(app.state.update(number=0))
                app.reset_to_entrypoint()
                supersteps = 0
                async for _ in app.aiterate(halt_after=[f"step_{count - 1}"]):
                    supersteps += 1
                return Outcome(app.state["number"], supersteps, supersteps)

            yield run

    return prepare


def _player(script: Script) -> Any:
    @action(reads=list(FIELDS), writes=list(FIELDS))
    async def play(state: State) -> State:
        marks.enter()
        index = state["index"]
        for operation in script[index]:
            match operation:
                case Set(key, value):
                    state = state.update(**{key: value})
                case AppendItem(key, item):
                    state = state.append(**{key: item})
                case AppendText(key, text) | Again(key, text):
                    state = state.update(**{key: state[key] + text})
                case Put(entries):
                    state = state.update(keys={**state["keys"], **entries})
        return state.update(index=index + 1)

    return play


@action(reads=[], writes=[])
async def done(state: State) -> State:
    """Never reached: runs halt before it."""
    return state


def _scripted(job: Job) -> Graph:
    script, roles = SCRIPTS[job.workload](job.params), 2 if job.workload == "W10" else 1
    names = [f"role_{number}" for number in range(roles)]
    transitions: list[Any] = []
    for number, name in enumerate(names):
        transitions += [
            (name, names[(number + 1) % roles], expr(f"index < {len(script)}")),
            (name, "done", default),
        ]
    return (
        GraphBuilder()
        .with_actions(done, **dict.fromkeys(names, _player(script)))
        .with_transitions(*transitions)
        .build()
    )


async def _app(graph: Graph, persister: Any, app_id: str = RUN) -> Any:
    """A new application, or the one that was interrupted."""
    builder = (
        ApplicationBuilder()
        .with_graph(graph)
        .with_identifiers(app_id=app_id)
        .initialize_from(
            persister, resume_at_next_action=True, default_state=dict(EMPTY), default_entrypoint="role_0"
        )
        .with_state_persister(persister)
    )
    return await builder.abuild()


async def consume(app: Any) -> int:
    """One run with all its events."""
    supersteps = 0
    async for _ in app.aiterate(halt_before=["done"]):
        supersteps += 1
    return supersteps


@asynccontextmanager
async def stateful(job: Job) -> AsyncIterator[Run]:
    """A script, played once."""
    async with persister_at("sqlite", job.folder) as persister:
        app = await _app(_scripted(job), persister)

        async def run() -> Outcome:
            supersteps = await consume(app)
            return Outcome(None, supersteps, supersteps)

        yield run


async def checked(job: Job) -> Any:
    """Reads the state from the store, opened anew."""
    async with persister_at("sqlite", job.folder) as persister:
        state = (await persister.load(None, RUN))["state"]
        found = {key: state[key] for key in FIELDS if key != "index" and state[key] not in (None, [], {})}
        return summary(found)


@asynccontextmanager
async def many(job: Job) -> AsyncIterator[Run]:
    """Many applications of one graph side by side on one connection."""
    async with persister_at("sqlite", job.folder) as persister:
        graph = _scripted(job)

        async def one(number: int) -> tuple[int, int]:
            app = await _app(graph, persister, f"run-{number}")
            return await consume(app), app.state["index"]

        async def run() -> Outcome:
            found = await asyncio.gather(*(one(number) for number in range(job.params["runs"])))
            right = sum(index == job.params["supersteps"] for _, index in found)
            return Outcome(right, sum(supersteps for supersteps, _ in found))

        yield run


async def open_empty(job: Job) -> None:
    """Open a database that is not there yet."""
    async with persister_at("sqlite", job.folder) as persister:
        assert await persister.list_app_ids() == []


async def resume(job: Job) -> None:
    """Go on with the application that was interrupted."""
    async with persister_at("sqlite", job.folder) as persister:
        await consume(await _app(_scripted(job), persister))


async def listing(job: Job, _: int | None) -> int:
    """It lists applications, not their states: each is loaded by its number."""
    async with persister_at("sqlite", job.folder) as persister:
        last = (await persister.load(None, RUN))["sequence_id"]
        found = [await persister.load(None, RUN, number) for number in range(last + 1)]
        return sum(one is not None for one in found)


def contestant(variant: str) -> Contestant:
    """Burr; telemetry and tracking are off."""
    chained = "a chain of async `@action`s with default transitions; `app.aiterate(...)`"
    fan = "`MapStates` runs a sub-application for each worker inside of one action; the fan is no part of the graph"
    if variant == "none":
        missing = {"W5": fan, "*": "nothing is stored in this configuration"}
        return Contestant(("apache-burr",), {"W1": Entry(linear("none"), chained)}, missing=missing)
    where = (
        "`AsyncSQLitePersister` in WAL mode (synchronous=FULL), faster than its default, the rollback journal"
    )
    state = f"a ring of async `@action`s with `expr` transitions; `app.aiterate(...)`; {where}"
    entries = {
        "W2": Entry(linear(variant), f"{chained}; {where}"),
        **{name: Entry(stateful, state, checked) for name in STATE},
        "W7": Entry(many, f"`asyncio.gather` of applications of one graph on one persister; {where}"),
    }
    missing = {"W1": "W1 is without storage", "W5": fan, "W8-whole": "the same as its W8: there is no append"}
    nothing = "nothing that an action returned; the action under way runs again"
    how = "`initialize_from(persister, resume_at_next_action=True)`; `persister.load` of each state: nothing lists them"
    return Contestant(
        ("apache-burr", "aiosqlite"),
        entries,
        nothing,
        nothing,
        missing,
        Resume(stateful, open_empty, resume, listing, how),
    )
