"""Type annotations as data."""

import collections
import collections.abc as cabc
import datetime as dt
import enum
import pathlib
import typing
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, Never, NewType, TypedDict, TypeVar

import numpy as np
import pytest
import typing_extensions

from holdfast import Codec
from holdfast.errors import CheckpointCorrupt, GraphError, NotCheckpointable, UnknownType
from tests.support.parts import TypeRegistry, type_name

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Paper(Generic[T]):
    x: T
    colour: Colour


class Movie(TypedDict):
    title: str


class Stranger: ...


@pytest.fixture
def codec() -> Codec:
    return Codec(TypeRegistry([("the tests", Paper | Movie)]))


SAME: list[Any] = [
    *(Any, type(None), object, int, str, bytes, bytearray, complex, list, dict, tuple, set, frozenset, range, Never),
    *(dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone, Decimal, uuid.UUID, pathlib.Path, np.ndarray),
    *(ValueError, GraphError, collections.OrderedDict, collections.deque, cabc.Sequence, cabc.Mapping),
    *(list[int], dict[str, list[int]], tuple[int, ...], tuple[int, str], tuple[()], set[Paper], frozenset[int]),
    *(cabc.Sequence[int], cabc.Mapping[str, Any], collections.deque[int], cabc.Iterable[Paper]),
    *(int | None, typing.Optional[Paper], int | str | list[Paper | None]),  # noqa: UP045
    *(Literal["a", "b"], Literal[1], Literal[True, None, b"x"], Literal[Colour.RED]),
    *(Paper, Paper[int], Movie, Colour, list[Movie]),
]  # fmt: skip


@pytest.mark.parametrize(
    "form", [pytest.param(form, id=f"{i}-{type_name(form)}") for i, form in enumerate(SAME)]
)
def test_a_form_comes_back(codec: Codec, form: Any) -> None:
    assert codec.decode_form(codec.encode_form(form, "response")) == form


SEEN_THROUGH: list[tuple[Any, Any]] = [
    (None, type(None)),
    (Annotated[int, "a note"], int),
    (list[Annotated[Paper, "a note"]], list[Paper]),
    (NewType("Id", str), str),
    (TypeVar("Bound", bound=int), int),
    (typing_extensions.TypeAliasType("Alias", list[int]), list[int]),
    (typing.List[int], list[int]),  # noqa: UP006
    (np.ndarray[Any, np.dtype[np.float64]], np.ndarray),
]


@pytest.mark.parametrize(("form", "seen"), SEEN_THROUGH, ids=[str(i) for i in range(len(SEEN_THROUGH))])
def test_wrappers_are_seen_through(codec: Codec, form: Any, seen: Any) -> None:
    assert codec.decode_form(codec.encode_form(form, "response")) == seen


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (Stranger, "Stranger"),
        (list[Stranger], "Stranger"),
        (cabc.Callable[[int], int], "Callable"),
        (5, "int"),
    ],
    ids=["class", "inside", "callable", "value"],
)
def test_what_no_data_can_say_is_refused(codec: Codec, form: Any, name: str) -> None:
    with pytest.raises(NotCheckpointable) as refused:
        codec.encode_form(form, "the response type")
    assert str(refused.value) == (
        f"the response type: the type {name} is not checkpointable; use one that is declared in the workflow, "
        f"or decorate it with @checkpointable"
    )


class TypeAliasType:
    """As ``type Endless = list[Endless]`` makes one, which this version of Python may not have."""

    __name__ = "Endless"
    __type_params__ = ()

    @property
    def __value__(self) -> Any:
        return list[self]


def test_a_type_that_contains_itself_is_refused(codec: Codec) -> None:
    with pytest.raises(NotCheckpointable, match=r"^response: the type list\[Endless\] contains itself"):
        codec.encode_form(TypeAliasType(), "response")


def test_a_class_that_is_not_declared_where_it_is_read(codec: Codec) -> None:
    with pytest.raises(
        UnknownType, match=r"^type: the data has the type 'Paper', which is not declared here"
    ):
        Codec().decode_form(codec.encode_form(list[Paper], "response"))


WRONG: list[Any] = [
    *("nothing", "eval", "os.system", 5, None, [], ["union"], ["literal"], ["of"], ["of", "list"], ["class"]),
    *(["else", "int"], ["of", "int", "int"], ["of", "..."], ["union", "..."], [["class"]], {"a": 1}),
]


@pytest.mark.parametrize("data", WRONG, ids=repr)
def test_data_that_is_no_form_is_corrupt(codec: Codec, data: Any) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"^type: the bytes are no encoding of a type: "):
        codec.decode_form(codec.encode(data))


@pytest.mark.parametrize("name", [5, "Stranger", None, []], ids=repr)
def test_a_class_in_data_must_be_known(codec: Codec, name: Any) -> None:
    with pytest.raises(UnknownType):
        codec.decode_form(codec.encode(["class", name]))


def test_a_deep_form_is_corrupt(codec: Codec) -> None:
    data: Any = "int"
    for _ in range(250):
        data = ["of", "list", data]
    with pytest.raises((CheckpointCorrupt, UnknownType)):
        codec.decode_form(b"\x93\xa2of\xa4list" * 900 + b"\xa3int")
    codec.decode_form(codec.encode(data))
