"""Values to bytes and back: every kind of value, exactly."""

import collections
import datetime as dt
import enum
import functools
import importlib.resources
import math
import pathlib
import subprocess
import sys
import uuid
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import ormsgpack
import pydantic
import pytest

from holdfast import Codec, checkpointable
from holdfast.checkpoint.codec.shapes import PlainShape, RecordShape
from holdfast.errors import (
    CheckpointCorrupt,
    ExecutorFailed,
    ExecutorTimeout,
    HoldfastError,
    LimitExceeded,
    NotCheckpointable,
    StateConflict,
    UnknownType,
)
from tests.support.parts import ExecutorId, TypeRegistry
from tests.unit.test_codec_exact import exact

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


# -- classes ---------------------------------------------------------------------------------------


@dataclass
class Point:
    x: Any
    y: Any = 0


@dataclass(frozen=True)
class Frozen:
    x: Any


@dataclass(slots=True)
class Slotted:
    x: Any
    y: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlotted:
    x: Any


@dataclass
class Derived(Point):
    z: Any = None


@dataclass(slots=True)
class SlottedDerived(Slotted):
    __private: int = 5
    z: Any = None


@dataclass
class HalfSlotted(Slotted):  # has a __dict__ beside the slots of its base
    z: Any = None


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Busy:
    """Everything that a constructor can do, and that decoding must not."""

    shown: int
    seed: InitVar[int]
    computed: int = field(init=False)
    shared: ClassVar[list[int]] = []

    def __post_init__(self, seed: int) -> None:
        self.shared.append(seed)
        self.computed = self.shown + seed
        self.beside = {"seed": seed}

    @functools.cached_property
    def slow(self) -> int:
        return self.computed * 2


class Colour(enum.Enum):
    RED = "r"
    GREEN = ("tuple", 1)
    ROUGE = "r"  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4
    ALL = 7


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


OldPair = collections.namedtuple("OldPair", ["left", "right"], defaults=[2])


class OpenPair(Pair):
    """A NamedTuple with a ``__dict__``."""


class Movie(TypedDict):
    title: str
    by: Point


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int
    b: list[Point] = []
    _hidden: int = pydantic.PrivateAttr(default=7)


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    even: int

    @pydantic.field_validator("even")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Struct(msgspec.Struct):
    a: Any
    b: list[int] = msgspec.field(default_factory=list)


class FrozenStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    long_name: Any


class OpenStruct(msgspec.Struct, dict=True):
    a: Any


class BusyStruct(msgspec.Struct):
    a: Any

    def __post_init__(self) -> None:
        self.a = (self.a, "again")


class Trouble(Exception):
    def __init__(self, code: int, *, where: Any) -> None:
        super().__init__(f"trouble {code}")
        self.code = code
        self.where = where


class FileTrouble(FileNotFoundError):
    __slots__ = ("hint",)


@dataclass
class DataTrouble(Exception):
    code: int


class Troubles(ExceptionGroup):
    pass


@checkpointable
class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.calls = 1


@checkpointable
class PlainSlots:
    __slots__ = ("__hidden", "x")

    def __init__(self, x: Any) -> None:
        self.x = x
        self.__hidden = 1


class PlainDerived(Plain):
    pass


DECLARED = (
    *(Point, Frozen, Slotted, FrozenSlotted, SlottedDerived, HalfSlotted, Box[int], Busy),
    *(Colour, Level, Mode, Rights, Bits, Pair, OldPair, Movie, Model, Strict),
    *(Struct, FrozenStruct, OpenStruct, BusyStruct, Trouble, FileTrouble, DataTrouble, Troubles),
    *(Plain, PlainSlots),
)


@pytest.fixture
def codec() -> Codec:
    return Codec(TypeRegistry(("the tests", form) for form in DECLARED))


# -- round trips -----------------------------------------------------------------------------------


