"""Forms, matching and dispatch: tables of what is promised, then properties over random forms and classes."""

import collections
import collections.abc as cabc
import enum
import functools
import operator
import re
import sys
import typing
from abc import ABC
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    LiteralString,
    NamedTuple,
    Never,
    NewType,
    NoReturn,
    NotRequired,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    runtime_checkable,
)

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.graph.typing.dispatch import Dispatch
from holdfast.graph.typing.match import can_match, matches
from holdfast.graph.typing.types import is_anything, is_nothing, members
from tests.support.parts import type_name

T = TypeVar("T")
K = TypeVar("K")
Bound = TypeVar("Bound", bound=int)
Constrained = TypeVar("Constrained", int, str)
UserId = NewType("UserId", int)
AdminId = NewType("AdminId", UserId)


def steady(value: object) -> str:
    """A test id without memory addresses: they differ between the processes that share out the tests."""
    return re.sub(r" at 0x[0-9a-f]+|<function.*?>", "", repr(value))


class Animal: ...


class Dog(Animal): ...


class Puppy(Dog): ...


class Stone: ...


class Box(Generic[T]): ...


class Stack(list[T]): ...


class Shape(ABC):  # noqa: B024 - a marker without abstract methods is an ABC too
    ...


class Circle(Shape): ...


class Closer(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class Runner(Protocol):
    def run(self) -> None: ...


@runtime_checkable
class Named(Protocol):
    name: str


class Door:
    def close(self) -> None: ...


class Job:
    def run(self) -> None: ...


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Song(TypedDict):
    title: str
    artist: str


@dataclass
class Report:
    priority: str


class Outer:
    class Inner: ...


class Proxy:
    """Stands for another object, as wrapt's proxies do."""

    def __init__(self, target: object) -> None:
        self.target = target

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.target)


def local_class() -> type:
    class Local: ...

    return Local


# -- type_name -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (int, "int"),
        (None, "None"),
        (NoneType, "None"),
        (Any, "Any"),
        (object, "object"),
        (Never, "Never"),
        (NoReturn, "Never"),
        (int | None, "int | None"),
        (None | int, "int | None"),
        (Optional[int], "int | None"),
        (Union[None, str, int], "int | str | None"),
        (Union[int, Union[str, None]], "int | str | None"),
        (list, "list"),
        (typing.List, "list"),
        (list[str], "list[str]"),
        (typing.List[str], "list[str]"),
        (dict[str, list[int | None]], "dict[str, list[int | None]]"),
        (tuple, "tuple"),
        (typing.Tuple, "tuple"),
        (tuple[()], "tuple[()]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (typing.Sequence[int], "Sequence[int]"),
        (cabc.Sequence[int], "Sequence[int]"),
        (type[int], "type[int]"),
        (typing.Callable, "Callable"),
        (typing.Callable[[int, str], None], "Callable[[int, str], None]"),
        (cabc.Callable[..., int], "Callable[..., int]"),
        (Report, "Report"),
        (Outer.Inner, "Outer.Inner"),
        (local_class(), "Local"),
        (Box, "Box"),
        (Box[int], "Box[int]"),
        (Movie, "Movie"),
        (Literal["a"], "Literal['a']"),
        (Literal["b", "a", None], "Literal['a', 'b', None]"),
        (Literal[1, True, b"x"], "Literal[1, True, b'x']"),
        (Literal[Color.RED, Level.LOW, Word.A], "Literal[Color.RED, Level.LOW, Word.A]"),
        (Annotated[int, "note"], "int"),
        (list[Annotated[int, "note"]], "list[int]"),
        (AdminId, "int"),
        (T, "Any"),
        (Bound, "int"),
        (Constrained, "int | str"),
        (LiteralString, "str"),
        (list["Report"], "list[Report]"),
        (typing.List["Report"], "list[Report]"),
    ],
    ids=steady,
)
def test_type_name(form, name):
    assert type_name(form) == name


# -- members, is_anything, is_nothing --------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (int, (int,)),
        (None, (NoneType,)),
        (int | None, (int, NoneType)),
        (Union[int, Annotated[str | None, "note"]], (int, str, NoneType)),
        (Annotated[Annotated[int, 1], 2], (int,)),
        (AdminId, (int,)),
        (AdminId | None, (int, NoneType)),
        (Union[UserId, int], (int,)),
        (T, (Any,)),
        (Bound, (int,)),
        (Constrained, (int, str)),
        (list[int | str], (list[int | str],)),
        (Literal[1, 2], (Literal[1, 2],)),
        (NoReturn, (Never,)),
    ],
    ids=steady,
)
def test_members(form, expected):
    assert members(form) == expected


