"""Holdfast: run with `workflow.run_stream(...)`, without a store, or on each of its stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run
from bench.contestants.holdfast.plain import chain, fan
from bench.contestants.holdfast.scripted import scripted, stored_state
from bench.scripts import SCRIPTS, Params, summary
from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Keyring,
    SqliteCheckpointStorage,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowOutputEvent,
)

RUN = "run"
STATE = ("W3", "W4", "W8", "W8-whole", "W9", "W10")
MANY = ("W7-few", "W7", "W7-many", "W7-default")
NOTHING = "nothing that a superstep's events told of; the superstep under way runs again"
BEHIND = (
    "one superstep at most, besides the one under way: the next but one does not begin before it is durable"
)
LOSES = {
    "none": ("all", "all"),
    "memory": ("all", "all"),
    "sqlite": (NOTHING, NOTHING),
    "busy": (NOTHING, NOTHING),
    "keyed": (NOTHING, NOTHING),
    "file": (NOTHING, NOTHING),
    "async": (BEHIND, BEHIND),
    "exit": ("all since the run began or last rested", "all since the run began or last rested"),
}
STORES = {
    "memory": "`InMemoryCheckpointStorage()`",
    "sqlite": '`SqliteCheckpointStorage("x.db")` (WAL, synchronous=FULL), durability `sync`, its default',
    "busy": '`SqliteCheckpointStorage("x.db")` as above, in an event loop that has a pipe to watch: commits are made '
    "by a thread then, and by the event loop's own where that has nothing else to do",
    "keyed": '`SqliteCheckpointStorage("x.db", keys=Keyring.generate())`, durability `sync`',
    "file": '`FileCheckpointStorage("folder")` (one fdatasync for each commit), durability `sync`, its default',
    "async": '`SqliteCheckpointStorage("x.db")`, `with_durability("async")`',
    "exit": '`SqliteCheckpointStorage("x.db")`, `with_durability("exit")`',
}


def storage_at(kind: str, folder: Path) -> CheckpointStorage:
    """The storage of a variant."""
    if kind == "memory":
        return InMemoryCheckpointStorage()
    if kind == "file":
        return FileCheckpointStorage(folder / "runs")
    if kind == "keyed":
        return SqliteCheckpointStorage(folder / "runs.db", keys=_make_keys())
    return SqliteCheckpointStorage(folder / "runs.db")


@cache
def _make_keys() -> Keyring:
    """Return the keys of this process; another one reads nothing that it stored."""
    return Keyring.generate()


def _script_of(job: Job) -> tuple[Any, int]:
    name = "W7" if job.workload in MANY else job.workload
    return SCRIPTS[name](job.params), 2 if name == "W10" else 1


async def consume(workflow: Workflow, run_id: str | None = None) -> Outcome:
    """One run with all its events."""
    result = supersteps = events = 0
    async for event in workflow.run_stream(0, run_id=run_id):
        events += 1
        kind = type(event)
        if kind is SuperStepCompletedEvent:
            supersteps += 1
        elif isinstance(event, WorkflowOutputEvent):
            result = event.data
    return Outcome(result, supersteps, events)


def plain(build: Callable[[Params], WorkflowBuilder]) -> Prepare:
    """A workflow that stores nothing."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        workflow = build(job.params).build()
        yield lambda: consume(workflow)

    return prepare


def _durable(builder: WorkflowBuilder, kind: str, storage: CheckpointStorage) -> Workflow:
    builder.with_checkpointing(storage)
    if kind in ("async", "exit"):
        builder.with_durability(kind)  # type: ignore[arg-type]
    return _built(builder)


def _built(builder: WorkflowBuilder) -> Workflow:
    """A workflow with its fingerprint, which is made once, and otherwise by the first run that is stored."""
    workflow = builder.build()
    assert workflow.fingerprint
    return workflow


@contextmanager
def _watching() -> Iterator[None]:
    """Something else that the event loop might have to do at any time."""
    loop, (reading, writing) = asyncio.get_running_loop(), os.pipe()
    loop.add_reader(reading, lambda: None)
    try:
        yield
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)


