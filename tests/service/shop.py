"""Workflows that the tests of the service serve, in its process and in others."""

import asyncio
import os
from dataclasses import dataclass

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


@dataclass
class Refund:
    customer: str
    amount: int = 1


@dataclass
class Decision:
    approved: bool
    remark: str = ""


class Approve(Executor):
    @handler
    async def ask(self, refund: Refund, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("customer", refund.customer, scope_name="Case")
        await ctx.request_info(refund, response_type=Decision)

    @response_handler
    async def decided(self, refund: Refund, decision: Decision, ctx: WorkflowContext[Refund, str]) -> None:
        if decision.approved:
            await ctx.send_message(refund)
        else:
            await ctx.yield_output(f"{refund.customer} gets nothing: {decision.remark}")


class TakeOrder(Executor):
    @handler
    async def take(self, what: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("what", what)
        await ctx.request_info(f"How many of {what}?", response_type=int)

    @response_handler
    async def counted(self, question: str, count: int, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("count", count)
        await ctx.request_info(f"Really {count} of {await ctx.read_state('what')}?", response_type=bool)

    @response_handler
    async def confirmed(self, question: str, sure: bool, ctx: WorkflowContext[None, str]) -> None:
        count, what = await ctx.read_state("count"), await ctx.read_state("what")
        await ctx.yield_output(f"{count} of {what} are on their way" if sure else "nothing is ordered")


@executor(id="pay")
async def pay(refund: Refund) -> str:
    return f"{refund.customer} gets {refund.amount}"


@executor(id="note")
async def note(refund: Refund) -> Refund:
    return refund


arrived: set[str] = set()
"""Who is there though nobody was."""


@executor(id="greet")
async def greet(name: str) -> str:
    if name == "nobody" and name not in arrived:
        raise ValueError("nobody is there")
    if name.endswith("file"):
        path = os.fsdecode(b"caf\xe9.txt")
        if name == "no file":
            raise FileNotFoundError(path)
        return path
    return f"hello {name}"


@executor(id="spell")
async def spell(word: str, ctx: WorkflowContext[None, str]) -> str:
    for letter in word:
        await ctx.stream(letter)
        await asyncio.sleep(0.02)
    return word


@executor(id="wait")
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"waited {seconds:g}"


def refunds() -> Workflow:
    return WorkflowBuilder(name="Refunds").set_start_executor(Approve).add_edge(Approve, pay).build()


def refunds_v2() -> Workflow:
    """Another build of the same name, with another graph: it writes a note before it pays."""
    builder = WorkflowBuilder(name="Refunds").set_start_executor(Approve)
    return builder.add_edge(Approve, note).add_edge(note, pay).build()


def greeting() -> Workflow:
    return WorkflowBuilder(name="Greet").set_start_executor(greet).build()


def ordering() -> Workflow:
    return WorkflowBuilder(name="Order").set_start_executor(TakeOrder).build()


def spelling() -> Workflow:
    return WorkflowBuilder(name="Spell").set_start_executor(spell).build()


def waiting() -> Workflow:
    return WorkflowBuilder(name="Wait").set_start_executor(wait).build()


def nested() -> Workflow:
    inner = WorkflowExecutor(refunds(), id="inner")
    return WorkflowBuilder(name="Nested").set_start_executor(inner).build()


def all_workflows() -> list[Workflow]:
    return [refunds(), greeting(), spelling(), ordering(), waiting(), nested()]