@pytest.mark.parametrize(
    ("form", "anything", "nothing"),
    [
        (Any, True, False),
        (object, True, False),
        (T, True, False),
        (Union[int, Any], True, False),
        (int | object, True, False),
        (Annotated[Any, "note"], True, False),
        (None, False, True),
        (NoneType, False, True),
        (Never, False, True),
        (NoReturn, False, True),
        (Annotated[None, "note"], False, True),
        (int | None, False, False),
        (list[Any], False, False),
        (int, False, False),
    ],
    ids=steady,
)
def test_anything_and_nothing(form, anything, nothing):
    assert (is_anything(form), is_nothing(form)) == (anything, nothing)


# -- matches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (1, Any, True),
        (None, object, True),
        (None, Never, False),
        (1, int, True),
        (True, int, True),
        (1, bool, False),
        (1, float, False),
        (1.0, complex, False),
        (None, None, True),
        (None, int | None, True),
        (0, None, False),
        (Puppy(), Animal, True),
        (Animal(), Dog, False),
        (1, UserId, True),
        ("x", UserId, False),
        (1, Constrained, True),
        (1.0, Constrained, False),
        ("x", LiteralString, True),
        # literals: by type and value
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (True, Literal[1], False),
        (1, Literal[True], False),
        (Word.A, Literal["a"], False),
        (Color.RED, Literal[Color.RED], True),
        (Color.BLUE, Literal[Color.RED], False),
        (None, Literal[None], True),
        # enums and named tuples are classes
        (Color.RED, Color, True),
        (1, Color, False),
        (Level.LOW, int, True),
        (Point(1, 2), Point, True),
        ((1, 2), Point, False),
        (Point(1, 2), tuple[int, int], True),
        # containers
        ([1, 2], list[int], True),
        ([1, "a"], list[int], False),
        ([], list[int], True),
        ([1, "a"], list[int | str], True),
        ([[1], []], list[list[int]], True),
        ([["a"]], list[list[int]], False),
        ((1,), list[int], False),
        ([1, "a"], list, True),
        ([1, "a"], typing.List, True),
        ([1, "a"], list[Any], True),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        ({1: 1}, dict[str, int], False),
        ({"a": 1}, cabc.Mapping[str, int], True),
        (collections.OrderedDict(a=1), dict[str, int], True),
        (collections.Counter("aa"), collections.Counter[str], True),
        (collections.Counter("aa"), collections.Counter[int], False),
        ({1}, set[int], True),
        ({"a"}, set[int], False),
        (frozenset({1}), frozenset[int], True),
        (frozenset({1}), set[int], False),
        (collections.deque([1]), collections.deque[str], False),
        ((1, 2, 3), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ((), tuple[()], True),
        ((1,), tuple[()], False),
        ((1,), tuple, True),
        ((1, "a", "b"), tuple[int, *tuple[str, ...]], True),
        # ABCs: elements of what can be iterated again
        ([1], cabc.Sequence[int], True),
        (["a"], cabc.Sequence[int], False),
        (["a"], typing.Iterable[int], False),
        ({"a": 1}, cabc.Iterable[str], True),
        ({"a": 1}.items(), cabc.ItemsView[int, int], True),
        (iter(["a"]), cabc.Iterable[int], True),
        (iter(["a"]), cabc.Iterator[int], True),
        ("abc", cabc.Sequence[str], True),
        ("abc", cabc.Sequence[int], False),
        ("abc", cabc.Sequence[Any], True),
        ("abc", cabc.Sequence[cabc.Hashable], True),
        (b"abc", cabc.Sequence[int], True),
        (1, cabc.Iterable[int], False),
        # generic user classes: by origin
        (Box(), Box[int], True),
        (Box(), Box, True),
        (1, Box[int], False),
        (Stack(["a"]), Stack[int], True),
        (Stack(["a"]), list[int], False),
        # TypedDict
        ({"title": "x"}, Movie, True),
        ({"title": "x", "year": 1}, Movie, True),
        ({"title": "x", "year": "1"}, Movie, False),
        ({"year": 1}, Movie, False),
        ({"title": "x", "more": 1}, Movie, True),
        ([("title", "x")], Movie, False),
        ([{"title": "x"}], list[Movie], True),
        ([{"name": "x"}], list[Movie], False),
        # Protocols, callables, classes as values
        (Job(), Runner, True),
        (Door(), Runner, False),
        (Door(), Closer, True),
        (Job(), Closer, False),
        (SimpleNamespace(name="x"), Named, True),
        (SimpleNamespace(), Named, False),
        (print, typing.Callable[[int], str], True),
        (1, typing.Callable, False),
        (Dog, type[Animal], True),
        (Stone, type[Animal], False),
        (Stone, type[Animal | Stone], True),
        (Stone, type[Any], True),
        (Stone, type, True),
        (Dog(), type[Animal], False),
        (Box, type[Box[int]], True),
        (Door, type[Closer], True),
        (Circle(), Shape, True),
        # what cannot be seen is allowed
        ([1], list["Report"], True),
    ],
    ids=steady,
)
def test_matches(value, form, expected):
    assert matches(value, form) is expected


