"""An executor that asks the outside."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.graph.context import PassOn, WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler, response_handler
from holdfast.graph.types import TypeForm


class Summarized(Protocol):
    """What can say itself in a few words: a checkpoint."""

    def summary(self) -> Any:
        """It, in a few words."""
        ...


class RequestInfoExecutor(Executor):
    """Asks the outside about whatever it receives and sends the response on.

    >>> from holdfast import RequestInfoExecutor, WorkflowBuilder
    >>> ask = RequestInfoExecutor(id="ask", response_type=bool)
    >>> result = WorkflowBuilder(name="Ask").set_start_executor(ask).build().run_sync("Deploy?")
    >>> [(request.executor_id, request.data) for request in result.pending_requests]
    [('ask', 'Deploy?')]
    """

    shareable = True

    def __init__(self, id: str | None = None, response_type: TypeForm = object) -> None:
        super().__init__(id)
        self.response_type = response_type

    @handler
    async def ask(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Ask about the message."""
        await ctx.request_info(message, response_type=self.response_type)

    @response_handler
    async def answered(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> Any:
        """Send the response on."""
        return PassOn(response)

    @staticmethod
    def checkpoint_summary(checkpoint: Summarized) -> Any:
        """A checkpoint in a few words: the same as ``checkpoint.summary()``."""
        return checkpoint.summary()
