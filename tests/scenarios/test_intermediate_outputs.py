"""Outputs that are only shown: ``with_intermediate_output_from``."""

from typing import Any

import pytest

from holdfast import (
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    executor,
)
from holdfast.testing import assert_resumable
from tests.support.runs import events_of, names, outputs_of, soon, taken


@executor
async def plan(goal: str, ctx: WorkflowContext[str, str]) -> str:
    await ctx.yield_output(f"plan for {goal}")
    return goal


@executor
async def act(goal: str, ctx: WorkflowContext[str, str]) -> str:
    await ctx.yield_output(f"{goal} under way")
    return goal


@executor
async def end(goal: str) -> str:
    return f"{goal} done"


def builder(name: str = "Plan") -> WorkflowBuilder:
    return WorkflowBuilder(name=name).set_start_executor(plan).add_chain([plan, act, end])


def shown(events: list[WorkflowEvent]) -> list[tuple[str, Any, bool]]:
    return [
        (event.executor_id, event.data, event.intermediate)
        for event in events
        if isinstance(event, WorkflowOutputEvent)
    ]


async def test_intermediate_outputs_are_shown_and_do_not_count() -> None:
    workflow = builder().with_intermediate_output_from(plan).build()
    assert await outputs_of(workflow, "kelp") == ["kelp under way", "kelp done"]
    events = await events_of(workflow, "kelp")
    assert shown(events) == [
        ("plan", "plan for kelp", True),
        ("act", "kelp under way", False),
        ("end", "kelp done", False),
    ]
    assert names(events)[3:7] == [
        "1 ExecutorInvoked plan",
        "1 ExecutorCompleted plan",
        "1 WorkflowOutput plan plan for kelp",
        "1 SuperStepCompleted",
    ]


async def test_last_output_is_none_of_them() -> None:
    workflow = builder().with_intermediate_output_from(act, end).build()
    events = await events_of(workflow, "kelp")
    [completed] = [event for event in events if isinstance(event, WorkflowCompletedEvent)]
    assert completed.data == "plan for kelp"
    assert shown(events)[-1] == ("end", "kelp done", True), "what the last executor returns is an output, too"


async def test_beside_with_output_from() -> None:
    workflow = builder().with_intermediate_output_from(plan).with_output_from(end).build()
    assert shown(await events_of(workflow, "kelp")) == [
        ("plan", "plan for kelp", True),
        ("end", "kelp done", False),
    ], "what 'act' yields is dropped"
    assert await outputs_of(workflow, "kelp") == ["kelp done"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_no_checkpoint_has_them_and_a_resume_shows_them_once(durability: Any) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = (
        builder()
        .with_intermediate_output_from(plan)
        .with_checkpointing(storage)
        .with_durability(durability)
        .build()
    )
    run = await soon(workflow.start("kelp"))
    assert len(shown(await soon(taken(run)))) == 3
    latest = run.latest_checkpoint
    assert latest is not None
    loaded = await storage.load(latest.checkpoint_id)
    assert list(loaded.outputs) == ["kelp under way", "kelp done"]
    again = await soon(workflow.resume(run_id=run.run_id))
    assert shown(await soon(taken(again))) == [("act", "kelp under way", False), ("end", "kelp done", False)]
    assert again.result().outputs == ["kelp under way", "kelp done"]
    back = await soon(workflow.resume(run.checkpoints[0].checkpoint_id))
    assert shown(await soon(taken(back)))[0] == ("plan", "plan for kelp", True)


async def test_comes_to_the_same_end_wherever_it_is_stopped() -> None:
    def make() -> Workflow:
        return builder().with_intermediate_output_from(plan, end).build()

    assert await soon(assert_resumable(make, "kelp")) > 6


async def test_nested_workflow_sends_no_intermediate_output_on() -> None:
    inner = builder("Inner").with_intermediate_output_from(plan, act).build()
    nested = WorkflowExecutor(inner, id="in")
    outer = WorkflowBuilder(name="Outer").set_start_executor(nested).add_edge(nested, end).build()
    assert await outputs_of(outer, "kelp") == ["kelp done done"]
    assert shown(await events_of(outer, "kelp")) == [
        ("in#1/plan", "plan for kelp", True),
        ("in#1/act", "kelp under way", True),
        ("end", "kelp done done", False),
    ]


async def test_nested_workflow_may_be_intermediate_itself() -> None:
    inner = builder("Inner").with_output_from(plan).build()
    around = WorkflowBuilder(name="Outer").set_start_executor(end)
    around.add_fan_out_edges(end, [WorkflowExecutor(inner, id="in"), act])
    outer = around.with_intermediate_output_from("in").with_output_from(act).build()
    assert shown(await events_of(outer, "kelp")) == [
        ("in#1/plan", "plan for kelp done", True),
        ("act", "kelp done under way", False),
        ("act", "kelp done", False),
    ]


async def test_types_of_outputs_leave_them_out() -> None:
    @executor
    async def count(goal: str, ctx: WorkflowContext[str, int]) -> str:
        await ctx.yield_output(len(goal))
        return goal

    workflow = WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, end)
    assert workflow.with_intermediate_output_from(count).build().graph.output_types() == (str,)