def stored(kind: str, build: Callable[[Job], WorkflowBuilder]) -> Prepare:
    """A workflow with one run on a store; in memory the state is read before the store is gone."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        builder = build(job)
        job.folder.mkdir(parents=True, exist_ok=True)
        async with storage_at(kind, job.folder) as storage:
            workflow = _durable(builder, kind, storage)

            async def run() -> Outcome:
                return await consume(workflow, RUN)

            with _watching() if kind == "busy" else nullcontext():
                yield run
            if kind == "memory" and job.workload in STATE:
                _in_memory[job.folder] = summary(await stored_state(storage, RUN))

    return prepare


_in_memory: dict[Path, Any] = {}


def checked(kind: str) -> Callable[[Job], Any]:
    """Reads the state from the store, opened anew."""

    async def check(job: Job) -> Any:
        if kind == "memory":
            return _in_memory.pop(job.folder)
        async with storage_at(kind, job.folder) as storage:
            return summary(await stored_state(storage, RUN))

    return check


def many(kind: str) -> Prepare:
    """Many runs side by side on one store."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        job.folder.mkdir(parents=True, exist_ok=True)
        async with storage_at(kind, job.folder) as storage:
            workflow = _of_many(storage, kind, job)
            with _watching() if kind == "busy" else nullcontext():
                yield lambda: _consume_many(workflow, job)

    return prepare


async def play_many(storage: CheckpointStorage, kind: str, job: Job) -> Outcome:
    """Play many runs side by side on a storage."""
    return await _consume_many(_of_many(storage, kind, job), job)


def _of_many(storage: CheckpointStorage, kind: str, job: Job) -> Workflow:
    return _durable(scripted(_script_of(job)[0]), kind, storage)


async def _consume_many(workflow: Workflow, job: Job) -> Outcome:
    runs = (consume(workflow, f"run-{number}") for number in range(job.params["runs"]))
    outcomes = await asyncio.gather(*runs)
    right = sum(outcome.result == job.params["supersteps"] for outcome in outcomes)
    return Outcome(right, sum(outcome.supersteps for outcome in outcomes))


def _scripted(job: Job) -> WorkflowBuilder:
    return scripted(*_script_of(job))


def _entries(kind: str) -> dict[str, Entry]:
    chained = (
        "`WorkflowBuilder.add_chain` of `Executor` instances that are `shareable`; `workflow.run_stream(0)`"
    )
    fanned = (
        "`add_fan_out_edges(hub, workers)` and `add_fan_in_edges(workers, hub)` of `Executor` recipes (all "
        "executors are created anew in every run, inside the measured time); `workflow.run_stream(0)`"
    )
    if kind == "none":
        return {"W1": Entry(plain(chain), chained), "W5": Entry(plain(fan), fanned)}
    where = STORES[kind]
    state = (
        f"a ring of `@executor` functions, shared state by `queue_state_update` and `append_state`; {where}"
    )
    entries = {
        "W2": Entry(stored(kind, lambda job: chain(job.params)), f"{chained}; {where}"),
        "W5": Entry(stored(kind, lambda job: fan(job.params)), f"{fanned}; {where}; journal on"),
        **{name: Entry(stored(kind, _scripted), state, checked(kind)) for name in STATE},
        **{name: Entry(many(kind), f"`asyncio.gather` of runs on one storage; {where}") for name in MANY},
    }
    beside = ("W7-few", "W7-many", "W7-default")  # what W7 is compared with, on our own side
    left_out = {
        "memory": (*beside, "W8-whole"),
        "busy": [name for name in entries if name not in ("W2", "W7")],
        "keyed": [name for name in entries if name not in ("W2", "W3")],
        "file": beside,
        "async": beside,
        "exit": beside,
    }
    for name in left_out.get(kind, ()):
        del entries[name]
    return entries


def _resume(kind: str) -> Resume:
    async def open_empty(job: Job) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        storage = storage_at(kind, job.folder)
        assert await storage.list_runs() == []

    async def resume(job: Job) -> None:
        storage = storage_at(kind, job.folder)
        run = await _durable(_scripted(job), kind, storage).resume(run_id=RUN)
        await run.wait_for_completion()

    async def listing(job: Job, limit: int | None) -> int:
        return len(await storage_at(kind, job.folder).list_checkpoints(run_id=RUN, limit=limit))

    return Resume(
        stored(kind, _scripted),
        open_empty,
        resume,
        listing,
        "`workflow.resume(run_id=...)`; `storage.list_checkpoints(run_id=..., limit=...)`",
    )


def contestant(variant: str) -> Contestant:
    """Ours; modes that this version does not have yet do nothing."""
    kill, power = LOSES[variant]
    if variant in ("async", "exit") and not hasattr(WorkflowBuilder, "with_durability"):
        reason = {"*": "this version has no `with_durability`"}
        return Contestant(("holdfast",), {}, kill, power, reason)
    missing = {
        "none": {"*": "nothing is stored"},
        "busy": {"*": "who makes commits is compared in W2"},
        "keyed": {"*": "what keys cost is compared in W2 and W3"},
    }.get(variant, {"W1": "W1 is without storage"})
    resume = _resume(variant) if variant in ("sqlite", "file") else None
    return Contestant(("holdfast",), _entries(variant), kill, power, missing, resume)
