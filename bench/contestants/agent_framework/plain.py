"""W1, W2 and W5: executor classes with `@handler`."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from typing import Any, Never

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from bench.rounds import number_of
from bench.scripts import Params


class Step(Executor):
    """Adds 1 and passes on."""

    @handler
    async def step(self, number: int, ctx: WorkflowContext[int]) -> None:
        """One superstep of the chain."""
        await ctx.send_message(number + 1)


class Last(Executor):
    """Adds 1 and yields the result."""

    @handler
    async def step(self, number: int, ctx: WorkflowContext[Never, int]) -> None:
        """The last superstep of the chain."""
        await ctx.yield_output(number + 1)


class Loop(Executor):
    """Adds 1 and passes on to itself, and yields the result in the end."""

    def __init__(self, id: str, count: int) -> None:
        super().__init__(id=id)
        self.count = count

    @handler
    async def step(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        """One superstep of the loop."""
        if number + 1 < self.count:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(number + 1)


class Hub(Executor):
    """Both ends of the fan."""

    def __init__(self, id: str, width: int, rounds: int) -> None:
        super().__init__(id=id)
        self.width, self.rounds = width, rounds

    @handler
    async def start(self, number: int, ctx: WorkflowContext[int]) -> None:
        """Sends the first round out."""
        await ctx.send_message(number)

    @handler
    async def join(self, answers: list[int], ctx: WorkflowContext[int, int]) -> None:
        """Checks a round and sends the next one out."""
        number = number_of(answers, self.width)
        if number + 1 < self.rounds:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(sum(answers))


class Worker(Executor):
    """Adds its index."""

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id=id)
        self.index = index

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        """One of the fan's many."""
        await ctx.send_message(number + self.index)


def chain(params: Params) -> Any:
    """W1."""
    count = params["supersteps"]
    steps = [*(Step(id=f"step-{index}") for index in range(count - 1)), Last(id="last")]
    builder = WorkflowBuilder(name="chain", start_executor=steps[0], max_iterations=count)
    return (builder.add_chain(steps) if count > 1 else builder).build()


def loop(params: Params, storage: Any) -> Any:
    """W2: a checkpoint of a chain has something of each of its 200 executors, and takes a hundred times as long."""
    count = params["supersteps"]
    step = Loop("step", count)
    builder = WorkflowBuilder(
        name="loop", start_executor=step, max_iterations=count, checkpoint_storage=storage
    )
    return builder.add_edge(step, step).build()


def fan(params: Params, storage: Any) -> Any:
    """W5."""
    hub = Hub("hub", params["width"], params["rounds"])
    workers = [Worker(f"worker-{index}", index) for index in range(params["width"])]
    builder = WorkflowBuilder(
        name="fan",
        start_executor=hub,
        max_iterations=2 * params["rounds"] + 1,
        checkpoint_storage=storage,
    )
    return builder.add_fan_out_edges(hub, workers).add_fan_in_edges(workers, hub).build()
