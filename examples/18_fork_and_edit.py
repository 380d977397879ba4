"""Going back: a fork with another value, a restore in place, and the tree that comes of both.

Any checkpoint can be begun from again. A fork is a run of its own, which leaves the other as it is; ``edits`` gives
shared state other values. ``restore_checkpoint`` goes back within the run. Nothing is lost by either: what was done
before is another branch, and its checkpoints can be loaded, restored and forked like all others.
"""

import asyncio

from holdfast import (
    InMemoryCheckpointStorage,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)

INPUT = "checkout"
TOLERATED = StateKey("tolerated", int, scope_name="Settings")


@executor
async def fetch(service: str, ctx: WorkflowContext[str]) -> str:
    await ctx.queue_state_update("log", "error: pool empty\n" * 3, scope_name="Logs")
    return service


@executor
async def count(service: str, ctx: WorkflowContext[int]) -> int:
    log: str = await ctx.read_state("log", scope_name="Logs")
    return log.count("error")


@executor
async def decide(errors: int, ctx: WorkflowContext[None, str]) -> None:
    tolerated = await ctx.read_state(TOLERATED, 5)
    await ctx.yield_output(f"{'PAGE' if errors > tolerated else 'TICKET'}: {errors} errors")


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Triage").set_start_executor(fetch).add_chain([fetch, count, decide]).build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = make_workflow()
    run = await workflow.start(INPUT, run_id="night", storage=storage)
    print((await run.wait_for_completion()).outputs)
    first, *_, before_decision, end = run.checkpoints

    strict = await workflow.fork(before_decision, edits={TOLERATED: 2}, run_id="strict", storage=storage)
    print((await strict.wait_for_completion()).outputs)

    await run.restore_checkpoint(first)
    print((await run.wait_for_completion()).outputs)

    print(await storage.draw_tree("night"))
    left = await storage.load(end)  # the end of the branch that the restore left
    print(left.seq, left.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# ['TICKET: 3 errors']
# ['PAGE: 3 errors']
# ['TICKET: 3 errors']
# ● 1 start 1, input, run night
# ├─● 2 end 1, superseded by 7
# │ ● 3 start 2
# │ ● 4 end 2
# │ ● 5 start 3
# │ ├─● 1 start 3, fork, run strict
# │ │ ● 2 start 3, edit
# │ │ ◉ 3 end 3, head, completed
# │ ● 6 end 3, completed
# ● 7 start 1, restore
# ┆ 8 to 11, supersteps 1 to 3, 4 checkpoints
# ◉ 12 end 3, head, completed
# 6 ['TICKET: 3 errors']
