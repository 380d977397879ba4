"""A small store under keys that has one of everything, and what a reader with the keys sees of it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    FileCheckpointStorage,
    HoldfastError,
    InMemoryCheckpointStorage,
    Keyring,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from holdfast.ids import RunId

KEYS = Keyring.generate()
Maker = Callable[[Path, Keyring | None], CheckpointStorage]
MAKERS: dict[str, Maker] = {
    "sqlite": lambda folder, keys: SqliteCheckpointStorage(folder / "runs.db", keys=keys),
    "file": lambda folder, keys: FileCheckpointStorage(folder / "store", keys=keys),
}
SECRETS = (
    *("walnut-message", "walnut-value", "walnut-key", "walnut-field", "WalnutExecutor", "walnut-reason"),
    *("walnut-tag", "walnut-by", "walnut-answer", "walnut-note", "walnut-question", "walnut-large"),
)
"""Texts that stand in messages, values, keys, private state, names of executors, errors, tags, letters and notes."""


class WalnutExecutor(Executor):
    checkpointed = ("kept",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.kept = ""

    @handler
    async def work(self, text: str, ctx: WorkflowContext[str]) -> None:
        self.kept = "walnut-field"
        await ctx.queue_state_update("walnut-key", f"walnut-value of {text}")
        await ctx.queue_state_update("big", f"walnut-large {text} {ctx.superstep}" * 400)
        if text == "fail":
            await ctx.once("walnut-note once", _note)
            raise ValueError("walnut-reason")
        if ctx.superstep < 4:
            await ctx.send_message(f"walnut-message {ctx.superstep}")
        else:
            await ctx.request_info("walnut-question", response_type=str)

    @response_handler
    async def answered(self, request: str, response: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(response)


def _note() -> str:
    return "walnut-note"


def make_workflow(storage: CheckpointStorage) -> Workflow:
    return (
        WorkflowBuilder(name="Walnuts")
        .set_start_executor(WalnutExecutor)
        .add_edge(WalnutExecutor, WalnutExecutor)
        .with_checkpointing(storage)
        .build()
    )


async def fill(storage: CheckpointStorage, waiting: Sequence[str] = ("first", "second")) -> None:
    """Store two runs that wait with a letter each, and one that failed amid a superstep."""
    workflow = make_workflow(storage)
    for name in waiting:
        await workflow.run(f"begin {name}", run_id=name)
        await storage.send(name, f"walnut-answer to {name}", by="walnut-by")
        made = await storage.list_checkpoints(run_id=name)
        await storage.tag(made[2].checkpoint_id, "walnut-tag", by="walnut-by")
    try:
        await workflow.run("fail", run_id="failed")
    except ExecutorFailed:
        pass


async def look(storage: CheckpointStorage) -> dict[str, Any]:
    """Return all that the storage shows of each run; an error where it refuses to."""
    seen: dict[str, Any] = {}
    for name in ("first", "second", "failed"):
        seen[name] = await _look_at(storage, name)
    return seen


async def _look_at(storage: CheckpointStorage, name: str) -> Any:
    try:
        run = await storage.get_run(name)
        shown: list[Any] = [run.status, run.reason, run.by, run.checkpoint_id]
        for made in await storage.list_checkpoints(run_id=name):
            loaded = await storage.load(made.checkpoint_id, plain=True)
            state = {key: loaded.shared_state[key] for key in loaded.shared_state}
            shown.append((made.checkpoint_id, made.to_dict(), json.dumps(state, default=str)))
        run_id = RunId(name)
        shown.append([(note.key, note.data) for note in await storage.store.notes(run_id)])
        shown.append([(letter.key, letter.data) for letter in await storage.store.inbox(run_id)])
        return shown
    except HoldfastError as error:
        return error


def in_memory(anchor: Any = None) -> CheckpointStorage:
    return InMemoryCheckpointStorage(keys=KEYS, anchor=anchor)
