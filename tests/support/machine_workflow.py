"""A small workflow that stands still in every turn, so that anything can happen to its run there.

What it does is said once more in ``model``, without an engine. A round is three supersteps::

    Hub -> Left  ------------> Hub      Left asks for approval, unless it waits for that already
        -> Right -> Tail ----->         Right pays, once; Tail asks about odd numbers

The round is over when Hub has joined what Left and Tail sent. It counts down by a step that can be edited, and gives
the total out when it comes to zero.
"""

from contextvars import ContextVar
from typing import Any, ClassVar, Protocol

from holdfast import Executor, StateKey, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

TOTAL = StateKey("total", int, scope_name="Sum")


class Desk(Protocol):
    """Where turns stand until they are let go, and where they pay."""

    async def stand(self, executor_id: str) -> None:
        """Stand here until someone lets this turn go on, or fail."""
        ...

    async def pay(self, key: str) -> int:
        """An effect on the outside: the number of this payment."""
        ...


DESK: ContextVar[Desk] = ContextVar("DESK")
"""The desk of whoever starts or resumes a run: its executors are created then."""


class Standing(Executor):
    """An executor whose turns stand still once, before they do anything."""

    transient: ClassVar[tuple[str, ...]] = ("desk", "turn")

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.desk, self.turn = DESK.get(), None

    async def stand(self, ctx: Any) -> None:
        """A turn has one context for all of its messages."""
        if self.turn is not ctx:
            self.turn = ctx
            await self.desk.stand(self.id)


class Hub(Standing):
    checkpointed: ClassVar[tuple[str, ...]] = ("rounds",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.rounds = 0

    @handler
    async def begin(self, number: int, ctx: WorkflowContext[int, tuple[str, int]]) -> None:
        await self.stand(ctx)
        await ctx.queue_state_update("number", number)
        await ctx.send_message(number)

    @handler
    async def join(self, parts: list[int], ctx: WorkflowContext[int, tuple[str, int]]) -> None:
        await self.stand(ctx)
        self.rounds += 1
        total = await ctx.read_state(TOTAL, 0) + sum(parts)
        number = await ctx.read_state("number") - await ctx.get_shared_state("step", 1)
        await ctx.queue_state_update(TOTAL, total)
        await ctx.queue_state_update("number", number)
        if number > 0:
            await ctx.send_message(number)
        else:
            await ctx.yield_output(("total", total))


class Left(Standing):
    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        await self.stand(ctx)
        await ctx.append_state("seen", number, scope_name="Trail")
        if not await ctx.read_state("asking"):
            await ctx.queue_state_update("asking", True)
            await ctx.request_info(number, response_type=int, request_id="approve")
        await ctx.send_message(number * 10)

    @response_handler
    async def approved(self, number: int, answer: int, ctx: WorkflowContext[int, Any]) -> None:
        await self.stand(ctx)
        await ctx.clear_state("asking")
        await ctx.append_state("answers", [number, answer], scope_name="Trail")
        await ctx.yield_output(("approved", number, answer))


class Right(Standing):
    @handler
    async def pay(self, number: int, ctx: WorkflowContext[int]) -> None:
        ticket = await ctx.once("pay", self.desk.pay, ctx.idempotency_key)
        await self.stand(ctx)
        await ctx.append_state("tickets", ticket)
        await ctx.send_message(number)


class Tail(Standing):
    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        await self.stand(ctx)
        if number % 2:
            await ctx.request_info(number, response_type=str)
        await ctx.send_message(number + 100)

    @response_handler
    async def told(self, number: int, answer: str, ctx: WorkflowContext[int, Any]) -> None:
        await self.stand(ctx)
        await ctx.append_state("answers", [number, answer], scope_name="Trail")
        await ctx.yield_output(("told", number, answer))


ROUNDS: Workflow = (
    WorkflowBuilder(name="Rounds")
    .set_start_executor(Hub)
    .add_fan_out_edges(Hub, [Left, Right])
    .add_edge(Right, Tail)
    .add_fan_in_edges([Left, Tail], Hub)
    .build()
)
