"""Values in odd states: each comes back exactly, or is refused where it is captured."""

import array
import collections
import enum
import pathlib
import random
from dataclasses import dataclass, field, is_dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
import ormsgpack
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Codec,
    Counters,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    checkpointable,
    executor,
)
from holdfast.checkpoint.codec import writer
from holdfast.engine.copies import deep_copy
from holdfast.errors import NotCheckpointable, UnknownType
from tests.support.parts import Encoder, TypeRegistry
from tests.unit.test_codec_exact import exact

# -- classes with parts that can be missing ----------------------------------------------------------


@dataclass
class Job:
    name: Any
    result: Any = field(init=False)  # filled in later
    tags: Any = field(default_factory=list)
    note: Any = "none"


@dataclass(slots=True)
class SlottedJob:
    name: Any
    result: Any = field(init=False)
    tags: Any = field(default_factory=list)
    note: Any = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenJob:
    name: Any
    result: Any = field(init=False)
    tags: Any = field(default_factory=list)
    note: Any = "none"


@dataclass
class HalfSlottedJob(SlottedJob):
    note: Any = "none"


@checkpointable
class PlainJob:
    name: Any
    result: Any
    tags: Any
    note: Any


@checkpointable
class PlainSlots:
    __slots__ = ("name", "note", "result", "tags")

    def __getattr__(self, name: str) -> str:
        return f"no {name}"  # what is not set must not pass for set


