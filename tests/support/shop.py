"""A shop whose orders a person approves: runs in all kinds of states, for tests of the command."""

from dataclasses import dataclass

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    open_storage,
    response_handler,
)


@dataclass
class Order:
    item: str
    price: int


@executor
async def price(item: str, ctx: WorkflowContext[Order]) -> Order:
    if item == "nothing":
        raise ValueError("there is no price of nothing")
    await ctx.queue_state_update("item", item, scope_name="Cart")
    return Order(item, 10 * len(item))


class Approve(Executor):
    @handler
    async def ask(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.request_info(order, response_type=bool)

    @response_handler
    async def answered(self, order: Order, approved: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{order.item}: {'sent' if approved else 'refused'}")


def build(storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Shop").set_start_executor(price).add_edge(price, Approve)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


async def fill(url: str) -> None:
    """Make ``order-1`` (completed), ``order-2`` and ``order-3`` (waiting) and ``broken-1`` (failed)."""
    async with open_storage(url) as storage:
        shop = build(storage)
        first = await shop.run("kelp", run_id="order-1")
        await first.respond({first.pending_requests[0].request_id: True})
        await shop.run("salt", run_id="order-2")
        await shop.run("dulse", run_id="order-3")
        try:
            await shop.run("nothing", run_id="broken-1")
        except ExecutorFailed:
            pass
