"""``ctx.require_state``: the read that raises where nothing is set."""

import copy
from typing import Any

import pytest

from holdfast import (
    Executor,
    InMemoryCheckpointStorage,
    InvalidArgument,
    StateKey,
    StateNotSet,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
)
from tests.support.runs import cause_of_failure, outputs_of, soon

RAW = StateKey("raw", str, scope_name="Logs")
OWN = StateKey("own", list[int])


@executor
async def write(text: str, ctx: WorkflowContext[str]) -> str:
    await ctx.queue_state_update(RAW, text)
    assert await ctx.require_state(RAW) == text, "a turn sees its own write"
    return text


@executor
async def read(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(await ctx.require_state(RAW))


@executor
async def clear(text: str, ctx: WorkflowContext[str]) -> str:
    await ctx.clear_state(RAW)
    return text


def requiring(key: Any, scope_name: str | None = None) -> Any:
    class Require(Executor):
        @handler
        async def require(self, text: str, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output(await ctx.require_state(key, scope_name))

    return WorkflowBuilder(name="Require").set_start_executor(Require).build()


async def test_value_that_was_set() -> None:
    workflow = WorkflowBuilder(name="Set").set_start_executor(write).add_edge(write, read).build()
    assert await outputs_of(workflow, "kelp") == ["kelp"]


async def test_none_is_a_value() -> None:
    @executor
    async def unset(text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.queue_state_update("nothing", None)
        await ctx.yield_output(await ctx.require_state("nothing"))

    assert await outputs_of(WorkflowBuilder(name="None").set_start_executor(unset).build(), "") == [None]


async def test_shared_value_that_is_not_set() -> None:
    error = await cause_of_failure(requiring(RAW), "kelp", StateNotSet)
    assert (error.key, error.scope_name, error.executor_id) == ("raw", "Logs", "Require")
    for part in ("'raw'", "shared scope 'Logs'", "'Require'", "queue_state_update", "read_state"):
        assert part in str(error)
    assert isinstance(error, LookupError)
    assert (copy.copy(error).key, str(copy.copy(error))) == ("raw", str(error))


async def test_private_value_that_is_not_set() -> None:
    error = await cause_of_failure(requiring(OWN), "kelp", StateNotSet)
    assert (error.key, error.scope_name) == ("own", None)
    assert "private scope" in str(error)
    assert "scope_name=" in str(error)


async def test_value_that_was_cleared() -> None:
    workflow = WorkflowBuilder(name="Clear").set_start_executor(write).add_chain([write, clear, read]).build()
    await cause_of_failure(workflow, "kelp", StateNotSet)


async def test_nested_executor_is_named_by_its_path() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(read).build()
    nested = WorkflowExecutor(inner, id="nested")
    workflow = WorkflowBuilder(name="Outer").set_start_executor(write).add_edge(write, nested).build()
    error = await cause_of_failure(workflow, "kelp", StateNotSet)
    assert error.executor_id == "nested#1/read"


async def test_value_is_fetched_after_a_resume() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="Stored")
        .set_start_executor(write)
        .add_edge(write, read)
        .with_checkpointing(storage)
        .build()
    )
    run = await soon(workflow.start("kelp" * 100_000))
    await soon(run.wait_for_completion())
    again = await soon(workflow.run_from_checkpoint(run.checkpoints[1]))
    assert again.outputs == ["kelp" * 100_000]


async def test_wrong_keys_are_refused_as_for_read_state() -> None:
    await cause_of_failure(requiring(5), "kelp", WrongType)
    await cause_of_failure(requiring(RAW, "Other"), "kelp", InvalidArgument)


@pytest.mark.parametrize("key", ["own", OWN])
async def test_private_value_that_was_set(key: Any) -> None:
    @executor
    async def own(text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.queue_state_update(key, [1])
        await ctx.yield_output(await ctx.require_state(key))

    assert await outputs_of(WorkflowBuilder(name="Own").set_start_executor(own).build(), "") == [[1]]
