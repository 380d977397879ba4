"""A chain: each executor hands what it returns to the next one.

An annotated function is an executor, and so is a class with a handler; messages are routed by type, and
``build`` checks that the types along each edge fit. What the last executor returns is the output of the workflow.
"""

from dataclasses import dataclass

from holdfast import Executor, Workflow, WorkflowBuilder, WorkflowContext, executor, handler

INPUT = "  The checkout   fails\n since noon "


@dataclass(frozen=True)
class Ticket:
    service: str
    complaint: str


@executor
def tidy(mail: str) -> str:
    return " ".join(mail.split())


class Classify(Executor):
    @handler
    async def classify(self, mail: str, ctx: WorkflowContext[Ticket]) -> None:
        service = next((name for name in ("checkout", "login") if name in mail.lower()), "unknown")
        await ctx.send_message(Ticket(service, mail))


@executor
async def reply(ticket: Ticket) -> str:
    return f"[{ticket.service}] We are looking into it: {ticket.complaint!r}"


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Mail").set_start_executor(tidy).add_chain([tidy, Classify, reply]).build()


if __name__ == "__main__":
    result = make_workflow().run_sync(INPUT)
    print(result.status)
    print(*result.outputs)

# Output:
# completed
# [checkout] We are looking into it: 'The checkout fails since noon'