class ModelJob(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: Any
    result: Any
    tags: Any = pydantic.Field(default_factory=list)
    note: Any = "none"
    _hidden: int = pydantic.PrivateAttr(default=7)


class StructJob(msgspec.Struct):
    name: Any
    result: Any
    tags: Any = msgspec.field(default_factory=list)
    note: Any = "none"


class OpenStructJob(StructJob, dict=True):
    pass


JOBS = (Job, SlottedJob, FrozenJob, HalfSlottedJob, PlainJob, PlainSlots, ModelJob, StructJob, OpenStructJob)
FIELDS = ("name", "result", "tags", "note")


def job(cls: Any, **held: Any) -> Any:
    """An instance that holds exactly these of its fields."""
    if issubclass(cls, pydantic.BaseModel):
        made = cls.model_construct(name=0, result=0)
    elif issubclass(cls, msgspec.Struct):
        made = cls(name=0, result=0)
    else:
        made = object.__new__(cls)
    for name in FIELDS:
        if name in held:
            object.__setattr__(made, name, held[name]) if issubclass(cls, FrozenJob) else setattr(
                made, name, held[name]
            )
        elif name in getattr(made, "__dict__", {}) or isinstance(made, msgspec.Struct):
            delattr(made, name)
    return made


# -- classes that make restoring hard ----------------------------------------------------------------


class Root(pydantic.RootModel[list[int]]):
    pass


class HidingRoot(pydantic.RootModel[list[int]]):
    _hidden: int = pydantic.PrivateAttr(default=3)


class Choosy(msgspec.Struct):
    """Refuses when it is made what may become of it later."""

    even: int

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ValueError("odd")


class Described:
    """A descriptor that keeps the value of a field under another name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        return 100 if instance is None else getattr(instance, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


@dataclass
class Stock:
    amount: Any = Described()


class Errors(ExceptionGroup[Exception]):
    """As in the documentation of Python: made with other arguments than its base."""

    def __new__(cls, errors: Any, exit_code: int) -> "Errors":
        made = super().__new__(cls, f"exit code: {exit_code}", errors)
        made.exit_code = exit_code  # type: ignore[attr-defined]
        return made


class Lazy(Exception):
    """Its arguments are not those of an exception."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise AssertionError("nobody asks")


class Coded(OSError):
    __slots__ = ("hint",)
    errno = property(lambda self: 5)


class Pair(NamedTuple):
    left: Any
    right: Any


class LongPair(Pair):
    pass


class Grown(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        made = object.__new__(cls)
        vars(made).update(_name_=str(value), _value_=value)
        return made


@dataclass
class Dice(random.Random):
    sides: int = 6


@checkpointable
class Numbers(array.array):
    pass


DECLARED = (*JOBS, Root, HidingRoot, Choosy, Stock, Errors, Lazy, Coded, Pair, LongPair, Grown, Dice, Numbers)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(TypeRegistry(("the tests", form) for form in DECLARED))


# -- what comes back exactly -------------------------------------------------------------------------


def changed(value: Any, **attributes: Any) -> Any:
    for name, part in attributes.items():
        setattr(value, name, part)
    return value


def grown_group() -> BaseException:
    errors: list[Any] = [ValueError(1)]
    group = ExceptionGroup("many", errors)
    errors.append(5)  # which its arguments see, but not its exceptions
    return group


def read_only(found: Any) -> Any:
    found.flags.writeable = False
    return found


STRUCTURED = np.dtype([("a", "i1"), ("b", ">f8", (2,))], align=True)
EXACT: dict[str, Any] = {
    "descriptor": Stock(5),
    "descriptor without value": object.__new__(Stock),
    "root model": Root([1, 2]),
    "root model that hides": HidingRoot([1, 2]),
    "struct that would be refused": changed(Choosy(2), even=3),
    "group with arguments of its own": Errors([ValueError(1)], 3),
    "group whose arguments grew": grown_group(),
    "group without arguments": changed(ExceptionGroup("many", [ValueError(1)]), args=()),
    "group of a tuple": ExceptionGroup("many", (ValueError(1), KeyError("k"))),
    "exception without arguments": changed(ValueError("x"), args=()),
    "text with NULs": np.str_("a\0\0"),
    "text of NULs": np.str_("\0"),
    "text with a surrogate": np.str_("\ud800\0"),
    "no text": np.str_(""),
    "bytes with NULs": np.bytes_(b"a\0\0"),
    "no bytes": np.bytes_(b""),
    "void with NULs": np.void(b"a\0"),
    "read-only": read_only(np.arange(3)),
    "read-only by columns": read_only(np.asfortranarray(np.arange(6).reshape(2, 3))),
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "read-only text": read_only(np.array(["a\0", "b"])),
    "padded": np.frombuffer(bytes(range(48)), STRUCTURED).copy(),
    "titles": np.zeros(2, np.dtype([(("title", "a"), "i4")])),
    "nothing by columns": np.zeros((0, 3), order="F"),
    "no dimension": np.array("a\0"),
    "elements without size": np.zeros(3, "V0"),
    "not a time": np.array(["NaT", "2026-03-01"], "M8[25s]"),
    "long long": np.longlong(1),
    "array of long longs": np.zeros(2, np.dtype(np.ulonglong).newbyteorder(">")),
    "long double": np.longdouble("1.25"),
}


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in EXACT.items()])
def test_an_odd_value_comes_back_exactly(codec: Codec, value: Any) -> None:
    before = exact(value)
    data = codec.encode(value)
    back = codec.decode(data)
    assert exact(back) == before == exact(value)
    assert codec.encode(back) == data


def test_a_group_that_came_back_can_be_split(codec: Codec) -> None:
    back = codec.decode(codec.encode(Errors([ValueError(1), KeyError("k")], 3)))
    assert (back.message, back.exit_code, back.args[1]) == ("exit code: 3", 3, 3)
    assert [type(error) for error in back.exceptions] == [ValueError, KeyError]


def test_an_exception_comes_back_without_its_properties(codec: Codec) -> None:
    made = Coded(2, "No such file", "name")
    made.hint = "look"  # type: ignore[attr-defined]
    back = codec.decode(codec.encode(made))
    assert (vars(OSError)["errno"].__get__(back), back.filename, back.hint) == (2, "name", "look")
    lazy = codec.decode(codec.encode(Lazy("a", 1)))
    assert vars(BaseException)["args"].__get__(lazy) == ("a", 1)


def test_an_array_that_came_back_can_be_resized(codec: Codec) -> None:
    back = codec.decode(codec.encode(np.arange(3)))
    back.resize(5, refcheck=False)
    assert back.tolist() == [0, 1, 2, 0, 0]


ANY = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.booleans(), max_size=2))
HELD = st.dictionaries(st.sampled_from(FIELDS), ANY)


