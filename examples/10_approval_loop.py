"""An approval loop: a person reads a draft, asks for changes, reads again, and approves.

The loop in the graph is an edge back, the loop outside is ``while result.pending_requests``. Each round is a question
of its own; its id is made of the executor and the superstep, so it is the same each time this run is made.
"""

import asyncio
from dataclasses import dataclass

from holdfast import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

INPUT = "Checkout"


@dataclass(frozen=True)
class Draft:
    text: str
    wanted: str | None = None


class Writer(Executor):
    @handler
    async def write(self, topic: str) -> Draft:
        return Draft(f"{topic} was down.")

    @handler
    async def rewrite(self, draft: Draft) -> Draft:
        return Draft(f"{draft.text} ({draft.wanted}: done)")


class Editor(Executor):
    @handler
    async def review(self, draft: Draft, ctx: WorkflowContext) -> None:
        await ctx.request_info(draft.text, response_type=str)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[Draft, str]) -> None:
        if answer == "approved":
            await ctx.yield_output(text)
        else:
            await ctx.send_message(Draft(text, wanted=answer))


def make_workflow() -> Workflow:
    builder = WorkflowBuilder(name="Approval").set_start_executor(Writer)
    return builder.add_edge(Writer, Editor).add_edge(Editor, Writer).build()


async def main() -> None:
    person = iter(["say why", "say until when", "approved"])  # stands for somebody at a keyboard
    result = await make_workflow().run(INPUT)
    while result.pending_requests:
        (request,) = result.pending_requests
        answer = next(person)
        print(f"{request.request_id}: {request.data} -> {answer}")
        result = await result.respond({request.request_id: answer})
    print(result.status, result.outputs)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# Editor.2.1: Checkout was down. -> say why
# Editor.5.1: Checkout was down. (say why: done) -> say until when
# Editor.8.1: Checkout was down. (say why: done) (say until when: done) -> approved
# completed ['Checkout was down. (say why: done) (say until when: done)']
