"""Fan-ins that hold some messages and need others: what a round expects after a deploy, and runs that wait for it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphChanged,
    Host,
    InMemoryCheckpointStorage,
    RequestInfoExecutor,
    Retention,
    RunStatus,
    SqliteCheckpointStorage,
    WaitingFanIn,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowStatusEvent,
    executor,
    handler,
)
from tests.support.durable import Place, info_of_run, watched
from tests.support.runs import soon

broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_broken() -> Any:
    broken.clear()
    yield
    broken.clear()


def check(name: str, id: str | None = None) -> Any:
    @executor(id=id or name)
    async def work(order: str) -> str:
        if name in broken:
            raise ConnectionError(f"{name} is down")
        return f"{order} {name}"

    return work


@executor
async def split(order: str) -> str:
    if "split" in broken:
        raise ConnectionError("split is down")
    return order


@executor
async def ship(parts: list[str]) -> str:
    return ", ".join(parts)


@executor
async def silent(order: str, ctx: WorkflowContext[str]) -> None: ...


def shipping(*checks: Any, aliases: dict[str, str] | None = None, start: Any = split) -> Workflow:
    builder = WorkflowBuilder(name="Order").set_start_executor(start)
    builder.add_fan_out_edges(start, list(checks)).add_fan_in_edges(list(checks), ship)
    for old, new in (aliases or {}).items():
        builder.with_alias(old, new)
    return builder.build()


def steps(*names: str) -> list[Any]:
    return [check(name) for name in names]


async def failing_at(name: str, workflow: Workflow, storage: CheckpointStorage) -> None:
    """Let a run fail where this executor has its turn; from then on nothing is broken."""
    broken.add(name)
    with pytest.raises(ExecutorFailed):
        await soon(workflow.run("A", run_id="mine", storage=storage))
    broken.clear()


async def resumed(workflow: Workflow, storage: CheckpointStorage) -> Any:
    run = await workflow.resume(run_id="mine", storage=storage, allow_graph_change=True)
    return await soon(run.wait_for_completion())


async def shipped(workflow: Workflow, storage: CheckpointStorage) -> str:
    """What the run ships that goes on with another graph."""
    result = await resumed(workflow, storage)
    assert result.status is RunStatus.COMPLETED, result.warnings
    assert (await storage.verify()).ok
    (output,) = result.outputs
    assert isinstance(output, str)
    return output


# -- a round expects the sources with which it began ----------------------------------------------


async def test_fan_in_that_gained_a_source_after_the_fan_out(place: Place) -> None:
    await failing_at("fraud", shipping(*steps("price", "fraud")), place.storage)
    later = shipping(*steps("price", "fraud", "tax"))
    assert await shipped(later, await place.reopened()) == "A price, A fraud"


async def test_fan_in_that_gained_a_source_before_the_fan_out(storage: CheckpointStorage) -> None:
    await failing_at("split", shipping(*steps("price", "fraud")), storage)
    later = shipping(*steps("price", "fraud", "tax"))
    assert await shipped(later, storage) == "A price, A fraud, A tax"


async def test_two_deploys_and_one_back(storage: CheckpointStorage) -> None:
    await failing_at("fraud", shipping(*steps("price", "fraud")), storage)
    for checks in (("price", "fraud", "tax"), ("vat", "price", "fraud", "tax")):
        broken.add("fraud")
        with pytest.raises(ExecutorFailed):
            await resumed(shipping(*steps(*checks)), storage)
    broken.clear()
    assert await shipped(shipping(*steps("price", "fraud")), storage) == "A price, A fraud"


class Twice(Executor):
    """Sends to all checks at first, and once more when it is told so."""

    @handler
    async def start(self, order: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(order)

    @handler
    async def again(self, count: int, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"B{count}")


@executor
async def once_more(parts: list[str], ctx: WorkflowContext[int, str]) -> None:
    await ctx.yield_output(", ".join(parts))
    if parts[0].startswith("A"):
        await ctx.send_message(1)


def looping(*checks: Any, durability: Any = "sync") -> Workflow:
    builder = WorkflowBuilder(name="Order").set_start_executor(Twice)
    builder.add_fan_out_edges(Twice, list(checks)).add_fan_in_edges(list(checks), once_more)
    return builder.add_edge(once_more, Twice).with_durability(durability).build()


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_next_round_expects_all_sources(place: Place, durability: Any) -> None:
    await failing_at("fraud", looping(*steps("price", "fraud")), place.storage)
    storage = await place.reopened()
    result = await resumed(looping(*steps("tax", "price", "fraud"), durability=durability), storage)
    assert result.outputs == ["A price, A fraud", "B1 tax, B1 price, B1 fraud"]
    latest = (await storage.list_checkpoints(run_id="mine"))[-1]
    assert (await storage.verify()).ok
    await storage.prune(Retention.latest_only())
    assert list((await storage.load(latest)).outputs) == result.outputs


def staged(*checks: str, slow: str, **more: Any) -> Workflow:
    """One check comes a superstep later than the others, which the fan-in holds meanwhile."""
    first, last = [check(name) for name in checks if name != slow], check(slow)
    builder = WorkflowBuilder(name="Order").set_start_executor(split)
    builder.add_fan_out_edges(split, [*first, check("before")]).add_edge("before", last)
    ordered = [name for name in checks if name not in more.get("but", ())]
    builder.add_fan_in_edges([*ordered, *more.get("add", ())], ship)
    for extra in more.get("add", ()):
        builder.add_edge(split, check(extra))
    return builder.build()


@pytest.mark.parametrize(
    ("later", "output"),
    [
        (staged("price", "fraud", slow="fraud", add=["tax"]), "A price, A before fraud"),
        (staged("fraud", "price", slow="fraud"), "A price, A before fraud"),
        (staged("price", "fraud", slow="fraud", but=["price"], add=["cost"]), "A price, A before fraud"),
    ],
    ids=["gained", "in another order", "lost one that has sent"],
)
async def test_round_that_holds_messages_goes_on_as_it_began(
    place: Place, later: Workflow, output: str
) -> None:
    await failing_at("fraud", staged("price", "fraud", slow="fraud"), place.storage)
    assert await shipped(later, await place.reopened()) == output


async def test_source_that_was_renamed_in_the_same_deploy(storage: CheckpointStorage) -> None:
    await failing_at("fraud", shipping(*steps("price", "fraud")), storage)
    renamed = [check("price", "cost"), check("fraud", "risk"), check("tax")]
    later = shipping(*renamed, aliases={"price": "cost", "fraud": "risk"})
    broken.add("fraud")
    with pytest.raises(ExecutorFailed):
        await resumed(later, storage)
    broken.clear()
    again = [check("price"), check("fraud", "risk"), check("tax"), check("vat")]
    assert await shipped(shipping(*again, aliases={"cost": "price"}), storage) == "A price, A fraud"


async def test_fan_in_that_is_new(storage: CheckpointStorage) -> None:
    before = WorkflowBuilder(name="Order").set_start_executor(split)
    before.add_fan_out_edges(split, steps("price", "fraud"))
    before.add_edge("price", check("log")).add_edge("fraud", "log")
    await failing_at("fraud", before.build(), storage)
    assert await shipped(shipping(*steps("price", "fraud", "tax")), storage) == "A price, A fraud"


async def test_fan_in_of_a_nested_workflow(place: Place) -> None:
    def outer(inner: Workflow) -> Workflow:
        nested = WorkflowExecutor(inner, id="sub")
        builder = WorkflowBuilder(name="Outer").set_start_executor(check("first"))
        return builder.add_chain(["first", nested, check("last")]).build()

    await failing_at("fraud", outer(shipping(*steps("price", "fraud"))), place.storage)
    later = outer(shipping(*steps("price", "fraud", "tax")))
    assert await shipped(later, await place.reopened()) == "A first price, A first fraud last"


async def test_fan_in_whose_source_is_a_nested_workflow(storage: CheckpointStorage) -> None:
    def build(*more: Any) -> Workflow:
        inner = WorkflowBuilder(name="Inner").set_start_executor(check("fraud")).build()
        return shipping(check("price"), WorkflowExecutor(inner, id="sub"), *more)

    await failing_at("fraud", build(), storage)
    assert await shipped(build(check("tax")), storage) == "A price, A fraud"


async def test_fan_in_that_lost_its_target_is_refused(storage: CheckpointStorage) -> None:
    await failing_at("fraud", staged("price", "fraud", slow="fraud"), storage)
    builder = WorkflowBuilder(name="Order").set_start_executor(split)
    builder.add_fan_out_edges(split, steps("price", "before")).add_edge("before", check("fraud"))

    @executor(id="send")
    async def other(parts: list[str]) -> str:
        return "no"

    builder.add_fan_in_edges(["price", "fraud"], other)
    with pytest.raises(GraphChanged, match="what fan-in 'price', 'fraud' -> 'ship' holds"):
        await resumed(builder.build(), storage)


async def test_fork_and_restore_expect_what_the_round_began_with(storage: CheckpointStorage) -> None:
    await failing_at("fraud", shipping(*steps("price", "fraud")), storage)
    start = (await storage.list_checkpoints(run_id="mine"))[-1]
    later = shipping(*steps("price", "fraud", "tax"))
    fork = await later.fork(start, storage=storage, allow_graph_change=True)
    assert (await soon(fork.wait_for_completion())).outputs == ["A price, A fraud"]
    run = await later.resume(start, storage=storage, allow_graph_change=True)
    assert (await soon(run.wait_for_completion())).outputs == ["A price, A fraud"]
    await run.restore_checkpoint(start)
    assert (await soon(run.wait_for_completion())).outputs == ["A price, A fraud"]


# -- a run that rests on fan-ins waits for messages -----------------------------------------------


def stuck(*more: Any) -> Workflow:
    return shipping(check("price"), silent, *more)


async def test_run_that_rests_on_a_fan_in_waits_for_messages(place: Place) -> None:
    run = await stuck().start("A", run_id="mine", storage=place.storage)
    events = await watched(run)
    last = [event for event in events if isinstance(event, WorkflowStatusEvent)][-1]
    result = run.result()
    assert (last.status, last.waiting_for) == (RunStatus.WAITING, ("messages",))
    assert (run.status, run.waiting_for) == (RunStatus.WAITING, ("messages",))
    assert (result.status, result.waiting_for) == (RunStatus.WAITING, ("messages",))
    assert [type(warning) for warning in result.warnings] == [WaitingFanIn]
    await run.close()
    storage = await place.reopened()
    info = await info_of_run(storage, "mine")
    assert (info.status, info.waiting_for, info.wake_at) == (RunStatus.WAITING, ("messages",), None)
    assert [run.run_id for run in await storage.list_runs(status="waiting")] == ["mine"]
    latest = (await storage.list_checkpoints(run_id="mine"))[-1]
    assert (latest.status, latest.waiting_for) == (RunStatus.WAITING, ("messages",))
    assert "head, waiting for messages" in await storage.draw_tree("mine")


async def test_without_storage_it_waits_as_well() -> None:
    result = await stuck().run("A")
    assert (result.status, result.waiting_for) == (RunStatus.WAITING, ("messages",))


async def test_host_leaves_it_alone_and_resume_writes_nothing(place: Place) -> None:
    await stuck().run("A", run_id="mine", storage=place.storage)
    before = await info_of_run(place.storage, "mine")
    assert await soon(Host(place.storage, stuck()).wake_due()) == 0
    run = await stuck().resume(run_id="mine", storage=place.storage)
    assert (await soon(run.wait_for_completion())).waiting_for == ("messages",)
    assert await info_of_run(place.storage, "mine") == before
    await place.storage.cancel("mine")
    info = await info_of_run(place.storage, "mine")
    assert (info.status, info.waiting_for) == (RunStatus.CANCELLED, ())


async def test_it_goes_on_when_the_graph_is_mended(place: Place) -> None:
    result = await stuck().run("A", run_id="mine", storage=place.storage)
    assert result.status is RunStatus.WAITING
    storage = await place.reopened()
    assert await shipped(shipping(check("price")), storage) == "A price"
    assert (await info_of_run(storage, "mine")).status is RunStatus.COMPLETED


async def test_mended_graph_that_was_killed_before_it_could_move(place: Place) -> None:
    await stuck().run("A", run_id="mine", storage=place.storage)
    mended = shipping(check("price"))
    run = await mended.resume(run_id="mine", storage=place.storage, allow_graph_change=True)
    await run.abandon()
    storage = await place.reopened()
    again = await mended.resume(run_id="mine", storage=storage)
    assert (await soon(again.wait_for_completion())).outputs == ["A price"]


async def test_nested_workflow_that_waits_is_not_over(place: Place) -> None:
    def outer(inner: Workflow) -> Workflow:
        nested = WorkflowExecutor(inner, id="sub")
        builder = WorkflowBuilder(name="Outer").set_start_executor(check("first"))
        return builder.add_chain(["first", nested, check("last")]).build()

    result = await outer(stuck()).run("A", run_id="mine", storage=place.storage)
    assert (result.status, result.waiting_for) == (RunStatus.WAITING, ("messages",))
    (warning,) = result.warnings
    assert "of nested workflow 'sub#1'" in str(warning)
    mended = outer(shipping(check("price")))
    assert await shipped(mended, await place.reopened()) == "A first price last"


async def test_questions_come_first(storage: CheckpointStorage) -> None:
    ask = RequestInfoExecutor(id="ask", response_type=str)
    workflow = shipping(check("price"), ask)
    result = await workflow.run("A", run_id="mine", storage=storage)
    assert result.waiting_for == ("answers",)
    assert (await info_of_run(storage, "mine")).waiting_for == ("answers",)
    (request,) = result.pending_requests
    assert (await result.respond({request.request_id: "yes"})).outputs == ["A price, yes"]


class Naps(Executor):
    @handler
    async def nap(self, order: str, ctx: WorkflowContext[str]) -> str:
        await ctx.sleep(3_600)
        return order


async def test_sleep_is_waiting_for_time(storage: CheckpointStorage) -> None:
    ask = RequestInfoExecutor(id="ask", response_type=str)
    builder = WorkflowBuilder(name="Order").set_start_executor(split)
    workflow = builder.add_fan_out_edges(split, [ask, check("price")]).add_edge("price", Naps).build()
    run = await workflow.start("A", run_id="mine", storage=storage)
    await soon(run.driven())
    assert run.waiting_for == ("answers", "time")
    assert (await info_of_run(storage, "mine")).waiting_for == ("answers", "time")
    await run.close()


async def test_repaired_run_says_what_it_waits_for(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await stuck().run("A", run_id="mine", storage=storage)
        ask = RequestInfoExecutor(id="ask", response_type=str)
        await shipping(check("price"), ask).run("A", run_id="asks", storage=storage)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET waiting_for = 'time'")
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        assert len((await storage.verify()).problems) == 2
        await storage.repair()
        found = {run.run_id: run.waiting_for for run in await storage.list_runs(status="waiting")}
    assert found == {"mine": ("messages",), "asks": ("answers",)}


async def test_imported_run_says_what_it_waits_for(place: Place, tmp_path: Path) -> None:
    await stuck().run("A", run_id="mine", storage=place.storage)
    await place.storage.export_run("mine", tmp_path / "mine.export")
    other = InMemoryCheckpointStorage()
    await other.import_run(tmp_path / "mine.export")
    assert (await info_of_run(other, "mine")).waiting_for == ("messages",)
    assert await shipped(shipping(check("price")), other) == "A price"
