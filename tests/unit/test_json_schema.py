"""JSON Schemas of types: values in their JSON form fit them and become the values that they stand for."""

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
)

import msgspec
import pydantic
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from holdfast import (
    Executor,
    WorkflowBuilder,
    WorkflowContext,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from holdfast.graph.typing.conversion import Unconvertible, convert
from holdfast.graph.typing.schema import json_schema
from holdfast.graph.typing.types import type_name

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Corner(enum.Enum):
    """A corner of the unit square."""

    ORIGIN = (0, 0)
    FAR = (1, 1)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    """One line of an order."""

    article: str
    amount: int = 1
    price: decimal.Decimal = decimal.Decimal("0")
    color: Color = Color.RED
    made: str = field(default="", init=False)


@dataclass
class Order:
    lines: list[Line]
    note: str | None = None


@dataclass
class Tree:
    label: str
    children: "list[Tree]" = field(default_factory=list)


@dataclass
class Husband:
    wife: "Wife | None" = None


@dataclass
class Wife:
    husband: "Husband | None" = None


@dataclass
class Box(Generic[T]):
    content: T


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    day: datetime.date
    more: "list[Model]" = []


class Holder(pydantic.BaseModel):
    line: Line
    color: Color = Color.RED


class Struct(msgspec.Struct):
    count: int
    when: datetime.datetime | None = None
    data: bytes = b""


@checkpointable
class Money:
    def __init__(self, cents: int, currency: str = "EUR") -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


@checkpointable
class Variadic:
    def __init__(self, *parts: int) -> None:
        self.parts = parts


UTC = datetime.UTC
SOME_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

# A type, a value in its JSON form, the value itself, and values that the schema refuses.
CASES: list[tuple[Any, Any, Any, list[Any]]] = [
    (str, "a", "a", [1, None]),
    (int, 3, 3, ["3", 1.5, True]),
    (float, 1.5, 1.5, ["1.5"]),
    (float, 2, 2.0, [None]),
    (bool, True, True, [1, "true"]),
    (None, None, None, [0]),
    (bytes, "aGVsbG8=", b"hello", [3]),
    (bytearray, "aGVsbG8=", bytearray(b"hello"), [3]),
    (complex, "1+2j", 1 + 2j, [1]),
    (datetime.datetime, "2026-03-01T12:00:00+00:00", datetime.datetime(2026, 3, 1, 12, tzinfo=UTC), [1]),
    (datetime.date, "2026-03-01", datetime.date(2026, 3, 1), [1]),
    (datetime.time, "12:30:00", datetime.time(12, 30), [1]),
    (datetime.timedelta, "P1DT2H0.5S", None, [1]),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50"), [1.5, "much"]),
    (fractions.Fraction, "1/3", fractions.Fraction(1, 3), ["a half", "1/0"]),
    (uuid.UUID, str(SOME_ID), SOME_ID, [1]),
    (zoneinfo.ZoneInfo, "Europe/Berlin", zoneinfo.ZoneInfo("Europe/Berlin"), [1]),
    (pathlib.Path, "a/b", pathlib.Path("a/b"), [1]),
    (pathlib.PureWindowsPath, "a\\b", pathlib.PureWindowsPath("a\\b"), [1]),
    (Color, "g", Color.GREEN, ["blue", 1]),
    (Level, 2, Level.HIGH, [3, "2"]),
    (Corner, "FAR", Corner.FAR, ["NEAR"]),
    (Rights, 3, Rights.READ | Rights.WRITE, ["READ|WRITE"]),
    (Literal["a", 3, None], 3, 3, ["b", 4]),
    (Literal[Color.RED], "r", Color.RED, ["g"]),
    (list[int], [1, 2], [1, 2], [["1"], 1]),
    (list, [1, "a"], [1, "a"], [{}]),
    (Sequence[Color], ["r"], [Color.RED], [["x"]]),
    (tuple[int, str], [1, "a"], (1, "a"), [[1], [1, "a", 2], ["a", 1]]),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3), [["a"]]),
    (tuple[()], [], (), [[1]]),
    (set[int], [1, 2], {1, 2}, [[1, 1], ["a"]]),
    (frozenset[Color], ["r"], frozenset({Color.RED}), [["x"]]),
    (AbstractSet[int], [1], {1}, [[1, 1]]),
    (deque[int], [1, 2], deque([1, 2]), [["a"]]),
    (dict[str, int], {"a": 1}, {"a": 1}, [{"a": "b"}, []]),
    (dict[int, bool], {"-1": True}, {-1: True}, [{"x": True}]),
    (dict[float, int], {"1.5": 1}, {1.5: 1}, [{"x": 1}]),
    (dict[Color, int], {"r": 1}, {Color.RED: 1}, [{"x": 1}]),
    (dict[uuid.UUID, int], {str(SOME_ID): 1}, {SOME_ID: 1}, [{str(SOME_ID): "a"}]),
    (Mapping[str, Any], {"a": [1, None]}, {"a": [1, None]}, [[]]),
    (OrderedDict[str, int], {"a": 1}, OrderedDict(a=1), [{"a": "b"}]),
    (defaultdict[str, int], {"a": 1}, defaultdict(None, a=1), [{"a": "b"}]),
    (Counter[str], {"a": 2}, Counter(a=2), [{"a": "b"}]),
    (int | None, None, None, ["a"]),
    (int | str, "a", "a", [None, 1.5]),
    (Annotated[UserId, "of the shop"], 7, 7, ["7"]),
    (Line, {"article": "nail", "price": "0.10", "color": "g"}, Line("nail", 1, decimal.Decimal("0.10"), Color.GREEN),
     [{}, {"article": 1}, {"article": "nail", "size": 3}, {"article": "nail", "made": "here"}]),
    (Order, {"lines": [{"article": "nail"}], "note": None}, Order([Line("nail")]), [{"lines": [{}]}, {"lines": None}]),
    (Tree, {"label": "a", "children": [{"label": "b"}]}, Tree("a", [Tree("b")]),
     [{"label": "a", "children": [{"label": 1}]}]),
    (Husband, {"wife": {"husband": {}}}, Husband(Wife(Husband())), [{"wife": {"husband": {"wife": 1}}}]),
    (Box[int], {"content": 1}, Box(1), [{"content": "a"}]),
    (Box[list[Color]], {"content": ["g"]}, Box([Color.GREEN]), [{"content": ["x"]}]),
    (Point, {"x": 1}, Point(1), [{"y": 1}, {"x": 1, "z": 2}]),
    (Movie, {"title": "M", "year": 1931}, {"title": "M", "year": 1931}, [{}, {"title": "M", "year": "1931"}]),
    (Model, {"name": "ab", "day": "2026-03-01", "more": [{"name": "cd", "day": "2026-03-02"}]}, None,
     [{"name": "a", "day": "2026-03-01"}, {"name": "ab"}, {"name": "ab", "day": "2026-03-01", "more": [1]}]),
    (Holder, {"line": {"article": "nail"}}, Holder(line=Line("nail")), [{"line": 1}]),
    (Struct, {"count": 1, "when": "2026-03-01T12:00:00Z", "data": "aGVsbG8="},
     Struct(1, datetime.datetime(2026, 3, 1, 12, tzinfo=UTC), b"hello"), [{}, {"count": "1"}]),
    (Money, {"cents": 250}, Money(250), [{"cents": "250"}, {}, {"cents": 1, "rate": 2}]),
    (list[Model | Struct | Line | None], [None, {"article": "nail"}, {"count": 1}], [None, Line("nail"), Struct(1)],
     [[{}], [1]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "given", "value", "refused"),
    CASES,
    ids=[f"{type_name(form)}-{place}" for place, (form, *_) in enumerate(CASES)],
)
def test_a_value_in_its_json_form_fits_the_schema_and_becomes_the_value(
    form: Any, given: Any, value: Any, refused: list[Any]
) -> None:
    schema = json_schema(form)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(given)
    made = convert(given, form)
    if value is not None:
        assert made == value
        assert type(made) is type(value)
    for wrong in refused:
        with pytest.raises(ValidationError):
            validator.validate(wrong)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("P1DT2H30M", datetime.timedelta(days=1, hours=2, minutes=30)),
        ("PT0.5S", datetime.timedelta(milliseconds=500)),
        ("-P1W", datetime.timedelta(days=-7)),
        ("P0D", datetime.timedelta()),
    ],
)
def test_a_time_span_is_an_iso_8601_duration(text: str, span: datetime.timedelta) -> None:
    assert convert(text, datetime.timedelta) == span


