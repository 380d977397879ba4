"""Builds of one workflow: which runs a new one can go on with, and hosts that have several."""

import logging
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    GraphChanged,
    Host,
    InvalidArgument,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Place, everything, info_of_run


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.request_info(f"{text}?", response_type=bool, request_id="q")

    @response_handler
    async def answered(self, question: str, yes: bool, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(question)


def build(storage: CheckpointStorage, last: str, name: str = "Flow", ask: str = "ask") -> Workflow:
    @executor(id=last)
    def give(text: str) -> str:
        return f"{last}: {text}"

    builder = WorkflowBuilder(name=name).set_start_executor(Ask.bind(id=ask))
    return builder.add_edge(ask, give).with_checkpointing(storage).build()


async def outputs(storage: CheckpointStorage, run_id: str) -> list[Any]:
    return list((await storage.load((await info_of_run(storage, run_id)).checkpoint_id)).outputs)


async def test_each_run_goes_on_with_its_own_build(place: Place) -> None:
    """200 runs of the old build wait, and the new one is deployed in the middle: each finishes with its own."""
    v1 = build(place.storage, "old")
    for number in range(200):
        await v1.run("really", run_id=f"old-{number}")
    for number in range(100):
        await place.storage.respond(f"old-{number}", {"q": True})
    await Host(place.storage, v1).wake_due()
    storage = await place.reopened()
    v1, v2 = build(storage, "old"), build(storage, "new")
    report = await storage.check_upgrade(v2)
    assert {run.verdict for run in report.runs} == {"with a graph change"}
    assert len(report.runs) == 100
    assert not report.ok
    assert (await storage.check_upgrade(v1)).ok
    for number in range(20):
        await v2.run("really", run_id=f"new-{number}")
    for run in await storage.list_runs(status=RunStatus.WAITING, limit=None):
        await storage.respond(run.run_id, {"q": True})
    host = Host(storage, v2, v1)
    assert await host.wake_due() == 120
    assert host.problems == {}
    for run in await storage.list_runs(limit=None):
        assert run.status is RunStatus.COMPLETED
        assert await outputs(storage, run.run_id) == [f"{run.run_id.partition('-')[0]}: really?"]


async def test_a_run_that_no_build_can_run_is_left_as_it_is(place: Place, caplog) -> None:
    await build(place.storage, "old").run("really", run_id="r")
    await place.storage.respond("r", {"q": True})
    before = await everything(place.storage, "r")
    host = Host(place.storage, build(place.storage, "new"), build(place.storage, "newer"))
    with caplog.at_level(logging.WARNING):
        await host.wake_due()
    assert isinstance(host.problems["r"], GraphChanged)
    assert "run r cannot be woken" in caplog.text
    assert await everything(place.storage, "r") == before


async def test_with_a_graph_change_the_newest_build_that_fits_goes_on(place: Place) -> None:
    await build(place.storage, "old").run("really", run_id="r")
    await place.storage.respond("r", {"q": True})
    unfit = build(place.storage, "newest", ask="other")
    host = Host(
        place.storage,
        unfit,
        build(place.storage, "newer"),
        build(place.storage, "new"),
        allow_graph_change=True,
    )
    assert await host.wake_due() == 1
    assert await outputs(place.storage, "r") == ["newer: really?"]


async def test_what_a_build_cannot_go_on_with(place: Place) -> None:
    """The report tells the truth, and nothing is changed by it."""
    workflow = build(place.storage, "old")
    await workflow.run("really", run_id="waits")
    done = await workflow.run("really", run_id="done")
    await done.respond({"q": True})
    before = await everything(place.storage, "waits")
    unfit = build(place.storage, "new", ask="other")
    told: list[tuple[int, int]] = []
    report = await place.storage.check_upgrade(unfit, progress=lambda *step: told.append(step))
    assert told == [(1, 1)]
    ((run_id, status, verdict, reason),) = [
        (run.run_id, run.status, run.verdict, run.reason) for run in report.runs
    ]
    assert (run_id, status, verdict) == ("waits", RunStatus.WAITING, "cannot go on")
    assert "there is no place for" in reason
    assert "allow_graph_change=True" not in reason
    assert str(report).startswith(
        "1 run: 0 go on, 0 with a graph change, 1 cannot go on\nwaits (waiting) cannot go on: "
    )
    assert await everything(place.storage, "waits") == before
    with pytest.raises(GraphChanged):
        await unfit.resume(run_id="waits", allow_graph_change=True)
    assert (await place.storage.check_upgrade(build(place.storage, "x", "Other"))).runs == []


def test_what_is_taken(storage: CheckpointStorage) -> None:
    workflow = build(storage, "old")
    with pytest.raises(InvalidArgument, match="two workflows with the name 'Flow' and the same graph"):
        Host(storage, workflow, build(storage, "old"))
    with pytest.raises(WrongType, match="allow_graph_change='yes': must be True or False"):
        Host(storage, workflow, allow_graph_change="yes")  # type: ignore[arg-type]


async def test_only_workflows_are_checked(storage: CheckpointStorage) -> None:
    with pytest.raises(WrongType, match="check_upgrade takes a workflow, not a str: 'Flow'"):
        await storage.check_upgrade("Flow")  # type: ignore[arg-type]
