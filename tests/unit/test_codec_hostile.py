"""Bytes that nobody encoded: they are refused, and nothing else happens."""

import collections
import enum
import os
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
import pytest
from ormsgpack import Ext, packb

from holdfast import Codec
from holdfast.checkpoint.codec import standard, wire
from holdfast.errors import CheckpointCorrupt, NotCheckpointable, UnknownType
from tests.support.parts import TypeRegistry, measure_nesting


@dataclass
class Point:
    x: Any
    y: Any = 0


class Model(pydantic.BaseModel):
    x: int


class Rights(enum.Flag):
    READ = 1


@pytest.fixture
def codec() -> Codec:
    return Codec(TypeRegistry(("the tests", form) for form in (Point, Model, Rights)))


def ext(code: int, data: Any) -> bytes:
    return packb(Ext(code, data if isinstance(data, bytes) else packb(data)))


NONE = "state: the bytes are no encoding of a value: "
CORRUPT: dict[str, bytes] = {
    "empty": b"",
    "reserved": b"\xc1",
    "cut": b"\x92\x01",
    "cut text": b"\xa5abc",
    "more behind": b"\x01\x02",
    "array of four billion": b"\xdd\xff\xff\xff\xff",
    "map of four billion": b"\xdf\xff\xff\xff\xff",
    "text of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "extension of four gigabytes": b"\xc9\xff\xff\xff\xff\x05",
    "not utf-8": b"\xa1\xff",
    "int as key": b"\x81\x01\x02",
    "extension as key": b"\x81\xd4\x05\x90\x01",
    "unknown extension": ext(127, [1]),
    "reserved extension": ext(11, [1]),
    "negative extension": b"\xd4\xff\x00",
    "tuple of no list": ext(wire.TUPLE, 5),
    "tuple cut": ext(wire.TUPLE, b"\x92\x01"),
    "set of lists": ext(wire.SET, [[1]]),
    "set with doubles": ext(wire.SET, [1, 1]),
    "dict of three": ext(wire.DICT, [[1], [2], [3]]),
    "dict uneven": ext(wire.DICT, [[1, 2], [3]]),
    "dict with doubles": ext(wire.DICT, [[1, 1], [2, 3]]),
    "dict of texts": ext(wire.DICT, ["ab", "cd"]),
    "dict with list keys": ext(wire.DICT, [[[1]], [2]]),
    "range with step 0": ext(wire.RANGE, [1, 2, 0]),
    "range of texts": ext(wire.RANGE, ["a", "b", "c"]),
    "ellipsis with content": ext(wire.ELLIPSIS, b"a"),
    "complex cut": ext(wire.COMPLEX, b"abc"),
    "no surrogates": ext(wire.SURROGATES, b"\xff"),
    "no decimal": ext(wire.DECIMAL, b"abc"),
    "fraction by zero": ext(wire.FRACTION, [1, 0]),
    "fraction of texts": ext(wire.FRACTION, ["1", "2"]),
    "no uuid": ext(wire.UUID, b"abc"),
    "no date": ext(wire.DATE, b"2026-13-01"),
    "no datetime": ext(wire.DATETIME, b"now"),
    "datetime with a zone of text": ext(wire.DATETIME_IN_ZONE, ["2026-01-01T00:00:00", 0, "UTC"]),
    "datetime with fold 2": ext(wire.DATETIME_IN_ZONE, ["2026-01-01T00:00:00", 2, None]),
    "time with an int": ext(wire.TIME_IN_ZONE, [1, 0, None]),
    "timedelta too long": ext(wire.TIMEDELTA, [10**12, 0, 0]),
    "timezone of a day": packb(Ext(wire.TIMEZONE, packb([Ext(wire.TIMEDELTA, packb([1, 0, 0])), None]))),
    "path of a kind that is none": ext(wire.PATH, ["os.system", "a"]),
    "defaultdict of eval": ext(wire.DEFAULT_DICT, ["eval", [], []]),
    "deque of minus one": ext(wire.DEQUE, [-1, []]),
    "record of no class": ext(wire.RECORD, [1, 2, 3]),
    "record without fields": ext(wire.RECORD, ["Point", 1]),
    "record with a list of fields": ext(wire.RECORD, ["Point", 1, [1]]),
    "record with a text as version": ext(wire.RECORD, ["Point", "1", {}]),
    "record with attributes of text": ext(wire.RECORD, ["Point", 1, {"x": 1}, "a"]),
    "model with extra fields of text": ext(wire.MODEL, ["Model", 1, {"x": 1}, {}, [], "a", None]),
    "model cut": ext(wire.MODEL, ["Model", 1, {"x": 1}, {}]),
    "flag of text": ext(wire.FLAG, ["Rights", "a"]),
    "record that is none": ext(wire.RECORD, b"\xc0"),
    "standard exception that is none": ext(wire.STANDARD_ERROR, ["eval", [], {}]),
    "standard exception that is unhashable": ext(wire.STANDARD_ERROR, [[], [], {}]),
    "exception with arguments of text": ext(wire.STANDARD_ERROR, ["ValueError", "ab", {}]),
    "exception with errno of text": ext(wire.STANDARD_ERROR, ["UnicodeDecodeError", [], {"start": "a"}]),
    "exception group of ints": ext(wire.STANDARD_ERROR, ["ExceptionGroup", ["a", [1]], {}]),
    "array of objects": ext(wire.ARRAY, ["|O", "C", [1], b"12345678"]),
    "array of strings": ext(wire.ARRAY, ["|T16", "C", [1], b"1234567812345678"]),
    "array too long": ext(wire.ARRAY, ["<f8", "C", [2**40], b"12345678"]),
    "array of negative length": ext(wire.ARRAY, ["<f8", "C", [-1, -1], b"12345678"]),
    "array of bad order": ext(wire.ARRAY, ["<f8", "X", [1], b"12345678"]),
    "array of no type": ext(wire.ARRAY, [5, "C", [1], b"12345678"]),
    "scalar of objects": ext(wire.SCALAR, ["|O", b"12345678"]),
    "scalar cut": ext(wire.SCALAR, ["<f8", b"1"]),
}  # fmt: skip


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in CORRUPT.items()])
def test_what_is_no_encoding_is_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt) as refused:
        codec.decode(data, "state")
    assert str(refused.value).startswith(NONE)
    with pytest.raises(CheckpointCorrupt):
        codec.decode(b"\x91" + data)
    with pytest.raises((CheckpointCorrupt, UnknownType)):
        codec.decode_form(data)


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "Europe", "", "No/Where", "\x00"], ids=repr
)
def test_a_time_zone_leads_nowhere_else(codec: Codec, key: str) -> None:
    with pytest.raises(
        UnknownType, match=r"^state: the time zone .* is not known here; install the package tzdata"
    ):
        codec.decode(ext(wire.ZONE_INFO, key.encode()), "state")


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "TypeRegistry", "int", "object", "Exception", ""]
)
def test_a_name_in_data_is_never_looked_up_elsewhere(codec: Codec, name: str) -> None:
    for code in (wire.RECORD, wire.MODEL, wire.MEMBER, wire.ERROR):
        with pytest.raises(UnknownType) as refused:
            codec.decode(ext(code, [name, 1, [], {}]), "state")
        assert str(refused.value) == (
            f"state: the data has the type {name!r}, which is not declared here; name it in the annotations of a "
            f"handler or in a StateKey of the workflow, or decorate it with @checkpointable"
        )


