"""Nesting: a workflow is an executor of another one, here twice, and its questions come to the surface.

Nested executors take part in the supersteps of the outer workflow. Each has a path, ``legal#1/Review``: the first
time that the workflow nested as ``legal`` was started. State in it is its own: both nested workflows write the scope
``Review`` and neither sees the other's. Answers may come in any order; the fan-in has its own.
"""

import asyncio

from holdfast import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)

INPUT = "contract"


class Review(Executor):
    @handler
    async def ask(self, document: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("document", document, scope_name="Review")
        await ctx.request_info(document, response_type=str)

    @response_handler
    async def answered(self, document: str, remark: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(remark)


@executor
async def sign(remark: str, ctx: WorkflowContext[None, str]) -> None:
    keys = await ctx.read_state_keys(scope_name="Review")
    await ctx.yield_output(f"{ctx.executor_id} says {remark!r}, sees {keys}")


@executor
def hand_out(document: str) -> str:
    return document


@executor
def collect(remarks: list[str]) -> str:
    return "\n".join(remarks)


def make_workflow() -> Workflow:
    review = WorkflowBuilder(name="Review").set_start_executor(Review).add_edge(Review, sign).build()
    legal, security = WorkflowExecutor(review, id="legal"), WorkflowExecutor(review, id="security")
    return (
        WorkflowBuilder(name="Reviews")
        .set_start_executor(hand_out)
        .add_fan_out_edges(hand_out, [legal, security])
        .add_fan_in_edges([legal, security], collect)
        .build()
    )


async def main() -> None:
    result = await make_workflow().run(INPUT)
    for request in result.pending_requests:
        print(f"{request.request_id} asks about the {request.data}")
    result = await result.respond({"security#1/Review.2.1": "rotate the keys"})
    print(result.status)
    result = await result.respond({"legal#1/Review.2.1": "fine"})
    print(*result.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# legal#1/Review.2.1 asks about the contract
# security#1/Review.2.1 asks about the contract
# waiting
# legal#1/sign says 'fine', sees ['document']
# security#1/sign says 'rotate the keys', sees ['document']
