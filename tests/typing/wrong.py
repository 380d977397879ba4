"""Programs whose types are wrong; ``# E:`` marks each line that a type checker must refuse, with part of its words."""
# mypy: ignore-errors
# The line above is for the project's own check; the test beside this file takes it out.

from typing import Any, Never

from holdfast import (
    Case,
    Default,
    Executor,
    Limits,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)

RAW = StateKey("raw", str, scope_name="Logs")


def plain(text: str) -> str:
    return text


@executor
async def shout(text: str, ctx: WorkflowContext[str]) -> str:
    return text.upper()


@executor(id="count")
def count(text: str) -> int:
    return len(text)


async def sending(ctx: WorkflowContext[int, str]) -> None:
    await ctx.send_message("text")  # E: incompatible type "str"; expected "int"
    await ctx.yield_output(5)  # E: incompatible type "int"; expected "str"
    await ctx.send_message(5, target_id=5)  # E: incompatible type "int"; expected "str | None"
    ctx.send_message(5)  # E: Value of type "Coroutine[Any, Any, None]" must be used
    ctx.run_id = "mine"  # E: Property "run_id" defined in "WorkflowContext" is read-only


async def sending_nothing(ctx: WorkflowContext[Never, None], only: WorkflowContext[int]) -> None:
    await ctx.send_message(5)  # E: incompatible type "int"; expected "Never"
    await ctx.yield_output("text")  # E: incompatible type "str"; expected "None"
    await only.yield_output("text")
    await sending(only)
    await sending(ctx)  # E: incompatible type "WorkflowContext[Never, None]"


async def state(ctx: WorkflowContext) -> None:
    await ctx.queue_state_update(RAW, 5)  # E: Cannot infer value of type parameter "T" of "queue_state
    text: str = await ctx.read_state(RAW)  # E: (expression has type "str | None", variable has type "str")
    number: int = await ctx.read_state(RAW, "")  # E: incompatible type "StateKey[str]"; expected "StateKey[i
    wrong: int = await ctx.require_state(RAW)  # E: "StateKey[str]"; expected "StateKey[int]"
    await ctx.require_state(RAW, "default", "Logs")  # E: No overload variant of "require_state"
    await ctx.read_state(5)  # E: No overload variant of "read_state" of "WorkflowContext" matches
    await ctx.clear_state(5)  # E: incompatible type "int"; expected "str | StateKey[Any] | None"
    print(text, number, wrong)
    StateKey("raw", 5)  # E: Argument 2 to "StateKey" has incompatible type "int"
    StateKey("raw", str, merge="sum")  # E: Argument "merge" to "StateKey" has incompatible type "str"


class Handlers(Executor):
    @handler  # E: Argument 1 to "handler" has incompatible type
    def blocking(self, text: str, ctx: WorkflowContext[str]) -> None: ...

    @handler  # E: Value of type variable "C" of "handler" cannot be "int"
    async def wrong_context(self, text: str, ctx: int) -> None: ...

    @handler  # E: Argument 1 to "handler" has incompatible type
    async def nothing(self) -> None: ...

    @handler  # E: Argument 1 to "handler" has incompatible type
    async def too_much(self, text: str, ctx: WorkflowContext[str], more: int) -> None: ...

    @handler
    async def right(self, text: str, ctx: WorkflowContext[str]) -> None: ...

    @handler
    async def returns(self, text: str) -> int:
        return text  # E: Incompatible return value type (got "str", expected "int")


def misspelt() -> None:
    handler(inputs=str)  # E: Unexpected keyword argument "inputs" for overloaded function "handler"
    executor(name="x")  # E: Unexpected keyword argument "name" for overloaded function "executor"


async def calling(ctx: WorkflowContext[Any, Any]) -> None:
    await shout(5, ctx)  # E: incompatible type "int"; expected "str"
    await shout("text")  # E: Missing positional argument "ctx" in call to "__call__"
    text: str = count("text")  # E: (expression has type "int", variable has type "str")
    await Handlers().right(5, ctx)  # E: incompatible type "int"; expected "str"
    print(text)


def building(builder: WorkflowBuilder) -> None:
    builder.add_edge(plain, shout)  # E: Argument 1 to "add_edge" of "WorkflowBuilder" has incompatible
    builder.add_edge(shout, dict)  # E: Argument 2 to "add_edge" of "WorkflowBuilder" has incompatible
    builder.add_edge(shout, count, condition="P0")  # E: Argument "condition" to "add_edge"
    builder.add_edge(shout, count, lable="P0")  # E: Unexpected keyword argument "lable" for "add_edge"
    builder.add_fan_out_edges(shout, count)  # E: Argument 2 to "add_fan_out_edges"
    builder.add_fan_out_edges([shout], [count])  # E: Argument 1 to "add_fan_out_edges"
    builder.add_switch_case_edge_group(shout, [(len, count)])  # E: List item 0 has incompatible type
    builder.register_executor(count, name="count")  # E: Argument 1 to "register_executor"
    builder.with_state_merge("Logs", None, 5)  # E: Argument 3 to "with_state_merge"
    builder.set_start_executor()  # E: Missing positional argument "executor" in call
    Case(target=count)  # E: Missing positional argument "condition" in call to "Case"
    Default(target=plain)  # E: Argument "target" to "Default" has incompatible type
    WorkflowBuilder(max_iterations="many")  # E: Argument "max_iterations" to "WorkflowBuilder"
    Limits(max_deliveries="many")  # E: Argument "max_deliveries" to "Limits" has incompatible type "str"
    builder.run("text")  # E: "WorkflowBuilder" has no attribute "run"


async def running(workflow: Workflow) -> None:
    number: int = (await workflow.run("text")).outputs  # E: (expression has type "list[Any]"
    await workflow.run()  # E: Missing positional argument "message" in call to "run" of "Workflow"
    for event in workflow.run_stream("text"):  # E: "RunStream" has no attribute "__iter__"
        print(event)
    workflow.name = "other"  # E: Property "name" defined in "Workflow" is read-only
    print(number)
