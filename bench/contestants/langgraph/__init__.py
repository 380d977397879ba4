"""LangGraph: run with `astream(..., stream_mode="updates")`, without a checkpointer, in memory, or on SQLite.

`updates`, one event per task, was cheaper in a short trial than `tasks`, two; `values` took about as long, but has one
event per step.
"""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run, make
from bench.contestants.langgraph import plain
from bench.contestants.langgraph.scripted import scripted
from bench.scripts import SCRIPTS, Script, summary

STATE = ("W3", "W4", "W8", "W9", "W10")
PACKAGES = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langchain-core", "aiosqlite")
MISSING = {
    "W1": "W1 is without storage",
    "W8-whole": "the same as its W8, which stores the whole text each time",
}
DURABILITY = {"sqlite-sync": "sync", "sqlite-exit": "exit"}
_in_memory: dict[Path, Any] = {}


@asynccontextmanager
async def saver_at(variant: str, folder: Path) -> AsyncIterator[Any]:
    """The checkpointer of a variant."""
    if variant == "none":
        yield None
    elif variant == "memory":
        from langgraph.checkpoint.memory import InMemorySaver

        yield InMemorySaver()
    else:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        make(folder)
        async with AsyncSqliteSaver.from_conn_string(str(folder / "runs.db")) as saver:
            yield saver


def _config(limit: int, thread: str) -> dict[str, Any]:
    return {"recursion_limit": limit + 2, "configurable": {"thread_id": thread}}


def _durability(variant: str) -> dict[str, str]:
    return {"durability": DURABILITY[variant]} if variant in DURABILITY else {}


async def consume(graph: Any, first: Any, config: Any, more: dict[str, str]) -> tuple[int, Any]:
    """One run with all its events: how many, and the last one."""
    events, last = 0, None
    async for chunk in graph.astream(first, config, stream_mode="updates", **more):
        events += 1
        last = chunk
    return events, last


def linear(variant: str) -> Prepare:
    """W1 and W2: a chain, or with a checkpointer a loop (a chain's checkpoints would name 200 channels each)."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async with saver_at(variant, job.folder) as saver:
            build = plain.chain if variant == "none" else plain.loop
            graph = build(job.params).compile(checkpointer=saver)
            config, more = _config(job.params["supersteps"], "run"), _durability(variant)

            async def run() -> Outcome:
                events, last = await consume(graph, {"number": 0}, config, more)
                (update,) = last.values()
                return Outcome(update["number"], events, events)

            yield run

    return prepare


def fan(variant: str) -> Prepare:
    """W5."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async with saver_at(variant, job.folder) as saver:
            graph = plain.fan(job.params).compile(checkpointer=saver)
            config, more = _config(2 * job.params["rounds"], "run"), _durability(variant)

            async def run() -> Outcome:
                events = hubs = 0
                chunk: Any = None
                async for chunk in graph.astream({"number": 0}, config, stream_mode="updates", **more):
                    events += 1
                    if "hub" in chunk:
                        hubs += 1
                return Outcome(chunk["hub"]["total"], 2 * hubs - 1, events)

            yield run

    return prepare


def _script_of(job: Job) -> tuple[Script, int]:
    return SCRIPTS[job.workload](job.params), 2 if job.workload == "W10" else 1


def _graph(job: Job, variant: str, saver: Any) -> Any:
    script, roles = _script_of(job)
    return scripted(script, roles, delta=variant == "delta").compile(checkpointer=saver)


def _state(values: dict[str, Any]) -> Any:
    return summary(
        {key: value for key, value in values.items() if key != "index" and value not in ("", [], {})}
    )


def stateful(variant: str, **durability: str) -> Prepare:
    """A script, played once."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async with saver_at(variant, job.folder) as saver:
            graph = _graph(job, variant, saver)
            script, _ = _script_of(job)
            config, more = _config(len(script), "run"), durability or _durability(variant)

            async def run() -> Outcome:
                events, _ = await consume(graph, {"index": 0}, config, more)
                return Outcome(None, events, events)

            yield run
            if variant == "memory":
                _in_memory[job.folder] = _state((await graph.aget_state(config)).values)

    return prepare


def checked(variant: str) -> Callable[[Job], Any]:
    """Reads the state from the store, opened anew."""

    async def check(job: Job) -> Any:
        if variant == "memory":
            return _in_memory.pop(job.folder)
        async with saver_at(variant, job.folder) as saver:
            return _state((await _graph(job, variant, saver).aget_state(_config(0, "run"))).values)

    return check


def many(variant: str) -> Prepare:
    """Many threads of one graph side by side."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async with saver_at(variant, job.folder) as saver:
            graph = _graph(job, variant, saver)
            count, more = len(_script_of(job)[0]), _durability(variant)

            async def one(number: int) -> tuple[int, Any]:
                return await consume(graph, {"index": 0}, _config(count, f"run-{number}"), more)

            async def run() -> Outcome:
                found = await asyncio.gather(*(one(number) for number in range(job.params["runs"])))
                right = sum(last["role-0"]["index"] == count for _, last in found)
                return Outcome(right, sum(events for events, _ in found))

            yield run

    return prepare


