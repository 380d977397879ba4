"""Workflows and programs that tests run in a process of their own."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointSavedEvent,
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.durable import storage_at


@dataclass
class Plan:
    text: str
    cost: int


@dataclass
class Verdict:
    approved: bool
    remark: str = ""


class Prepare(Executor):
    @handler
    async def prepare(self, text: str, ctx: WorkflowContext[Plan]) -> Plan:
        await ctx.queue_state_update("raw", text * 1_000, scope_name="Logs")
        return Plan(text, len(text))


class Approve(Executor):
    """Asks about each plan; keeps how often."""

    checkpointed = ("asked",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.asked = 0

    @handler
    async def ask(self, plan: Plan, ctx: WorkflowContext) -> None:
        self.asked += 1
        await ctx.request_info(plan, response_type=Verdict)

    @response_handler
    async def answered(self, plan: Plan, verdict: Verdict, ctx: WorkflowContext[None, Any]) -> None:
        raw = await ctx.read_state("raw", scope_name="Logs")
        await ctx.yield_output([plan.text, verdict.approved, verdict.remark, self.asked, len(raw)])


def approval() -> Workflow:
    return WorkflowBuilder(name="Approval").set_start_executor(Prepare).add_edge(Prepare, Approve).build()


def ask_and_die(kind: str, folder: str, run_id: str) -> None:
    """Run to the question, say who was asked what, and end without any cleaning up."""

    async def main() -> None:
        storage = storage_at(kind, Path(folder))
        result = await approval().run("deploy", run_id=run_id, storage=storage)
        (request,) = result.pending_requests
        print(json.dumps([result.status.value, request.request_id, request.data.text]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


def answer(kind: str, folder: str, run_id: str, request_id: str) -> None:
    """Answer in another process and say what came of it."""

    async def main() -> None:
        async with storage_at(kind, Path(folder)) as storage:
            run = await approval().resume(
                run_id=run_id, storage=storage, responses={request_id: {"approved": True, "remark": "go"}}
            )
            result = await run.wait_for_completion()
            print(json.dumps([result.status.value, result.outputs]))

    asyncio.run(main())


class Steps(Executor):
    """Counts down, with a number per superstep in its log."""

    @handler
    async def step(self, left: int, ctx: WorkflowContext[int, list]) -> None:
        await ctx.append_state("log", left)
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(await ctx.read_state("log"))


def steps() -> Workflow:
    return (
        WorkflowBuilder(name="Steps", max_iterations=100_000)
        .set_start_executor(Steps)
        .add_edge(Steps, Steps)
        .build()
    )


def die_after(kind: str, folder: str, run_id: str, count: int, checkpoints: int) -> None:
    """Count down, and end without any cleaning up after so many checkpoints."""

    async def main() -> None:
        storage = storage_at(kind, Path(folder))
        run = await steps().start(count, run_id=run_id, storage=storage)
        saved = 0
        async for event in run.watch_stream():
            saved += isinstance(event, CheckpointSavedEvent)
            if saved >= checkpoints:
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
