"""Shared state: executors work on one log without passing it along.

A scope with a name is shared; without one it is private to the executor. A turn sees its own writes at once, all
others see them when the superstep ends. Two executors that write one key in the same superstep are a
``StateConflict``, unless both append, or a merge is declared for the key.
"""

from holdfast import Executor, Merge, Workflow, WorkflowBuilder, WorkflowContext, handler

INPUT = "checkout"
LOG = "INFO start\nERROR card declined\nWARN slow\nERROR card declined\nWARN slow\nWARN disk 91%\n"


class Fetch(Executor):
    @handler
    async def fetch(self, service: str, ctx: WorkflowContext[str]) -> None:
        log_id = f"{service}-log"
        await ctx.queue_state_update(log_id, LOG, scope_name="Logs")
        own = await ctx.read_state(log_id, scope_name="Logs")
        print(f"Fetch sees its own write: {len(own)} characters")
        await ctx.send_message(log_id)


class Count(Executor):
    @handler
    async def count(self, log_id: str, ctx: WorkflowContext[str]) -> None:
        log = await ctx.read_state(log_id, scope_name="Logs")
        found = [line for line in log.splitlines() if line.startswith(self.id.upper())]
        await ctx.queue_state_update("found", found)  # private
        await ctx.append_state("order", self.id, scope_name="Findings")
        await ctx.queue_state_update("lines", len(found), scope_name="Findings")
        await ctx.send_message(log_id)


class Summarise(Executor):
    @handler
    async def summarise(self, log_ids: list[str], ctx: WorkflowContext[None, str]) -> None:
        print("keys of Findings:", await ctx.read_state_keys(scope_name="Findings"))
        print("of the private scopes of others it sees:", await ctx.read_state("found"))
        order = await ctx.read_state("order", scope_name="Findings")
        total = await ctx.read_state("lines", scope_name="Findings")
        await ctx.yield_output(f"{' and '.join(order)} found {total} lines")


error, warn = Count.bind(id="error"), Count.bind(id="warn")


def make_workflow() -> Workflow:
    return (
        WorkflowBuilder(name="Findings")
        .set_start_executor(Fetch)
        .add_fan_out_edges(Fetch, [error, warn])
        .add_fan_in_edges([error, warn], Summarise)
        .with_state_merge("Findings", "lines", Merge.ADD)
        .build()
    )


if __name__ == "__main__":
    print(*make_workflow().run_sync(INPUT).outputs)

# Output:
# Fetch sees its own write: 85 characters
# keys of Findings: ['lines', 'order']
# of the private scopes of others it sees: None
# error and warn found 5 lines
