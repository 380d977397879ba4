"""Agent Framework: run with `workflow.run(..., stream=True)`, without checkpoints, in memory, or in files."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_framework import FileCheckpointStorage, InMemoryCheckpointStorage

from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run
from bench.contestants.agent_framework.plain import chain, fan, loop
from bench.contestants.agent_framework.scripted import scripted, state_of
from bench.scripts import SCRIPTS, Script, summary

STATE = ("W3", "W4", "W8", "W9", "W10")
PACKAGES = ("agent-framework-core", "pydantic", "opentelemetry-api")
MISSING = {"W1": "W1 is without storage", "W8-whole": "the same as its W8: there is no append"}
_in_memory: dict[Path, Any] = {}


def storage_at(kind: str, folder: Path) -> Any:
    """The storage of a variant."""
    if kind == "none":
        return None
    return InMemoryCheckpointStorage() if kind == "memory" else FileCheckpointStorage(folder)


async def consume(workflow: Any) -> Outcome:
    """One run with all its events."""
    result = supersteps = events = 0
    async for event in workflow.run(0, stream=True):
        events += 1
        kind = event.type
        if kind == "superstep_completed":
            supersteps += 1
        elif kind == "output":
            result = event.data
    return Outcome(result, supersteps, events)


def _script_of(job: Job) -> tuple[Script, int]:
    return SCRIPTS[job.workload](job.params), 2 if job.workload == "W10" else 1


def prepared(kind: str, build: Callable[[Job, Any], Any]) -> Prepare:
    """A workflow with one run."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        storage = storage_at(kind, job.folder)
        workflow = build(job, storage)
        yield lambda: consume(workflow)
        if kind == "memory" and job.workload in STATE:
            latest = await storage.get_latest(workflow_name="script")
            _in_memory[job.folder] = summary(state_of(latest))

    return prepare


def many(kind: str) -> Prepare:
    """Many runs side by side: a workflow of its own for each, because one runs once at a time."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        storage = storage_at(kind, job.folder)
        script, _ = _script_of(job)
        workflows = [scripted(script, storage, name=f"run-{number}") for number in range(job.params["runs"])]

        async def run() -> Outcome:
            outcomes = await asyncio.gather(*(consume(workflow) for workflow in workflows))
            right = sum(outcome.result == len(script) for outcome in outcomes)
            return Outcome(right, sum(outcome.supersteps for outcome in outcomes))

        yield run

    return prepare


def checked(kind: str) -> Callable[[Job], Any]:
    """Reads the state from the newest file."""

    async def check(job: Job) -> Any:
        if kind == "memory":
            return _in_memory.pop(job.folder)
        newest = max(job.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return summary(state_of(await FileCheckpointStorage(job.folder).load(newest.stem)))

    return check


def _scripted(job: Job, storage: Any) -> Any:
    script, roles = _script_of(job)
    return scripted(script, storage, roles)


def _resume() -> Resume:
    async def open_empty(job: Job) -> None:
        assert await FileCheckpointStorage(job.folder).list_checkpoint_ids(workflow_name="script") == []

    async def resume(job: Job) -> None:
        storage = FileCheckpointStorage(job.folder)
        latest = await storage.get_latest(workflow_name="script")
        assert latest is not None
        async for _ in _scripted(job, storage).run(checkpoint_id=latest.checkpoint_id, stream=True):
            pass

    async def listing(job: Job, _: int | None) -> int:
        return len(await FileCheckpointStorage(job.folder).list_checkpoints(workflow_name="script"))

    how = "`storage.get_latest(workflow_name=...)`, `workflow.run(checkpoint_id=...)`; `storage.list_checkpoints(...)`"
    return Resume(prepared("file", _scripted), open_empty, resume, listing, how)


def contestant(variant: str) -> Contestant:
    """Agent Framework in one of its configurations; telemetry is not enabled, which is its default."""
    where = {
        "none": "no checkpoints",
        "memory": "`checkpoint_storage=InMemoryCheckpointStorage()`",
        "file": "`checkpoint_storage=FileCheckpointStorage(folder)`",
    }[variant]
    chained = f"`WorkflowBuilder.add_chain` of `Executor` instances; `workflow.run(0, stream=True)`; {where}"
    looped = f"an `Executor` with an edge to itself (a chain is far slower); `workflow.run(0, stream=True)`; {where}"
    fanned = f"`add_fan_out_edges` and `add_fan_in_edges`; `workflow.run(0, stream=True)`; {where}"
    linear = Entry(prepared(variant, lambda job, _: chain(job.params)), chained)
    fan_entry = Entry(prepared(variant, lambda job, storage: fan(job.params, storage)), fanned)
    if variant == "none":
        return Contestant(
            PACKAGES,
            {"W1": linear, "W5": fan_entry},
            missing={"*": "nothing is stored in this configuration"},
        )
    state = f"a ring of executors, `ctx.set_state` and `ctx.get_state`; {where}"
    entries = {
        "W2": Entry(prepared(variant, lambda job, storage: loop(job.params, storage)), looped),
        "W5": fan_entry,
        "W7": Entry(many(variant), f"`asyncio.gather` of runs of one workflow object each; {where}"),
        **{name: Entry(prepared(variant, _scripted), state, checked(variant)) for name in STATE},
    }
    if variant == "memory":
        return Contestant(PACKAGES, entries, missing=MISSING)
    kill = "nothing that was saved: a file is renamed into place at the end of each superstep"
    power = "what the system had not written back yet (nothing is synced), up to all; a file may be there and be empty"
    return Contestant(PACKAGES, entries, kill, power, MISSING, _resume())
