"""Checkpoints: a run is stopped, and goes on in another Workflow object, as in a new process.

With storage, the start and the end of each superstep are durable checkpoints. What was done before the last one is
not done again: the executor remembers how often it was called, and the state is as it was.
"""

import asyncio
import tempfile
from pathlib import Path

from holdfast import (
    Executor,
    SqliteCheckpointStorage,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

INPUT = 1


class Count(Executor):
    checkpointed = ("calls",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.calls = 0

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        self.calls += 1
        await ctx.append_state("seen", number, scope_name="Numbers")
        if number == 5:
            seen = await ctx.read_state("seen", scope_name="Numbers")
            await ctx.yield_output(f"seen {seen} in {self.calls} calls")
        else:
            await ctx.send_message(number + 1)


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Count").set_start_executor(Count).add_edge(Count, Count).build()


async def begin(database: Path) -> str:
    async with SqliteCheckpointStorage(database) as storage:
        async with make_workflow().run_stream(INPUT, storage=storage) as stream:
            async for event in stream:
                if isinstance(event, SuperStepCompletedEvent) and event.superstep == 3:
                    break  # leaving the stream stops the run
        print(stream.run.status, "after superstep", stream.run.snapshot.superstep)
        return stream.run.run_id


async def go_on(database: Path, run_id: str) -> None:
    async with SqliteCheckpointStorage(database) as storage:
        run = await make_workflow().resume(run_id=run_id, storage=storage)
        result = await run.wait_for_completion()
        print(result.status, result.outputs)
        for made in await storage.list_checkpoints(run_id=run_id):
            print(made.seq, made.phase, made.superstep, made.status)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "checkpoints.db")
        run_id = asyncio.run(begin(database))
        asyncio.run(go_on(database, run_id))


if __name__ == "__main__":
    main()

# Output:
# stopped after superstep 3
# completed ['seen [1, 2, 3, 4, 5] in 5 calls']
# 1 start 1 running
# 2 end 1 running
# 3 start 2 running
# 4 end 2 running
# 5 start 3 running
# 6 end 3 running
# 7 start 4 running
# 8 end 4 running
# 9 start 5 running
# 10 end 5 completed
