"""The codec over random values and random bytes."""

import collections
import datetime as dt
import enum
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ormsgpack import Ext, packb

from holdfast import Codec
from holdfast.errors import CheckpointCorrupt, NotCheckpointable, UnknownType
from tests.support.parts import (
    NotATree,
    TypeRegistry,
    measure_nesting,
    plain_of_bytes,
    plain_value,
    value_of_plain,
)
from tests.unit.test_codec_exact import exact


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


@dataclass
class Point:
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True)
class Key:
    x: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class Trouble(Exception):
    pass


CODEC = Codec(TypeRegistry(("the tests", form) for form in (Colour, Rights, Point, Key, Pair, Trouble)))

ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")]),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
    st.builds(
        dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)), st.text(max_size=3)
    ),
)
TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included
DATETIMES = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(), ZONES, st.integers(0, 1),
)  # fmt: skip
TIMES = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.times(), ZONES, st.integers(0, 1),
)  # fmt: skip
HASHABLE_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(),
    st.dates(),
    st.timedeltas(),
    DATETIMES,
    TIMES,
    st.uuids(),
    st.fractions(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.sampled_from([*Colour, Rights(0), Rights.READ, Rights.READ | Rights.RUN, ..., range(3), dt.UTC]),
)
ATOMS = st.one_of(HASHABLE_ATOMS, st.builds(bytearray, st.binary()), st.just(Decimal("sNaN")))
HASHABLE = st.recursive(
    HASHABLE_ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Key, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=5,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=4)
    return st.one_of(
        items,
        items.map(tuple),
        st.sets(HASHABLE, max_size=4),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=4).map(collections.OrderedDict),
        st.builds(collections.defaultdict, st.sampled_from([None, int, list]), st.dictionaries(TEXT, inner)),
        st.builds(collections.deque, items, st.one_of(st.none(), st.integers(0, 5))),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        items.map(lambda args: Trouble(*args)),
        items.map(lambda args: ValueError(*args)),
    )


VALUES = st.recursive(ATOMS, containers, max_leaves=20)


def through_json(plain: Any) -> Any:
    return json.loads(json.dumps(plain, allow_nan=False))


@given(VALUES)
def test_every_value_has_one_plain_form_live_and_stored(value: Any) -> None:
    plain = through_json(plain_value(value))
    assert through_json(plain_of_bytes(CODEC.encode(value))) == plain
    assert through_json(plain_value(value_of_plain(plain))) == plain


@given(st.binary(max_size=200))
def test_no_bytes_break_the_plain_form(data: bytes) -> None:
    try:
        plain = plain_of_bytes(data)
    except NotATree:
        return
    json.dumps(plain, allow_nan=False)


@given(VALUES)
def test_every_value_comes_back_exactly(value: Any) -> None:
    before = exact(value)
    data = CODEC.encode(value)
    assert exact(CODEC.decode(data)) == before
    assert exact(value) == before


@given(VALUES)
def test_a_value_that_came_back_has_the_same_bytes(value: Any) -> None:
    data = CODEC.encode(value)
    assert CODEC.encode(value) == data
    assert CODEC.encode(CODEC.decode(data)) == data


@given(st.lists(HASHABLE, unique_by=lambda item: repr(exact(item)), max_size=6), st.randoms())
def test_the_order_in_which_a_set_was_made_does_not_matter(items: list[Any], random: Any) -> None:
    distinct = list(set(items))
    shuffled = list(distinct)
    random.shuffle(shuffled)
    assert CODEC.encode(set(distinct)) == CODEC.encode(set(shuffled))
    assert CODEC.encode(frozenset(distinct)) == CODEC.encode(frozenset(shuffled))


@given(VALUES, st.lists(st.sampled_from(["list", "tuple", "dict", "keys", "point"]), max_size=5))
def test_what_cannot_be_kept_is_found_wherever_it_is(value: Any, around: list[str]) -> None:
    hidden: Any = object()
    path = ""
    for kind in around:
        hidden, step = {
            "list": ([value, hidden], "[1]"),
            "tuple": ((hidden, value), "[0]"),
            "dict": ({"a": value, "b": hidden}, "['b']"),
            "keys": ({1: hidden}, "[1]"),
            "point": (Point(value, hidden), ".y"),
        }[kind]
        path = step + path
    with pytest.raises(NotCheckpointable) as refused:
        CODEC.encode(hidden, "message")
    assert str(refused.value).startswith(f"message{path}: object is not checkpointable; ")


def read_or_refused(data: bytes) -> None:
    for read in (CODEC.decode, CODEC.decode_form):
        try:
            read(data)
        except (CheckpointCorrupt, UnknownType):
            pass


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refused(data)


@given(VALUES, st.data())
def test_changed_bytes_are_read_or_refused(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(CODEC.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] = data.draw(st.integers(0, 255))
    read_or_refused(bytes(encoded))


PARTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5),
              st.sampled_from(["Point", "Colour", "Rights", "Trouble", "Key", "RED", "x", "<f8", "C"]),
              st.binary(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("xyz"), inner)),
    max_leaves=6,
)  # fmt: skip
NAMED = st.builds(
    lambda name, rest: [name, *rest],
    st.sampled_from(["Point", "Colour", "Rights", "Trouble", "Key", "Pair", "ValueError", "OSError"]),
    st.lists(PARTS, max_size=6),
)


@given(st.integers(0, 127), st.one_of(PARTS, NAMED))
def test_extensions_of_the_wrong_content_are_read_or_refused(code: int, content: Any) -> None:
    read_or_refused(packb(Ext(code, packb(content))))
    read_or_refused(packb([{"a": Ext(5, packb([Ext(code, packb(content))]))}]))
    if isinstance(content, bytes):
        read_or_refused(packb(Ext(code, content)))


@given(st.binary(max_size=100))
def test_nesting_is_told_of_any_bytes(data: bytes) -> None:
    assert 0 <= measure_nesting(data) <= max(len(data), 0)


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0) if value else 0
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0) if value else 0
    return 0


@given(PARTS)
def test_nesting_is_how_deep_plain_data_is(value: Any) -> None:
    assert measure_nesting(packb(value)) == depth(value)


@given(st.floats())
def test_nan_keeps_its_bits(number: float) -> None:
    assert exact(CODEC.decode(CODEC.encode(number))) == exact(number)
    assert math.isnan(number) == math.isnan(CODEC.decode(CODEC.encode(number)))