def test_matching_does_not_use_up_an_iterator():
    values = iter([1, 2])
    assert matches(values, cabc.Iterable[int])
    assert list(values) == [1, 2]


def test_fields_that_cannot_be_resolved_may_hold_anything():
    class Lost(TypedDict):
        a: "NoSuchClass"  # type: ignore[name-defined]  # noqa: F821

    assert matches({"a": 1}, Lost)
    assert not matches({}, Lost)


def test_a_class_that_cannot_be_asked_has_no_instances():
    class Closed(type):
        def __instancecheck__(cls, value: object) -> bool:
            raise TypeError

    assert not matches(1, Closed("Secret", (), {}))


# -- can_match -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("produced", "accepted", "expected"),
    [
        (int, int, True),
        (int, str, False),
        (int, float, False),
        (bool, int, True),
        (int, bool, True),
        (Dog, Animal, True),
        (Animal, Dog, True),
        (Dog, Stone, False),
        (Any, int, True),
        (int, object, True),
        (T, int, True),
        (int | str, str | bytes, True),
        (int | str, bytes | None, False),
        (UserId, int, True),
        (UserId, str, False),
        # nothing
        (None, None, True),
        (None, int, False),
        (None, int | None, True),
        (int | None, str | None, True),
        (None, Any, True),
        (None, Shape, False),
        (None, Closer, False),
        (None, cabc.Hashable, True),
        (int, None, False),
        (Never, int, False),
        (Never, None, False),
        (int, Never, False),
        # abstract classes and Protocols: an unrelated class may have a subclass that is one
        (Dog, Shape, True),
        (Shape, Dog, True),
        (Circle, Stone, False),
        (Dog, Closer, True),
        (Dog, Runner, True),
        (Dog, cabc.Mapping[str, int], True),
        # generics
        (list[int], list[int], True),
        (list[int], list[str], False),
        (list[int], list, True),
        (list, list[int], True),
        (list[bool], list[int], True),
        (list[int | str], list[str], True),
        (list[Any], list[str], True),
        (list[int], set[int], False),
        (list[int], cabc.Sequence[int], True),
        (list[int], cabc.Sequence[str], False),
        (cabc.Iterable[int], list[str], False),
        (dict[str, int], cabc.Mapping[str, int], True),
        (dict[str, int], cabc.Mapping[str, str], False),
        (dict[str, int], cabc.Iterable[str], True),
        (list[list[int]], list[list[str]], False),
        (Box[int], Box[int], True),
        (Box[int], Box[str], False),
        (Box[int], Box, True),
        (Stack[int], list[str], True),
        (typing.List[int], list[str], False),
        (type[Dog], type[Animal], True),
        (type[Dog], type[Stone], False),
        (cabc.Callable[[int], str], cabc.Callable[[int], str], True),
        (cabc.Callable[[int], str], cabc.Callable[[int], int], False),
        # tuples
        (tuple[int, str], tuple[int, str], True),
        (tuple[int, str], tuple[str, int], False),
        (tuple[int, str], tuple[int], False),
        (tuple[int, ...], tuple[int, int], True),
        (tuple[int, int], tuple[int, ...], True),
        (tuple[int, str], tuple[int, ...], False),
        (tuple[int, ...], tuple[str, ...], False),
        (tuple[int, ...], tuple[bool, ...], True),
        (tuple[()], tuple[int, ...], True),
        (tuple[()], tuple[int], False),
        (tuple[int, *tuple[str, ...]], tuple[int], True),
        (Point, tuple[int, int], True),
        # literals: by the type of their values
        (Literal["a"], str, True),
        (str, Literal["a"], True),
        (Literal["a"], int, False),
        (Literal["a", 1], int, True),
        (Literal[Color.RED], Color, True),
        # TypedDict is a dict
        (Movie, dict, True),
        (dict[str, Any], Movie, True),
        (Movie, Song, True),
        (Movie, list, False),
        # what cannot be seen is allowed
        (list["Report"], list[int], True),
    ],
    ids=steady,
)
def test_can_match(produced, accepted, expected):
    assert can_match(produced, accepted) is expected


