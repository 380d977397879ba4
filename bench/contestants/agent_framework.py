"""Agent Framework: executor classes with `@handler`, run with `workflow.run(..., stream=True)`."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Never

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from bench.contestants import Contestant, Entry, Outcome
from bench.workloads import Params


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
        total = sum(answers)
        number, rest = divmod(total - self.width * (self.width - 1) // 2, self.width)
        if rest or len(answers) != self.width:
            raise ValueError(f"a wrong round: {answers}")
        if number + 1 < self.rounds:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(total)


class Worker(Executor):
    """Adds its index."""

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id=id)
        self.index = index

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        """One of the fan's many."""
        await ctx.send_message(number + self.index)


def _runner(workflow: Any) -> Callable[[], Awaitable[Outcome]]:
    async def run() -> Outcome:
        result = supersteps = events = 0
        async for event in workflow.run(0, stream=True):
            events += 1
            kind = event.type
            if kind == "superstep_completed":
                supersteps += 1
            elif kind == "output":
                result = event.data
        return Outcome(result, supersteps, events)

    return run


def chain(params: Params) -> Callable[[], Awaitable[Outcome]]:
    """W1."""
    count = params["supersteps"]
    steps = [*(Step(id=f"step-{index}") for index in range(count - 1)), Last(id="last")]
    builder = WorkflowBuilder(start_executor=steps[0], max_iterations=count)
    return _runner((builder.add_chain(steps) if count > 1 else builder).build())


def fan(params: Params) -> Callable[[], Awaitable[Outcome]]:
    """W5."""
    hub = Hub("hub", params["width"], params["rounds"])
    workers = [Worker(f"worker-{index}", index) for index in range(params["width"])]
    builder = WorkflowBuilder(start_executor=hub, max_iterations=2 * params["rounds"] + 1)
    return _runner(builder.add_fan_out_edges(hub, workers).add_fan_in_edges(workers, hub).build())


CONTESTANT = Contestant(
    packages=("agent-framework-core", "pydantic", "opentelemetry-api"),
    entries={
        "W1": Entry(
            chain,
            "`WorkflowBuilder.add_chain` of `Executor` instances; `workflow.run(0, stream=True)`, "
            "telemetry not enabled (its default)",
        ),
        "W5": Entry(
            fan,
            "`add_fan_out_edges(hub, workers)` and `add_fan_in_edges(workers, hub)`; `workflow.run(0, stream=True)`",
        ),
    },
)
