"""The comparison that the codec is held to: stricter than ``==``; and that it is."""

import collections
import contextlib
import datetime as dt
import enum
import functools
import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from types import MemberDescriptorType
from typing import Any
from zoneinfo import ZoneInfo

import pytest

UTC = dt.UTC


def exact(value: Any) -> Any:
    """A description that is equal only for values of the same types and content."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, enum.Enum):
        return name, repr(value)
    if kind is int:
        return name, hex(value)
    if isinstance(value, PurePath):
        return name, value.parts
    if kind is float:
        return name, struct.pack(">d", value)
    if kind is complex:
        return name, struct.pack(">dd", value.real, value.imag)
    if isinstance(value, dict):
        extra = getattr(value, "default_factory", None)
        return name, extra, [(exact(key), exact(part)) for key, part in value.items()]
    if isinstance(value, tuple | list | collections.deque):
        parts = [exact(part) for part in value]
        return name, getattr(value, "maxlen", None), parts, _held(value) if isinstance(value, tuple) else None
    if isinstance(value, set | frozenset):
        return name, sorted((exact(part) for part in value), key=repr)
    if isinstance(value, dt.datetime | dt.time):
        return name, value.replace(tzinfo=None, fold=0).isoformat(), value.fold, exact(value.tzinfo)
    if kind is dt.timezone:
        return name, repr(value)
    if kind is ZoneInfo:
        return name, value.key
    if kind is Decimal:
        return name, value.as_tuple()
    if isinstance(value, BaseException):
        members = ("errno", "filename", "start", "code", "message", "exceptions")
        return (
            name,
            exact(value.args),
            [exact(getattr(value, member, None)) for member in members],
            _held(value),
        )
    if kind.__module__ == "numpy":
        content = value.tobytes("A") if value.dtype.names is None else repr(value.tolist())
        content = str.encode(value, "utf-32", "surrogatepass") if isinstance(value, str) else content
        held = (value.dtype.str, value.dtype.descr, value.dtype.char, value.shape, value.dtype.isnative)
        return name, held, content, value.flags.writeable if value.ndim else None, value.flags.fnc
    if (held := _held(value)) is not None:
        return name, held
    return name, repr(value)


@functools.cache
def _slots(kind: Any) -> dict[str, Any]:
    return {
        name: found
        for base in kind.__mro__
        for name, found in vars(base).items()
        if isinstance(found, MemberDescriptorType) and name[:2] != "__" and base.__module__ != "builtins"
    }


def _held(value: Any) -> Any:
    kind: Any = type(value)
    slots = _slots(kind)
    held = {**vars(value)} if type(value).__dictoffset__ else {}
    held.pop("__orig_class__", None)
    for name, slot in slots.items():
        with contextlib.suppress(AttributeError):  # one that is not set
            held[name] = slot.__get__(value)
    if not held and not slots and not hasattr(value, "__dict__"):
        return None
    return sorted((name, exact(part)) for name, part in held.items())


@dataclass
class Point:
    x: Any


class Colour(enum.IntEnum):
    RED = 1


DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (1, Colour.RED),
    ((1,), [1]),
    ({1}, frozenset({1})),
    (b"a", bytearray(b"a")),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1: 0}, {True: 0}),
    ({1: 0}, collections.OrderedDict({1: 0})),
    (Point(1), Point(True)),
    (Decimal("1.0"), Decimal("1.00")),
    (dt.datetime(2026, 1, 1, fold=0, tzinfo=UTC), dt.datetime(2026, 1, 1, fold=1, tzinfo=UTC)),
    (dt.datetime(2026, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))),
    (dt.timezone(dt.timedelta(0)), dt.timezone(dt.timedelta(0), "UTC")),
    (collections.deque([1]), collections.deque([1], 3)),
    (collections.defaultdict(int), collections.defaultdict(list)),
    (ValueError(1), ValueError(True)),
    (OSError(2, "x"), OSError(2, "x", "file")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=[str(index) for index in range(len(DIFFERENT))])
def test_the_comparison_tells_apart_what_equality_does_not(one: Any, other: Any) -> None:
    assert exact(one) != exact(other)


def test_the_comparison_takes_nan_for_itself() -> None:
    assert exact([math.nan, {1, "a"}, Point(1)]) == exact([math.nan, {"a", 1}, Point(1)])