def noted(error: BaseException) -> BaseException:
    error.add_note("a note")
    error.__cause__ = ValueError("not kept")
    return error


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def attributed(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


PLAIN: list[Any] = [
    *(None, True, False, 0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308),
    *("", "a", "é", "日本", "\U0001f600", "a" * 70_000, "\x00"),
    *(b"", b"\xff", b"a" * 70_000),
    *([], [1, [2, [3]]], {}, {"a": {"b": [1]}}, {"b": 1, "a": 2}, {"": None}),
    list(range(70_000)),
]
EXTENDED: list[Any] = [
    *(2**64, -(2**63) - 1, 2**1000, -(2**1000), 255 << 64, -(1 << 71), -(1 << 127), 10**5000),
    *(0j, complex(-0.0, math.nan), complex(1, -2)),
    *("\ud800", "a\udfffb", ["\udc80"], {"\ud800": "\ud800"}, "\ud83d\ude00"),
    *(bytearray(), bytearray(b"ab"), [bytearray(b"x"), b"x"], {"a": {"b": bytearray(b"y")}}),
    *((), (1,), ((), [()]), [(1, 2), (3, 4)], {"a": (1,)}),
    *(set(), {1, 2, 3}, {"a", "b"}, {(1, 2), (3,)}, {frozenset({1}), frozenset()}, frozenset({1, "a", None})),
    *({1: 2}, {1.5: 2}, {True: 1}, {None: 1}, {b"a": 1}, {(1, 2): 3}, {frozenset({1}): 2}, {-0.0: 1}),
    *({1: "a", "1": "b"}, {"a": {1: {2: [{3: 4}]}}}, [{1: 2}, {"a": 1}], {2**70: 1}, {Colour.RED: 1}),
    {2: "second", 1: "first", "a": 0},
    *({"é": {1: 2}}, {2**70, 1}, {"\ud800", "a"}, [*range(70_000), {1: 2}]),
    {**{str(i): i for i in range(70_000)}, "last": {1: 2}},
    *(range(3), range(10, -5, -2), range(2**80), ..., [...]),
    *map(Decimal, ("0", "-0", "1.50", "1E+5", "1e-999", "NaN", "sNaN", "-sNaN7", "Infinity", "-Infinity", "9" * 100)),
    *(Fraction(1, 3), Fraction(-(2**70), 3**50), Fraction(0)),
    *(uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)),
    *(dt.date.min, dt.date(2026, 3, 1), dt.date.max, dt.timedelta(0), dt.timedelta.min, dt.timedelta.max),
    dt.timedelta(days=-1, microseconds=1),
    *(dt.datetime.min, dt.datetime.max, dt.datetime(2026, 3, 1, 12, 30)),  # noqa: DTZ901, DTZ001
    dt.datetime(2026, 3, 1, 12, fold=1),  # noqa: DTZ001
    *(dt.datetime(2026, 3, 1, tzinfo=dt.UTC), dt.datetime(2026, 3, 1, 1, 2, 3, 4, tzinfo=dt.UTC)),
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone(-dt.timedelta(seconds=1, microseconds=1))),
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    dt.time(1, tzinfo=dt.timezone(dt.timedelta(microseconds=-1))),
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone(dt.timedelta(0), "UTC")),
    *(dt.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN) for fold in (0, 1)),
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),  # does not exist
    dt.datetime(2026, 3, 1, fold=1, tzinfo=dt.UTC),
    *(dt.time.min, dt.time.max, dt.time(1, 2, fold=1), dt.time(1, tzinfo=dt.UTC), dt.time(1, tzinfo=BERLIN)),
    *(dt.UTC, dt.timezone(dt.timedelta(hours=-3)), dt.timezone(dt.timedelta(0), "\ud800"), BERLIN),
    collections.OrderedDict([(2, 1), ("a", 2)]),
    collections.defaultdict(list, {"a": [1]}),
    *(collections.defaultdict(kind) for kind in (None, int, dict, set, float, str, tuple)),
    collections.Counter({"a": 2, "b": -1, "c": 0}),
    *(collections.deque([1, 2]), collections.deque([1, 2], 2), collections.deque(maxlen=0)),
    *(pathlib.Path("a/b"), pathlib.Path(), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("C:\\x")),
    pathlib.Path("\udcff"),
]  # fmt: skip
INSTANCES: list[Any] = [
    *(
        Point(1, 2),
        Point([Point(Point(1))], (2,)),
        [Point(1)] * 3,
        {"a": Point(1)},
        {Frozen(1): Frozen((2,))},
    ),
    *(Frozen(None), Slotted(1), Slotted(1, [2]), FrozenSlotted(x=1), Derived(1, 2, 3)),
    *(SlottedDerived(1), HalfSlotted(1, [2], 3), Box(1), Box([Box("a")])),
    Box[int](5),
    *(Busy(1, 2), attributed(Point(1), extra=2)),
    *(*Colour, *Level, *Mode, *Rights, [Colour.RED], {"a": Level.LOW}),
    *(Rights.READ | Rights.WRITE, Rights(0), Bits.ONE | Bits.TWO, Bits(0), Bits(8), ~Bits.ONE),
    *(Pair(1), Pair(Pair(2), [3]), OldPair(1), OpenPair(1, 2), attributed(OpenPair(1, 2), x=3)),
    Movie(title="Alien", by=Point(1)),
    *(
        Model(a=1),
        Model.model_validate({"a": 1, "b": [Point(2)], "extra": (3,)}),
        Strict(even=2),
        Strict.model_construct(even=3),
    ),
    Model.model_construct(a="not an int"),
    *(Struct(1), Struct(Struct((1,)), [2]), FrozenStruct(long_name=1), attributed(OpenStruct(1), x=2)),
    BusyStruct(1),
    *(Plain(1), PlainSlots((1,)), PlainDerived([Plain(2)]), attributed(Plain(1), y={1: 2})),
]
ERRORS: list[BaseException] = [
    *(ValueError(), ValueError("a", 1, (2,)), KeyError("k"), noted(RuntimeError("x")), KeyboardInterrupt()),
    *(StopIteration(5), SystemExit(3), OSError(), OSError("text"), OSError(2, "No such file", "name")),
    *(FileNotFoundError(2, "x", "a", None, "b"), BlockingIOError(11, "x", 5), TimeoutError("late")),
    *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeEncodeError("ascii", "é", 0, 1, "bad")),
    SyntaxError("bad", ("f.py", 1, 2, "text", 1, 3)),
    *(ImportError("x", name="n", path="p"), NameError("x", name="n"), DeprecationWarning("old")),
    ExceptionGroup("many", [ValueError(1), ExceptionGroup("more", [KeyError("k")])]),
    *(
        HoldfastError("x"),
        ExecutorFailed("x", executor_id=ExecutorId("a"), superstep=3),
        ExecutorTimeout("late"),
    ),
    *(StateConflict("x", scope_name="s", key="k", executor_ids=()), LimitExceeded("max", 3, "x")),
    *(raised(Trouble(3, where="here")), noted(Trouble(4, where="there")), DataTrouble(4)),
    attributed(FileTrouble(2, "x", "name"), more=1),
    Troubles("many", [Trouble(1, where="a")]),
]
ARRAYS: list[Any] = [
    np.arange(6).reshape(2, 3),
    np.arange(6, dtype=">i2"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::2],
    np.zeros((0, 3)),
    np.array(5),
    np.array([math.nan, -0.0]),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]),
    np.array([True, False]),
    np.array([1 + 2j], dtype="c8"),
    np.array(["2026-03-01"], dtype="M8[D]"),
    np.array([1], dtype="m8[ns]"),
    np.array([(1, 2.5, "x")], dtype=[("a", "<i4"), ("b", ">f8"), ("c", "U3")]),
    np.zeros(2, dtype=np.dtype([("a", "i1"), ("b", "f8", (2,))], align=True)),
    np.float32(1.5),
    np.float64(-0.0),
    np.int8(-3),
    np.bool_(True),
    np.str_("text"),
    np.bytes_(b"x"),
    np.datetime64("2026-03-01T12:00", "ns"),
    np.array([(1, 2.5)], dtype="i4,f8")[0],
]


