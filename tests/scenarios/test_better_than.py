"""Cases in which Microsoft Agent Framework loses something, as they are there and as they end here.

Most of its cases have their tests elsewhere; docs/from-agent-framework.md lists all of them.
"""

import datetime
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphChanged,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from tests.programs import run as run_script
from tests.support.durable import Place
from tests.support.parts import Environment, RunConfig

KILOBYTE = 1_024
ROUNDS = 200


# -- the whole state is written in each superstep --------------------------------------------------


class Talk(Executor):
    """Reads a whole conversation, adds a kilobyte and puts all of it back."""

    @handler
    async def speak(self, turn: int, ctx: WorkflowContext[int, int]) -> None:
        said = await ctx.get_shared_state("said", [])
        await ctx.set_shared_state("said", [*said, f"{turn:04}".ljust(KILOBYTE, "x")])
        if turn < ROUNDS:
            await ctx.send_message(turn + 1)
        else:
            await ctx.yield_output(len(said) + 1)


async def test_a_list_that_grows_by_a_kilobyte_a_round_costs_what_it_grows(place: Place) -> None:
    """Written whole in each superstep it would be 20 MB, and twice that with start and end."""
    builder = WorkflowBuilder(name="Talk", max_iterations=ROUNDS).set_start_executor(Talk)
    workflow = builder.add_edge(Talk, Talk).with_checkpointing(place.storage).build()
    run = await workflow.start(1)
    assert (await run.wait_for_completion()).outputs == [ROUNDS]
    stored = sum(checkpoint.new_bytes for checkpoint in run.checkpoints)
    assert len(run.checkpoints) == 2 * ROUNDS
    assert stored < 3 * ROUNDS * KILOBYTE

    assert run.latest_checkpoint is not None
    said = (await (await place.reopened()).load(run.latest_checkpoint)).shared_state["said"]
    assert [line[:4] for line in said] == [f"{turn:04}" for turn in range(1, ROUNDS + 1)]


# -- pickle, and messages that the default file storage refuses -----------------------------------------

PROGRAM = """
import asyncio
import sys
from dataclasses import dataclass

from holdfast import ExecutorFailed, FileCheckpointStorage, WorkflowBuilder, executor

online = False


@dataclass
class Order:
    item: str
    count: int


@executor
def take(item: str) -> Order:
    return Order(item, 3)


@executor
def ship(order: Order) -> str:
    if not online:
        raise ConnectionError("the harbour is closed")
    return f"{order.count} of {order.item}"


async def main():
    global online
    async with FileCheckpointStorage("checkpoints") as storage:
        builder = WorkflowBuilder(name="Order").set_start_executor(take).add_edge(take, ship)
        workflow = builder.with_checkpointing(storage).build()
        try:
            await workflow.run("kelp", run_id="order-1")
        except ExecutorFailed as failure:
            failed = failure.checkpoint
        print(failed.superstep, failed.message_count)
        online = True
        print((await workflow.run_from_checkpoint(failed)).outputs)
    print([name for name in ("_pickle", "pickle", "dill", "cloudpickle") if name in sys.modules])


asyncio.run(main())
"""


