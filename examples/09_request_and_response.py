"""Questions: an executor asks the outside, the run waits, the answer brings it on.

``request_info`` says what is asked and of which type the answer is; the answer goes to the ``response_handler`` that
takes both. A question holds up nothing but its own answer: the other branch goes on meanwhile. Answers are brought
to the declared type, so a dict, as a web page would send it, becomes the dataclass.
"""

import asyncio
from dataclasses import dataclass

from holdfast import (
    Executor,
    InvalidResponse,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)

INPUT = "checkout"


@dataclass(frozen=True)
class Verdict:
    approved: bool
    reason: str = "none given"


@executor
def plan(service: str) -> str:
    return f"restart {service}"


class Lead(Executor):
    @handler
    async def ask(self, step: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(step, response_type=Verdict)

    @response_handler
    async def answered(self, step: str, verdict: Verdict) -> str:
        return f"{step}: {'approved' if verdict.approved else 'declined'}, reason: {verdict.reason}"


@executor
def note(step: str) -> str:
    return f"noted: {step}"


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(plan).add_fan_out_edges(plan, [Lead, note]).build()


async def main() -> None:
    result = await make_workflow().run(INPUT)
    print(result.status, result.outputs)
    for request in result.pending_requests:
        print(f"{request.executor_id} asks: {request.data}? (request {request.request_id})")

    request_id = result.pending_requests[0].request_id
    try:
        await result.respond({request_id: {"approved": "perhaps"}})
    except InvalidResponse as error:
        print(error)

    result = await result.respond({request_id: {"approved": True}})
    print(result.status, result.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# waiting ['noted: restart checkout']
# Lead asks: restart checkout? (request Lead.2.1)
# the response to request 'Lead.2.1' of executor 'Lead' cannot be taken: response.approved: a str, not bool: 'perhaps'
# completed ['noted: restart checkout', 'restart checkout: approved, reason: none given']
