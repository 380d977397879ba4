"""Samples of fuzzing: the corpus, bytes changed by chance, documents by hypothesis, and what was found before.

``make faults`` makes a million executions and more.
"""

from typing import Any

import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import campaign, targets
from tests.fuzz.campaign import fuzz_by_chance, read_corpus, run_one
from tests.fuzz.targets import STORES, TARGETS

DECODERS = [name for name in TARGETS if name not in STORES]


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_finds_nothing(name: str) -> None:
    kept = read_corpus(name)
    campaign.warm_up(name)
    for data in [*targets.all_seeds(name), *kept][: None if name in DECODERS else 25]:
        run_one(name, data)
    assert name not in DECODERS or kept


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_changed_by_chance_find_nothing(name: str) -> None:
    runs = 2_000 if name in DECODERS else 300 if name in ("items", "export") else 15
    executions, wrong = fuzz_by_chance(name, runs, 600)
    assert (executions, wrong) == (runs, "")


ARRAY = b"\xc7,@\x94\x92\xc7%s\xc7\x07\x05\x92\xa1b\xa3<f8\xa1C\x91\x01\xc4\x10\x01" + bytes(14) + b"@"
FINDINGS: dict[str, tuple[str, bytes]] = {
    "numpy reads an expression in a name": ("value", ARRAY % b"\x07\x05\x92\xa1a\xa3<1e999i8"),
    "numpy reads an expression in a shape": ("value", ARRAY % b"\r\x05\x92\xa1a\xa3<i8"),
    "the name of a type is a list": ("json", b'{"$type": ["set"], "$value": [1]}'),
    "the content of a value is an int": ("items", b"\x02\x00\x92\x04\x05"),
    "the content of a value is empty": ("items", b"\x02\x00\x92\xc4\x00\xc4\x00"),
    "the digest of an event is an int": (
        "items",
        b"\x05\x00\x00"
        + ormsgpack.packb([1, 1, False, [], ["failed", "", b"", ["str", 1, 7, None, None], b"", b"", b""]]),
    ),
    "a value of an event is no text": (
        "items",
        b"\x05\x00\x00"
        + ormsgpack.packb(
            [1, 1, False, [], ["completed", "", b"", ["str", 3, None, b"\xa2\xff\xfe", None], b"", b"", b""]]
        ),
    ),
    "a digest of a value is a map": (
        "items",
        b"\x01\x00" + ormsgpack.packb({"values": [["str", 12_403, {"$hex": "b9"}]]}),
    ),
    "the id of a checkpoint is empty": ("cells", b"\x0b\x01\x00"),
    "a line says not what it is for": ("lines", b'\x07"khnd":"tags","tags":{},"head":{},"body":{}}'),
    "a line states half a head": ("lines", b'\x09"kind":"commit","head":{"run_id":"first"},"body":{}}'),
    "a line names letters that it lacks": (
        "lines",
        b'\x09"kind":"letters","left":["a"],"inbox":1,"body":{"letters":[]}}',
    ),
    "a record without its number": (
        "lines",
        b'\x09"kind":"commit","ids":{"9":"' + b"ab" * 32 + b'"},"body":{"records":[{}]}}',
    ),
    "a session with a thread twice": ("session-rows", b"\x04`\x04\x02\x10\x00"),
    "a request with another form": (
        "items",
        b"\x01\x00\x82\xa8requests\x91\x94\xa3a.1\xa1a\x00\xa3abc\xa6values\x91\x92\xa3str\x04",
    ),
}


@pytest.mark.parametrize(("name", "data"), FINDINGS.values(), ids=FINDINGS)
def test_what_was_found_stays_away(name: str, data: bytes) -> None:
    campaign.warm_up(name)
    run_one(name, data)


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=25,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=documents)
@pytest.mark.parametrize("name", ["value", "form", "tree", "changes", "events", "items", "sealed"])
def test_documents_of_any_form_find_nothing(name: str, document: Any) -> None:
    campaign.warm_up(name)
    packed = ormsgpack.packb(document)
    run_one(name, {"items": b"\x01\x00", "changes": b"\x00", "events": b"\x00"}.get(name, b"") + packed)


def import_what_it_names(data: bytes) -> None:
    __import__("antigravity" if data else "this")


def leak_an_error(data: bytes) -> None:
    raise KeyError(data[:1])


def read_elsewhere(data: bytes) -> None:
    with open("/etc/hostname", "rb"):
        pass


def run_text(data: bytes) -> None:
    eval(f"len({data!r})")


def take_memory(data: bytes) -> None:
    raise MemoryError


@pytest.mark.parametrize("bug", [import_what_it_names, leak_an_error, read_elsewhere, run_text, take_memory])
def test_bugs_in_a_decoder_are_found(bug: targets.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign.warm_up("sealed")
    run_one("sealed", b"")
    monkeypatch.setitem(TARGETS, "sealed", TARGETS["sealed"]._replace(call=bug))
    monkeypatch.setattr(campaign, "warm_up", lambda name: [b"seed"])
    assert fuzz_by_chance("sealed", 5, 60)[1]
