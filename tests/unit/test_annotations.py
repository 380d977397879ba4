"""What the signature of a handler declares."""

from collections.abc import Callable
from typing import Any, Generic, Never, Optional, TypeVar, Union

import pytest

from holdfast import (
    Executor,
    GraphError,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from holdfast.graph.spec import ExecutorSpec, spec_of


async def bare(message: str, ctx: WorkflowContext) -> None: ...
async def sends(message: str, ctx: WorkflowContext[int]) -> None: ...
async def both(message: str, ctx: WorkflowContext[int, str]) -> None: ...
async def several(message: str, ctx: WorkflowContext[int | str, Union[bytes, None]]) -> None: ...  # noqa: UP007
async def nothing(message: str, ctx: WorkflowContext[None, Never]) -> None: ...
async def never(message: str, ctx: WorkflowContext[Never, None]) -> None: ...
async def untyped(message: str, ctx) -> None: ...
async def returning(message: str) -> Optional[int]: ...  # noqa: UP045
async def unsaid(message: str): ...
async def anything(message: str, ctx: Any) -> None: ...
def blocking(message: str) -> int: ...  # type: ignore[empty-body]
async def text_only(message: "str", ctx: "WorkflowContext[int, str]") -> "bytes": ...  # type: ignore[empty-body]


def spec(function: Callable[..., Any], **declared: Any) -> ExecutorSpec:
    return spec_of(executor(**declared)(function))


@pytest.mark.parametrize(
    ("function", "sent", "yielded"),
    [
        (bare, {Any}, {Any}),
        (sends, {int}, {Any}),
        (both, {int}, {str}),
        (several, {int, str}, {bytes}),
        (nothing, set(), set()),
        (never, set(), set()),
        (untyped, {Any}, {Any}),
        (returning, {int}, set()),
        (unsaid, {Any}, set()),
        (anything, {Any}, {Any}),
        (blocking, {int}, set()),
        (text_only, {int, bytes}, {str}),
    ],
    ids=lambda value: getattr(value, "__name__", "types"),
)
def test_what_is_sent_and_yielded(function: Callable[..., Any], sent: set[Any], yielded: set[Any]) -> None:
    found = spec(function)
    assert found.accepts == (str,)
    assert set(found.sends()) == sent
    assert set(found.yields()) == yielded


def test_declaration_wins_over_annotation() -> None:
    found = spec(both, input=int, output=bytes, workflow_output=float)
    assert (found.accepts, found.sends(), found.yields()) == ((int,), (bytes,), (float,))


def test_nothing_can_be_declared() -> None:
    found = spec(both, output=Never, workflow_output=Never)
    assert (found.sends(), found.yields()) == ((), ())


def test_ids() -> None:
    assert spec(both).id == "both"
    assert spec(both, id="given").id == "given"


def test_handlers_of_base_classes_come_first_and_can_be_overridden() -> None:
    class Base(Executor):
        @handler
        async def first(self, message: int, ctx: WorkflowContext) -> None: ...

        @handler
        async def second(self, message: str, ctx: WorkflowContext) -> None: ...

    class Derived(Base):
        @handler
        async def third(self, message: bytes, ctx: WorkflowContext) -> None: ...

        @handler
        async def first(self, message: float, ctx: WorkflowContext) -> None: ...

    found = spec_of(Derived)
    assert [handler.name for handler in found.handlers] == ["first", "second", "third"]
    assert found.accepts == (float, str, bytes)
    assert spec_of(Base).accepts == (int, str)


def test_recipes() -> None:
    class Sized(Executor):
        def __init__(self, size: int, id: str | None = None, *, name: str = "") -> None:
            super().__init__(id)
            self.size, self.name = size, name

        @handler
        async def work(self, message: int, ctx: WorkflowContext) -> None: ...

    recipe = Sized.bind(3, id="eu", name="x")
    assert repr(recipe) == "Sized.bind(3, id='eu', name='x')"
    assert recipe == Sized.bind(3, id="eu", name="x")
    assert recipe != Sized.bind(4, id="eu", name="x")
    one, two = recipe.create(), recipe.create()
    assert one is not two
    assert isinstance(one, Sized)
    assert (one.id, one.size, one.name) == ("eu", 3, "x")
    assert repr(one) == "<Sized 'eu'>"


def test_a_class_is_read_once_however_many_edges_name_it() -> None:
    reads: list[str] = []

    def read(form: type) -> type:
        reads.append(form.__name__)
        return form

    class Pass(Executor):
        @handler(output=int)
        async def work(self, number: "read(int)", ctx: WorkflowContext) -> None:
            await ctx.send_message(number)

    chain: list[Any] = [Pass(id="a"), Pass.bind(id="b"), Pass(id="c"), Pass]
    shared = chain[2]
    shared.shareable = True
    graph = WorkflowBuilder(name="Chain").set_start_executor(chain[0]).add_chain(chain).build().graph
    assert reads == ["int"]
    specs = list(graph.executors.values())
    assert [spec.id for spec in specs] == ["a", "b", "c", "Pass"]
    assert [spec.create().id for spec in specs] == ["a", "b", "c", "Pass"]
    assert [spec.shared_instance for spec in specs] == [chain[0], None, shared, None]
    assert [spec.shareable for spec in specs] == [False, False, True, False]
    assert [spec.watched for spec in specs] == [True, True, False, True]


T = TypeVar("T")
U = TypeVar("U")


class Box(Executor, Generic[T]):
    @handler
    async def take(self, message: T, ctx: "WorkflowContext[dict[str, T], T | None]") -> None: ...

    @response_handler
    async def answered(self, request: str, answer: list[T]) -> None: ...


class Numbers(Box[int]): ...


class MoreNumbers(Numbers): ...


class Lists(Box[list[T]], Generic[T]): ...


class ListsOfTexts(Lists[str]): ...


class Said(Executor, Generic[U, T]):
    @handler(input=T, output=dict[str, T], workflow_output=U)  # type: ignore[misc]
    async def take(self, message: Any, ctx: Any) -> None: ...

    @response_handler(request=str, input=list[T])
    async def answered(self, request: Any, answer: Any) -> None: ...


class HalfSaid(Said[int, T]): ...


class AllSaid(HalfSaid[int]): ...


class Overriding(Box[T]):
    async def take(self, message: int, ctx: WorkflowContext[dict[str, int], int]) -> None: ...  # type: ignore[override]

    async def answered(self, request: str, answer: list[int]) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("cls", "item"),
    [(Numbers, int), (MoreNumbers, int), (ListsOfTexts, list[str]), (AllSaid, int), (Overriding, int)],
)
def test_type_variables_of_a_generic_class_are_what_a_derived_class_says(cls: Any, item: Any) -> None:
    read = spec_of(cls)
    assert (read.accepts, read.sends(), read.yields()) == ((item,), (dict[str, item],), (item,))
    assert [found.signature.accepts for found in read.answerers] == [list[item]]


@pytest.mark.parametrize("cls", [Box, Lists, Said, HalfSaid])
def test_type_variables_of_a_generic_class_that_are_left_open(cls: Any) -> None:
    with pytest.raises(GraphError, match=r"names the type variable [TU], .* class Orders\(Box\[Order\]\)"):
        spec_of(cls)
