"""MessagePack as JSON: it comes back exactly, or is not written so."""

import json
import struct

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.file.readable import NotReadable, from_json, to_json

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary()
    | st.binary(min_size=32, max_size=32)
    | st.builds(ormsgpack.Ext, st.integers(0, 127), st.binary())
)
keys = texts | st.sampled_from(["$bin", "$map", "$x", "#", ""])
other_keys = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.none() | st.booleans()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys | other_keys, inner)
        | inner.map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))
    ),
    max_leaves=20,
)
documents = values.map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))


@given(documents)
def test_every_document_can_be_read_by_a_person(packed) -> None:
    text = to_json(packed)
    json.loads(text)
    assert "\n" not in text
    assert from_json(text) == packed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 1.5, None, True]}, {"a": [1, 1.5, None, True]}),
        (2**53, 2**53),
        (2**64 - 1, 2**64 - 1),
        (float("-inf"), {"$float": "-inf"}),
        (float("nan"), {"$float": "nan"}),
        (struct.unpack(">d", b"\xff\xf8" + bytes(6))[0], {"$float": "fff8000000000000"}),
        (b"", {"$utf8": ""}),
        ("käse\n".encode(), {"$utf8": "käse\n"}),
        (b"A", {"$pack": 65}),
        (b"\x00\xff\x01", {"$bin": "AP8B"}),
        (bytes(16), {"$hex": "00" * 16}),
        (ormsgpack.packb("x" * 31), {"$pack": "x" * 31}),
        (ormsgpack.packb(["x"]), {"$pack": ["x"]}),
        (ormsgpack.Ext(5, ormsgpack.packb({"x": 1})), {"$ext": [5, {"$pack": {"x": 1}}]}),
        ({1: 2}, {"$map": [[1, 2]]}),
        ({"$bin": 1}, {"$map": [["$bin", 1]]}),
    ],
)
def test_notation(value, expected) -> None:
    packed = ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    assert json.loads(to_json(packed)) == expected
    assert from_json(json.dumps(expected)) == packed


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x01\x01",  # something follows
        b"\xcc\x01",  # a longer spelling of 1
        b"\xca\x3f\x80\x00\x00",  # single precision
        b"\xa1\xff",  # no UTF-8
        b"\x82\x01\x02\x01\x03",  # a key twice
        b"\x82\x01\x02\xc3\x03",  # 1 and true
        b"\x81\x91\x01\x02",  # a list as key
        b"\x91" * 200 + b"\x01",
        b"\xd4\x80\x00",  # an extension with a negative code
    ],
)
def test_what_would_not_come_back_is_refused(packed) -> None:
    with pytest.raises(NotReadable):
        to_json(packed)
