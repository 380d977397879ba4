"""Executors that many tests place in their workflows."""

from typing import Any

from holdfast import Executor, WorkflowContext, handler, response_handler


class Burst(Executor):
    """Sends each item of a list."""

    @handler
    async def burst(self, messages: list, ctx: WorkflowContext) -> None:
        for message in messages:
            await ctx.send_message(message)


class Record(Executor):
    """Yields what it gets, with its own id and the number of the superstep."""

    @handler
    async def record(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output((ctx.executor_id, ctx.superstep, message))


class Ask(Executor):
    """Asks what it is told, and yields the question with its answer."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=str)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{text} {answer}")