@given(st.sampled_from(JOBS), HELD)
@settings(max_examples=200)
def test_what_an_instance_does_not_hold_it_does_not_hold_again(cls: Any, held: dict[str, Any]) -> None:
    codec = Codec(TypeRegistry([("the tests", cls)]))
    value = job(cls, **held)
    before = exact(value)
    data = codec.encode(value)
    back = codec.decode(data)
    assert exact(back) == before
    assert codec.encode(back) == data
    kept = Encoder(codec, 1 << 20, Counters())([value, [value]], "value")
    for _ in range(4):  # the first is decoded, later ones may be copied
        assert exact(kept.load()) == exact([value, [value]])
    if is_dataclass(value):  # others copy themselves
        assert exact(deep_copy(value, "value")) == before


def test_what_is_read_again_is_the_same(codec: Codec) -> None:
    for value in (Root([1, 2]), HidingRoot([1, 2]), Stock([5]), changed(Choosy(2), even=[3])):
        kept = Encoder(codec, 1 << 20, Counters())([value], "value")
        for _ in range(4):
            assert codec.encode(kept.load()) == codec.encode([value])


DTYPES = st.sampled_from(
    [
        *"?bBhHiIlLqQefdgFDG",
        ">i4",
        ">f8",
        ">U2",
        "U3",
        "S3",
        "V3",
        "M8[ns]",
        ">M8[D]",
        "m8[7s]",
        "i4,>f8",
        "U0",
    ]
)


@given(
    DTYPES,
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from("CF"),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_kind_of_array_comes_back_exactly(
    kind: str, shape: list[int], order: Any, locked: bool, strided: bool, chance: random.Random
) -> None:
    dtype = np.dtype(kind)
    content = chance.randbytes(int(np.prod(shape)) * dtype.itemsize)
    if dtype.kind in "Ug":  # not all bits are characters, or count
        content = bytes(len(content))
    found = np.ndarray(tuple(shape), dtype, bytearray(content), order=order)
    if strided and shape:
        found = found[::2]
    found.flags.writeable = not locked
    for value in (found, *found.flat[:2]):
        data = Codec().encode(value)
        back = Codec().decode(data)
        assert exact(back) == exact(value)
        assert Codec().encode(back) == data


# -- what is refused where it is captured ------------------------------------------------------------


def attributed(value: Any) -> Any:
    value.beside = 1
    return value


NUMPY_INT: Any = np.int64(3)
HALVES = Fraction(NUMPY_INT, 2)
RECORDS = np.zeros(1, "i8,f8").view(np.recarray)
TELL = "send plain data, or tell how it is stored: checkpointable({}, encode=..., decode=...)"
OPEN = "send plain data, and open such things where they are used"
REFUSED: list[tuple[str, Any, str]] = [
    ("member that no class has", Grown(5), ("message: Grown.5 is no member that Grown declares, so it could not be "
     "found again; add it to the class")),
    ("named tuple of three", tuple.__new__(LongPair, (1, 2, 3)), ("message: LongPair has 3 items, but 2 fields; give "
     "it as many as it has fields")),
    ("random numbers", Dice(3), f"message: Dice is not checkpointable; {TELL.format('Dice')}"),
    ("array of C", Numbers("i", [1]), f"message: Numbers is not checkpointable; {TELL.format('Numbers')}"),
    ("ordered dict with attributes", attributed(collections.OrderedDict()), ("message: OrderedDict with attributes of "
     "its own (beside) is not checkpointable; keep them beside it, in a dataclass")),
    ("counter with attributes", attributed(collections.Counter()), ("message: Counter with attributes of its own "
     "(beside) is not checkpointable; keep them beside it, in a dataclass")),
    ("fraction of numpy", HALVES, ("message: Fraction of int64 and int is not checkpointable; make "
     "it of two ints")),
    ("path without text", pathlib.PureWindowsPath("./c:x"), ("message: PureWindowsPath('c:x') is another path than "
     "its text says, so it is not checkpointable; use its text")),
    ("numpy record", RECORDS[0], ("message: a numpy array of type (numpy.record, [('f0', '<i8'), "
     "('f1', '<f8')]) would come back as another type, so it is not checkpointable; use .astype(...) with a type of "
     "numpy itself")),
    ("numpy metadata", np.zeros(1, np.dtype("i4", metadata={"unit": "m"})), ("message: a numpy array of type int32 "
     "with metadata is not checkpointable; keep the metadata beside it")),
    ("nested metadata", np.zeros(1, np.dtype([("a", np.dtype("i4", metadata={"unit": "m"}))])), ("message: a numpy "
     "array of type [('a', '<i4')] with metadata is not checkpointable; keep the metadata beside it")),
    ("elements without size", np.zeros(1 << 21, "V0"), ("message: a numpy array of type |V0 with 2,097,152 items is "
     "not checkpointable; use a type of fixed size above 0, or its shape")),
    ("field that is not set", StructJob(1, msgspec.UNSET),
     "message.result: UnsetType is not checkpointable; " + TELL.format("UnsetType")),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), [pytest.param(*rest, id=name) for name, *rest in REFUSED])