def _resume(variant: str) -> Resume:
    async def open_empty(job: Job) -> None:
        async with saver_at(variant, job.folder) as saver:
            assert [one async for one in saver.alist(None)] == []

    async def resume(job: Job) -> None:
        async with saver_at(variant, job.folder) as saver:
            config = _config(len(_script_of(job)[0]), "run")
            await consume(_graph(job, variant, saver), None, config, {})

    async def listing(job: Job, limit: int | None) -> int:
        async with saver_at(variant, job.folder) as saver:
            found = saver.alist({"configurable": {"thread_id": "run"}}, limit=limit)
            return len([one async for one in found])

    how = "`graph.astream(None, config)`; `saver.alist(config, limit=...)`; stored with `sync`: see what is lost"
    return Resume(stateful(variant, durability="sync"), open_empty, resume, listing, how)


WHERE = {
    "none": "no checkpointer",
    "memory": "`InMemorySaver()`",
    "sqlite": "`AsyncSqliteSaver` (WAL, synchronous=FULL), durability `async`, its default",
    "sqlite-sync": '`AsyncSqliteSaver` (WAL, synchronous=FULL), `durability="sync"`',
    "sqlite-exit": '`AsyncSqliteSaver` (WAL, synchronous=FULL), `durability="exit"`',
    "delta": "`AsyncSqliteSaver`, durability `async`, `DeltaChannel` (beta), a snapshot every 100 updates, its default",
}
# Tried: W4 with 100 supersteps, killed at the start of the 99th: 7 checkpoints were there. In a loop that appends 5 KB
# a superstep 3 were there, with handlers of 1 ms 34, of 5 ms 76, of 20 ms 96 and 99.
BEHIND = (
    "all checkpoints that wait to be written, without a bound: the run waits for none of them (killed at the start of "
    "superstep 99 of a W4 with 100, whose handlers do nothing, it had 7; where each handler takes 20 ms, the writer "
    "keeps up and it had nearly all)"
)
LOSES = {
    "sqlite": (BEHIND, BEHIND),
    "delta": (BEHIND, BEHIND),
    "sqlite-sync": ("nothing that was saved", "nothing that was saved"),
    "sqlite-exit": ("all since the run began", "all since the run began"),
}


def contestant(variant: str) -> Contestant:
    """LangGraph in one of its configurations; no tracing."""
    where = WHERE[variant]
    chained = (
        '`StateGraph` of async nodes with static edges; `graph.astream(..., stream_mode="updates")`: one event per '
        f"node, the cheapest of its streams that has one; `recursion_limit` raised; {where}"
        if variant == "none"
        else f'a node with a conditional edge to itself; `graph.astream(..., stream_mode="updates")`; {where}'
    )
    fanned = f"`Send` to one worker node, answers through a `Topic` channel; `graph.astream(...)`; {where}"
    stated = f"a ring of nodes with conditional edges, channels with reducers; {where}"
    first, fans = Entry(linear(variant), chained), Entry(fan(variant), fanned)
    entries = {name: Entry(stateful(variant), stated, checked(variant)) for name in STATE}
    if variant == "none":
        missing = {"*": "nothing is stored in this configuration"}
        return Contestant(PACKAGES, {"W1": first, "W5": fans}, missing=missing)
    kill, power = LOSES.get(variant, ("all", "all"))
    if variant in DURABILITY:
        other = {"*": "its durability modes are compared in W2 and W4"}
        return Contestant(PACKAGES, {"W2": first, "W4": entries["W4"]}, kill, power, other)
    if variant == "delta":
        growing = {name: entries[name] for name in ("W4", "W8", "W9", "W10")}
        other = {"*": "no channel of it grows, so that a delta channel does not apply"}
        return Contestant(PACKAGES, growing, kill, power, other, _resume("delta"))
    entries |= {"W2": first, "W5": fans, "W7": Entry(many(variant), f"`asyncio.gather` of threads; {where}")}
    return Contestant(
        PACKAGES, entries, kill, power, MISSING, _resume(variant) if variant == "sqlite" else None
    )
