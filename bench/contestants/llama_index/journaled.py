"""A program that keeps the journal of llama-index-workflows, and patches of the state, in a file."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from workflows import Context, Workflow, step
from workflows.context.state_store import apply_state_patch
from workflows.events import Event, StartEvent, StopEvent
from workflows.plugins.basic import JournalRecord, basic_runtime

from bench import marks
from bench.contestants import Job, Outcome, Run
from bench.scripts import SCRIPTS, Again, AppendItem, AppendText, Put, Script, Set, summary

FILE = "run.jsonl"


class Next(Event):
    """The next superstep."""

    index: int


class Player(Workflow):
    """Plays a script, one superstep for each event."""

    def __init__(self, script: Script) -> None:
        super().__init__(timeout=None)
        self.script = script

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Next | StopEvent:
        """The first superstep."""
        return await self._play(ctx, 0)

    @step
    async def go_on(self, ctx: Context, ev: Next) -> Next | StopEvent:
        """Each other superstep."""
        return await self._play(ctx, ev.index)

    async def _play(self, ctx: Context, index: int) -> Next | StopEvent:
        marks.enter()
        for operation in self.script[index]:
            match operation:
                case Set(key, value):
                    await ctx.store.set(key, value)
                case AppendItem(key, item):
                    await ctx.store.set(key, [*await ctx.store.get(key, default=[]), item])
                case AppendText(key, text) | Again(key, text):
                    await ctx.store.set(key, await ctx.store.get(key) + text)
                case Put(entries):
                    await ctx.store.set("keys", {**await ctx.store.get("keys", default={}), **entries})
        index += 1
        return Next(index=index) if index < len(self.script) else StopEvent(result=index)


def player(job: Job) -> Player:
    """The workflow of a script."""
    return Player(SCRIPTS[job.workload](job.params))


async def keep(run_id: str, path: Path) -> None:
    """Append what the runtime hands out to a file, until the run is over."""
    with path.open("a") as file:
        base = basic_runtime.state_checkpoint(run_id)
        file.write(json.dumps({"base": base.to_dict()}) + "\n")
        async for record in basic_runtime.journal(run_id):
            line: dict[str, Any] = {"seq": record.seq, "data": record.data}
            now = basic_runtime.state_checkpoint(run_id)
            if now.state is not base.state:
                line["patch"] = now.diff(base)
                base = now
            file.write(json.dumps(line) + "\n")
            file.flush()


@asynccontextmanager
async def journaled(workflow: Any, job: Job) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """A run of a workflow whose journal goes to a file."""
    job.folder.mkdir(parents=True, exist_ok=True)

    async def play() -> Any:
        handler = workflow.run()
        keeper = asyncio.create_task(keep(handler.run_id, job.folder / FILE))
        result = await handler
        await keeper
        return result

    yield play


@asynccontextmanager
async def many(job: Job) -> AsyncIterator[Run]:
    """Many runs side by side, with a file each."""
    job.folder.mkdir(parents=True, exist_ok=True)
    workflow = player(Job("W7", job.params, job.folder))

    async def one(number: int) -> int:
        handler = workflow.run()
        keeper = asyncio.create_task(keep(handler.run_id, job.folder / f"{number}.jsonl"))
        result = await handler
        await keeper
        return result

    async def run() -> Outcome:
        found = await asyncio.gather(*(one(number) for number in range(job.params["runs"])))
        count = job.params["supersteps"]
        return Outcome(sum(result == count for result in found), sum(found))

    yield run


def read(path: Path) -> tuple[list[JournalRecord], dict[str, Any]]:
    """The records, and the state that the patches lead to."""
    first, *lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    state = first["base"]
    for line in lines:
        if "patch" in line:
            state = apply_state_patch(state, line["patch"])
    return [JournalRecord(line["seq"], line["data"]) for line in lines], state


async def checked(job: Job) -> Any:
    """Reads the state from the file."""
    _, state = read(job.folder / FILE)
    return summary(restored(state))


def restored(state: dict[str, Any]) -> dict[str, Any]:
    """The values of a state."""
    data = state["state_data"]
    found: dict[str, Any] = data.get("_data", data)
    return found


async def open_empty(job: Job) -> None:
    """There is nothing to open but a file."""
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / FILE).touch()


async def resume(job: Job) -> None:
    """Go on with what the file holds."""
    records, state = read(job.folder / FILE)
    workflow = player(job)
    snapshot = basic_runtime.restore(workflow, None, records).to_dict(include_state=False)
    snapshot["state"] = state
    await workflow.run(ctx=Context.from_dict(workflow, snapshot))


async def listing(job: Job, _: int | None) -> int:
    """Count the records."""
    return len(read(job.folder / FILE)[0])
