"""What a question gets in place of an answer when its time is over."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestExpired:
    """Goes to the ``@response_handler`` of an executor whose question nobody answered in time.

    >>> from holdfast import Executor, WorkflowContext, handler, response_handler
    >>> class Approve(Executor):
    ...     @handler
    ...     async def ask(self, plan: str, ctx: WorkflowContext) -> None:
    ...         await ctx.request_info(plan, response_type=bool, expires=3 * 86_400)
    ...
    ...     @response_handler
    ...     async def answered(self, plan: str, approved: bool, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output("go" if approved else "no")
    ...
    ...     @response_handler
    ...     async def late(self, plan: str, expired: RequestExpired, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output("nobody answered")
    """

    request_id: str
    expires: datetime.datetime
    """When its time was over, UTC."""
