"""Differences between graphs: what is said about executors, renames and nested workflows."""

from typing import Any

import pytest

from holdfast import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from tests.support.differences import (
    A,
    B,
    Build,
    C,
    D,
    always,
    between,
    built,
    direct,
    guess,
    nesting,
    pipeline,
    placed,
    told,
)
from tests.support.parts import describe_difference, description_text

# -- executors -------------------------------------------------------------------------------------


def test_nothing_is_said_about_the_same_graph() -> None:
    assert between(direct(always, "P0"), direct(lambda message: False, "P0")) == []


def test_added_executor() -> None:
    assert between(direct(), lambda b: b.add_edge(A, B).add_edge(B, C)) == [
        "executor 'C' was added",
        "edge 'B' -> 'C' was added",
    ]


def test_removed_executor() -> None:
    assert between(lambda b: b.add_edge(A, B).add_edge(B, C, always, "P0"), direct()) == [
        "executor 'C' was removed",
        "edge 'B' -> 'C' ('P0', condition) was removed",
    ]


class Asks(Executor):
    @handler
    async def work(self, message: str, ctx: WorkflowContext[int, int]) -> None: ...

    @response_handler
    async def answered(self, request: str, response: bool, ctx: WorkflowContext[int, int]) -> None: ...


class AsksOtherwise(Executor):
    @handler
    async def work(self, message: str | int, ctx: WorkflowContext[None, bytes]) -> None: ...

    @response_handler
    async def answered(self, request: str, response: float, ctx: WorkflowContext[None, bytes]) -> None: ...


def test_changed_types() -> None:
    before = built(lambda b: None, start=Asks.bind(id="X"))
    after = built(lambda b: None, start=AsksOtherwise.bind(id="X"))
    assert told(before, after) == [
        "executor 'X' now takes int | str (was str)",
        "executor 'X' now sends nothing (was int)",
        "executor 'X' now yields bytes (was int)",
        "executor 'X' no longer handles bool in response to str",
        "executor 'X' now handles float in response to str",
    ]


def test_types_of_several_handlers() -> None:
    class Two(Executor):
        @handler
        async def text(self, message: str, ctx: WorkflowContext) -> None: ...

        @handler
        async def number(self, message: int, ctx: WorkflowContext) -> None: ...

    before = built(lambda b: None, start=placed("X", str, None))
    assert told(before, built(lambda b: None, start=Two.bind(id="X"))) == [
        "executor 'X' now takes int or str (was str)"
    ]


def test_another_start() -> None:
    def loop(builder: WorkflowBuilder) -> None:
        builder.add_edge(A, B).add_edge(B, A)

    assert told(built(loop), built(loop, start=B)) == [
        "executor 'A' comes after executor 'B' now",
        "the start executor is now 'B' (was 'A')",
    ]


def test_only_what_moved_is_told() -> None:
    assert between(
        lambda b: b.add_edge(A, B).add_edge(B, C).add_edge(A, D).add_edge(D, A),
        lambda b: b.add_edge(D, A).add_edge(A, B).add_edge(B, C).add_edge(A, D),
    ) == [
        "executor 'D' comes after executor 'A' now",
        "edge 'D' -> 'A' comes first now",
    ]


def test_another_order() -> None:
    assert between(
        lambda b: b.add_edge(A, B).add_edge(A, C).add_edge(A, D),
        lambda b: b.add_edge(A, C).add_edge(A, D).add_edge(A, B),
    ) == [
        "executor 'B' comes after executor 'D' now",
        "edge 'A' -> 'B' comes after edge 'A' -> 'D' now",
    ]


# -- renames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(4))
def test_one_rename_is_guessed(place: int) -> None:
    names = ["one", "two", "three", "four"]
    renamed = [*names[:place], "it's new", *names[place + 1 :]]
    assert told(pipeline(*names), pipeline(*renamed)) == [guess(names[place], "it's new")]


def test_neighbours_that_were_renamed_together_are_guessed() -> None:
    lines = told(pipeline("one", "two", "three", "four"), pipeline("1", "2", "3", "four"))
    assert lines == [guess("one", "1"), guess("two", "2"), guess("three", "3")]


def test_what_could_be_two_is_not_guessed() -> None:
    def leading_to(*names: str) -> Workflow:
        return built(lambda b: [b.add_edge(A, placed(name)) for name in names])

    assert told(leading_to("B", "C"), leading_to("X", "Y")) == [
        "executor 'B' was removed",
        "executor 'C' was removed",
        "executor 'X' was added",
        "executor 'Y' was added",
        "edge 'A' -> 'B' was removed",
        "edge 'A' -> 'C' was removed",
        "edge 'A' -> 'X' was added",
        "edge 'A' -> 'Y' was added",
    ]


