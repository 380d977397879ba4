"""Types of your own: what is stored outlives the code that stored it.

Types that a workflow declares can be stored. When the fields of one change, ``@checkpointable`` gives it a version and
says how old data becomes new. Here a run waits for its answer while a newer version of the program is deployed.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import (
    Executor,
    PendingRequest,
    SqliteCheckpointStorage,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    checkpointable,
    handler,
    response_handler,
)

INPUT = 12


# The program of today.


def to_cents(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["euros"] * 100}


@checkpointable(name="Price", version=2, upgrade=to_cents)
@dataclass
class Price:
    cents: int
    currency: str = "EUR"  # a field with a default needs no upgrade


PRICE = StateKey("price", Price)


class Shop(Executor):
    @handler
    async def offer(self, euros: int, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update(PRICE, Price(euros * 100))
        await ctx.request_info(f"Buy for {euros} euros?", response_type=bool)

    @response_handler
    async def answered(self, offer: str, bought: bool, ctx: WorkflowContext[None, str]) -> None:
        price = await ctx.read_state(PRICE)
        await ctx.yield_output(f"{'sold' if bought else 'kept'}: {price}")


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Shop").set_start_executor(Shop).build()


def answer(request: PendingRequest) -> bool:
    return True


# The program of yesterday, with the same graph.


def make_workflow_of_yesterday() -> Workflow:
    @checkpointable(name="Price")
    @dataclass
    class OldPrice:
        euros: int

    old_price = StateKey("price", OldPrice)

    class Shop(Executor):
        @handler
        async def offer(self, euros: int, ctx: WorkflowContext) -> None:
            await ctx.queue_state_update(old_price, OldPrice(euros))
            await ctx.request_info(f"Buy for {euros} euros?", response_type=bool)

        @response_handler
        async def answered(self, offer: str, bought: bool, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(str(await ctx.read_state(old_price)))

    return WorkflowBuilder(name="Shop").set_start_executor(Shop).build()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteCheckpointStorage(Path(folder, "shop.db")) as storage:
            waiting = await make_workflow_of_yesterday().run(INPUT, storage=storage)
            print(waiting.status)

        async with SqliteCheckpointStorage(Path(folder, "shop.db")) as storage:
            responses: dict[str, bool] = {request.request_id: True for request in waiting.pending_requests}
            run = await make_workflow().resume(run_id=waiting.run_id, responses=responses, storage=storage)
            print((await run.wait_for_completion()).outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# waiting
# ["sold: Price(cents=1200, currency='EUR')"]
