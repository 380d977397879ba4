"""Retry and timeout: a service that fails at first, one that is too slow, one that is not worth another attempt.

The turn is what is tried again: fields are put back, and nothing that the failed attempt sent or wrote counts. The
failed attempts show as provisional events. When there is no attempt left the run fails with the last error.
"""

import asyncio

from holdfast import (
    Executor,
    ExecutorFailed,
    ExecutorFailedEvent,
    RetryPolicy,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    handler,
)

INPUTS = ("flaky", "slow", "wrong")
PATIENT = RetryPolicy(attempts=3, backoff=0.01, multiplier=2.0, retry_on=ConnectionError)


class Fetch(Executor):
    checkpointed = ("calls",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.calls = 0

    @handler(retry=PATIENT, timeout=0.05)
    async def fetch(self, service: str, ctx: WorkflowContext[None, str]) -> None:
        self.calls += 1
        await ctx.yield_output(f"{service}: attempt {ctx.attempt}, calls {self.calls}")
        if service == "flaky" and ctx.attempt < 3:
            raise ConnectionError("connection refused")
        if service == "slow":
            await asyncio.sleep(10)
        if service == "wrong":
            raise ValueError("no such service")


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Fetch").set_start_executor(Fetch).build()


async def main() -> None:
    workflow = make_workflow()
    for service in INPUTS:
        try:
            async for event in workflow.run_stream(service):
                match event:
                    case ExecutorFailedEvent(provisional=True):
                        print(f"{service}: attempt {event.attempt} failed, {event.error!r}")
                    case WorkflowOutputEvent():
                        print(event.data)
        except ExecutorFailed as failure:
            print(f"{service}: {type(failure.__cause__).__name__}: {failure.__cause__}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# flaky: attempt 1 failed, ConnectionError('connection refused')
# flaky: attempt 2 failed, ConnectionError('connection refused')
# flaky: attempt 3, calls 1
# slow: ExecutorTimeout: executor 'Fetch' took longer than 0.05 s for a message (in 'fetch')
# wrong: ValueError: no such service
