"""W1, W2 and W5: executor classes with `@handler`."""

from __future__ import annotations

from bench.rounds import number_of
from bench.scripts import Params
from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler


class Step(Executor):
    """Adds 1 and passes on; keeps nothing, so one instance serves all runs, as on the peers' side."""

    shareable = True

    @handler
    async def step(self, number: int, ctx: WorkflowContext[int]) -> None:
        """One superstep of the chain."""
        await ctx.send_message(number + 1)


class Last(Executor):
    """Adds 1 and yields the result."""

    shareable = True

    @handler
    async def step(self, number: int, ctx: WorkflowContext[None, int]) -> None:
        """The last superstep of the chain."""
        await ctx.yield_output(number + 1)


class Hub(Executor):
    """Both ends of the fan."""

    def __init__(self, id: str | None = None, width: int = 100, rounds: int = 10) -> None:
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

    def __init__(self, id: str | None = None, index: int = 0) -> None:
        super().__init__(id=id)
        self.index = index

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        """One of the fan's many."""
        await ctx.send_message(number + self.index)


def chain(params: Params) -> WorkflowBuilder:
    """W1 and W2."""
    count = params["supersteps"]
    steps = [*(Step(id=f"step-{index}") for index in range(count - 1)), Last(id="last")]
    builder = WorkflowBuilder(name="chain", max_iterations=count).set_start_executor(steps[0])
    return builder.add_chain(steps) if count > 1 else builder


def fan(params: Params) -> WorkflowBuilder:
    """W5."""
    hub = Hub.bind(id="hub", width=params["width"], rounds=params["rounds"])
    workers = [Worker.bind(id=f"worker-{index}", index=index) for index in range(params["width"])]
    builder = WorkflowBuilder(name="fan", max_iterations=2 * params["rounds"] + 1).set_start_executor(hub)
    return builder.add_fan_out_edges(hub, workers).add_fan_in_edges(workers, hub)
