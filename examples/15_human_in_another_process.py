"""A question that outlives its process: one process asks and ends, another brings the answer days later.

While it waits a run needs no process: the question is in the storage. ``main`` calls two functions that share nothing
but a file; they could be two programs, on two days.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointStorage,
    Executor,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)


@dataclass(frozen=True)
class Refund:
    customer: str
    amount: int


INPUT = Refund("Ada", 250)


class Approve(Executor):
    @handler
    async def ask(self, refund: Refund, ctx: WorkflowContext) -> None:
        await ctx.request_info(refund, response_type=bool)

    @response_handler
    async def answered(self, refund: Refund, approved: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{refund.customer} {'gets' if approved else 'does not get'} {refund.amount}")


def make_workflow(storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Refunds").set_start_executor(Approve)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


def answer(request: Any) -> bool:
    return bool(request.data.amount < 1000)


async def begin(database: Path) -> None:
    async with SqliteCheckpointStorage(database) as storage:
        result = await make_workflow(storage).run(INPUT)
        print(result.status)


async def answer_later(database: Path) -> None:
    async with SqliteCheckpointStorage(database) as storage:
        workflow = make_workflow(storage)  # from it the storage learns the types that it has to read
        for waiting in await storage.list_runs("Refunds", status="waiting"):
            checkpoint = await storage.load(waiting.checkpoint_id)
            responses: dict[str, bool] = {}
            for request in checkpoint.pending_requests:
                print(f"{request.request_id}: {request.data}?")
                responses[request.request_id] = answer(request)
            run = await workflow.resume(checkpoint, responses=responses)
            result = await run.wait_for_completion()
            print(result.status, result.outputs)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "refunds.db")
        asyncio.run(begin(database))
        asyncio.run(answer_later(database))


if __name__ == "__main__":
    main()

# Output:
# waiting
# Approve.1.1: Refund(customer='Ada', amount=250)?
# completed ['Ada gets 250']
