"""Annotations that are only text, of classes that are known only where the handler is defined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Executor, GraphError, WorkflowBuilder, WorkflowContext, executor, handler


@dataclass
class Report:
    text: str


@executor
async def outer(report: Report, ctx: WorkflowContext[None, Report]) -> None:
    await ctx.yield_output(report)


class Outer(Executor):
    @handler
    async def work(self, report: Report | int, ctx: WorkflowContext[Report]) -> Report:
        return Report("outer")


def run(start: Any, message: Any, *others: Any) -> list[Any]:
    builder = WorkflowBuilder().set_start_executor(start)
    if others:
        builder.add_chain([start, *others])
    return builder.build().run_sync(message).outputs


def test_names_of_the_module() -> None:
    assert run(Outer, 5, outer) == [Report("outer")]


def test_local_class_in_a_method() -> None:
    @dataclass
    class Local:
        text: str

    class Work(Executor):
        @handler
        async def work(self, message: Local, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(message.text)

        @handler(workflow_output=str)
        async def many(self, messages: list[Local] | None, ctx: WorkflowContext) -> None:
            await ctx.yield_output("many")

    assert run(Work, Local("one")) == ["one"]
    assert run(Work, [Local("one")]) == ["many"]


def test_local_class_in_functions() -> None:
    @dataclass
    class Local:
        text: str

    @executor
    async def first(message: Local) -> Local:
        return message

    @executor
    def second(message: Local) -> str:
        return message.text

    assert run(first, Local("one"), second) == ["one"]


def test_local_class_in_a_decorated_function_with_parentheses() -> None:
    @dataclass
    class Local:
        text: str

    @executor(id="given")
    async def work(message: Local) -> str:
        return message.text

    assert run(work, Local("one")) == ["one"]


def test_local_class_of_an_enclosing_function() -> None:
    @dataclass
    class Local:
        text: str

    def make() -> type[Executor]:
        class Work(Executor):
            @handler
            async def work(self, message: Local, ctx: WorkflowContext[None, str]) -> None:
                await ctx.yield_output(message.text)

        return Work

    assert run(make(), Local("one")) == ["one"]


def test_class_nested_in_the_executor() -> None:
    class Work(Executor):
        @dataclass
        class Job:
            text: str

        @handler
        async def work(self, message: Job, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(message.text)

    assert run(Work, Work.Job("one")) == ["one"]


def test_class_nested_in_the_executor_and_a_decorator_with_parentheses() -> None:
    class Work(Executor):
        @dataclass
        class Job:
            text: str

        @handler(workflow_output=str)
        async def work(self, message: Job, ctx: WorkflowContext) -> None:
            await ctx.yield_output(message.text)

    assert run(Work, Work.Job("one")) == ["one"]


def test_subclass_made_elsewhere_inherits_local_annotations() -> None:
    def make() -> tuple[type[Executor], type]:
        @dataclass
        class Local:
            text: str

        class Base(Executor):
            @handler
            async def work(self, message: Local, ctx: WorkflowContext[None, str]) -> None:
                await ctx.yield_output(message.text)

        return Base, Local

    base, local = make()

    class Derived(base):  # type: ignore[misc]
        pass

    assert run(Derived, local("one")) == ["one"]


def test_local_class_that_hides_one_of_the_module() -> None:
    @dataclass
    class Report:
        number: int

    @executor
    async def work(report: Report) -> int:
        return report.number

    assert run(work, Report(5)) == [5]


def test_class_defined_after_its_handler_is_named_in_the_error() -> None:
    class Work(Executor):
        @handler
        async def work(self, message: Later, ctx: WorkflowContext) -> None: ...

    class Later: ...

    with pytest.raises(
        GraphError,
        match=r"^handler Work\.work: the annotation 'Later' cannot be resolved; define 'Later' before the handler",
    ):
        run(Work, Later())