# -- dispatch: each handler is named by its place in the list ---------------------------------------


@pytest.mark.parametrize(
    ("forms", "value", "expected"),
    [
        ([], 1, None),
        ([str], 1, None),
        ([Never], None, None),
        # most specific class by MRO, whatever the order
        ([Animal, Dog], Puppy(), 1),
        ([Dog, Animal], Puppy(), 0),
        ([Dog, Animal], Stone(), None),
        ([int, bool], True, 1),
        ([int, bool], 1, 0),
        ([int], True, 0),
        ([bool], 1, None),
        ([float], 1, None),
        ([UserId, str], 1, 0),
        ([Color, int], Color.RED, 0),
        ([int, Level], Level.LOW, 1),
        ([int], Level.LOW, 0),
        ([tuple, Point], Point(1, 2), 1),
        # None
        ([int, None], None, 1),
        ([int | None], None, 0),
        ([int | None, None], None, 1),
        ([int], None, None),
        ([object, int | None], None, 1),
        # then virtual subclasses among the plain ones, as declared
        ([cabc.Iterable, cabc.Sequence], [1], 0),
        ([cabc.Sequence, list], [1], 1),
        ([cabc.Sequence, list | None], [1], 0),
        ([Runner, Closer], Door(), 1),
        ([Closer, Job | None], Job(), 1),
        ([typing.Callable], print, 0),
        ([Shape, Circle], Circle(), 1),
        # then union members, most specific by MRO; then anything
        ([Animal, Dog | Stone], Puppy(), 0),
        ([Animal | int, Dog | str], Puppy(), 1),
        ([Stone | cabc.Sized, list | None], [], 1),
        ([Stone | cabc.Sized, object], [], 0),
        ([object, int | str, int], 1, 2),
        ([object, int | str, int], "x", 1),
        ([object, int | str, int], 1.5, 0),
        ([Any, object], 1, 0),
        ([Union[int, Any], int | str], 1, 1),
        ([int | object, str], 1, 0),
        ([T, int], "x", 0),
        # generics by origin; a single one is not looked into
        ([list[int]], ["a"], 0),
        ([list[int] | list[str]], [1.5], 0),
        ([list[int], object], ["a"], 0),
        ([Movie], {"other": 1}, 0),
        ([Box[int]], Box(), 0),
        ([dict[str, int], list[int]], ["a"], 1),
        # ... and competing ones by their elements
        ([list[int], list[str]], [1], 0),
        ([list[int], list[str]], ["a"], 1),
        ([list[int], list[str]], [], 0),
        ([list[str], list[int]], [], 0),
        ([list[int], list[str]], [1.5], None),
        ([list[int], list[str], object], [1.5], 2),
        ([list[int], list[str], cabc.Sequence], [1.5], 2),
        ([list, list[int]], [1], 1),
        ([list, list[int]], ["a"], 0),
        ([list, list[int]], [], 1),
        ([list[int], list[str] | None], ["a"], 1),
        ([list[int], list[str] | None], [1], 0),
        ([dict[str, int], dict[str, str]], {"a": "b"}, 1),
        ([tuple[int, int], tuple[int, ...]], (1, 2, 3), 1),
        ([cabc.Sequence[int], cabc.Sequence[str]], ["a"], 1),
        ([type[Animal], type[Stone]], Stone, 1),
        ([Box, Box[int]], Box(), 1),
        ([Box[int], Box[str]], Box(), 0),
        # literals by value, before their class
        ([str, Literal["a"]], "a", 1),
        ([str, Literal["a"]], "b", 0),
        ([Literal["a"]], "b", None),
        ([Literal[1], object], True, 1),
        ([Literal[1, "a"], str], "a", 0),
        ([Literal[Color.RED], Color], Color.RED, 0),
        ([Literal[Color.RED], Color], Color.BLUE, 1),
        ([Literal["a"], str], Word.A, 1),
        ([Literal[None], None], None, 0),
        # TypedDict is a dict; competing ones by their keys, the nearest first
        ([Movie, Song], {"title": "x", "artist": "y"}, 1),
        ([Song, Movie], {"title": "x", "year": 1}, 1),
        ([Movie, Song], {"title": "x"}, 0),
        ([dict, Movie], {"title": "x"}, 1),
        ([dict, Movie], {"other": "x"}, 0),
        ([dict[str, str], Movie], {"title": "x"}, 1),
    ],
    ids=steady,
)
def test_dispatch(forms, value, expected):
    routes = Dispatch([(form, place) for place, form in enumerate(forms)])
    assert [routes.find(value), routes.find(value)] == [expected, expected]


