"""How many functions are called for each of many: executors of a graph, supersteps, keys of a turn, listed checkpoints.

What is called for each is what takes the time where there are thousands. Counted is what Python calls, in the thread of
the event loop and without clocks; the numbers are as tight as they are now. `bench/` has W9 and W6 for the same by the
clock.
"""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    builder,
    executor,
    handler,
)
from holdfast.checkpoint import log
from holdfast.engine.staging import Staging
from holdfast.graph.placeable import spec_of_placeable

EXECUTOR = 115
SUPERSTEP = 105
KEY = 20
CHECKPOINT = 8


class Step(Executor):
    """One of many in a chain."""

    @handler
    async def step(self, number: int, ctx: WorkflowContext[int]) -> None:
        """Pass on."""
        await ctx.send_message(number)


def calls(action: Callable[[], object]) -> int:
    """How many functions are called that are written in Python."""
    count = 0

    def count_it(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_it)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def for_each(action: Callable[[int], object]) -> float:
    """What each of many costs more: of 300 less what 100 cost, once all is imported and learned."""
    action(2)
    return (calls(lambda: action(300)) - calls(lambda: action(100))) / 200


def build(count: int) -> None:
    """A chain of so many instances of one class."""
    steps = [Step(id=f"step-{number}") for number in range(count)]
    WorkflowBuilder(name="Chain").set_start_executor(steps[0]).add_chain(steps).build()


def writing(storage: InMemoryCheckpointStorage) -> Workflow:
    """A workflow that writes so many keys in one turn."""

    @executor
    async def write(count: int, ctx: WorkflowContext) -> None:
        for number in range(count):
            await ctx.queue_state_update(f"key{number}", f"value {number}", scope_name="Many")

    return WorkflowBuilder(name="Many").set_start_executor(write).with_checkpointing(storage).build()


def write_keys(count: int) -> None:
    """All of a run that writes so many keys."""
    asyncio.run(_run(writing(InMemoryCheckpointStorage()), count))


async def _run(workflow: Workflow, count: int) -> None:
    await workflow.run(count)


def repeat(count: int, storage: InMemoryCheckpointStorage) -> None:
    """All of a run of so many supersteps, each of which sends a message and writes a value."""

    @executor
    async def again(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.queue_state_update("number", number, scope_name="Again")
        if number > 1:
            await ctx.send_message(number - 1)

    builder = WorkflowBuilder(name="Again", max_iterations=count + 1).set_start_executor(again)
    asyncio.run(_run(builder.add_edge(again, again).with_checkpointing(storage).build(), count))


def listing(count: int) -> Callable[[], object]:
    """Lists the checkpoints of a run of so many supersteps."""
    storage = InMemoryCheckpointStorage()
    repeat(count, storage)

    async def listed() -> None:
        assert len(await storage.list_checkpoints()) == 2 * count

    return lambda: asyncio.run(listed())


def calls_of_listing() -> float:
    """What each checkpoint costs more in a list."""
    return (calls(listing(150)) - calls(listing(50))) / 200


def test_an_executor_more_in_a_graph() -> None:
    assert for_each(build) <= EXECUTOR


def test_a_key_more_in_a_turn() -> None:
    """From the call in the handler until the run has committed it: it is never looked at alone."""
    assert for_each(write_keys) <= KEY


def test_a_superstep_more_in_a_run() -> None:
    """With the checkpoints at its end and at the start of the next, in one commit."""
    assert for_each(lambda count: repeat(count, InMemoryCheckpointStorage())) <= SUPERSTEP


def test_a_checkpoint_more_in_a_list() -> None:
    assert calls_of_listing() <= CHECKPOINT


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A planted bug: a function that calls itself for nothing."""

    def called(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return called


def test_planted_waste_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class read for each executor, no superstep that is plain, a change staged twice, a checkpoint made twice."""
    with monkeypatch.context() as patch:
        patch.setattr(builder, "spec_of_placeable", lambda placed, known: spec_of_placeable(placed))
        assert for_each(build) > EXECUTOR
    with monkeypatch.context() as patch:
        patch.setattr(log, "plain", lambda delta: None)
        assert for_each(lambda count: repeat(count, InMemoryCheckpointStorage())) > SUPERSTEP
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "put", twice(Staging.put))
        assert for_each(write_keys) > KEY
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "__init__", twice(Checkpoint.__init__))
        assert calls_of_listing() > CHECKPOINT
