"""Typed state keys: name, type, scope and merge of a piece of state, said once.

A ``StateKey`` stands wherever a key does. Type checkers know what ``read_state`` returns, and a value of another
type, like one that came out of JSON, is refused where it is queued and not where someone stumbles over it.
"""

import json

from holdfast import (
    Executor,
    ExecutorFailed,
    Merge,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

INPUT = '{"priority": 0, "service": "checkout"}'
PRIORITY = StateKey("priority", int, scope_name="Incident")
SERVICES = StateKey("services", set[str], scope_name="Incident", merge=Merge.UNION)


class ParseAnswer(Executor):
    @handler
    async def parse(self, answer: str, ctx: WorkflowContext[str]) -> None:
        fields = json.loads(answer)
        await ctx.queue_state_update(PRIORITY, fields["priority"])
        await ctx.queue_state_update(SERVICES, {fields["service"]})
        await ctx.send_message(fields["service"])


class FindDependents(Executor):
    @handler
    async def find(self, service: str, ctx: WorkflowContext[str]) -> None:
        await ctx.queue_state_update(SERVICES, {"cart", "invoices"})  # merged into the set that is there
        await ctx.send_message(service)


class Announce(Executor):
    @handler
    async def announce(self, service: str, ctx: WorkflowContext[None, str]) -> None:
        priority = await ctx.read_state(PRIORITY, default=3)  # an int
        services = await ctx.read_state(SERVICES, default=set())  # a set[str]
        await ctx.yield_output(f"P{priority}: {service}; affected: {', '.join(sorted(services))}")


def make_workflow() -> Workflow:
    return (
        WorkflowBuilder(name="Announce")
        .set_start_executor(ParseAnswer)
        .add_chain([ParseAnswer, FindDependents, Announce])
        .build()
    )


if __name__ == "__main__":
    workflow = make_workflow()
    print(*workflow.run_sync(INPUT).outputs)
    try:
        workflow.run_sync(INPUT.replace("0", '"urgent"'))
    except ExecutorFailed as failure:
        print(f"{failure.executor_id} failed: {type(failure.__cause__).__name__}")

# Output:
# P0: checkout; affected: cart, checkout, invoices
# ParseAnswer failed: WrongType