@pytest.mark.parametrize(
    ("forms", "expected"),
    [
        ([int, str], []),
        ([int, int], [(int, 0, 1)]),
        ([int, int, int], [(int, 0, 1), (int, 0, 2)]),
        ([int, UserId], [(int, 0, 1)]),
        ([int, int | str], []),
        ([int | str, str | int], [(str, 0, 1), (int, 0, 1)]),
        ([int | str, str | None], [(str, 0, 1)]),
        ([Any, object], [(object, 0, 1)]),
        ([T, Union[int, Any]], [(object, 0, 1)]),
        ([None, NoneType], [(NoneType, 0, 1)]),
        ([Never, Any], []),
        ([list, list], [(list, 0, 1)]),
        ([list, typing.List], [(typing.List, 0, 1)]),
        ([list, list[int]], []),
        ([list[int], list[str]], []),
        ([list[int], typing.List[int]], [(typing.List[int], 0, 1)]),
        ([list[int | None], list[Optional[int]]], [(list[int | None], 0, 1)]),
        ([list[Any], list[object]], [(list[object], 0, 1)]),
        ([list[int] | list[str]], []),
        ([tuple[int], tuple[int, ...]], []),
        ([Movie, Song], []),
        ([Movie, Movie], [(Movie, 0, 1)]),
        # no value tells these apart, so the second would never be asked
        ([Box[int], Box[str]], [(Box[str], 0, 1)]),
        ([list[Box[int]], list[Box[str]]], [(list[Box[str]], 0, 1)]),
        ([str, Literal["a"]], []),
        ([Literal["a", "b"], Literal["b", "c"]], [(Literal["b"], 0, 1)]),
        ([Literal[1], Literal[True]], []),
        # two classes of one name are two classes
        ([local_class(), local_class()], []),
        ([list[local_class()], list[local_class()]], []),  # type: ignore[misc]
    ],
    ids=steady,
)
def test_duplicates(forms, expected):
    assert Dispatch([(form, place) for place, form in enumerate(forms)]).duplicates() == expected


@pytest.mark.parametrize(
    "form", ["Report", typing.ForwardRef("Report"), 7, int | typing.ForwardRef("Report")]
)
def test_a_form_that_names_no_class_is_refused(form):
    with pytest.raises(TypeError, match=r"cannot be routed by '(Report|int)'"):
        Dispatch([(form, "handler")])


# -- dispatch: what is remembered -------------------------------------------------------------------


def test_the_type_alone_is_asked_once(monkeypatch):
    routes = Dispatch([(int, "int"), (int | str, "scalar"), (list[int], "list"), (cabc.Sized, "sized")])
    values = [1, True, "x", ["a"], {1}, None]
    first = [routes.find(value) for value in values]
    monkeypatch.setattr(Dispatch, "_search", None)  # a second search would fail
    assert [routes.find(value) for value in values] == first == ["int", "int", "sized", "list", "sized", None]


def test_values_are_asked_each_time_where_they_decide():
    routes = Dispatch([(list[int], "ints"), (list[str], "words"), (Literal["stop"], "stop"), (str, "text")])
    values: list[object] = [[1], ["a"], [1], "stop", "go", "stop"]
    assert [routes.find(value) for value in values] == ["ints", "words", "ints", "stop", "text", "stop"]