def test_a_cut_anywhere_is_noticed(codec: Codec) -> None:
    data = codec.encode([Point(1, (2, {3})), {"a": b"xyz", 1: 2.5}, "text"])
    for end in range(len(data)):
        with pytest.raises(CheckpointCorrupt):
            codec.decode(data[:end])


# -- time and memory ---------------------------------------------------------------------------------


def alike(count: int) -> list[int]:
    """Ints of one hash: Python takes them modulo 2^61 - 1."""
    return [number * (2**61 - 1) for number in range(1, count + 1)]


def of_ints(code: int, *around: Any) -> bytes:
    """An extension over many ints of one hash."""
    ints = [Ext(wire.BIG_INT, number.to_bytes(16, "big")) for number in alike(3_000)]
    return ext(
        code, packb([*around, ints, [0] * len(ints)] if code not in (wire.SET, wire.FROZENSET) else ints)
    )


KEYED: dict[str, bytes] = {
    "set": of_ints(wire.SET),
    "frozenset": of_ints(wire.FROZENSET),
    "dict": of_ints(wire.DICT),
    "OrderedDict": of_ints(wire.ORDERED_DICT),
    "Counter": of_ints(wire.COUNTER),
    "defaultdict": of_ints(wire.DEFAULT_DICT, None),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in KEYED.items()])
def test_keys_that_were_made_to_collide_are_refused_before_anything_is_built(
    codec: Codec, data: bytes
) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"more than 256 .* have the same hash$"):
        codec.decode(data)


def test_a_type_of_values_that_collide_is_refused(codec: Codec) -> None:
    ints = [Ext(wire.BIG_INT, number.to_bytes(16, "big")) for number in alike(300)]
    with pytest.raises(CheckpointCorrupt, match="have the same hash"):
        codec.decode_form(packb(["literal", *ints]))


COLLIDING: dict[str, Any] = {
    "set": set,
    "frozenset": frozenset,
    "dict": dict.fromkeys,
    "OrderedDict": lambda keys: collections.OrderedDict.fromkeys(keys),
    "Counter": collections.Counter,
    "defaultdict": lambda keys: collections.defaultdict(int, dict.fromkeys(keys)),
}