@pytest.mark.parametrize(
    "after",
    [
        lambda b: b.add_edge(A, placed("X", str)),
        lambda b: b.add_edge(A, placed("X"), always),
        lambda b: b.add_edge(A, placed("X"), label="P0"),
        lambda b: b.add_edge(A, placed("X")).add_edge(placed("X"), A),
        lambda b: b.add_fan_out_edges(A, [placed("X")]),
    ],
    ids=["other type", "condition", "label", "one more edge", "other kind of edge"],
)
def test_other_types_or_edges_are_no_rename(after: Build) -> None:
    lines = between(direct(), after)
    assert lines[:2] == ["executor 'B' was removed", "executor 'X' was added"]
    assert not any("with_alias" in line for line in lines)


def test_a_neighbour_that_is_another_one_makes_no_rename() -> None:
    text, number = placed("B", str, str), placed("Y", int, int)
    lines = told(
        built(lambda b: b.add_edge(placed("A"), text), start=placed("A")),
        built(lambda b: b.add_edge(placed("X"), number), start=placed("X")),
    )
    assert not any("with_alias" in line for line in lines)
    assert "edge 'A' -> 'B' was removed" in lines


def test_an_alias_is_told_and_the_rest_is_compared_under_the_new_name() -> None:
    before = pipeline("one", "two", "three")
    assert told(before, pipeline("one", "2", "three", aliases={"two": "2", "never": "one"})) == [
        "executor 'two' is called '2' now (its alias)"
    ]
    assert told(before, pipeline("1", "two", "3", "4", aliases={"one": "1", "three": "3"})) == [
        "executor 'one' is called '1' now (its alias)",
        "executor 'three' is called '3' now (its alias)",
        "executor '4' was added",
        "edge 'two' -> '1' ('again', condition) was removed",
        "edge '3' -> '4' was added",
        "edge '3' -> '1' ('again', condition) was added",
    ]


def test_aliases_do_not_make_one_of_two() -> None:
    before = pipeline("one", "two", "three")
    lines = told(before, pipeline("one", "three", aliases={"two": "three"}))
    assert "executor 'two' was removed" in lines
    lines = told(before, pipeline("one", "new", aliases={"two": "new", "three": "new"}))
    assert lines[:2] == ["executor 'two' is called 'new' now (its alias)", "executor 'three' was removed"]


# -- nested workflows ------------------------------------------------------------------------------


def test_changes_in_nested_workflows_tell_where() -> None:
    before, after = pipeline("one", "two"), pipeline("one", "two", "three")
    changes = [
        "executor 'three' was added",
        "edge 'one' -> 'one' ('again', condition) was removed",
        "edge 'two' -> 'three' was added",
        "edge 'two' -> 'one' ('again', condition) was added",
    ]
    assert told(before, after) == changes
    assert told(nesting(before), nesting(after)) == [f"in nested workflow 'review': {c}" for c in changes]
    assert told(nesting(nesting(before)), nesting(nesting(after))) == [
        f"in nested workflow 'review/review': {c}" for c in changes
    ]


def test_what_is_nested_in_several_places_is_told_once() -> None:
    before, after = nesting(pipeline("one", "two")), nesting(pipeline("one", "2"))
    twice = told(nesting(before, before), nesting(after, after))
    assert twice == [
        f"in nested workflow 'review/review': {guess('two', '2')}",
        "in nested workflow 'review1': the same changes as in 'review'",
    ]


def test_aliases_of_nested_workflows() -> None:
    before, after = pipeline("one", "two"), pipeline("one", "2", aliases={"two": "2"})
    assert told(nesting(before), nesting(after)) == [
        "in nested workflow 'review': executor 'two' is called '2' now (its alias)"
    ]


def test_a_host_that_was_renamed_is_looked_into() -> None:
    def host(name: str, inner: Workflow) -> Workflow:
        return built(lambda b: b.add_edge(A, WorkflowExecutor(inner, id=name)), name="Outer")

    assert told(host("review", pipeline("one", "two")), host("legal", pipeline("one", "2"))) == [
        guess("review", "legal"),
        f"in nested workflow 'legal': {guess('two', '2')}",
    ]


def test_an_executor_that_becomes_a_nested_workflow() -> None:
    inner = built(lambda b: None, start=placed("inner", object, None, Any), name="Inner")
    plain, nested = direct(), lambda b: b.add_edge(A, WorkflowExecutor(inner, id="B"))
    assert between(plain, nested)[-1] == "executor 'B' is a nested workflow now"
    assert between(nested, plain)[-1] == "executor 'B' is no longer a nested workflow"


def test_a_nested_workflow_that_is_not_described() -> None:
    before, after = (nesting(pipeline("one", name)).graph.description for name in ("two", "2"))
    del before["workflows"]
    assert describe_difference(before, after) == [
        "in nested workflow 'review': it changed, but its description does not say how"
    ]


def test_many_levels_with_the_same_workflow_twice_stay_readable() -> None:
    """Written out they would be two to the power of ten."""
    before, after = pipeline("one", "two"), pipeline("one", "2")
    for _ in range(10):
        before, after = nesting(before, before), nesting(after, after)
    assert len(description_text(before.graph)) < 20_000
    assert len(told(before, after)) == 11