def numbered(values: list[Any]) -> list[Any]:
    return [pytest.param(value, id=f"{index}-{type(value).__name__}") for index, value in enumerate(values)]


@pytest.mark.parametrize("value", numbered([*PLAIN, *EXTENDED, *INSTANCES, *ERRORS, *ARRAYS]))
def test_a_value_comes_back_exactly(codec: Codec, value: Any) -> None:
    before = exact(value)
    data = codec.encode(value)
    assert type(data) is bytes
    assert exact(codec.decode(data)) == before == exact(value)
    assert exact(codec.decode(codec.encode([{"a": value}, value]))) == exact([{"a": value}, value])
    assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize("value", numbered(PLAIN))
def test_plain_data_is_plain_messagepack(codec: Codec, value: Any) -> None:
    assert codec.encode(value) == ormsgpack.packb(value)


def test_every_reader_gets_its_own_value(codec: Codec) -> None:
    data = codec.encode([Point([1]), np.arange(3)])
    one, other = codec.decode(data), codec.decode(data)
    one[0].x.append(2)
    one[1][0] = 9
    assert other[0].x == [1]
    assert other[1][0] == 0


def test_constructors_and_validators_do_not_run(codec: Codec) -> None:
    kept = codec.encode([Busy(1, 2), Strict.model_construct(even=3)])
    Busy.shared.clear()
    busy, strict = codec.decode(kept)
    assert Busy.shared == []
    assert (busy.computed, busy.beside, busy.slow, strict.even) == (3, {"seed": 2}, 6, 3)


