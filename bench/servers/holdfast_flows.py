"""What ``holdfast serve`` serves: a run of one superstep, and one that waits for an answer."""

from holdfast import Executor, WorkflowBuilder, WorkflowContext, executor, handler, response_handler


@executor(id="greet")
async def greet(name: str) -> str:
    return f"hello {name}"


class Ask(Executor):
    @handler
    async def ask(self, question: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(question, response_type=str)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(answer)


greeting = WorkflowBuilder(name="Greet").set_start_executor(greet).build()
asking = WorkflowBuilder(name="Ask").set_start_executor(Ask).build()
