"""A loop: a writer and a reviewer pass a draft to and fro until it is short enough.

The writer has one handler for the assignment and one for criticism; the type of the message decides. An edge back
makes the loop, and ``max_iterations`` makes sure that one which never ends becomes an error.
"""

from dataclasses import dataclass

from holdfast import Executor, SuperstepLimit, Workflow, WorkflowBuilder, WorkflowContext, handler

INPUT = "Checkout"


@dataclass(frozen=True)
class Draft:
    text: str
    version: int


@dataclass(frozen=True)
class Criticism:
    draft: Draft


class Writer(Executor):
    @handler
    async def write(self, topic: str) -> Draft:
        return Draft(f"{topic} is very, very, very broken", version=1)

    @handler
    async def shorten(self, criticism: Criticism) -> Draft:
        draft = criticism.draft
        return Draft(draft.text.replace("very, ", "", 1), draft.version + 1)


class Reviewer(Executor):
    @handler
    async def review(self, draft: Draft, ctx: WorkflowContext[Criticism, str]) -> None:
        if len(draft.text) > 25:
            print(f"version {draft.version} is too long: {draft.text}")
            await ctx.send_message(Criticism(draft))
        else:
            await ctx.yield_output(draft.text)


def make_workflow(max_iterations: int = 20) -> Workflow:
    builder = WorkflowBuilder(name="Headline", max_iterations=max_iterations).set_start_executor(Writer)
    return builder.add_edge(Writer, Reviewer).add_edge(Reviewer, Writer).build()


if __name__ == "__main__":
    print(*make_workflow().run_sync(INPUT).outputs)
    try:
        make_workflow(max_iterations=2).run_sync(INPUT)
    except SuperstepLimit as error:
        print(f"stopped by {error.limit}={error.allowed}")

# Output:
# version 1 is too long: Checkout is very, very, very broken
# version 2 is too long: Checkout is very, very broken
# Checkout is very broken
# version 1 is too long: Checkout is very, very, very broken
# stopped by max_iterations=2