def test_what_was_computed_once_is_kept(codec: Codec) -> None:
    busy = Busy(1, 2)
    assert busy.slow == 6
    assert vars(codec.decode(codec.encode(busy)))["slow"] == 6


def test_a_pydantic_model_keeps_what_was_set_extra_and_private(codec: Codec) -> None:
    model = Model.model_validate({"a": 1, "z": (2,)})
    model._hidden = 9
    back = codec.decode(codec.encode(model))
    assert back == model
    assert (back.model_fields_set, back.model_extra, back._hidden) == ({"a", "z"}, {"z": (2,)}, 9)


def test_an_exception_leaves_traceback_and_cause_behind(codec: Codec) -> None:
    error = raised(noted(ValueError("x")))
    back = codec.decode(codec.encode(error))
    assert (back.__traceback__, back.__cause__, back.__notes__) == (None, None, ["a note"])
    missing = codec.decode(codec.encode(FileNotFoundError(2, "No such file", "name")))
    assert str(missing) == "[Errno 2] No such file: 'name'"
    assert str(codec.decode(codec.encode(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")))) == (
        "'utf-8' codec can't decode byte 0xff in position 0: bad"
    )


def test_the_object_that_lacks_an_attribute_is_left_behind(codec: Codec) -> None:
    back = codec.decode(codec.encode(raised(AttributeError("x", name="n", obj=object()))))
    assert (back.args, back.name, back.obj) == (("x",), "n", None)


def test_a_shared_part_is_kept_twice(codec: Codec) -> None:
    part = [1]
    one, other = codec.decode(codec.encode([part, part]))
    assert one == other
    assert one is not other


def test_deep_data_is_kept_as_far_as_promised(codec: Codec) -> None:
    value: Any = None
    for _ in range(90):
        value = [{"a": (value,)}]
    assert exact(codec.decode(codec.encode(value))) == exact(value)


def test_labels(codec: Codec) -> None:
    values: tuple[Any, ...] = (None, 1, "a", [], Point(1), Colour.RED, ValueError())
    labels = ["None", "int", "str", "list", "Point", "Colour", "ValueError"]
    assert [codec.label(value) for value in values] == labels


# -- deterministic bytes -----------------------------------------------------------------------------


def test_sets_are_in_the_order_of_their_bytes(codec: Codec) -> None:
    assert codec.encode({3, 1, 2}) == codec.encode({2, 3, 1}) == bytes.fromhex("d60693010203")
    names = [f"name{index}" for index in range(50)]
    assert codec.encode(set(names)) == codec.encode({*reversed(names)})


PROGRAM = """
import sys
from dataclasses import dataclass
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.registry import checkpointable

@checkpointable
@dataclass(frozen=True)
class Key:
    name: str

value = {
    "names": {f"name{i}" for i in range(100)},
    "keys": frozenset(Key(f"key{i}") for i in range(100)),
    "mixed": [{("a", i), b"b", None, 1.5, frozenset({str(i)})} for i in range(20)],
}
sys.stdout.write(Codec().encode(value).hex())
"""


def run(program: str, *args: str, seed: str = "random") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *args],
        capture_output=True, text=True, check=False, env={"PYTHONHASHSEED": seed, "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    assert run(PROGRAM, seed="1") == run(PROGRAM, seed="2")


# -- what is imported --------------------------------------------------------------------------------

IMPORTS = """
import sys
from dataclasses import dataclass
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.registry import TypeRegistry

@dataclass
class Row:
    number: int

codec = Codec(TypeRegistry([("program", Row)]))
value = [{"a": (1, 2.5), "rows": [Row(1)]}, {1, 2}, 2**70, ValueError("x")]
assert codec.decode(codec.encode(value))[:3] == value[:3]
found = {"numpy", "pydantic", "msgspec", "decimal", "fractions", "zoneinfo", "pathlib"} & set(sys.modules)
sys.stdout.write(",".join(sorted(found)))
"""


def test_nothing_is_imported_that_is_not_used() -> None:
    assert run(IMPORTS) == ""


def test_data_brings_the_modules_that_it_needs(codec: Codec) -> None:
    values = [np.arange(2), Decimal(1), Fraction(1, 2), uuid.UUID(int=1), BERLIN, pathlib.Path("a")]
    program = """
import sys
from holdfast.checkpoint.codec import Codec
sys.stdout.write(repr(Codec().decode(bytes.fromhex(sys.argv[1]))))
"""
    assert run(program, codec.encode(values).hex()) == repr(values)


# -- refusals ----------------------------------------------------------------------------------------


class Handle:
    """A plain class."""


class Words(list[str]):
    pass


@dataclass
class Rows(list[int]):
    title: str = ""


class Text(str):
    __slots__ = ()


@dataclass
class Undeclared:
    x: int = 0


class Shade(enum.Enum):
    DARK = 1


class Zone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(0)

    dst = utcoffset

    def tzname(self, _: Any) -> str:
        return "Z"


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 0]})