@pytest.mark.parametrize("text", ["P", "PT", "P1Y", "1D", "P1DT", "PT1.2.3S", "P1D "])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Unconvertible, match="ISO 8601 duration"):
        convert(text, datetime.timedelta)


@pytest.mark.parametrize("text", ["aGVsbG8", "not base64!", "a"])
def test_a_text_that_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(Unconvertible, match="is no bytes"):
        convert(text, bytes)


@pytest.mark.parametrize(
    "form",
    [
        range, type, type[int], dict[tuple[int, int], str], Variadic, ValueError, Executor, object, Any,
        Literal[b"a"], datetime.timezone,
    ],    ids=repr,
)  # fmt: skip
def test_a_type_without_a_json_form_has_a_schema_that_says_its_title(form: Any) -> None:
    schema = json_schema(form)
    assert set(schema) == {"$schema", "title"}
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate({"anything": 1})


def test_a_class_has_its_docstring_and_defaults_in_the_schema() -> None:
    assert json_schema(Line) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Line",
        "type": "object",
        "description": "One line of an order.",
        "properties": {
            "article": {"type": "string"},
            "amount": {"type": "integer", "default": 1},
            "price": {
                "type": "string",
                "title": "Decimal",
                "pattern": r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$",
            },
            "color": {"$ref": "#/$defs/Color", "default": "r"},
        },
        "required": ["article"],
        "additionalProperties": False,
        "$defs": {"Color": {"title": "Color", "type": "string", "enum": ["r", "g"]}},
    }


