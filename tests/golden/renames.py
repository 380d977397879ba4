"""The workflow of the golden run whose executors got other names on the way."""

from collections.abc import Awaitable, Callable

from holdfast import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from tests.golden.workflows import add, split

meanwhile: Callable[[], Awaitable[None]] | None = None
"""What happens while the answer to the first question is taken in."""


class Count(Executor):
    checkpointed = ("turns",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns = 0

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.turns += 1
        await ctx.yield_output(number)
        await ctx.send_message(number)


class Inquire(Executor):
    """Asks two things, and sends each answer to the executor ``to``."""

    def __init__(self, to: str, id: str | None = None) -> None:
        super().__init__(id)
        self._to = to

    @handler
    async def inquire(self, number: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(number, response_type=int, request_id="first")
        await ctx.request_info(number, response_type=int, request_id="second")

    @response_handler
    async def answered(self, asked: int, answer: int, ctx: WorkflowContext[str]) -> None:
        if meanwhile is not None:
            await meanwhile()
        await ctx.send_message(f"{asked} {answer}", target_id=self._to)


class Forward(Executor):
    @handler
    async def forward(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


class Fragile(Executor):
    def __init__(self, id: str | None = None, fails: bool = False) -> None:
        super().__init__(id)
        self._fails = fails

    @handler
    async def take(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        if self._fails:
            raise ConnectionError("the network is down")
        await ctx.yield_output(text)


class Wait(Executor):
    @handler
    async def wait(self, number: int, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("number", number, scope_name="Waiting")
        await ctx.request_info(number, response_type=int, request_id="third")

    @response_handler
    async def answered(self, asked: int, answer: int, ctx: WorkflowContext[None, int]) -> None:
        await ctx.yield_output(asked * answer)


NAMES = {
    "count": "Counter",
    "inquire": "Inquiry",
    "forward": "Forwarder",
    "fragile": "Robust",
    "place": "Office",
    "wait": "Desk",
}


def renamed(now: bool) -> Workflow:
    """The same workflow: with old names and an executor that fails, and with the names of now and one source more."""

    def called(name: str) -> str:
        return NAMES[name] if now else name

    wait = Wait.bind(id=called("wait"))
    inner = WorkflowBuilder(name="Inner").set_start_executor(wait)
    if now:
        inner.with_alias("wait", wait)
    place = WorkflowExecutor(inner.build(), id=called("place"))
    count, forward = Count.bind(id=called("count")), Forward.bind(id=called("forward"))
    inquire = Inquire.bind(id=called("inquire"), to=called("forward"))
    fragile = Fragile.bind(id=called("fragile"), fails=not now)
    late = [Count.bind(id="Late")] if now else []
    builder = (
        WorkflowBuilder(name="Renamed")
        .set_start_executor(split)
        .add_fan_out_edges(split, [count, inquire, place, *late])
        .add_chain([inquire, forward, fragile])
        .add_fan_in_edges([count, place, *late], add)
    )
    if now:
        for name in NAMES:
            if name != "wait":
                builder.with_alias(name, called(name))
    return builder.build()
