"""Attaching to a run by its input: what a run knows of its input, whatever became of its first checkpoint."""

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    Retention,
    RunExists,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    checkpointable,
    executor,
)
from tests.support.durable import Place
from tests.support.runs import soon

SMALL, BIG = "small ", "x" * 100_000
"""A value that stands in the record, and one that is a blob."""


def walking(retention: Retention | None = None, stop: int | None = 8, nested: bool = False) -> Workflow:
    """Takes ten supersteps; the first message is nowhere else after the first of them."""

    @executor(id="begin")
    async def begin(text: str) -> int:
        return 0

    @executor(id="walk")
    async def walk(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number == stop:
            raise ConnectionError("stopped half way")
        await (ctx.send_message(number + 1) if number < 10 else ctx.yield_output(number))

    builder = WorkflowBuilder(name="Walk")
    if nested:
        inner = WorkflowBuilder(name="Begin").set_start_executor(begin).build()
        builder.set_start_executor(WorkflowExecutor(inner, id="begin"))
    else:
        builder.set_start_executor(begin)
    builder.add_edge("begin", walk).add_edge(walk, walk)
    if retention is not None:
        builder.with_retention(retention)
    return builder.build()


async def stopped(given: str, storage: CheckpointStorage, **options: Any) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(walking(**options).run(given, run_id="mine", storage=storage))


async def attached(given: str, storage: CheckpointStorage, run_id: str = "mine", **options: Any) -> list[Any]:
    workflow = walking(stop=None, **options)
    run = await workflow.start(given, run_id=run_id, storage=storage, if_exists="attach")
    return (await soon(run.wait_for_completion())).outputs


async def knows_its_input(
    given: str, storage: CheckpointStorage, run_id: str = "mine", **options: Any
) -> None:
    """Another input is refused, before and after the run went on; the same one goes on with the run."""
    for _ in range(2):
        with pytest.raises(RunExists, match="with another input"):
            await attached(given + "?", storage, run_id, **options)
        assert await attached(given, storage, run_id, **options) == [10]
    assert (await storage.verify()).ok


RETENTIONS = [Retention.full_history(), Retention.latest_only(), Retention.keep_last(2)]


@pytest.mark.parametrize("given", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize("retention", RETENTIONS, ids=Retention.text)
async def test_input_is_known_whatever_checkpoints_are_kept(
    place: Place, retention: Retention, given: str
) -> None:
    await stopped(given, place.storage, retention=retention)
    await place.storage.prune()
    await knows_its_input(given, await place.reopened(), retention=retention)


async def test_input_that_a_nested_workflow_got(storage: CheckpointStorage) -> None:
    await stopped(SMALL, storage, retention=Retention.latest_only(), nested=True)
    await knows_its_input(SMALL, storage, retention=Retention.latest_only(), nested=True)


async def test_input_of_a_run_that_was_pruned_by_hand_and_whose_fork_went_on(place: Place) -> None:
    await stopped(BIG, place.storage)
    latest = await place.storage.get_latest(run_id="mine")
    assert latest is not None
    fork = await walking(stop=None).fork(latest, run_id="fork", storage=place.storage)
    await soon(fork.wait_for_completion())
    storage = await place.reopened()
    for run_id in ("fork", "mine"):
        await storage.prune(run_id=run_id, retention=Retention.latest_only())
    await knows_its_input(BIG, storage, "fork")
    await storage.delete_run("fork")
    await storage.prune()
    await knows_its_input(BIG, storage)


async def test_input_of_a_run_from_another_store(place: Place, tmp_path: Path) -> None:
    await stopped(BIG, place.storage, retention=Retention.latest_only())
    await place.storage.export_run("mine", tmp_path / "mine.export")
    other = InMemoryCheckpointStorage()
    await other.import_run(tmp_path / "mine.export")
    await knows_its_input(BIG, other, retention=Retention.latest_only())


async def test_input_of_a_run_that_went_back(storage: CheckpointStorage) -> None:
    await stopped(SMALL, storage)
    third = (await storage.list_checkpoints(run_id="mine"))[3]
    run = await walking(stop=None).resume(third, storage=storage)
    await soon(run.wait_for_completion())
    await storage.prune(retention=Retention.latest_only())
    await knows_its_input(SMALL, storage)


async def test_commits_do_not_grow_with_the_input(storage: CheckpointStorage) -> None:
    sizes: list[int] = []
    for given in ("x", "x" * 4_000):
        await soon(walking(stop=None).run(given, run_id=given[:2], storage=storage))
        made = await storage.list_checkpoints(run_id=given[:2])
        sizes.append(sum(checkpoint.new_bytes for checkpoint in made[1:]))
    assert sizes[1] - sizes[0] < 100


def ordering(*fields: Any, down: bool = False) -> tuple[type, Workflow]:
    """A workflow that takes an order, whose class has these fields in this version of the program."""
    order = checkpointable(name="attach-order")(make_dataclass("Order", fields))

    async def take(given: Any) -> str:
        if down:
            raise ConnectionError("down")
        return "taken"

    take.__annotations__["given"] = order
    return order, WorkflowBuilder(name="Order").set_start_executor(executor(id="take")(take)).build()


async def test_input_of_a_class_that_gained_a_field(place: Place) -> None:
    before, workflow = ordering(("id", str), down=True)
    with pytest.raises(ExecutorFailed):
        await workflow.run(before("A-1"), run_id="mine", storage=place.storage)
    after, workflow = ordering(("id", str), ("currency", str, "EUR"))
    storage = await place.reopened()
    for other in (after("A-2"), after("A-1", "USD")):
        with pytest.raises(RunExists, match="with another input"):
            await workflow.start(other, run_id="mine", storage=storage, if_exists="attach")
    run = await workflow.start(after("A-1"), run_id="mine", storage=storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == ["taken"]