def from_file() -> ZoneInfo:
    found = importlib.resources.files("tzdata.zoneinfo") / "UTC"
    with found.open("rb") as file:
        return ZoneInfo.from_file(file)


@checkpointable
@dataclass(frozen=True)
class Silent:
    def __repr__(self) -> str:
        raise ValueError


def loop() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def tuple_loop() -> Any:
    value: list[Any] = []
    value.append((value,))
    return value


def point_loop() -> Any:
    point = Point(1)
    point.y = [point]
    return point


def deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


def deep_points(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = Point(value)
    return value


OPEN = "send plain data, and open such things where they are used"
LOOK_UP = "send plain data, and look such things up where they are used"
DECLARE = "name it in the annotations of a handler or in a StateKey, or decorate it with @checkpointable"
REFUSED: list[tuple[str, Any, str]] = [
    ("object", object(), f"message: object is not checkpointable; {OPEN}"),
    ("path", {"rows": [0, 1, 2, Point(object())]}, f"message['rows'][3].x: object is not checkpointable; {OPEN}"),
    ("tuple", ([], (1, open)), f"message[1][1]: builtin_function_or_method is not checkpointable; {LOOK_UP}"),
    ("set", {open}, ("message{<built-in function open>}: builtin_function_or_method is not checkpointable; "
     f"{LOOK_UP}")),
    ("key", {(1, len): 2}, ("message key (1, <built-in function len>)[1]: builtin_function_or_method is not "
     f"checkpointable; {LOOK_UP}")),
    ("error", ValueError(1, object()), f"message.args[1]: object is not checkpointable; {OPEN}"),
    ("error attribute", attributed(ValueError(), x=object()), f"message.x: object is not checkpointable; {OPEN}"),
    ("pydantic", Model.model_validate({"a": 1, "z": object()}), f"message.z: object is not checkpointable; {OPEN}"),
    ("struct", Struct(object()), f"message.a: object is not checkpointable; {OPEN}"),
    ("named tuple", Pair(object()), f"message.left: object is not checkpointable; {OPEN}"),
    ("deque", collections.deque([object()]), f"message[0]: object is not checkpointable; {OPEN}"),
    ("ordered", collections.OrderedDict(a=object()), f"message['a']: object is not checkpointable; {OPEN}"),
    ("generator", (letter for letter in "a"), f"message: generator is not checkpointable; {OPEN}"),
    ("function", lambda: 0, f"message: function is not checkpointable; {LOOK_UP}"),
    ("module", sys, f"message: module is not checkpointable; {LOOK_UP}"),
    ("class", Point, "message: the class Point is not checkpointable; send its name, or an instance"),
    ("memoryview", memoryview(b"a"), "message: memoryview is not checkpointable; send bytes(...) of it"),
    ("memoryview inside", [{"a": memoryview(b"a")}],
     "message[0]['a']: memoryview is not checkpointable; send bytes(...) of it"),
    ("mapping proxy", MappingProxyType({}), f"message: mappingproxy is not checkpointable; {OPEN}"),
    ("NotImplemented", NotImplemented, f"message: NotImplementedType is not checkpointable; {OPEN}"),
    ("plain class", Handle(), ("message: Handle is not checkpointable; make it a dataclass, or decorate it with "
     "@checkpointable")),
    ("undeclared", [Undeclared()], f"message[0]: Undeclared is not declared in the workflow; {DECLARE}"),
    ("undeclared enum", Shade.DARK, f"message: Shade is not declared in the workflow; {DECLARE}"),
    ("list subclass", Words(), ("message: Words is derived from list, so it is not checkpointable; use a list, or "
     "a dataclass that holds one")),
    ("str subclass", {"a": Text("x")}, ("message['a']: Text is derived from str, so it is not checkpointable; use a "
     "str, or a dataclass that holds one")),
    ("str subclass key", {Text("x"): 1}, ("message key 'x': Text is derived from str, so it is not checkpointable; "
     "use a str, or a dataclass that holds one")),
    ("bool-like", type("Int", (int,), {})(1), ("message: Int is derived from int, so it is not checkpointable; use a "
     "int, or a dataclass that holds one")),
    ("dataclass that is a list", Rows(), ("message: Rows is derived from list, so it is not checkpointable; use a "
     "list, or a dataclass that holds one")),
    ("time zone", dt.datetime(2026, 1, 1, tzinfo=Zone()), ("message.tzinfo: the time zone Zone is not checkpointable; "
     "use zoneinfo.ZoneInfo or datetime.timezone")),
    ("factory", collections.defaultdict(lambda: 1), ("message: defaultdict with such a factory is not checkpointable; "
     "use a dict, or one of the factories None, bool, bytes, dict, float, frozenset, int, list, set, str, tuple")),
    ("numpy objects", np.array([object()]), ("message: a numpy array of type object is not checkpointable; use a type "
     "of fixed size, or a list of its items")),
    ("numpy strings", np.array(["a"], dtype="T"), ("message: a numpy array of type StringDType() is not "
     "checkpointable; use a type of fixed size, or a list of its items")),
    ("numpy overlapping", np.zeros(1, OVERLAPPING), ("message: a numpy array of type {'names': ['a', 'b'], 'formats': "
     "['<i4', '<i4'], 'offsets': [4, 0], 'itemsize': 8} is not checkpointable: dtype.descr is not defined for types "
     "with overlapping or out-of-order fields; reorder its fields")),
    ("zone without key", from_file(), ("message: ZoneInfo without a key is not checkpointable; make it with "
     "ZoneInfo(key)")),
    ("repr raises", {Silent(): object()}, ("message[<Silent, whose repr raises ValueError>]: object is not "
     f"checkpointable; {OPEN}")),
    ("declared exception", Trouble(1, where=object()), f"message.where: object is not checkpointable; {OPEN}"),
    ("loop", loop(), "message[1]['again']: list contains itself; send its parts without the loop"),
    ("loop through a tuple", tuple_loop(), "message[0][0]: list contains itself; send its parts without the loop"),
    ("loop through a dataclass", point_loop(), "message.y[0]: Point contains itself; send its parts without the loop"),
    ("deep", deep(5000), "message: list contains itself or is nested too deeply"),
    ("deep points", deep_points(101), "message: Point contains itself or is nested too deeply"),
    ("deep keys", {1: deep(5000)}, "message: dict contains itself or is nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), [pytest.param(*rest, id=name) for name, *rest in REFUSED])
def test_what_cannot_be_kept_is_named_with_its_place(value: Any, message: str) -> None:
    registry = TypeRegistry(("the tests", form) for form in (*DECLARED, Words, Rows, Text, Handle))
    with pytest.raises(NotCheckpointable) as refused:
        Codec(registry).encode(value, "message")
    assert str(refused.value) == message


def test_a_refused_value_does_not_spoil_the_codec(codec: Codec) -> None:
    with pytest.raises(NotCheckpointable):
        codec.encode([Point(1), object()])
    assert codec.decode(codec.encode([Point(1), {1: 2}])) == [Point(1), {1: 2}]


def test_numpy_must_be_there_to_read_arrays(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    array, form = codec.encode(np.arange(2)), codec.encode_form(np.ndarray, "type")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(
        UnknownType, match=r"^state: the data has a numpy array, .* install the package numpy$"
    ):
        codec.decode(array, "state")
    with pytest.raises(
        UnknownType, match=r"^type: the data has the type ndarray; install the package numpy$"
    ):
        codec.decode_form(form)


@pytest.mark.parametrize("method", ["take_apart", "rebuild"])
def test_an_interrupt_is_not_swallowed(codec: Codec, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    data = codec.encode([Plain(1)])
    monkeypatch.setattr(RecordShape, method, interrupted)
    monkeypatch.setattr(PlainShape, "rebuild", interrupted)
    with pytest.raises(KeyboardInterrupt):
        codec.decode(data) if method == "rebuild" else Codec(codec.types).encode([Plain(1)])


def test_bytes_with_something_behind_them_are_no_encoding(codec: Codec) -> None:
    for value in (1, [1, 2], {"a": 1}, (1,), Point(1), "a" * (1 << 20), bytes(1 << 20), (bytes(1 << 20),)):
        with pytest.raises(CheckpointCorrupt, match=r"state: .*more than one value"):
            codec.decode(codec.encode(value) + b"\xc0", "state")