def test_a_recursive_class_refers_to_its_definition() -> None:
    schema = json_schema(Tree)
    assert schema["$ref"] == "#/$defs/Tree"
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_two_classes_of_one_name_have_definitions_of_their_own() -> None:
    @dataclass
    class Inner:
        width: int

    first = Inner

    @dataclass
    class Inner:  # type: ignore[no-redef]
        height: str

    schema = json_schema(tuple[first, Inner])
    assert len(schema["$defs"]) == 2
    Draft202012Validator(schema).validate([{"width": 1}, {"height": "a"}])
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate([{"height": "a"}, {"width": 1}])


def test_models_and_structs_of_one_name_have_definitions_of_their_own() -> None:
    other = pydantic.create_model("Line", width=(int, ...))
    holder = pydantic.create_model("Order", line=(other, ...))
    schema = json_schema(tuple[Line, holder, holder])
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(
        [{"article": "nail"}, {"line": {"width": 1}}, {"line": {"width": 2}}]
    )
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate(
            [{"article": "a"}, {"line": {"article": "a"}}, {"line": {"width": 2}}]
        )


class TypeAliasType:
    """As ``type Nested = int | list[Nested]``, a statement that is new in Python 3.12."""

    __name__ = "Nested"
    __type_params__ = ()

    @property
    def __value__(self) -> Any:
        return Union[int, list[self]]  # noqa: UP007


def test_a_recursive_alias_is_a_definition() -> None:
    nested: Any = TypeAliasType()
    schema = json_schema(nested)
    assert schema["$defs"] == {
        "Nested": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Nested"}}]}
    }
    Draft202012Validator(schema).validate([1, [2, [[]]]])
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate([1, [2, ["a"]]])


def test_hints_that_cannot_be_resolved_take_anything() -> None:
    @dataclass
    class Half:
        known: int
        unknown: "NotHere"  # type: ignore[name-defined]  # noqa: F821

    properties = json_schema(Half)["properties"]
    assert properties == {"known": {"type": "integer"}, "unknown": {}}


def test_a_class_of_a_library_is_made_by_its_decode() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    def decode(text: str) -> Any:
        return Celsius(float(text)) if text != "hot" else 100

    checkpointable(Celsius, encode=lambda celsius: str(celsius.degrees), decode=decode)
    assert set(json_schema(Celsius)) == {"$schema", "title"}
    assert convert("21.5", Celsius).degrees == 21.5
    assert convert(["21.5"], list[Celsius])[0].degrees == 21.5
    with pytest.raises(Unconvertible, match="'warm' is no Celsius"):
        convert("warm", Celsius)
    with pytest.raises(Unconvertible, match="decode of Celsius gave a int for 'hot'"):
        convert("hot", Celsius)


# -- of workflows and requests ---------------------------------------------------------------------


@executor
def price(order: Order) -> decimal.Decimal:
    return sum((line.price for line in order.lines), decimal.Decimal())


class Ask(Executor):
    @handler
    async def ask(self, order: Order | int, ctx: WorkflowContext[None, Point]) -> None:
        await ctx.request_info("Ship it?", response_type=Line | None)

    @response_handler
    async def answered(self, request: str, answer: Line | None, ctx: WorkflowContext[None, Color]) -> None:
        await ctx.yield_output(Color.RED)


def test_a_workflow_describes_its_input_and_its_outputs() -> None:
    workflow = WorkflowBuilder(name="Price").set_start_executor(price).build()
    assert workflow.input_schema == json_schema(Order)
    assert workflow.output_schema == json_schema(decimal.Decimal)
    asking = WorkflowBuilder(name="Ask").set_start_executor(Ask).build()
    assert [part["$ref"] for part in asking.input_schema["anyOf"] if "$ref" in part] == ["#/$defs/Order"]
    assert {part["$ref"] for part in asking.output_schema["anyOf"]} == {"#/$defs/Point", "#/$defs/Color"}


def test_a_workflow_without_outputs_has_a_schema_that_nothing_fits() -> None:
    @executor
    def swallow(text: str) -> None:
        return None

    workflow = WorkflowBuilder(name="Swallow").set_start_executor(swallow).build()
    with pytest.raises(ValidationError):
        Draft202012Validator(workflow.output_schema).validate(None)


async def test_a_request_describes_its_answer() -> None:
    workflow = WorkflowBuilder(name="Ask").set_start_executor(Ask).build()
    result = await workflow.run(1)
    (request,) = result.pending_requests
    answer = {"article": "nail", "color": "g"}
    Draft202012Validator(request.response_schema).validate(answer)
    result = await result.respond({request.request_id: answer})
    assert result.outputs == [Color.RED]
