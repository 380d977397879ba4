"""A plain superstep is packed in one go, and to the byte as any other."""

from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Cause, Codec, Counters, Phase, RunStatus
from holdfast.checkpoint.format.replay import Replay
from holdfast.checkpoint.values import INLINE, Encoded
from holdfast.checkpoint.write._fast import pack_plain
from holdfast.checkpoint.write.encode import Packer, ValueNamer
from holdfast.checkpoint.write.records import ClockAndSalt, RecordMaker
from holdfast.engine import state
from tests.support.parts import (
    BufferKey,
    Chain,
    CheckpointDraft,
    CheckpointId,
    Delivered,
    Delivery,
    Delta,
    Digest,
    Encoder,
    ExecutorId,
    Head,
    Manifest,
    Output,
    Ref,
    Request,
    RequestId,
    RunId,
    Scope,
    Snapshot,
    pack_changes,
)

ENCODER = Encoder(Codec(), 1_000_000, Counters())
A, B = ExecutorId("a"), ExecutorId("b")
NOTES = Scope(None, "notes")


def value(of: object) -> Encoded:
    captured = ENCODER(of, "value")
    assert isinstance(captured, Encoded)
    return captured


VALUES = st.one_of(
    st.integers(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.none(),
    st.booleans(),
    st.just("x" * (INLINE - 3)),
    st.just("\u00e4" * (INLINE - 3)),  # more bytes than characters: a blob
    st.just([b"y" * INLINE]),
)
IDS = st.sampled_from([A, B, ExecutorId("sub#1/a")])
SCOPES = st.builds(Scope, st.none() | IDS, st.sampled_from(["", "notes"]), st.sampled_from(["", "sub#1/"]))


@st.composite
def deltas(draw: Callable[[Any], Any]) -> Delta:
    """Messages and writes; some values are there more than once."""
    pool = st.sampled_from([value(one) for one in draw(st.lists(VALUES, min_size=1, max_size=4))])
    sent = st.lists(st.tuples(IDS, pool, st.none() | IDS).map(lambda one: Delivery(*one)), max_size=3)
    places = st.tuples(SCOPES, st.text(max_size=2))
    return Delta(tuple(draw(sent)), draw(st.dictionaries(places, pool.map(state.Put), max_size=4)))


def anew(delta: Delta) -> Delta:
    """The same with values that have no names yet."""
    values = {id(one): value(one.load()) for one in held(delta)}
    return Delta(
        tuple(one._replace(value=values[id(one.value)]) for one in delta.deliveries),
        {place: state.Put(values[id(put.value)]) for place, put in delta.writes.items()},  # type: ignore[union-attr]
    )


def held(delta: Delta) -> list[Encoded]:
    values = [one.value for one in delta.deliveries] + [put.value for put in delta.writes.values()]  # type: ignore[union-attr]
    return [one for one in values if isinstance(one, Encoded)]


def before() -> Manifest:
    """Where a run stands: with a blob on its way, one in its state, and something small."""
    manifest = Manifest()
    blobs = [Ref("str", 9_999, Digest(bytes([number]) * 32)) for number in range(3)]
    manifest.deliveries = [Delivered(A, None, blobs[0]), Delivered(B, A, blobs[1])]
    manifest.state[NOTES] = {"": blobs[1], "k": blobs[2], "z": Ref("int", 1, None, b"\x01")}
    for ref in (*blobs[:2], *blobs[1:]):
        assert ref.digest is not None
        manifest.digests[ref.digest] += 1
    return manifest


@given(deltas())
def test_the_same_bytes_and_the_same_manifest(delta: Delta) -> None:
    by_parts, at_once = before(), before()
    entry = CheckpointDraft(Phase.END, 1, Cause.SUPERSTEP, RunStatus.RUNNING, Snapshot(), anew(delta))
    packer = Packer(by_parts, ENCODER)
    changes = packer.changes(entry)
    by_parts.fold(changes, True)

    made = pack_plain(delta)

    if any(len(one.data) > INLINE for one in held(delta)):
        assert made is None
        return
    assert made is not None
    assert not packer.blobs
    deliveries, writes, *documents = made
    assert tuple(documents) == pack_changes(changes)
    at_once.fold_plain(deliveries, writes)
    for name in {*Manifest.__slots__} - {"expiries"}:  # which follow from the requests, and have no equals
        assert getattr(at_once, name) == getattr(by_parts, name), name
    assert [list(keys) for keys in at_once.state.values()] == [list(keys) for keys in by_parts.state.values()]


def maker() -> RecordMaker:
    parent = CheckpointId("11" * 32)
    return RecordMaker(ClockAndSalt(lambda: 7, lambda: b"s" * 16), before(), Replay(1), parent, 0, None)


@given(deltas(), st.booleans())
def test_the_same_events(delta: Delta, is_buffered: bool) -> None:
    by_parts, at_once = maker(), maker()
    if is_buffered:
        for one in (by_parts, at_once):
            one.manifest.buffers[BufferKey("", "join")] = {A: [Ref("int", 1, None, b"\x01")]}
    plain = pack_plain(anew(delta))
    if plain is None:
        return
    head = Head(RunId("r"), "W", RunId("r"), CheckpointId("22" * 32), 4, 1, RunStatus.RUNNING, 0, 0)
    ended = [(A, 0), (B, 0)]
    end = CheckpointDraft(Phase.END, 3, Cause.SUPERSTEP, RunStatus.RUNNING, Snapshot(), anew(delta))
    end = end._replace(goes_on=True, ended=ended)
    packer = Packer(by_parts.manifest, ENCODER)
    general = by_parts.make(head, [end], [packer.changes(end)], packer)
    fast = at_once.make_plain(head, 3, plain, ValueNamer(at_once.manifest), ended)
    assert ormsgpack.packb(fast.steps) == ormsgpack.packb(general.steps)
    assert fast.records == general.records
    assert at_once.superstep == by_parts.superstep == 3


SMALL = value(1)


@pytest.mark.parametrize(
    "delta",
    [
        Delta(outputs=(Output(A, SMALL),)),
        Delta(requests=(Request(RequestId("r"), A, SMALL, int),)),
        Delta(buffers={BufferKey("", "join"): {A: Chain.of([SMALL])}}),
        Delta(buffers={BufferKey("", "join"): None}),
        Delta(instances={A: 1}),
        Delta(dropped=(NOTES,)),
        Delta((Delivery(A, SMALL, None, Request(RequestId("r"), A, SMALL, int)),)),
        Delta(writes={(NOTES, "k"): state.Drop()}),
        Delta(writes={(NOTES, "k"): state.Append(Chain.of([SMALL]))}),
        Delta((Delivery(A, Encoded(ENCODER, str, ref=Ref("str", 9_999, Digest(bytes(32)))), None),)),
    ],
    ids=[
        "output",
        "request",
        "buffer",
        "buffer goes",
        "instance",
        "scope",
        "answer",
        "drop",
        "append",
        "blob",
    ],
)
def test_anything_else_is_left_to_those_who_can(delta: Delta) -> None:
    assert pack_plain(delta) is None


def test_values_that_have_their_names_keep_them() -> None:
    """What is passed on from superstep to superstep is encoded once."""
    passed = value([1, 2])
    first = pack_plain(Delta((Delivery(A, passed, None),)))
    second = pack_plain(Delta((), {(NOTES, "k"): state.Put(passed)}))
    assert first is not None
    assert second is not None
    assert second[1][0][2].ref is first[0][0].value