def test_a_dataclass_in_a_message_is_stored_as_it_is_and_without_pickle(tmp_path: Path) -> None:
    script = tmp_path / "order.py"
    script.write_text(PROGRAM, encoding="utf-8")
    done = run_script(script, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["2 1", "['3 of kelp']", "[]"]


# -- values that come back as something else -----------------------------------------------------------


class Mood(str, Enum):  # noqa: UP042 (this is the case: StrEnum has another __str__)
    CALM = "calm"


class Level(IntEnum):
    HIGH = 3


SENT: dict[str, Any] = {
    "str enum": Mood.CALM,
    "int enum": Level.HIGH,
    "int keys": {1: "one"},
    "tuple keys": {(1, 2): "pair"},
    "enum keys": {Mood.CALM: Level.HIGH},
    "tuple": (1, [2, (3,)]),
    "bytes": b"\x00\xff",
}


def exactly(value: object) -> list[Any]:
    """A value with the type of each of its parts: 3 and Level.HIGH are equal and not the same."""
    name = type(value).__name__
    if isinstance(value, dict):
        return [name, [[exactly(key), exactly(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [name, [exactly(item) for item in value]]
    return [name, repr(value)]


@dataclass
class Parcel:
    content: dict[str, Any]
    mood: Mood
    level: Level


stopped: list[bool] = []
"""While something is in here, nothing is unpacked."""


@pytest.fixture(autouse=True)
def nothing_stopped() -> None:
    stopped.clear()


@executor
async def pack(content: str, ctx: WorkflowContext[Parcel]) -> None:
    await ctx.set_shared_state("sent", SENT)
    await ctx.send_message(Parcel(SENT, Mood.CALM, Level.HIGH))


@executor
async def unpack(parcel: Parcel, ctx: WorkflowContext[None, list[Any]]) -> None:
    if stopped:
        raise ConnectionError
    kept = await ctx.get_shared_state("sent")
    await ctx.yield_output([exactly(kept), exactly(parcel.content), exactly([parcel.mood, parcel.level])])


async def test_enums_and_keys_that_are_no_strings_come_back_exactly(place: Place) -> None:
    def workflow() -> Workflow:
        return WorkflowBuilder(name="Parcel").set_start_executor(pack).add_edge(pack, unpack).build()

    stopped.append(True)
    with pytest.raises(ExecutorFailed):
        await workflow().run("now", run_id="parcel", storage=place.storage)
    stopped.clear()
    run = await workflow().resume(run_id="parcel", storage=await place.reopened())
    result = await run.wait_for_completion()
    assert result.outputs == [[exactly(SENT), exactly(SENT), exactly([Mood.CALM, Level.HIGH])]]


# -- the latest checkpoint --------------------------------------------------------------------------------


@executor
async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
    if number < 3:
        await ctx.send_message(number + 1)
    else:
        await ctx.yield_output(number)


def counting() -> Workflow:
    return WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count).build()


async def test_the_latest_checkpoint_is_known_by_its_number_not_by_the_clock(place: Place) -> None:
    """The process that resumes has a clock that is an hour behind that of the one before."""

    def at(hour: int) -> Workflow:
        moment = datetime.datetime(2026, 3, 11, hour, tzinfo=datetime.UTC)
        graph = counting().graph
        environment = Environment(now=lambda: moment)
        return Workflow(graph, "Count", RunConfig(max_iterations=9, environment=environment))

    first = await at(12).start(1, run_id="mine", storage=place.storage)
    await first.wait_for_completion()
    second = await at(11).resume(first.checkpoints[1], storage=await place.reopened())
    await second.wait_for_completion()

    storage = await place.reopened()
    latest = await storage.get_latest(run_id="mine")
    assert latest == second.latest_checkpoint
    assert latest is not None
    listed = await storage.list_checkpoints(run_id="mine")
    assert [checkpoint.seq for checkpoint in listed] == list(range(1, latest.seq + 1))


async def test_each_run_of_a_workflow_has_a_latest_checkpoint_of_its_own(place: Place) -> None:
    runs = [await counting().start(number, storage=place.storage) for number in (1, 2, 3)]
    for run in runs:
        await run.wait_for_completion()
    storage = await place.reopened()
    for run in runs:
        latest = await storage.get_latest(run_id=run.run_id)
        assert (latest, latest and latest.run_id) == (run.latest_checkpoint, run.run_id)


# -- nested workflows -------------------------------------------------------------------------------------


@executor
async def inner(number: int, ctx: WorkflowContext[int, int]) -> None:
    await ctx.append_state("seen", f"{number}".ljust(KILOBYTE, "x"), scope_name="Child")
    if number % 10:
        await ctx.send_message(number + 1)
    else:
        await ctx.yield_output(number + 1)


async def test_a_checkpoint_holds_what_a_nested_workflow_changed_not_its_history() -> None:
    child = WorkflowBuilder(name="Child").set_start_executor(inner).add_edge(inner, inner).build()
    nested = WorkflowExecutor(child, id="child")

    @executor
    async def outer(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number > 100:
            await ctx.yield_output(number)
        else:
            await ctx.send_message(number)

    workflow = (
        WorkflowBuilder(name="Parent", max_iterations=200)
        .set_start_executor(outer)
        .add_edge(outer, nested)
        .add_edge(nested, outer)
        .with_checkpointing(InMemoryCheckpointStorage())
        .build()
    )
    run = await workflow.start(1)
    assert (await run.wait_for_completion()).outputs == [101]
    sizes = [checkpoint.new_bytes for checkpoint in run.checkpoints if checkpoint.phase == "end"]
    assert len(sizes) > 100
    half = len(sizes) // 2
    assert sum(sizes[half:]) <= 1.2 * sum(sizes[:half]), "late ones cost what early ones did"
    assert sum(sizes) < 3 * 100 * KILOBYTE


async def test_a_run_resumed_in_a_nested_workflow_goes_on_counting(place: Place) -> None:
    """The number of a superstep never begins anew, whoever resumes and however deep the run is."""

    def workflow(storage: CheckpointStorage) -> Workflow:
        child = WorkflowBuilder(name="Child").set_start_executor(inner).add_edge(inner, inner).build()
        nested = WorkflowExecutor(child, id="child")
        return WorkflowBuilder(name="Parent").set_start_executor(nested).with_checkpointing(storage).build()

    first = await workflow(place.storage).start(5)
    await first.wait_for_completion()
    for checkpoint in first.checkpoints:
        run = await workflow(await place.reopened()).resume(checkpoint)
        assert (await run.wait_for_completion()).outputs == [11]
        assert run.latest_checkpoint is not None
        assert run.latest_checkpoint.superstep == first.checkpoints[-1].superstep


# -- a graph that changed ----------------------------------------------------------------------------------


async def test_a_changed_graph_is_told_by_what_changed(place: Place) -> None:
    """Not by two digests alone: the error names what was added, so that one can decide to go on."""

    @executor(id="weigh")
    async def weigh(parcel: Parcel) -> Parcel:
        return parcel

    before = WorkflowBuilder(name="Parcel").set_start_executor(pack).add_edge(pack, unpack).build()
    after = WorkflowBuilder(name="Parcel").set_start_executor(pack).add_chain([pack, weigh, unpack]).build()
    stopped.append(True)
    with pytest.raises(ExecutorFailed):
        await before.run("now", run_id="parcel", storage=place.storage)
    stopped.clear()

    storage = await place.reopened()
    with pytest.raises(GraphChanged, match="'weigh'"):
        await after.resume(run_id="parcel", storage=storage)
    run = await after.resume(run_id="parcel", storage=storage, allow_graph_change=True)
    assert len((await run.wait_for_completion()).outputs) == 1
