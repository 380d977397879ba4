"""Who sent a message: ``ctx.source_executor_id``, for each kind of message, also after a resume."""

from typing import Any

import pytest

from holdfast import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.support.runs import outputs_of, soon


@executor
async def first(number: int, ctx: WorkflowContext[int, Any]) -> int:
    await ctx.yield_output((ctx.executor_id, ctx.source_executor_id))
    return number


@executor
async def left(number: int) -> int:
    return number


@executor
async def right(number: int) -> int:
    return number


class Tell(Executor):
    """Yields each message that it gets, with its source."""

    @handler
    async def one(self, number: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((number, ctx.source_executor_id))

    @handler
    async def several(self, numbers: list, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((numbers, ctx.source_executor_id))


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.request_info(number, response_type=bool)

    @response_handler
    async def answered(self, number: int, yes: bool, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((yes, ctx.source_executor_id))


async def test_each_message_of_a_turn_has_its_own_sender() -> None:
    workflow = (
        WorkflowBuilder(name="Diamond")
        .set_start_executor(first)
        .add_fan_out_edges(first, [left, right])
        .add_edge(left, Tell)
        .add_edge(right, Tell)
        .build()
    )
    assert await outputs_of(workflow, 3) == [("first", None), (3, "left"), (3, "right")]


async def test_list_of_a_fan_in_has_no_single_sender() -> None:
    workflow = (
        WorkflowBuilder(name="Join")
        .set_start_executor(first)
        .add_fan_out_edges(first, [left, right])
        .add_fan_in_edges([left, right], Tell)
        .build()
    )
    assert (await outputs_of(workflow, 3))[1:] == [([3, 3], None)]


async def test_nested_workflow_gets_from_outside_and_sends_as_its_executor() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(first).add_edge(first, left).build()
    nested = WorkflowExecutor(inner, id="nested")
    workflow = (
        WorkflowBuilder(name="Outer")
        .set_start_executor(right)
        .add_edge(right, nested)
        .add_edge(nested, "tell")
        .register_executor(lambda: Record(), name="tell")
        .build()
    )
    assert await outputs_of(workflow, 3) == [(("nested#1/first", "right"), "nested"), (3, "nested")]


class Record(Executor):
    @handler
    async def take(self, message: object, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((message, ctx.source_executor_id))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_source_is_stored_with_the_message(durability: Any) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="Chain")
        .set_start_executor(left)
        .add_chain([left, right, Tell])
        .with_checkpointing(storage)
        .with_durability(durability)
        .build()
    )
    run = await soon(workflow.start(3))
    assert (await soon(run.wait_for_completion())).outputs == [(3, "right")]
    for checkpoint in run.checkpoints:
        again = await soon(workflow.run_from_checkpoint(checkpoint))
        assert again.outputs == [(3, "right")]


async def test_response_comes_from_outside() -> None:
    workflow = WorkflowBuilder(name="Ask").set_start_executor(left).add_edge(left, Ask).build()
    result = await soon(workflow.run(3))
    [request] = result.pending_requests
    assert (await soon(result.respond({request.request_id: True}))).outputs == [(True, None)]
