"""How many lines of ours run for each of many: executors of a graph, supersteps, keys of a turn, listed checkpoints.

What runs for each is what takes the time where there are thousands. Lines are counted in the thread of the event loop,
without clocks. The limits have a tenth of room over what was counted, so that clearer code passes: a function that is
cut in two runs a line or two more. Whoever needs more than that has to say why here. `bench/` has W9 and W6 for the
same by the clock.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
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
from holdfast.builder import spec_of_placeable
from tests.support.modules import log
from tests.support.parts import StagedState

if TYPE_CHECKING:
    from _typeshed import TraceFunction

ROOM = 1.1
EXECUTOR = 352 * ROOM
SUPERSTEP = 698 * ROOM
KEY = 107 * ROOM
CHECKPOINT = 50 * ROOM  # since each is asked by whom its tags are and what superseded it
OURS = str(Path(holdfast.__file__).parent)


class Step(Executor):
    """One of many in a chain."""

    @handler
    async def step(self, number: int, ctx: WorkflowContext[int]) -> None:
        """Pass on."""
        await ctx.send_message(number)


def lines(action: Callable[[], object]) -> int:
    """Count the lines of holdfast that an action runs."""
    count = 0

    def count_line(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return count_line

    def enter(frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        return count_line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()  # that of a debugger, or of coverage
    sys.settrace(enter)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def for_each(action: Callable[[int], object]) -> float:
    """What each of many costs more: of 300 less what 100 cost, once all is imported and learned."""
    action(2)
    return (lines(lambda: action(300)) - lines(lambda: action(100))) / 200


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


def lines_of_listing() -> float:
    """What each checkpoint costs more in a list."""
    return (lines(listing(150)) - lines(listing(50))) / 200


def test_an_executor_more_in_a_graph() -> None:
    assert for_each(build) <= EXECUTOR


def test_a_key_more_in_a_turn() -> None:
    """From the call in the handler until the run has committed it: it is never looked at alone."""
    assert for_each(write_keys) <= KEY


def test_a_superstep_more_in_a_run() -> None:
    """With the checkpoints at its end and at the start of the next, in one commit."""
    assert for_each(lambda count: repeat(count, InMemoryCheckpointStorage())) <= SUPERSTEP


def test_a_checkpoint_more_in_a_list() -> None:
    assert lines_of_listing() <= CHECKPOINT


def repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a bug: a function that calls itself five times for nothing."""

    def called(*args: Any, **kwargs: Any) -> Any:
        for _ in range(5):
            function(*args, **kwargs)
        return function(*args, **kwargs)

    return called


def test_planted_waste_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class read for each executor, no superstep that is plain, a change staged often, a checkpoint made often."""
    with monkeypatch.context() as patch:
        patch.setattr(builder, "spec_of_placeable", lambda placed, known: spec_of_placeable(placed))
        assert for_each(build) > EXECUTOR
    with monkeypatch.context() as patch:
        patch.setattr(log, "pack_plain", lambda delta: None)
        assert for_each(lambda count: repeat(count, InMemoryCheckpointStorage())) > SUPERSTEP
    with monkeypatch.context() as patch:
        patch.setattr(StagedState, "put", repeated(StagedState.put))
        assert for_each(write_keys) > KEY
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "__init__", repeated(Checkpoint.__init__))
        assert lines_of_listing() > CHECKPOINT
