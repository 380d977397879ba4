"""Cancel: a run that goes on by itself is watched, and ended when somebody had enough.

``start`` returns at once. Handlers are told by a ``CancelledError`` and have some seconds of grace to clean up. What
the current superstep did is discarded; what earlier ones did stays.
"""

import asyncio

from holdfast import SuperStepStartedEvent, Workflow, WorkflowBuilder, WorkflowContext, executor

INPUT = 1


@executor
async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
    await ctx.yield_output(number)
    if number == 3:
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaning up")
    await ctx.send_message(number + 1)


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count).build()


async def main() -> None:
    run = await make_workflow().start(INPUT)
    async for event in run.watch_stream():
        if isinstance(event, SuperStepStartedEvent) and event.superstep == 3:
            break  # leaving a watcher changes nothing for the run
    print(run.status)

    await run.cancel(grace=2.0)
    result = await run.wait_for_completion()
    print(result.status, result.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# running
# cleaning up
# cancelled [1, 2]
