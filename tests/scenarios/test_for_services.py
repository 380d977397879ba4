"""Calls that services build on: submits and answers that may be repeated, events by pages, hosts that are spoken to."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    Host,
    InvalidArgument,
    RequestAlreadyAnswered,
    Run,
    RunExists,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Place, info_of_run
from tests.support.runs import soon


@dataclass
class Order:
    item: str
    count: int = 1


class Approve(Executor):
    @handler
    async def ask(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.request_info(order, response_type=bool, request_id="first")
        await ctx.request_info(order, response_type=bool, request_id="second")

    @response_handler
    async def answered(self, order: Order, is_good: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{order.item}: {is_good}")


def orders(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Orders").set_start_executor(Approve).with_checkpointing(storage).build()


async def test_a_repeated_submit_attaches_only_with_the_same_input(place: Place) -> None:
    workflow = orders(place.storage)
    for _ in range(2):
        assert await workflow.submit(Order("kelp"), "r1", if_exists="attach") == "r1"
    with pytest.raises(RunExists, match="with another input"):
        await workflow.submit(Order("kelp", 2), "r1", if_exists="attach")
    with pytest.raises(InvalidArgument, match="must be 'raise' or 'attach'"):
        await workflow.submit(Order("kelp"), "r1", if_exists="continue")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="needs a run_id"):
        await workflow.submit(Order("kelp"), if_exists="attach")
    assert len(await place.storage.list_checkpoints(run_id="r1")) == 1


async def test_a_submit_with_a_key_happens_once_whatever_the_run_did_since(place: Place) -> None:
    """Also as a further message with that key, and with as many checkpoints as without one."""
    storage = place.storage

    @executor(id="note")
    async def note(order: Order) -> str:
        return order.item

    workflow = WorkflowBuilder(name="Notes").set_start_executor(note).with_checkpointing(storage).build()
    kelp = Order("kelp")
    for number in (1, 2):
        assert await workflow.submit(kelp, "r1", key="k") == "r1"
        await storage.send("r1", kelp, key="k")
        with pytest.raises(InvalidArgument, match=r"^key='k': another message was sent"):
            await workflow.submit(Order("kelp", 2), "r1", if_exists="attach", key="k")
        with pytest.raises(InvalidArgument, match=r"^key='k': another message was sent"):
            await storage.send("r1", Order("kelp", 2), key="k")
        with pytest.raises(RunExists):
            await workflow.submit(kelp, "r1", key="other")
        if number == 1:
            await workflow.submit(kelp, "r2")
            await Host(storage, workflow).wake_due()
            counts = [len(await storage.list_checkpoints(run_id=one)) for one in ("r1", "r2")]
            assert counts[0] == counts[1] > 1
            assert not [one for one in await storage.list_events("r1") if "Warning" in type(one).__name__]
            await storage.send("r1", Order("wrack"), key="later")
            await Host(storage, workflow).wake_due()
    await Host(storage, workflow).wake_due()
    causes = [one.cause.value for one in await storage.list_checkpoints(run_id="r1")]
    assert [cause for cause in causes if cause != "superstep"] == ["input", "message"]
    with pytest.raises(InvalidArgument, match="1 to"):
        await workflow.submit(kelp, "r3", key="")


async def test_json_is_read_as_the_input_of_an_executor(place: Place) -> None:
    workflow = orders(place.storage)
    assert workflow.read_input({"item": "kelp"}) == Order("kelp")
    assert workflow.read_input({"item": "kelp", "count": 3}, "Approve") == Order("kelp", 3)
    with pytest.raises(WrongType, match="does not take this input"):
        workflow.read_input({"item": 5})
    with pytest.raises(InvalidArgument, match="has no executor 'nobody'"):
        workflow.read_input("kelp", "nobody")


async def test_answers_with_a_key_are_given_once(place: Place) -> None:
    storage = place.storage
    workflow = orders(storage)
    await workflow.submit(Order("kelp"), "r1")
    host = Host(storage, workflow)
    await soon(host.wake_due())
    for _ in range(2):  # before anyone takes them
        await storage.respond("r1", {"first": True}, key="k", by="kim")
    with pytest.raises(InvalidArgument, match="other answers were given to run 'r1' with this key"):
        await storage.respond("r1", {"first": False}, key="k")
    with pytest.raises(InvalidArgument, match="other answers"):
        await storage.respond("r1", {"second": True}, key="k")
    with pytest.raises(RequestAlreadyAnswered):
        await storage.respond("r1", {"first": True}, key="another")
    await soon(host.wake_due())
    await storage.respond("r1", {"first": True}, key="k")  # and after they were taken
    with pytest.raises(RequestAlreadyAnswered):
        await storage.respond("r1", {"first": True})
    await storage.respond("r1", {"second": False}, key="k2")
    await soon(host.wake_due())
    run = await info_of_run(storage, "r1")
    outputs = list((await storage.load(run.checkpoint_id)).outputs)
    assert (run.status, outputs, host.problems) == (RunStatus.COMPLETED, ["kelp: True", "kelp: False"], {})


async def test_of_many_who_give_the_same_answers_with_a_key_all_succeed(place: Place) -> None:
    storage = place.storage
    workflow = orders(storage)
    await workflow.submit(Order("kelp"), "r1")
    await soon(Host(storage, workflow).wake_due())
    given = [storage.respond("r1", {"first": True}, key="k") for _ in range(8)]
    assert {run.run_id for run in await soon(asyncio.gather(*given))} == {"r1"}
    assert len([one for one in await storage.store.inbox("r1") if one.key.startswith('["answer"')]) == 1  # type: ignore[arg-type]


async def test_events_are_listed_by_pages_as_they_are_watched(place: Place) -> None:
    storage = place.storage
    workflow = orders(storage)
    await workflow.submit(Order("kelp"), "r1")
    await soon(Host(storage, workflow).wake_due())
    watched = [event.to_dict() async for event in storage.watch("r1")]
    listed, after = [], None
    while page := await storage.list_events("r1", after, limit=1):
        listed += [event.to_dict() for event in page]
        after = page[-1].event_id
    assert listed == watched
    assert len(await storage.list_events("r1", limit=1)) == 1
    assert await storage.list_events("r1", after) == []
    with pytest.raises(InvalidArgument, match="is no id of an event"):
        await storage.list_events("r1", "soon")


async def test_a_host_looks_when_it_is_told(place: Place) -> None:
    storage = place.storage
    workflow = orders(storage)
    woken: list[Run] = []
    async with Host(storage, workflow, poll=3600, woken=woken.append) as host:
        await soon(until(lambda: host._joined))  # it looks for the first time, then it pauses
        await workflow.submit(Order("kelp"), "r1")
        host.look_soon()
        await soon(until(lambda: bool(woken) and not host.active))
    assert (await info_of_run(storage, "r1")).waiting_for == ("answers",)


async def test_a_host_looks_after_runs_that_it_adopted(place: Place) -> None:
    storage = place.storage
    gate = asyncio.Event()

    @executor(id="slow")
    async def slow(number: int) -> int:
        await gate.wait()
        return number

    workflow = WorkflowBuilder(name="Slow").set_start_executor(slow).with_checkpointing(storage).build()
    async with Host(storage, workflow) as host:
        for run_id in ("a", "b"):
            run = await workflow.start(5, run_id)
            host.adopt(run)
            assert (host.find(run_id), run_id in host.active) == (run, True)
        gate.set()
        await soon(until(lambda: not host.active))
        assert {run.status for run in await storage.list_runs()} == {RunStatus.COMPLETED}
        gate.clear()
        host.adopt(await workflow.start(5, "c"))
        await host.stop(grace=0)
    assert (await info_of_run(storage, "c")).interrupted
    gate.set()
    assert await soon(Host(storage, workflow).wake_due()) == 1
    assert (await info_of_run(storage, "c")).status is RunStatus.COMPLETED


async def test_a_host_that_stops_lets_runs_finish_within_the_grace(place: Place) -> None:
    storage = place.storage
    begun, gate = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(number: int) -> int:
        begun.set()
        await gate.wait()
        return number

    workflow = WorkflowBuilder(name="Slow").set_start_executor(slow).with_checkpointing(storage).build()
    await workflow.submit(5, "r1")
    async with Host(storage, workflow) as host:
        await soon(begun.wait())
        stopping = asyncio.ensure_future(host.stop(grace=60))
        await asyncio.sleep(0)
        gate.set()
        await soon(stopping)
        await workflow.submit(5, "r2")
        host.look_soon()
        with pytest.raises(InvalidArgument, match="grace=-1"):
            await host.stop(grace=-1)
    assert [run.status for run in await storage.list_runs()] == [RunStatus.COMPLETED, RunStatus.WAITING]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