def test_a_protocol_is_asked_of_the_value_not_of_its_type():
    routes = Dispatch([(Named, "named"), (object, "rest")])
    values = [SimpleNamespace(), SimpleNamespace(name="x"), SimpleNamespace()]
    assert [routes.find(value) for value in values] == ["rest", "named", "rest"]


def test_a_proxy_goes_where_its_target_goes():
    routes = Dispatch([(int, "int"), (str, "str")])
    assert [routes.find(Proxy(value)) for value in (1, "x", 1, 1.5)] == ["int", "str", "int", None]


def test_classes_made_on_the_fly_do_not_pile_up():
    routes = Dispatch([(object, "rest")])
    assert {routes.find(local_class()()) for _ in range(3000)} == {"rest"}
    assert len(routes._by_type) <= 1024


def test_a_handler_may_be_falsy():
    assert Dispatch([(int, 0), (object, 1)]).find(5) == 0


# -- PEP 695 aliases (3.12) ------------------------------------------------------------------------


if sys.version_info >= (3, 12):

    def type_statements() -> dict[str, Any]:
        source = """
type Scalar = int | str
type Wrapped = Scalar | None
type Json = dict[str, Json] | list[Json] | str | int | None
type Other = dict[str, Other] | list[Other] | str | int | None
type Pair[A, B] = tuple[B, A]
type Maybe[A] = A | None
type Deep = list[Deep] | int
type Nested = cabc.Sequence[Nested] | int
def f[A: int](value: A) -> list[A]: ...
"""
        names: dict[str, Any] = {"cabc": cabc}
        exec(source, names)
        return names

    def test_an_alias_is_what_it_stands_for():
        aliases = type_statements()
        scalar, wrapped, pair, maybe = (aliases[name] for name in ("Scalar", "Wrapped", "Pair", "Maybe"))
        assert members(scalar) == (int, str)
        assert type_name(wrapped) == type_name(int | str | None) == "int | str | None"
        assert matches((1, "x"), pair[str, int])
        assert not matches((1, "x"), pair[int, str])
        assert members(maybe[int]) == (int, NoneType)
        assert type_name(aliases["f"].__annotations__["value"]) == "int"
        assert Dispatch([(scalar, "scalar"), (list.__class_getitem__(scalar), "list")]).find([1]) == "list"
        assert Dispatch([(scalar, 1), (int | str, 2)]).duplicates() == [(int, 1, 2), (str, 1, 2)]

    def test_recursive_aliases_end():
        aliases = type_statements()
        json, other, deep = aliases["Json"], aliases["Other"], aliases["Deep"]
        assert type_name(json) == "dict[str, Json] | int | list[Json] | str | None"
        assert matches({"a": [1, {"b": None}]}, json)
        assert not matches({"a": [1, {"b": 1.5}]}, json)
        assert can_match(json, other)
        assert not can_match(json, bytes)
        assert not matches("text", deep)
        assert not matches(["a"], aliases["Nested"])
        assert Dispatch([(json, 1), (other, 2)]).find([]) == 1


# -- properties ------------------------------------------------------------------------------------

LEAVES: list[Any] = [
    int,
    str,
    bool,
    float,
    bytes,
    NoneType,
    Any,
    object,
    Animal,
    Dog,
    Puppy,
    Stone,
    Color,
    Level,
    Box,
]
LEAVES += [Box[int], Shape, Closer, Runner, Movie, Song, Point, UserId, list, tuple, dict, cabc.Sized]
LEAVES += [cabc.Hashable, Literal["a"], Literal[1, True], Literal[Color.RED], type, type[Animal]]
INSTANCES: list[object] = [
    Animal(),
    Dog(),
    Puppy(),
    Stone(),
    Door(),
    Job(),
    Circle(),
    Color.RED,
    Level.LOW,
    Word.A,
    Box(),
]
INSTANCES += [Point(1, 2), Dog, Stone, print, {"title": "x"}, {"title": "x", "artist": "y"}]