def test_what_could_not_come_back_is_refused(codec: Codec, value: Any, message: str) -> None:
    for around, path in ((value, ""), ([value], "[0]")):
        with pytest.raises(NotCheckpointable) as refused:
            codec.encode(around, "message")
        assert str(refused.value) == message.replace("message", f"message{path}", 1)


def test_what_cannot_be_taken_apart_is_refused(codec: Codec) -> None:
    with pytest.raises(NotCheckpointable) as refused:
        codec.encode([ModelJob.__new__(ModelJob)], "message")
    assert str(refused.value).startswith("message[0]: ModelJob cannot be taken apart (AttributeError(")
    assert str(refused.value).endswith(", so it is not checkpointable; make it with its constructor")


@pytest.mark.parametrize("value", [b"x" * 60, bytearray(60), "\ud800" * 60, "x" * 60], ids=repr)
def test_a_part_that_no_header_can_tell_the_length_of_is_refused(
    codec: Codec, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the native packer does from four gigabytes on."""

    def packb(*args: Any) -> bytes:
        data = ormsgpack.packb(*args)
        if len(data) > 50:
            raise TypeError("write error")
        return data

    monkeypatch.setattr(writer, "packb", packb)
    with pytest.raises(NotCheckpointable, match=r"^message\[0\]: .* more than 4,294,967,295 bytes is not"):
        codec.encode([value], "message")


# -- fields that are not set, and classes that change ------------------------------------------------


@dataclass
class Today:
    name: str
    result: Any
    tags: list[str] = field(default_factory=lambda: ["new"])
    note: str = "none"
    more: str = "more"


class TodayTuple(NamedTuple):
    name: str
    tags: Any = ()
    note: Any = "none"
    result: Any = "a default"


class NeedyTuple(NamedTuple):
    name: str
    result: Any
    tags: Any = ()
    note: Any = "none"


@pytest.mark.usefixtures("own_marks")
def test_a_field_that_was_not_set_takes_no_default() -> None:
    checkpointable(name="Job")(Job)
    data = Codec().encode(job(Job, name="a"))

    def read(cls: type, **mark: Any) -> Any:
        checkpointable(name="Job", **mark)(cls)
        return Codec().decode(data, "state")

    assert vars(read(Today)) == {"name": "a", "more": "more"}
    assert vars(read(Today, version=2, upgrade=lambda version, fields: {**fields, "result": 5})) == {
        "name": "a", "result": 5, "more": "more",
    }  # fmt: skip
    assert read(TodayTuple) == TodayTuple("a")  # which cannot be without one
    with pytest.raises(UnknownType, match=r"Job needs the field 'result', which the data does not have"):
        read(NeedyTuple)


# -- in a run ----------------------------------------------------------------------------------------


@executor
async def plan(number: int, ctx: WorkflowContext[int]) -> int:
    await ctx.queue_state_update("job", Job("a"), scope_name="S")
    return number


@executor
async def work(number: int, ctx: WorkflowContext[None, Job]) -> None:
    found = await ctx.read_state("job", scope_name="S")
    found.result = number
    await ctx.yield_output(found)


async def test_a_field_can_be_filled_in_by_a_later_step() -> None:
    workflow = WorkflowBuilder(name="Jobs").set_start_executor(plan).add_edge(plan, work).build()
    plain = await workflow.run(1)
    async with InMemoryCheckpointStorage() as storage:
        kept = await workflow.run(1, storage=storage)
    assert exact(kept.outputs) == exact(plain.outputs)
