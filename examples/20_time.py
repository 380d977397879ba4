"""Time: a run that sleeps until its next try, and a question that expires.

With storage a sleep holds no task and no memory: the handler is called again when the time is over. A host wakes runs
whose time has come; here by a clock that is moved by hand, in a program of yours by the one on the wall.
"""

import asyncio
from datetime import timedelta

from holdfast import (
    Executor,
    Host,
    InMemoryCheckpointStorage,
    RequestExpired,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import VirtualTime

INPUT = "checkout"


@executor
async def wait_for_calm(service: str, ctx: WorkflowContext[str]) -> str:
    for hour in range(3):
        errors = await ctx.once(
            f"count {hour}", count_errors, service, hour
        )  # not counted again after a sleep
        if errors < 10:
            break
        await ctx.sleep(timedelta(hours=1))
    return service


def count_errors(service: str, hour: int) -> int:
    errors = [900, 40, 3][hour]
    print(f"{errors} errors in {service}")
    return errors


class Approve(Executor):
    @handler
    async def ask(self, service: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(f"Deploy {service}?", response_type=bool, expires=timedelta(days=2))

    @response_handler
    async def answered(self, question: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output("deployed" if yes else "kept as it is")

    @response_handler
    async def late(self, question: str, expired: RequestExpired, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output("nobody answered, kept as it is")


def make_workflow() -> Workflow:
    return (
        WorkflowBuilder(name="Deploy")
        .set_start_executor(wait_for_calm)
        .add_edge(wait_for_calm, Approve)
        .build()
    )


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    with VirtualTime() as time:
        workflow = make_workflow()
        host = Host(
            storage, workflow, woken=lambda run: print(f"{time.now():%b %d, %H:%M}: {run.run_id} is woken")
        )
        run = await workflow.start(INPUT, run_id="night", storage=storage)
        await time.timer()
        print(f"{run.status} until {run.wake_at:%b %d, %H:%M}")
        await run.close()  # nobody follows it any more: it is only in the storage
        for _ in range(6):
            await time.advance(timedelta(hours=12))
            await host.wake_due()
    (run_info,) = await storage.list_runs()
    end = await storage.load(run_info.checkpoint_id)
    print(run_info.status, end.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# 900 errors in checkout
# waiting until Jan 01, 01:00
# Jan 01, 12:00: night is woken
# 40 errors in checkout
# Jan 02, 00:00: night is woken
# 3 errors in checkout
# Jan 04, 00:00: night is woken
# completed ['nobody answered, kept as it is']
