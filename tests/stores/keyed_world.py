"""A small store under keys that has one of everything, and what a reader with the keys sees of it."""

import json
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from holdfast import (
    Checkpoint,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    FileCheckpointStorage,
    HoldfastError,
    InMemoryCheckpointStorage,
    Keyring,
    Retention,
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


USED_KEY = "walnut-key"
"""The key of a call that was made: it is among the used keys of a run."""


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


def make_workflow(storage: CheckpointStorage, retention: Retention | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Walnuts").set_start_executor(WalnutExecutor)
    builder.add_edge(WalnutExecutor, WalnutExecutor).with_checkpointing(storage)
    return (builder if retention is None else builder.with_retention(retention)).build()


async def fill(storage: CheckpointStorage, waiting: Sequence[str] = ("first", "second")) -> None:
    """Store two runs that wait with a letter and a used key each, and one that failed amid a superstep."""
    await fill_waiting(storage, waiting)
    try:
        await make_workflow(storage).run("fail", run_id="failed")
    except ExecutorFailed:
        pass


async def fill_waiting(storage: CheckpointStorage, waiting: Sequence[str]) -> None:
    """Store runs that wait with a letter and a used key each."""
    workflow = make_workflow(storage)
    for name in waiting:
        await workflow.run(f"begin {name}", run_id=name)
        await storage.send(name, f"walnut-answer to {name}", by="walnut-by")
        made = await storage.list_checkpoints(run_id=name)
        await storage.tag(made[2].checkpoint_id, "walnut-tag", by="walnut-by", key=USED_KEY)


async def add_fork(storage: CheckpointStorage, pruned: bool = True) -> None:
    """Store a run ``fork`` that began amid the first one; pruned, all that is left of it is its end, a cut keyframe."""
    made = await storage.list_checkpoints(run_id="first")
    run = await make_workflow(storage).fork(made[4].checkpoint_id, run_id="fork")
    await run.wait_for_completion()
    if pruned:
        await storage.prune(Retention.latest_only(), run_id="fork")
        await storage.vacuum()


async def look(storage: CheckpointStorage) -> dict[str, Any]:
    """Return all that the storage shows of each run; an error where it refuses to."""
    seen: dict[str, Any] = {}
    for name in ("first", "second", "failed"):
        seen[name] = await _look_at(storage, name)
    return seen


def spell_values(loaded: Checkpoint) -> str:
    """Return all values of a checkpoint that was loaded plain, as JSON, with the digest of a long text in its place.

    Raise if a value is refused.
    """
    values = {
        "shared": {name: dict(keys) for name, keys in loaded.scopes.items()},
        "private": {name: dict(loaded.executor_states[name]) for name in loaded.executor_states},
        "messages": [(one.source_id, one.target_id, one.data) for one in loaded.messages],
        "requests": [(one.request_id, one.executor_id, one.data) for one in loaded.pending_requests],
        "outputs": list(loaded.outputs),
    }
    spelled = json.dumps(values, default=str, sort_keys=True)
    return re.sub(r'"([^" ]* )([^"]{300,})"', _shorten, spelled)


def _shorten(found: "re.Match[str]") -> str:
    return f'"{found[1]}{blake2b(found[2].encode()).hexdigest()[:32]}"'


async def _look_at(storage: CheckpointStorage, name: str) -> Any:
    try:
        run = await storage.get_run(name)
        shown: list[Any] = [run.status, run.reason, run.by, run.checkpoint_id]
        for made in await storage.list_checkpoints(run_id=name):
            loaded = await storage.load(made.checkpoint_id, plain=True)
            shown.append((made.checkpoint_id, made.to_dict(), spell_values(loaded)))
        run_id = RunId(name)
        shown.append([(note.key, note.data) for note in await storage.store.notes(run_id)])
        shown.append([(letter.key, letter.data) for letter in await storage.store.inbox(run_id)])
        return shown
    except HoldfastError as error:
        return error


def in_memory(anchor: Any = None) -> CheckpointStorage:
    return InMemoryCheckpointStorage(keys=KEYS, anchor=anchor)