def unions(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(parts, min_size=1, max_size=3).map(lambda forms: Union[tuple(forms)])


def generics(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = st.sampled_from([list, set, frozenset, cabc.Sequence, cabc.Iterable, collections.deque])
    two = st.sampled_from([dict, cabc.Mapping])
    return st.one_of(
        st.builds(operator.getitem, one, parts),
        st.builds(lambda origin, key, value: origin[key, value], two, parts, parts),
        st.lists(parts, max_size=2).map(lambda forms: tuple[tuple(forms)]),  # type: ignore[misc]
        parts.map(lambda form: tuple.__class_getitem__((form, ...))),
        unions(parts),
    )


FORMS = st.recursive(st.sampled_from(LEAVES), generics, max_leaves=6)
SCALARS = st.one_of(
    st.integers(), st.booleans(), st.text("ab", max_size=2), st.none(), st.sampled_from(INSTANCES)
)
KEYS = st.one_of(st.integers(), st.booleans(), st.text("ab", max_size=2), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.frozensets(KEYS, max_size=3),
    ),
    max_leaves=6,
)


@given(VALUES)
def test_every_value_matches_its_class(value):
    assert matches(value, type(value))
    assert matches(value, type(value) | None)
    assert matches([value], list[type(value)])  # type: ignore[misc]


@given(VALUES, FORMS)
def test_what_matches_could_have_been_expected(value, form):
    assert not matches(value, form) or can_match(type(value), form)


@given(FORMS, FORMS)
def test_can_match_does_not_depend_on_the_direction(one, other):
    assert can_match(one, other) == can_match(other, one)


@given(FORMS)
def test_every_form_can_match_itself_and_its_parts(form):
    assert can_match(form, form)
    assert all(can_match(member, form) for member in members(form))


@given(
    st.lists(FORMS, min_size=1, max_size=4).flatmap(
        lambda forms: st.tuples(st.just(forms), st.permutations(forms))
    )
)
def test_names_do_not_depend_on_the_order_in_a_union(orders):
    declared, shuffled = (type_name(Union[tuple(forms)]) for forms in orders)
    assert declared == shuffled
    assert " at 0x" not in declared
    assert "<" not in declared


@given(st.lists(FORMS, min_size=1, max_size=5), st.lists(VALUES, min_size=1, max_size=8))
def test_what_is_remembered_changes_no_answer(forms, values):
    entries = [(form, place) for place, form in enumerate(forms)]
    routes = Dispatch(entries)
    assert [routes.find(value) for value in values] == [Dispatch(entries).find(value) for value in values]


@given(st.lists(FORMS, min_size=1, max_size=5), VALUES)
def test_a_value_goes_to_a_handler_that_could_take_it(forms, value):
    place = Dispatch([(form, place) for place, form in enumerate(forms)]).find(value)
    if place is None:
        assert not any(is_anything(form) for form in forms)
        assert not any(matches(value, form) for form in forms)
    else:
        assert can_match(type(value), forms[place])


@given(st.lists(FORMS, min_size=1, max_size=4))
def test_repeating_a_handler_is_a_duplicate(forms):
    once = [(form, place) for place, form in enumerate(forms)]
    twice = [*once, *((form, place + 10) for form, place in once)]
    assert {second for _, _, second in Dispatch(twice).duplicates()} >= {place + 10 for _, place in once}


@st.composite
def hierarchies(draw: st.DrawFn) -> list[type]:
    """Some classes, each below some of those before it."""
    classes: list[type] = []
    for number in range(draw(st.integers(1, 7))):
        bases = draw(st.lists(st.sampled_from(classes), unique=True, max_size=3)) if classes else []
        try:
            classes.append(type(f"C{number}", tuple(bases), {}))
        except TypeError:  # these bases have no common order
            assume(False)
    return classes


@given(hierarchies(), st.data())
def test_the_first_class_of_the_mro_that_has_a_handler_wins(classes, data):
    handled = data.draw(st.lists(st.sampled_from(classes), unique=True))
    kind = data.draw(st.sampled_from(classes))
    routes = Dispatch([(cls, cls) for cls in handled])
    assert routes.find(kind()) is next((cls for cls in kind.__mro__ if cls in handled), None)
    assert routes.duplicates() == []


@given(hierarchies(), st.data())
def test_plain_classes_come_before_unions_and_unions_before_object(classes, data):
    some = st.lists(st.sampled_from(classes), unique=True)
    plain, united = data.draw(some), data.draw(some)
    kind = data.draw(st.sampled_from(classes))
    entries: list[tuple[Any, Any]] = [(object, "rest")]
    if united:
        entries.append((functools.reduce(operator.or_, [*united, NoneType]), "union"))
    entries += [(cls, cls) for cls in plain]
    expected = next((cls for cls in kind.__mro__ if cls in plain), None)
    expected = expected or ("union" if issubclass(kind, tuple(united)) else "rest")
    assert Dispatch(entries).find(kind()) == expected