@pytest.mark.parametrize("name", COLLIDING)
def test_what_could_not_be_read_for_its_keys_is_not_written(codec: Codec, name: str) -> None:
    most = COLLIDING[name](alike(wire.MAX_ALIKE))
    assert codec.decode(codec.encode(most)) == most
    with pytest.raises(NotCheckpointable) as refused:
        codec.encode([COLLIDING[name](alike(wire.MAX_ALIKE + 1))], "message")
    assert str(refused.value) == (
        f"message[0]: {name} with more than 256 keys of the same hash is not checkpointable; use a list, or keys "
        f"whose hashes differ"
    )


def test_keys_that_collide_now_and_then_are_kept(codec: Codec) -> None:
    bits = {1 << number for number in range(5_000)}  # 61 hashes, each 82 times
    assert codec.decode(codec.encode(bits)) == bits


def test_running_out_of_memory_is_no_damage(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: bytes) -> Any:
        raise MemoryError

    data = codec.encode([2**70])
    monkeypatch.setitem(standard.FROM_BYTES, wire.BIG_INT, full)
    with pytest.raises(MemoryError):
        codec.decode(data)


SHAPES: dict[str, bytes] = {
    "many dimensions": ext(wire.ARRAY, ["<f8", "C", [2**63] * 100_000, b""]),
    "many items without size": ext(wire.ARRAY, ["|V0", "C", [2**62], b""]),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in SHAPES.items()])
def test_an_array_is_not_larger_than_its_bytes(codec: Codec, data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"a numpy array"):
        codec.decode(data)


# -- the stack ---------------------------------------------------------------------------------------


def tower(floors: int, around: bytes, code: int = wire.TUPLE) -> bytes:
    """Extensions in extensions, each inside many arrays or maps."""
    data = b"\x90"
    for _ in range(floors):
        data = around + b"\xc9" + struct.pack(">IB", len(data), code) + data
    return data


TOWERS = {
    "arrays": b"\x91" * 2000,
    "towers of arrays": tower(200, b"\x91" * 1000),
    "towers of maps": tower(200, b"\x81\xa1a" * 1000),
    "towers of extensions": tower(5000, b"\x91"),
    "towers of records": tower(90, b"\x91" * 1000, wire.RECORD),
    "mixed": tower(99, b"\xdc\x00\x02" + b"\x91" * 900),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in TOWERS.items()])
def test_deep_data_does_not_exhaust_the_stack(codec: Codec, data: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match=r"Recursion limit|nested too deeply|end of file"):
        codec.decode(data)


WITHIN = """
import sys, threading
from holdfast.checkpoint.codec import Codec
from holdfast.errors import NotCheckpointable
from tests.unit.test_codec_hostile import spiral, tower
done = []
def work():
    Codec().decode(tower(4, b"\\x91" * 1000))
    try:
        Codec().encode(spiral())
    except NotCheckpointable:
        done.append(1)
threading.stack_size(4 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.exit(0 if done else 1)
"""


def spiral() -> Any:
    """What contains itself, with as many dicts as possible between two tuples."""
    first: Any = {}
    value = first
    for _ in range(250):
        value["a"] = value = {}
    value["a"] = (first,)
    return first


def test_the_deepest_values_and_data_fit_into_half_a_common_stack() -> None:
    """In a process of its own, which an overflow would kill."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    subprocess.run([sys.executable, "-c", WITHIN], check=True, env=environment)


def nested(floors: int, lists: int, text: str) -> Any:
    value: Any = None
    for _ in range(floors):
        value = (value, text)
        for _ in range(lists):
            value = [value]
    return value


def test_what_can_be_written_can_be_read(codec: Codec) -> None:
    value = nested(60, 50, "x" * 2000)
    data = codec.encode(value)
    assert measure_nesting(data) == 60 * (50 + 2)
    assert codec.encode(codec.decode(data)) == data  # comparing the values would exhaust the stack


@pytest.mark.parametrize("lists", [80, 100])
def test_what_could_not_be_read_is_not_written(codec: Codec, lists: int) -> None:
    with pytest.raises(NotCheckpointable, match=r"value: list contains itself or is nested too deeply"):
        codec.encode(nested(60, lists, "x" * 2000))


@pytest.mark.parametrize("levels", [1, 3, 50])
def test_nesting_is_counted_through_all_kinds_of_headers(levels: int) -> None:
    value: Any = {"a" * 300: [b"x" * 300, 1.5, 2**40, -(2**40), 300, 70_000, True, None] * 20}
    for _ in range(levels):
        value = [{"k": value, "more": list(range(20))}, "text" * 10]
    assert measure_nesting(packb(value)) == 2 * levels + 2


def test_large_data_is_read_in_any_thread(codec: Codec) -> None:
    data = codec.encode([np.zeros(100_000), ["x" * 100] * 10_000])
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(codec.decode(data)))
    thread.start()
    thread.join()
    assert len(found[0][1]) == 10_000
