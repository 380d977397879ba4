"""A program whose types are right: the type checker has nothing to say about it."""

from dataclasses import dataclass
from typing import Any, Never, assert_type

from holdfast import (
    Case,
    Default,
    Executor,
    Limits,
    Merge,
    Run,
    RunResult,
    RunStatus,
    RunStream,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    compat,
    executor,
    handler,
)


@dataclass
class Report:
    priority: str


RAW = StateKey("raw", str, scope_name="Logs")
ROWS = StateKey("rows", list[int], merge=Merge.APPEND)
LOOSE = StateKey("loose")


class Triage(Executor):
    def __init__(self, id: str | None = None, threshold: int = 1) -> None:
        super().__init__(id=id)
        self.threshold = threshold

    @handler
    async def triage(self, text: str, ctx: WorkflowContext[Report]) -> Report:
        await ctx.send_message(Report("P1"))
        await ctx.send_message(Report("P1"), target_id="page")
        return Report("P0" if len(text) > self.threshold else "P3")

    @handler
    async def no_context(self, number: int) -> Report:
        return Report(str(number))

    @handler
    def not_async(self, number: float) -> Report:
        return Report(str(number))

    @handler(input=bytes, output=Report, workflow_output=str)
    async def declared(self, data: bytes, ctx: WorkflowContext[Report, str]) -> None:
        await ctx.yield_output(data.decode())


@executor
async def page(report: Report, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(report.priority)


@executor(id="ticket")
def ticket(report: Report) -> str:
    return report.priority


async def context(ctx: WorkflowContext[int, str], anything: WorkflowContext) -> None:
    assert_type(await ctx.read_state(RAW), str | None)
    assert_type(await ctx.read_state(RAW, ""), str)
    assert_type(await ctx.read_state(ROWS), list[int] | None)
    assert_type(await ctx.read_state("raw"), Any)
    assert_type(await ctx.read_state(LOOSE, 5), Any)
    await ctx.queue_state_update(LOOSE, (1, 2))
    assert_type(await ctx.require_state(RAW), str)
    assert_type(await ctx.require_state(ROWS), list[int])
    assert_type(await ctx.require_state("raw", scope_name="Logs"), Any)
    assert_type(ctx.source_executor_id is None, bool)
    assert_type(await ctx.read_state_keys("Logs"), list[str])
    await ctx.queue_state_update(RAW, "text")
    await ctx.queue_state_update("raw", 5)
    await ctx.append_state(ROWS, 5)
    await ctx.clear_state(RAW)
    await ctx.set_state({"a": 1})
    await ctx.set_shared_state("key", 1)
    await ctx.add_event(WorkflowEvent())
    await anything.send_message("whatever")
    await anything.yield_output(5)


async def narrower(ctx: WorkflowContext[int | str, str]) -> None:
    await context(ctx, ctx)


class Ported(compat.Executor[str, str], compat.IMessageHandler[str], compat.IResettableExecutor):
    @handler
    async def handle(self, text: str, context: compat.IWorkflowContext[str], ct: None = None) -> str:
        return text

    async def reset(self) -> None: ...


class Reflecting(compat.ReflectingExecutor["Reflecting"]): ...


class Bare(compat.ReflectingExecutor): ...


async def calls() -> None:
    assert_type(ticket(Report("P0")), str)
    assert_type(ticket.id == "ticket", bool)
    assert_type(await Triage().no_context(5), Report)
    assert_type(Triage().not_async(5.0), Report)


def build() -> Workflow:
    return (
        WorkflowBuilder(name="Triage", max_iterations=50, limits=Limits(max_deliveries=10))
        .set_start_executor(Triage)
        .add_edge(Triage, Triage.bind(id="eu", threshold=3), condition=lambda report: report.priority == "P0")
        .add_switch_case_edge_group("eu", [Case(lambda r: bool(r), page, label="P0"), Default(target=ticket)])
        .add_fan_out_edges(Triage, [page, "ticket"])
        .add_fan_in_edges([Triage, Triage("us")], "join")
        .add_multi_selection_edge_group(Triage, [page, ticket], selection_func=lambda report, ids: ids[:1])
        .add_chain([Triage, page])
        .with_output_from(page, "ticket")
        .with_state_merge("Logs", "raw", "append")
        .with_state_merge("Logs", None, lambda current, update: max(current, update))
        .register_executor(lambda: Triage("x"), name="join")
        .build()
    )


async def run(workflow: Workflow) -> None:
    assert_type(await workflow.run("text"), RunResult)
    assert_type(workflow.run_stream("text"), RunStream)
    async with workflow.run_stream("text") as stream:
        async for event in stream:
            assert_type(event, WorkflowEvent)
            if isinstance(event, WorkflowOutputEvent):
                assert_type(event.data, Any)
    running = await workflow.start("text")
    assert_type(running, Run)
    assert_type((await running.wait_for_completion()).status, RunStatus)
    async for event in running.watch_stream():
        assert_type(event, WorkflowEvent)
