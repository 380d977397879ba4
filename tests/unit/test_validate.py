"""Which graphs are sound: what must not be refused. What must be is in the scenarios of bad input."""

from abc import ABC, abstractmethod
from types import GenericAlias
from typing import Any, Literal, Protocol

import pytest

from holdfast import Case, Executor, GraphError, WorkflowBuilder, WorkflowContext, handler
from tests.support.parts import type_name


class Animal: ...


class Dog(Animal): ...


class Stone: ...


class Closer(Protocol):
    def close(self) -> None: ...


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


def placed(name: str, accepts: Any = object, sends: Any = Any) -> Any:
    async def work(self: Any, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    cls: Any = type("Placed", (Executor,), {"work": handler(input=accepts, output=sends)(work)})
    return cls.bind(id=name)


def built(sends: Any, accepts: Any, kind: str = "edge") -> None:
    source, target = placed("a", sends=sends), placed("b", accepts=accepts)
    builder = WorkflowBuilder().set_start_executor(source)
    if kind == "edge":
        builder.add_edge(source, target)
    elif kind == "fan-in":
        builder.add_fan_in_edges([source], target)
    elif kind == "fan-out":
        builder.add_fan_out_edges(source, [target])
    elif kind == "switch":
        builder.add_switch_case_edge_group(source, [Case(bool, target)])
    else:
        builder.add_multi_selection_edge_group(source, [target], lambda message, ids: ids)
    builder.build()


SOUND = [
    (str, str),
    (Dog, Animal),
    (Animal, Dog),
    (int | str, str),
    (str, int | str),
    (Any, int),
    (int, object),
    (bool, int),
    (list[int], list),
    (list, list[int]),
    (list[Any], list[int]),
    (Stone, Closer),
    (Stone, Shape),
    (Literal["a"], str),
    (str, Literal["a"]),
]
UNSOUND = [
    (str, int),
    (Dog, Stone),
    (int | str, bytes),
    (list[int], list[str]),
    (list[int], int),
    (Literal["a"], int),
    (dict[str, int], list[int]),
]


@pytest.mark.parametrize(("sends", "accepts"), SOUND, ids=type_name)
@pytest.mark.parametrize("kind", ["edge", "fan-out", "switch", "multi-selection"])
def test_types_that_may_match(sends: Any, accepts: Any, kind: str) -> None:
    built(sends, accepts, kind)


@pytest.mark.parametrize(("sends", "accepts"), UNSOUND, ids=type_name)
@pytest.mark.parametrize("kind", ["edge", "fan-out", "switch", "multi-selection"])
def test_types_that_cannot_match(sends: Any, accepts: Any, kind: str) -> None:
    with pytest.raises(GraphError, match=r"'a' sends .*, but 'b' takes .*; give 'b' a handler for it"):
        built(sends, accepts, kind)


@pytest.mark.parametrize(
    ("sends", "accepts"),
    [(str, list), (str, list[str]), (str, list[int | str]), (Any, int), (list[int], list[list])],
    ids=type_name,
)
def test_fan_in_delivers_lists(sends: Any, accepts: Any) -> None:
    built(sends, accepts, "fan-in")


@pytest.mark.parametrize(
    ("sends", "accepts"), [(str, str), (str, list[int]), (list[int], list[int])], ids=type_name
)
def test_fan_in_does_not_deliver_items(sends: Any, accepts: Any) -> None:
    with pytest.raises(GraphError, match=r"\(a fan-in delivers a list\)"):
        built(sends, accepts, "fan-in")


def test_every_target_must_match() -> None:
    source = placed("a", sends=str)
    builder = WorkflowBuilder().set_start_executor(source)
    builder.add_fan_out_edges(source, [placed("b", accepts=str), placed("c", accepts=int)])
    with pytest.raises(GraphError, match=r"'a' sends str, but 'c' takes int"):
        builder.build()


def test_loops_and_executors_behind_fan_ins_are_reachable() -> None:
    a, b, c, d = (placed(name) for name in "abcd")
    builder = WorkflowBuilder().set_start_executor(a)
    builder.add_edge(a, b).add_edge(b, a).add_fan_in_edges([a, b], c).add_edge(c, c).add_edge(c, d).build()


def test_two_edges_between_a_pair_of_different_kinds() -> None:
    a, b = placed("a"), placed("b")
    builder = WorkflowBuilder().set_start_executor(a)
    builder.add_edge(a, b).add_fan_out_edges(a, [b]).add_edge(a, b, condition=bool).build()


@pytest.mark.parametrize("accepts", [0, 1])
@pytest.mark.parametrize("listed", [False, True])
def test_classes_of_one_name_are_two(accepts: int, listed: bool) -> None:
    """Modules may each have a class of that name; an executor can send both."""
    carts = [type("Cart", (), {"__module__": module}) for module in ("shop", "billing")]
    both: list[Any] = [GenericAlias(list, cart) for cart in carts] if listed else carts

    class Source(Executor):
        @handler(input=int, output=both[0])
        async def first(self, message: Any, ctx: Any) -> None: ...

        @handler(input=str, output=both[1])
        async def second(self, message: Any, ctx: Any) -> None: ...

    source, target = Source.bind(id="a"), placed("b", accepts=both[accepts])
    workflow = WorkflowBuilder().set_start_executor(source).add_edge(source, target).build()
    described = {spec["id"]: spec for spec in workflow.graph.description["executors"]}
    assert described["a"]["sends"] == [type_name(both[0])], "as before, for graphs that are stored already"


def test_same_executor_named_in_several_ways_is_one() -> None:
    one = placed("a")
    graph = WorkflowBuilder().set_start_executor(one).add_edge("a", one).build().graph
    assert list(graph.executors) == ["a"]


def test_graph_order_is_the_order_of_naming() -> None:
    a, b, c = (placed(name) for name in "abc")
    builder = WorkflowBuilder().register_executor(lambda: c.create(), name="z").set_start_executor(b)
    graph = builder.add_edge(b, "z").add_edge(b, a).build().graph
    assert list(graph.executors) == ["b", "z", "a"]
