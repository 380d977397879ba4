"""Classes that are stored by two functions, fields that are left out, and classes that hold nothing."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy
import pydantic
import pytest

from holdfast import Codec, checkpointable
from holdfast.errors import InvalidArgument, NotCheckpointable, UnknownType
from tests.support.parts import TypeRegistry, is_immutable

pytestmark = pytest.mark.usefixtures("own_marks")


def again(value: Any, *declared: type) -> Any:
    """The value after a way through bytes, read by a codec of its own."""
    types = [("test", cls) for cls in declared]
    data = Codec(TypeRegistry(types)).encode(value)
    return Codec(TypeRegistry(types)).decode(data)


def test_a_class_of_a_library_is_stored_by_two_functions() -> None:
    checkpointable(pydantic.HttpUrl, encode=str, decode=pydantic.HttpUrl)
    url = pydantic.HttpUrl("https://kelp.example/a?b=1")
    read = again({"urls": [url, (url, None)]})
    assert read == {"urls": [url, (url, None)]}
    assert type(read["urls"][0]) is pydantic.HttpUrl
    assert "__holdfast_mark__" not in vars(pydantic.HttpUrl)


def test_a_class_that_is_written_in_c_is_stored_by_two_functions() -> None:
    checkpointable(re.Pattern, encode=lambda p: [p.pattern, p.flags], decode=lambda d: re.compile(*d))
    assert again(re.compile("a+", re.I)) == re.compile("a+", re.I)


def test_what_encode_gives_may_hold_declared_classes() -> None:
    @checkpointable
    @dataclass
    class Held:
        number: int

    class Wrapper:
        def __init__(self, held: Held) -> None:
            self.held = held

    checkpointable(Wrapper, encode=lambda w: {"held": w.held}, decode=lambda d: Wrapper(d["held"]))
    assert again(Wrapper(Held(3))).held == Held(3)


def test_as_a_decorator_it_takes_classes_that_are_derived_from_a_builtin_one() -> None:
    @checkpointable(encode=int, decode=lambda number: Cents(number), name="Money")
    class Cents(int):
        pass

    read = again([Cents(250)])
    assert read == [250]
    assert type(read[0]) is Cents
    assert b"Money" in Codec().encode(Cents(1))


def test_a_model_may_have_a_field_of_such_a_class() -> None:
    checkpointable(pydantic.HttpUrl, encode=str, decode=pydantic.HttpUrl)

    class Page(pydantic.BaseModel):
        url: pydantic.HttpUrl

    page = Page.model_validate({"url": "https://kelp.example"})
    assert again(page, Page) == page


def test_without_a_declaration_the_error_says_how_to_declare_it() -> None:
    with pytest.raises(NotCheckpointable, match=r"value: HttpUrl .*checkpointable\(HttpUrl, encode=\.\.\., "):
        Codec().encode(pydantic.HttpUrl("https://kelp.example"))


def test_a_class_that_is_derived_from_a_converted_one_is_declared_by_itself() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    checkpointable(Base, encode=lambda b: 0, decode=lambda d: Base())
    assert type(again(Base())) is Base
    with pytest.raises(NotCheckpointable, match="Derived is not checkpointable"):
        Codec().encode(Derived())


class Odd:
    """Of what the functions below make something wrong."""


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda odd: 1 // 0, r"value\[0\]: encode of Odd failed: ZeroDivisionError"),
        (lambda odd: odd, r"value\[0\]: encode of Odd returns a Odd"),
        (lambda odd: [threading.Lock()], r"value\[0\] \(encoded\)\[0\]: lock is not checkpointable"),
    ],
)
def test_an_encode_that_fails_is_named_with_the_place(encode: Callable[[Any], Any], message: str) -> None:
    checkpointable(Odd, encode=encode, decode=lambda data: Odd())
    with pytest.raises(NotCheckpointable, match=message):
        Codec().encode([Odd()])


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda data: 1 // 0, "state: decode of Odd failed: ZeroDivisionError"),
        (lambda data: data, "state: decode of Odd returned a int; it must return a Odd"),
    ],
)
def test_a_decode_that_fails_is_named(decode: Callable[[Any], Any], message: str) -> None:
    checkpointable(Odd, encode=lambda odd: 1, decode=decode)
    with pytest.raises(UnknownType, match=message):
        Codec().decode(Codec().encode(Odd()), "state")


def test_data_of_fields_is_refused_by_a_class_that_is_converted_now() -> None:
    @dataclass
    class Before:
        a: int

    checkpointable(name="Thing")(Before)
    data = Codec().encode(Before(1))
    checkpointable(Odd, encode=lambda odd: 1, decode=lambda data: Odd(), name="Thing")
    with pytest.raises(UnknownType, match="Thing was stored by its fields"):
        Codec().decode(data)


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (Odd, {"encode": str}, "encode and decode must both be functions"),
        (Odd, {"decode": str}, "encode and decode must both be functions"),
        (Odd, {"encode": 1, "decode": str}, "encode and decode must both be functions"),
        (Odd, {"encode": str, "decode": str, "version": 2}, "there is no version"),
        (Odd, {"encode": str, "decode": str, "exclude": ("a",)}, "there is no version, upgrade or exclude"),
        (Decimal, {"encode": str, "decode": Decimal}, "every Decimal is stored as it is"),
        (numpy.ndarray, {"encode": str, "decode": str}, "every ndarray is stored as it is"),
        (dict, {"encode": str, "decode": str}, "every dict is stored as it is"),
        (ValueError, {"encode": str, "decode": str}, "every ValueError is stored as it is"),
        (re.Pattern, {}, r"checkpointable\(Pattern, encode="),
        (Odd, {"exclude": "raw"}, r"like exclude=\('raw',\), not 'raw'"),
        (Odd, {"exclude": (1,)}, "exclude must be names of fields"),
        (Odd, {"exclude": 5}, "exclude must be names of fields"),
        (Odd, {"exclude": ("raw",)}, "exclude names 'raw', which has no default"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_given(cls: type, given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"@checkpointable of {cls.__name__}: .*{message}"):
        checkpointable(**given)(cls)


@dataclass
class PlainAnswer:
    text: str
    raw: Any = None
    tags: list[str] = field(default_factory=lambda: ["new"])


@dataclass(frozen=True)
class FrozenAnswer:
    text: str
    raw: Any = None
    tags: tuple[str, ...] = ("new",)


@dataclass(slots=True)
class SlottedAnswer:
    text: str
    raw: Any = None
    tags: list[str] = field(default_factory=lambda: ["new"])


class TupleAnswer(NamedTuple):
    text: str
    raw: Any = None
    tags: tuple[str, ...] = ("new",)


class ModelAnswer(pydantic.BaseModel):
    text: str
    raw: Any = None
    tags: list[str] = pydantic.Field(default_factory=lambda: ["new"])


class StructAnswer(msgspec.Struct):
    text: str
    raw: Any = None
    tags: list[str] = msgspec.field(default_factory=lambda: ["new"])


ANSWERS: list[Any] = [PlainAnswer, FrozenAnswer, SlottedAnswer, TupleAnswer, ModelAnswer, StructAnswer]


@pytest.fixture(params=ANSWERS, ids=lambda cls: cls.__name__)
def answer(request: pytest.FixtureRequest) -> Any:
    """A class of each kind, of which two fields are left out."""
    cls: Any = request.param
    yield checkpointable(exclude=("raw", "tags"))(cls)
    del cls.__holdfast_mark__


def test_excluded_fields_come_back_as_their_defaults(answer: Any) -> None:
    read = again([answer(text="kelp", raw=threading.Lock(), tags=["old"])])
    assert read == [answer(text="kelp")]
    assert type(read[0]) is answer
    assert again(answer(text="a", raw=1)) == answer(text="a")


def test_a_default_factory_is_called_for_each_instance() -> None:
    one, other = again([PlainAnswer("a", None, ["b"])], PlainAnswer)[0], PlainAnswer("a")
    assert one.tags == ["b"]
    checkpointable(exclude=("tags",))(PlainAnswer)
    try:
        one, other = again([PlainAnswer("a"), PlainAnswer("b")])
        assert one.tags == other.tags == ["new"]
        assert one.tags is not other.tags
    finally:
        del PlainAnswer.__holdfast_mark__  # type: ignore[attr-defined]


def test_values_with_excluded_fields_are_never_shared(answer: Any) -> None:
    assert not is_immutable((answer(text="kelp"),))


def test_which_fields_of_a_model_were_set_stays_without_the_excluded_ones() -> None:
    @checkpointable(exclude=("raw",))
    class Model(pydantic.BaseModel):
        text: str = ""
        raw: Any = None
        number: int = 0

    assert again(Model(text="a", raw=1)).model_fields_set == {"text"}


def test_a_field_that_is_excluded_later_is_dropped_from_old_data() -> None:
    @dataclass
    class Old:
        text: str
        raw: int = 0

    @dataclass
    class New:
        text: str
        raw: int = 0

    checkpointable(name="Answer")(Old)
    data = Codec().encode(Old("a", 5))
    checkpointable(name="Answer", exclude=("raw",))(New)
    assert Codec().decode(data) == New("a", 0)


def test_derived_classes_leave_out_the_fields_of_their_base() -> None:
    @checkpointable(exclude=("raw",))
    @dataclass
    class Base:
        raw: Any = None

    @dataclass
    class Derived(Base):
        more: int = 0

    @dataclass
    class Spoilt(Base):
        raw: Any = field()

    assert again(Derived(print, 3)) == Derived(None, 3)
    with pytest.raises(NotCheckpointable, match="Spoilt is not checkpointable: exclude names 'raw'"):
        Codec().encode(Spoilt(1))


def test_a_class_without_declared_fields_shows_the_attribute_of_the_class() -> None:
    @checkpointable(exclude=("client",))
    class Plain:
        client: Any = None

        def __init__(self) -> None:
            self.client, self.name = threading.Lock(), "a"

    read = again(Plain())
    assert (read.client, read.name) == (None, "a")
    assert "client" not in vars(read)


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="exclude names 'rwa', but the fields of the class are text, raw"
    ):

        @checkpointable(exclude=("rwa",))
        @dataclass
        class Answer:
            text: str
            raw: Any = None


def test_a_default_factory_is_not_called_by_the_declaration() -> None:
    called = []

    @checkpointable(exclude=("client",))
    @dataclass
    class Answer:
        client: Any = field(default_factory=lambda: called.append(1))

    assert not called
    again(Answer(client=0))
    assert called == [1]


@pytest.mark.parametrize("body", [{}, {"__slots__": ()}], ids=["open", "slots"])
def test_a_class_that_holds_nothing_is_stored(body: dict[str, Any]) -> None:
    empty = checkpointable(type("Ping", (), body))
    read = again([empty()])
    assert type(read[0]) is empty
