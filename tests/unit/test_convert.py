"""Bringing plain data to a declared type, as for an answer that comes from a web page."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import pytest

from holdfast.graph.typing.conversion import Unconvertible, convert

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    ends: tuple[Point, Point]
    color: Color | None = None
    computed: int = dataclasses.field(init=False, default=7)


@dataclass
class Node:
    name: str
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("must be above 0")


@dataclass
class Asserting:
    number: int

    def __post_init__(self) -> None:
        assert self.number > 0, "must be above 0"


class Pair(NamedTuple):
    left: int
    right: datetime.date = datetime.date(2026, 1, 1)


class Trip(TypedDict):
    day: datetime.date
    note: NotRequired[str]


class Model:
    """Validates like a pydantic model."""

    def __init__(self, value: int) -> None:
        self.value = value

    @classmethod
    def model_validate(cls, data: Any) -> "Model":
        if not isinstance(data, dict) or "value" not in data:
            raise ValueError("value: Field required")
        return cls(data["value"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.value == self.value


DAY = datetime.date(2026, 3, 1)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
ID = uuid.UUID("12345678123456781234567812345678")


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        pytest.param("yes", str, "yes", id="as it is"),
        pytest.param(5, Any, 5, id="Any"),
        pytest.param({"a": 1}, object, {"a": 1}, id="object"),
        pytest.param(None, str | None, None, id="None of an optional"),
        pytest.param(3, float, 3.0, id="int as float"),
        pytest.param(3, UserId, 3, id="NewType"),
        pytest.param({"x": 1}, Annotated[Point, "a note"], Point(1), id="Annotated"),
        pytest.param("a", Literal["a", "b"], "a", id="Literal"),
        pytest.param({"x": 1}, Point, Point(1, 0), id="dataclass with default"),
        pytest.param({"x": 1, "y": 2}, Point, Point(1, 2), id="dataclass"),
        pytest.param(Point(1, 2), Point, Point(1, 2), id="dataclass as it is"),
        pytest.param(
            {"ends": [{"x": 1}, {"x": 2}], "color": "r"},
            Line,
            Line((Point(1), Point(2)), Color.RED),
            id="nested",
        ),
        pytest.param(
            {"name": "a", "children": [{"name": "b"}]}, Node, Node("a", [Node("b")]), id="recursive dataclass"
        ),
        pytest.param({"content": 5}, Box[int], Box(5), id="generic dataclass"),
        pytest.param({"number": 5}, Positive, Positive(5), id="dataclass that checks"),
        pytest.param({"left": 1, "right": "2026-03-01"}, Pair, Pair(1, DAY), id="dict as NamedTuple"),
        pytest.param([1, "2026-03-01"], Pair, Pair(1, DAY), id="list as NamedTuple"),
        pytest.param([1], Pair, Pair(1), id="short list as NamedTuple"),
        pytest.param({"day": "2026-03-01"}, Trip, {"day": DAY}, id="TypedDict"),
        pytest.param({"day": DAY, "note": "x"}, Trip, {"day": DAY, "note": "x"}, id="TypedDict as it is"),
        pytest.param("g", Color, Color.GREEN, id="enum by value"),
        pytest.param("GREEN", Color, Color.GREEN, id="enum by name"),
        pytest.param(2, Level, Level.HIGH, id="IntEnum by value"),
        pytest.param("2026-03-01", datetime.date, DAY, id="date"),
        pytest.param("2026-03-01T12:00:00+00:00", datetime.datetime, NOON, id="datetime"),
        pytest.param("04:05:06", datetime.time, datetime.time(4, 5, 6), id="time"),
        pytest.param(str(ID), uuid.UUID, ID, id="UUID"),
        pytest.param("1.50", decimal.Decimal, decimal.Decimal("1.50"), id="Decimal"),
        pytest.param([1, 2], tuple[int, int], (1, 2), id="list as tuple"),
        pytest.param([1, 2, 3], tuple[int, ...], (1, 2, 3), id="list as open tuple"),
        pytest.param([], tuple[()], (), id="list as empty tuple"),
        pytest.param([1, 2], tuple, (1, 2), id="list as bare tuple"),
        pytest.param([1, 1], set[int], {1}, id="list as set"),
        pytest.param(["g", "r"], frozenset[Color], frozenset(Color), id="list as frozenset of enums"),
        pytest.param((1, 2), list[int], [1, 2], id="tuple as list"),
        pytest.param([{"x": 1}], list[Point], [Point(1)], id="list of dataclasses"),
        pytest.param({"a": {"x": 1}}, dict[str, Point], {"a": Point(1)}, id="dict of dataclasses"),
        pytest.param(
            {"2026-03-01": 1}, dict[datetime.date, float], {DAY: 1.0}, id="dict with keys of a type"
        ),
        pytest.param({"x": 1}, Point | None, Point(1), id="dict as optional dataclass"),
        pytest.param({"left": 1}, Point | Pair, Pair(1), id="the member of a union that takes it"),
        pytest.param("2026-03-01", str | datetime.date, "2026-03-01", id="a match before a conversion"),
        pytest.param({"value": 3}, Model, Model(3), id="model"),
    ],
)
def test_converts(value: object, form: Any, expected: object) -> None:
    converted = convert(value, form)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "form", "reason"),
    [
        pytest.param("yes", bool, "response: a str, not bool: 'yes'", id="text as bool"),
        pytest.param(1, bool, "response: a int, not bool: 1", id="int as bool"),
        pytest.param("5", int, "response: a str, not int: '5'", id="text as int"),
        pytest.param(True, float, "response: a bool, not float: True", id="bool as float"),
        pytest.param(None, int, "response: a NoneType, not int: None", id="None"),
        pytest.param("c", Literal["a", "b"], "response: a str, not Literal['a', 'b']: 'c'", id="Literal"),
        pytest.param(1, str | None, "response: a int, not str | None: 1 (response: a int, not str: 1; response: "
                     "a int, not None: 1)", id="optional"),
        pytest.param(5, Point, "response: a int, not Point (a dict with 'x', 'y')", id="no dict"),
        pytest.param({}, Point, "response: Point needs 'x', which is missing", id="missing"),
        pytest.param({"x": 1, "z": 2}, Point, "response: Point has no 'z'; it has 'x', 'y'", id="unknown"),
        pytest.param({"x": "1"}, Point, "response.x: a str, not int: '1'", id="field"),
        pytest.param({"ends": [{"x": 1}, {"x": "b"}]}, Line, "response.ends[1].x: a str, not int: 'b'", id="deep"),
        pytest.param({"ends": [{"x": 1}]}, Line, "response.ends: has 1 elements, not 2", id="too few"),
        pytest.param({"ends": [], "computed": 1}, Line,
                     "response: Line has no 'computed'; it has 'ends', 'color'", id="not for the caller"),
        pytest.param({"number": -1}, Positive, "response: {'number': -1} is no Positive: must be above 0",
                     id="refused by the class"),
        pytest.param({"note": "x"}, Trip, "response: Trip needs 'day', which is missing", id="TypedDict"),
        pytest.param({"day": "soon"}, Trip, "response.day: 'soon' is no date: Invalid isoformat string: 'soon'",
                     id="TypedDict field"),
        pytest.param([1, "2026-03-01", 3], Pair,
                     "response: a list, not Pair (a dict with 'left', 'right')", id="long list as NamedTuple"),
        pytest.param("b", Color, "response: 'b' is no Color; it is one of 'r', 'g'", id="enum"),
        pytest.param(True, Level, "response: True is no Level; it is one of 1, 2", id="bool as IntEnum"),
        pytest.param("x", decimal.Decimal, "response: 'x' is no Decimal: [<class 'decimal.ConversionSyntax'>]",
                     id="Decimal"),
        pytest.param("x", uuid.UUID, "response: 'x' is no UUID: badly formed hexadecimal UUID string", id="UUID"),
        pytest.param(5, datetime.date, "response: a int, not date: 5", id="date"),
        pytest.param([1, "2"], list[int], "response[1]: a str, not int: '2'", id="element"),
        pytest.param("ab", list[str], "response: a str, not list: 'ab'", id="text as list"),
        pytest.param([1], dict[str, int], "response: a list, not dict: [1]", id="list as dict"),
        pytest.param({"a": {"b": "1"}}, dict[str, dict[str, int]], "response['a']['b']: a str, not int: '1'",
                     id="value of a dict"),
        pytest.param({"soon": 1}, dict[datetime.date, int],
                     "response key 'soon': 'soon' is no date: Invalid isoformat string: 'soon'", id="key of a dict"),
        pytest.param({}, Model, "response: {} is no Model: value: Field required", id="model"),
    ],
)  # fmt: skip
def test_says_why_it_cannot(value: object, form: Any, reason: str) -> None:
    with pytest.raises(Unconvertible) as caught:
        convert(value, form)
    assert str(caught.value) == reason


def test_leaves_the_given_value_alone() -> None:
    given = {"ends": [{"x": 1}, {"x": 2}]}
    convert(given, Line)
    assert given == {"ends": [{"x": 1}, {"x": 2}]}


def test_several_unknown_fields_are_named_in_the_order_given() -> None:
    names = [f"unknown{number}" for number in range(12)]
    with pytest.raises(Unconvertible) as caught:
        convert({"x": 1, **dict.fromkeys(names)}, Point)
    listed = ", ".join(repr(name) for name in names)
    assert str(caught.value) == f"response: Point has no {listed}; it has 'x', 'y'"


def test_set_of_what_cannot_be_in_a_set() -> None:
    with pytest.raises(Unconvertible, match=r"^response: .*unhashable type: 'Point'"):
        convert([{"x": 1}], set[Point])


def test_assertion_of_a_class_is_a_reason() -> None:
    with pytest.raises(Unconvertible, match=r"^response: \{'number': 0\} is no Asserting: must be above 0"):
        convert({"number": 0}, Asserting)


def test_dict_subclass() -> None:
    converted = convert({"a": "2026-03-01"}, OrderedDict[str, datetime.date])
    assert type(converted) is OrderedDict
    assert converted == {"a": DAY}


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        pytest.param([{"x": 1}], Sequence[Point], [Point(1)], id="Sequence"),
        pytest.param({"a": {"x": 1}}, Mapping[str, Point], {"a": Point(1)}, id="Mapping"),
    ],
)
def test_abstract_containers(value: object, form: Any, expected: object) -> None:
    assert convert(value, form) == expected


def test_annotation_that_cannot_be_resolved_takes_anything() -> None:
    @dataclass
    class Local:
        day: datetime.date

    @dataclass
    class Holder:
        local: "Local"
        number: int

    converted = convert({"local": "anything", "number": 1}, Holder)
    assert (converted.local, converted.number) == ("anything", 1)
