"""One value of each kind that can be stored, by name; the golden stores hold them all."""

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic

from holdfast import WrongType, checkpointable


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


@dataclass
class Author:
    name: str
    born: date


@dataclass
class Report:
    title: str
    authors: list[Author]
    colour: Colour = Colour.RED
    tags: dict[str, int] = field(default_factory=dict)


class Point(NamedTuple):
    x: int
    y: int = 0


class Order(msgspec.Struct):
    number: int
    items: list[str]


class Customer(pydantic.BaseModel):
    name: str
    age: int = 0


@checkpointable(name="golden.Price", version=3)
class Price:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __repr__(self) -> str:
        return f"Price({self.cents})"


class OutOfStock(Exception):
    pass


def _out_of_stock() -> OutOfStock:
    error = OutOfStock("kelp", 3)
    error.add_note("comes back in May")
    return error


KINDS: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": -7,
    "int of 64 bits": 2**64 - 1,
    "int beyond": -(2**80),
    "float": 0.1,
    "float -0": -0.0,
    "float nan": float("nan"),
    "float inf": float("-inf"),
    "complex": complex(1.5, -2.0),
    "str": "h\u00e9llo \U0001f300",
    "str with a lone surrogate": "half \ud83d",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"abc"),
    "list": [1, "two", None, [3.0]],
    "dict": {"b": 1, "a": {"nested": [True]}},
    "dict with other keys": {1: "one", (2, 3): "pair", None: "none"},
    "tuple": (1, ("two", b"3")),
    "set": {3, 1, 2},
    "frozenset": frozenset({1.5}),
    "range": range(1, 10, 3),
    "ellipsis": ...,
    "decimal": Decimal("-1.50"),
    "fraction": Fraction(-3, 7),
    "uuid": UUID("12345678123456781234567812345678"),
    "date": date(2026, 3, 1),
    "datetime": datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
    "datetime naive": datetime(2026, 3, 1, 12, 0),  # noqa: DTZ001
    "datetime in a zone": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "time": time(12, 30, tzinfo=timezone(timedelta(hours=-3))),
    "time in a zone": time(2, 30, tzinfo=timezone(timedelta(hours=1), "CET")),
    "timedelta": timedelta(days=-1, microseconds=5),
    "timezone": timezone(timedelta(minutes=90)),
    "zone": ZoneInfo("Asia/Tokyo"),
    "path": PurePosixPath("logs/checkout.log"),
    "ordered dict": OrderedDict([("z", 1), ("a", 2)]),
    "defaultdict": defaultdict(list, {"a": [1]}),
    "counter": Counter({"error": 3, "ok": -1}),
    "deque": deque([1, 2], maxlen=5),
    "dataclass": Report("Q3", [Author("Ada", date(1815, 12, 10))], Colour.GREEN, {"kelp": 1}),
    "named tuple": Point(1, 2),
    "struct": Order(17, ["kelp", "crab"]),
    "model": Customer(name="Ada"),
    "checkpointable": Price(250),
    "member": Level.HIGH,
    "flag": Rights.READ | Rights.WRITE,
    "builtin error": ValueError("no", 1),
    "error of holdfast": WrongType("not an int"),
    "own error": _out_of_stock(),
    "array": np.arange(6, dtype="<i4").reshape(2, 3),
    "array of structs": np.array([(1, 2.0)], dtype=[("a", "<i8"), ("b", "<f8")]),
    "scalar": np.float32(1.5),
}
