"""Runs of every kind to be moved between storages, and how each goes on."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointInfo,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from tests.support.runs import soon

KINDS = ["memory", "file", "sqlite"]


def storage_of(kind: str, folder: Path) -> CheckpointStorage:
    if kind == "memory":
        return InMemoryCheckpointStorage()
    return (FileCheckpointStorage if kind == "file" else SqliteCheckpointStorage)(folder / f"{kind}.store")


class Storages:
    """Makes storages of a kind, each in a place of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[CheckpointStorage] = []

    def __call__(self, kind: str) -> CheckpointStorage:
        place = self._folder / f"storage-{len(self._made)}"
        place.mkdir()
        self._made.append(storage_of(kind, place))
        return self._made[-1]

    async def close(self) -> None:
        for storage in self._made:
            await storage.close()


async def listed(storage: CheckpointStorage, run_id: str = "r") -> list[dict[str, Any]]:
    """All that can be seen of the checkpoints of a run without reading values."""
    found = []
    for one in await storage.list_checkpoints(run_id=run_id):
        fields = {
            name: getattr(one, name) for name, it in vars(CheckpointInfo).items() if isinstance(it, property)
        }
        found.append({**fields, "scopes": repr(one.scopes), "messages": repr(one.messages)})
    return found


def noise(size: int, seed: object = 0) -> bytes:
    """Bytes that cannot be compressed."""
    return hashlib.shake_128(repr(seed).encode()).digest(size)


@dataclass
class World:
    """What happens outside the workflows: which turns ran, and whether the one that can fail fails."""

    ran: list[str] = field(default_factory=list)
    fails: bool = True
    good: bytes = noise(6000)


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("asked", noise(5000, number), scope_name="Shared")
        await ctx.request_info(f"is {number} right?", response_type=bool, request_id="q")

    @response_handler
    async def answered(self, question: str, right: bool, ctx: WorkflowContext[None, str]) -> None:
        asked = await ctx.read_state("asked", scope_name="Shared")
        await ctx.yield_output(f"{question} {right} {len(asked)}")


def asking(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Asking").set_start_executor(Ask).with_checkpointing(storage).build()


@executor
async def count(number: int, ctx: WorkflowContext[int, list]) -> None:
    """Values of every size: small, blobs, files, a list that grows, and more small ones than fit in a record."""
    await ctx.append_state("line", [number, f"{number} " * 400], scope_name="Grown")
    await ctx.queue_state_update("small", number, scope_name="Shared")
    await ctx.queue_state_update("medium", f"medium {number} " * 1000, scope_name="Shared")
    if number == 2:
        await ctx.queue_state_update("large", noise(300_000), scope_name="Shared")
        await ctx.queue_state_update("text", "compressible " * 30_000, scope_name="Shared")
        for index in range(80):
            await ctx.queue_state_update(f"{index}", noise(4000, index), scope_name="Many")
    if number < 4:
        await ctx.send_message(number + 1)
    else:
        line = await ctx.read_state("line", scope_name="Grown")
        large = await ctx.read_state("large", scope_name="Shared")
        await ctx.yield_output(
            [len(line), hashlib.md5(large).hexdigest(), await ctx.read_state("7", 0, "Many")]
        )


def counting(storage: CheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(name="Counting").set_start_executor(count).add_edge(count, count)
    return builder.with_checkpointing(storage).build()


def splitting(storage: CheckpointStorage, world: World) -> Workflow:
    """One of two turns of a superstep fails, when the other is over and in the journal."""

    @executor(id="split")
    def split(number: int) -> int:
        return number

    @executor(id="good")
    async def good(number: int, ctx: WorkflowContext[bytes]) -> bytes:
        world.ran.append("good")
        await ctx.once("effect", lambda: world.ran.append("effect"))
        return world.good

    @executor(id="bad")
    async def bad(number: int, ctx: WorkflowContext[bytes]) -> bytes:
        await ctx.once("charge", lambda: world.ran.append("charge"))
        world.ran.append("bad")
        if world.fails:
            raise RuntimeError("no such file: \udc80")
        return b"better"

    @executor(id="join")
    async def join(parts: list[bytes], ctx: WorkflowContext[None, int]) -> None:
        await ctx.yield_output(sum(map(len, parts)))

    builder = WorkflowBuilder(name="Splitting").set_start_executor(split)
    builder.add_fan_out_edges(split, [good, bad]).add_fan_in_edges([good, bad], join)
    return builder.with_checkpointing(storage).build()


# Each scene makes the run "r" in a storage; what comes of going on with it in a storage is a list of outputs.


async def make_completed(storage: CheckpointStorage) -> None:
    await soon(counting(storage).run(1, run_id="r"))


async def replay(storage: CheckpointStorage) -> Any:
    run = await counting(storage).resume(run_id="r")
    return (await soon(run.wait_for_completion())).outputs


async def make_waiting(storage: CheckpointStorage) -> None:
    await soon(asking(storage).run(7, run_id="r"))


async def answer(storage: CheckpointStorage) -> Any:
    run = await asking(storage).resume(run_id="r", responses={"q": True})
    return (await soon(run.wait_for_completion())).outputs


async def make_answered(storage: CheckpointStorage) -> None:
    """The answer lies in the inbox, where nobody has taken it."""
    await make_waiting(storage)
    await storage.respond("r", {"q": False})


async def take_the_answer(storage: CheckpointStorage) -> Any:
    run = await asking(storage).resume(run_id="r")
    return (await soon(run.wait_for_completion())).outputs


async def make_failed(storage: CheckpointStorage, good: bytes = noise(6000)) -> None:
    world = World(good=good)
    with pytest.raises(ExecutorFailed):
        await soon(splitting(storage, world).run(3, run_id="r"))
    assert sorted(world.ran) == ["bad", "charge", "effect", "good"]


async def do_the_rest(storage: CheckpointStorage) -> Any:
    world = World(fails=False)
    run = await splitting(storage, world).resume(run_id="r")
    outputs = (await soon(run.wait_for_completion())).outputs
    assert world.ran == ["bad"]  # what was journaled is not done again
    return outputs


async def make_fork(storage: CheckpointStorage) -> None:
    workflow = counting(storage)
    await soon(workflow.run(1, run_id="origin"))
    (cut,) = [one for one in await storage.list_checkpoints() if (one.superstep, one.phase) == (3, "end")]
    run = await workflow.fork(cut, edits={("Shared", "small"): "edited"}, run_id="r")
    await run.close()


async def go_on(storage: CheckpointStorage) -> Any:
    run = await counting(storage).resume(run_id="r")
    return (await soon(run.wait_for_completion())).outputs


async def make_restored(storage: CheckpointStorage) -> None:
    """Two branches: the head is on the newer."""
    workflow = counting(storage)
    run = await workflow.start(1, run_id="r")
    await soon(run.wait_for_completion())
    (cut,) = [one for one in run.checkpoints if (one.superstep, one.phase) == (2, "end")]
    await run.restore_checkpoint(cut)
    await run.close()


async def make_cancelled(storage: CheckpointStorage) -> None:
    await make_waiting(storage)
    await storage.cancel("r")


Scene = tuple[Callable[[CheckpointStorage], Awaitable[None]], Callable[[CheckpointStorage], Awaitable[Any]]]

SCENES: dict[str, Scene] = {
    "completed": (make_completed, replay),
    "waiting": (make_waiting, answer),
    "answered": (make_answered, take_the_answer),
    "failed": (make_failed, do_the_rest),
    "fork": (make_fork, go_on),
    "restored": (make_restored, go_on),
    "cancelled": (make_cancelled, answer),
}
