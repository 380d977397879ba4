"""The fingerprint: the same for what a refactoring changes, another for what a stored run depends on."""

import enum
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Optional

import pytest

from holdfast import (
    Case,
    Default,
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from tests.support.parts import description_text


@dataclass
class Report:
    text: str


def long(message: str) -> bool:
    return len(message) > 5


def sample(
    *,
    condition: Any = long,
    label: str | None = "long",
    accepts: Any = str,
    sends: Any = Report,
    yields: Any = int,
    class_name: str = "Triage",
    triage_id: str = "triage",
    kind: str = "edge",
    name: str = "Sample",
    ticket: str = "ticket",
    edges: int = 1,
) -> Workflow:
    async def triage(self: Any, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    async def report(self: Any, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    mark = handler(input=accepts, output=sends, workflow_output=yields)
    triage_class: Any = type(class_name, (Executor,), {"triage": mark(triage)})
    page: Any = type("Page", (Executor,), {"report": handler(input=object)(report)})
    start = triage_class.bind(id=triage_id)
    other = page.bind(id=ticket)
    builder = WorkflowBuilder(name=name).set_start_executor(start)
    if kind == "edge":
        for _ in range(edges):
            builder.add_edge(start, other, condition=condition, label=label)
            condition, label = (lambda message: False), "never"
    elif kind == "fan-out":
        builder.add_fan_out_edges(start, [other])
    elif kind == "fan-in":
        builder.add_fan_in_edges([start], other)
    elif kind == "switch":
        builder.add_switch_case_edge_group(start, [Case(long, other, label)])
    elif kind == "switch with default":
        builder.add_switch_case_edge_group(start, [Case(long, other, label), Default(other)])
    else:
        builder.add_multi_selection_edge_group(start, [other], lambda message, ids: ids)
    return builder.build()


def test_fingerprint_is_stable() -> None:
    """If this fails, stored runs of every workflow would no longer be recognised: that needs a decision."""
    assert sample().fingerprint == STABLE
    assert len(STABLE) == 64


STABLE = "a405a6df2695daca43b7435d3bea13d0a8ab079282f072a7def0b14914c03dcc"


def every_kind() -> Workflow:
    """Every kind of edge, a response handler, and workflows nested two deep, one of them twice."""

    class Asks(Executor):
        @handler
        async def work(self, message: str, ctx: WorkflowContext[str, str]) -> None: ...

        @response_handler
        async def answered(self, request: str, response: bool, ctx: WorkflowContext[str, str]) -> None: ...

    @executor(id="join")
    async def join(texts: list[str]) -> str:
        return ", ".join(texts)

    inner = WorkflowBuilder(name="Inner").set_start_executor(Asks).build()
    middle = (
        WorkflowBuilder(name="Middle").set_start_executor(WorkflowExecutor(inner, id="innermost")).build()
    )
    a, b, c = Asks.bind(id="a"), WorkflowExecutor(middle, id="b"), WorkflowExecutor(inner, id="c")
    builder = (
        WorkflowBuilder(name="All").set_start_executor(a).add_edge(a, b, condition=long, label="\udfff ü")
    )
    builder.add_fan_out_edges(a, [b, c]).add_fan_in_edges([b, c], join)
    builder.add_switch_case_edge_group(b, [Case(long, a, "P0"), Default(c)])
    return builder.add_multi_selection_edge_group(c, [a, b], lambda message, ids: ids).build()


def test_fingerprint_of_nested_workflows_is_stable() -> None:
    assert every_kind().fingerprint == STABLE_NESTED


STABLE_NESTED = "95482ec076e413d164715b1e37bdb32635bbd3cdfefb44058220c32c333fc740"


# -- the description -------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [sample, every_kind])
def test_the_fingerprint_is_a_digest_of_the_description(build: Callable[[], Workflow]) -> None:
    workflow = build()
    own = {key: value for key, value in workflow.graph.description.items() if key != "workflows"}
    text = json.dumps(own, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == workflow.fingerprint


def test_description() -> None:
    inner = {
        "id": "Asks",
        "accepts": ["str"],
        "sends": ["str"],
        "yields": ["str"],
        "answers": [["str", "bool"]],
    }
    description = every_kind().graph.description
    a, b, c, join = description["executors"]
    assert a == {**inner, "id": "a"}
    assert join == {"id": "join", "accepts": ["list[str]"], "sends": ["str"], "yields": []}
    assert [b["id"], c["id"]] == ["b", "c"]
    assert description["start"] == "a"
    assert description["edges"] == [
        ["direct", "a", "b", True, "\udfff ü"],
        ["fan-out", "a", ["b", "c"]],
        ["fan-in", ["b", "c"], "join"],
        ["switch", "b", [["a", True, "P0"], ["c", False, None]]],
        ["multi-selection", "c", ["a", "b"]],
    ]
    middle = description["workflows"][b["nested"]]
    assert middle["start"] == "innermost"
    assert middle["executors"][0]["nested"] == c["nested"]
    assert description["workflows"][c["nested"]] == {"start": "Asks", "executors": [inner], "edges": []}
    assert len(description["workflows"]) == 2


def test_a_description_without_nested_workflows_says_nothing_of_them() -> None:
    assert sorted(sample().graph.description) == ["edges", "executors", "start"]


@pytest.mark.parametrize("build", [sample, every_kind])
def test_the_text_of_a_description_says_all_of_it(build: Callable[[], Workflow]) -> None:
    text = description_text(build().graph)
    assert text.isascii()
    assert json.loads(text) == build().graph.description
    assert text == description_text(build().graph)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_a_description_belongs_to_its_reader() -> None:
    graph = every_kind().graph
    graph.description["executors"].clear()
    graph.description["workflows"].clear()
    assert len(graph.description["executors"]) == 4
    assert len(graph.description["workflows"]) == 2


# -- classes that were renamed ---------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


def nesting(cls: Any) -> Workflow:
    """A class in every place where a type can be named, in a nested workflow and outside."""

    class Asks(Executor):
        @handler(input=cls | None, output=dict[str, list[cls]], workflow_output=Literal["a"] | cls)
        async def work(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

        @response_handler(request=str, input=list[cls])
        async def answered(self, request: Any, response: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    inner = WorkflowBuilder(name="Inner").set_start_executor(Asks).build()
    return WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="inner")).build()


@pytest.mark.usefixtures("own_marks")
def test_a_class_is_called_as_stored_data_calls_it() -> None:
    @dataclass
    class Cart:
        items: int

    before = nesting(Cart)
    assert nesting(checkpointable(Cart)).fingerprint == before.fingerprint

    @checkpointable(name="Cart")
    @dataclass
    class Basket:
        items: int

    @dataclass
    class Bag:
        items: int

    assert nesting(Basket).fingerprint == before.fingerprint
    assert nesting(Basket).graph.description == before.graph.description
    assert nesting(Bag).fingerprint != before.fingerprint


@pytest.mark.usefixtures("own_marks")
def test_a_literal_of_an_enum_is_called_as_stored_data_calls_it() -> None:
    before = sample(accepts=Literal[Colour.RED]).fingerprint

    @checkpointable(name="Colour")
    class Shade(enum.Enum):
        RED = 1

    assert sample(accepts=Literal[Shade.RED]).fingerprint == before


# -- what changes the fingerprint ------------------------------------------------------------------


def other_condition() -> Callable[[str], bool]:
    return lambda anything: True


def moved() -> type:
    """A class of the same name in another module and function."""

    @dataclass
    class Report:
        text: str
        more: int = 0

    Report.__module__ = "elsewhere"
    return Report


@pytest.mark.parametrize(
    "change",
    [
        {"condition": lambda message: True},
        {"condition": other_condition()},
        {"class_name": "Renamed"},
        {"sends": moved()},
        {"name": "Other"},
        {"sends": Report | None},
    ],
    ids=["lambda", "other lambda", "class renamed", "type moved", "workflow renamed", "or nothing"],
)
def test_what_does_not_change_it(change: dict[str, Any]) -> None:
    assert sample(**change).fingerprint == sample().fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"condition": None},
        {"label": None},
        {"label": "short"},
        {"accepts": bytes},
        {"accepts": str | bytes},
        {"sends": int},
        {"sends": Report | int},
        {"yields": str},
        {"yields": None},
        {"triage_id": "other"},
        {"ticket": "other"},
        {"edges": 2},
        {"kind": "fan-out"},
        {"kind": "fan-in"},
        {"kind": "switch"},
        {"kind": "switch with default"},
        {"kind": "multi-selection"},
    ],
    ids=str,
)
def test_what_changes_it(change: dict[str, Any]) -> None:
    assert sample(**change).fingerprint != sample().fingerprint


def test_each_of_these_is_another_graph() -> None:
    kinds = ["edge", "fan-out", "fan-in", "switch", "switch with default", "multi-selection"]
    assert len({sample(kind=kind).fingerprint for kind in kinds}) == len(kinds)


def test_spelling_of_a_type_does_not_matter() -> None:
    assert sample(accepts=Optional[str]).fingerprint == sample(accepts=None | str).fingerprint  # noqa: UP045
    assert sample(accepts=str | bytes).fingerprint == sample(accepts=bytes | str).fingerprint


def test_order_of_handlers_does_not_matter() -> None:
    class One(Executor):
        @handler
        async def text(self, message: str, ctx: WorkflowContext) -> None: ...

        @handler
        async def number(self, message: int, ctx: WorkflowContext) -> None: ...

    class Two(Executor):
        @handler
        async def renamed(self, message: int, ctx: WorkflowContext) -> None: ...

        @handler
        async def text(self, message: str, ctx: WorkflowContext) -> None: ...

    def built(cls: Any) -> str:
        return WorkflowBuilder().set_start_executor(cls.bind(id="same")).build().fingerprint

    assert built(One) == built(Two)


def test_kind_of_executor_does_not_matter() -> None:
    class Shout(Executor):
        @handler
        async def shout(self, text: str, ctx: WorkflowContext) -> None: ...

    @executor(id="Shout")
    async def shout(text: str, ctx: WorkflowContext) -> None: ...

    builders = [
        WorkflowBuilder().set_start_executor(placed)
        for placed in (Shout, Shout.bind(), Shout(), shout, "Shout")
    ]
    builders[-1].register_executor(Shout, name="Shout")
    assert len({builder.build().fingerprint for builder in builders}) == 1
