"""The log of a run: what is loaded is what was written, at every checkpoint, in whatever form it is stored."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import Cause, CheckpointInfo, Codec, InMemoryCheckpointStorage, NotLoaded, Phase, RunStatus
from holdfast.errors import CheckpointCorrupt
from tests.support.exploring import shows_all
from tests.support.going_on import picture, read
from tests.support.modules import slices, state
from tests.support.parts import (
    Asked,
    BlobSource,
    BufferKey,
    Chain,
    Changes,
    CheckpointDraft,
    CheckpointId,
    ClockAndSalt,
    Commit,
    Delivered,
    Delivery,
    Delta,
    Depth,
    Digest,
    DropRef,
    Encoder,
    ExecutorId,
    Expiry,
    Grow,
    Happened,
    Header,
    JoinedValue,
    Letter,
    Manifest,
    Output,
    Part,
    PutRef,
    Record,
    Ref,
    Request,
    RequestId,
    RunId,
    RunLog,
    Scope,
    Snapshot,
    Threads,
    Value,
    advance,
    changes_of,
    compute_delta,
    deliver_answers,
    differs,
    elsewhere,
    id_of,
    pack_changes,
    pack_header,
    plain_form,
    restored,
    snapshot_of,
    stored_form,
    unpack_changes,
)
from tests.support.small_limits import small_limits


def some(percent: int) -> settings:
    """A share of what the profile asks for."""
    return settings(max_examples=max(settings().max_examples * percent // 100, 1))


# -- documents -------------------------------------------------------------------------------------

IDS = st.sampled_from([ExecutorId(name) for name in ("a", "b", "sub#1/a", "\u00e4")])
KEYS = st.text(max_size=4)
SCOPES = st.builds(Scope, st.none() | IDS, st.text(max_size=3), st.sampled_from(["", "sub#1/"]))


@st.composite
def refs(draw: Callable[[Any], Any], depth: int = 2) -> Ref:
    label, size = draw(st.sampled_from(["str", "list", "Report"])), draw(st.integers(0, 2**40))
    where = draw(st.sampled_from(["here", "blob", "parts"] if depth else ["here", "blob"]))
    if where == "here":
        return Ref(label, size, data=draw(st.binary(min_size=1, max_size=8)))
    if where == "blob":
        return Ref(label, size, Digest(draw(st.binary(min_size=32, max_size=32))))
    parts = st.lists(st.builds(Part, st.booleans(), refs(depth=depth - 1)), max_size=3)
    return Ref(label, size, parts=draw(parts))


@st.composite
def all_changes(draw: Callable[[Any], Any]) -> Changes:
    """Changes of every kind; some values are named more than once."""
    pool = st.sampled_from(draw(st.lists(refs(), min_size=1, max_size=5)))
    times = st.integers(0, 2**60)
    expiry = st.none() | st.builds(Expiry, times, st.none() | times)
    asked = st.builds(Asked, KEYS, IDS, pool, st.binary(max_size=4), st.integers(0, 2**40), expiry)
    part = st.builds(Part, st.booleans(), pool)
    written = st.one_of(
        st.builds(PutRef, pool),
        st.builds(Grow, st.just("list"), st.lists(part, max_size=3).map(tuple)),
        st.just(DropRef()),
    )
    held = st.lists(st.tuples(IDS, st.lists(pool, max_size=2)), max_size=2)
    told = st.one_of(st.tuples(pool, st.none()), st.tuples(st.none(), st.tuples(KEYS, KEYS)))
    happened = st.tuples(st.none() | IDS, told).map(lambda one: Happened(one[0], *one[1]))
    return Changes(
        deliveries=draw(
            st.none() | st.lists(st.builds(Delivered, IDS, st.none() | IDS, pool, st.none() | asked))
        ),
        writes=draw(st.lists(st.tuples(SCOPES, KEYS, written), max_size=4)),
        dropped=draw(st.lists(SCOPES, max_size=2)),
        buffers=draw(st.lists(st.tuples(st.builds(BufferKey, IDS, KEYS), st.none() | held), max_size=2)),
        outputs=draw(st.lists(st.tuples(IDS, pool), max_size=2)),
        requests=draw(st.lists(asked, max_size=2)),
        answers=draw(st.lists(st.tuples(KEYS, pool, st.none() | st.text()), max_size=2)),
        answered=draw(st.lists(KEYS, max_size=2)),
        instances=draw(st.lists(st.tuples(IDS, st.none() | st.integers(1, 2**40)), max_size=2)),
        since_input=draw(st.none() | st.integers(0, 2**40)),
        fingerprint=draw(st.none() | st.binary(min_size=1, max_size=32).map(bytes.hex)),
        happened=draw(st.lists(happened, max_size=2)),
    )


def plain(thing: Any, content: bool = True) -> Any:
    """Changes and what they consist of as nested tuples, with or without the content of values."""
    if isinstance(thing, Ref):
        data = thing.data if content else None
        return (thing.label, thing.size, thing.digest, data, plain(thing.parts, content))
    if isinstance(thing, str | bytes | int | None):
        return thing
    if isinstance(thing, Mapping):
        return {key: plain(part, content) for key, part in thing.items()}
    name = type(thing).__name__ if isinstance(thing, PutRef | Grow | DropRef) else ""
    return (name, *(plain(part, content) for part in thing))


@some(150)
@given(all_changes())
def test_documents_round_trip_exactly(changes: Changes) -> None:
    documents = pack_changes(changes)
    assert plain(unpack_changes(*documents)) == plain(changes)
    assert plain(unpack_changes(documents[0], None)) == plain(changes, content=False)
    assert pack_changes(unpack_changes(*documents)) == documents


def test_nothing_is_packed_as_nothing() -> None:
    assert pack_changes(Changes()) == (b"", b"")
    assert unpack_changes(b"", b"") == unpack_changes(b"", None) == Changes()


# -- slices ----------------------------------------------------------------------------------------

CODEC = Codec()
encode = CODEC.encode
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Lu"]), max_size=3),
    st.binary(max_size=40),
)
ITEMS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=6,
)
# Lengths around those where the encoding of a length changes its form.
_TEXTS = st.one_of(
    st.text(max_size=40),
    st.builds(lambda n, c: c * n, st.sampled_from([31, 32, 255, 256, 65536]), st.characters()),
).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
_BYTES = st.binary(max_size=300)
_LISTS = st.one_of(
    st.lists(ITEMS, max_size=20),
    st.builds(lambda n, item: [item] * n, st.sampled_from([15, 16, 17, 70000]), st.integers(0, 1)),
)
SEQUENCES: st.SearchStrategy[Any] = st.one_of(_TEXTS, _BYTES, _LISTS)
SEVERAL: st.SearchStrategy[list[Any]] = st.one_of(
    *(st.lists(one, min_size=1, max_size=4) for one in (_TEXTS, _BYTES, _LISTS))
)


@some(100)
@given(SEQUENCES)
def test_a_sequence_is_opened_where_its_content_begins(value: Any) -> None:
    data = encode(value)
    found = slices.opened(data)
    assert found is not None
    kind, length, start = found
    assert kind == type(value).__name__
    assert length == len(value.encode() if isinstance(value, str) else value)
    assert slices.begun(kind, length) == data[:start]


@some(100)
@given(ITEMS.filter(lambda value: not isinstance(value, list | str | bytes)))
@example("\ud800")
@example(bytearray(b"x"))
@example({1})
def test_what_is_no_sequence_is_not_opened(value: Any) -> None:
    assert slices.opened(encode(value)) is None


@pytest.mark.parametrize("kind", slices.SEQUENCES)
@pytest.mark.parametrize("length", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536, 2**32 - 1])
def test_lengths_round_trip(kind: str, length: int) -> None:
    beginning = slices.begun(kind, length)
    assert slices.opened(beginning) == (kind, length, len(beginning))


@pytest.mark.parametrize("kind", slices.SEQUENCES)
def test_what_is_too_long_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        slices.begun(kind, 2**32)


@some(100)
@given(SEVERAL)
def test_slices_are_joined_as_their_values_are(values: list[Any]) -> None:
    whole = values[0]
    for value in values[1:]:
        whole = whole + value
    assert slices.joined([encode(value) for value in values]) == encode(whole)


@some(100)
@given(st.lists(ITEMS, max_size=20))
def test_items_are_listed_as_they_are_encoded(items: list[Any]) -> None:
    assert slices.listed([encode(item) for item in items]) == encode(items)


@some(200)
@given(SEVERAL, st.data())
def test_a_tail_is_what_stands_behind_the_whole(values: list[Any], data: st.DataObject) -> None:
    before = values[0]
    after = data.draw(
        st.sampled_from([before + values[-1], values[-1], before[:-1], before[:-1] + values[-1]])
    )
    tail = slices.tail_of(encode(before), encode(after))
    if encode(after[: len(before)]) == encode(before):
        assert tail == encode(after[len(before) :])
    else:
        assert tail is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1], [True]),
        ([1], [1.0]),
        ([0.0], [-0.0]),
        ([], ""),
        ("", b""),
        ([1], 1),
        ({}, {}),
        ([[1, 2]], [[1], 2]),
        ([1, 2], [[1, 2]]),
        (["ab"], ["a", "b"]),
    ],
)
def test_nothing_is_a_tail_of_something_that_only_looks_alike(before: Any, after: Any) -> None:
    assert slices.tail_of(encode(before), encode(after)) is None


# -- ids -------------------------------------------------------------------------------------------

HEADER = Header(
    RunId("r1"),
    "Triage",
    7,
    3,
    Phase.END,
    Cause.SUPERSTEP,
    CheckpointId("ab" * 32),
    1_750_000_000_000_000,
    RunStatus.RUNNING,
    2,
    1,
    4,
    bytes(16),
)
OTHER = HEADER._replace(
    run_id=RunId("r2"),
    workflow_name="Other",
    seq=8,
    superstep=4,
    phase=Phase.START,
    cause=Cause.RESTORE,
    parent_id=None,
    time=1_750_000_000_000_001,
    status=RunStatus.WAITING,
    message_count=3,
    request_count=2,
    replay_from=5,
    salt=bytes(15) + b"\x01",
    by="kim",
    has_start=True,
)


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


@pytest.mark.parametrize("field", Header._fields)
def test_an_id_depends_on_each_field_of_the_header(field: str) -> None:
    other = HEADER._replace(**{field: getattr(OTHER, field)})
    assert id_of(pack_header(other), b"c", b"v") != id_of(pack_header(HEADER), b"c", b"v")


@some(100)
@given(st.lists(st.binary(min_size=1, max_size=50), min_size=3, max_size=3), st.data())
def test_an_id_depends_on_every_byte(parts: list[bytes], data: st.DataObject) -> None:
    known = id_of(*parts)
    part = data.draw(st.integers(0, 2))
    place, bit = data.draw(st.integers(0, len(parts[part]) - 1)), data.draw(st.integers(0, 7))
    changed = [*parts[:part], flipped(parts[part], place, bit), *parts[part + 1 :]]
    assert id_of(*changed) != known
    assert id_of(*(one[:-1] if one is parts[part] else one for one in parts)) != known
    assert id_of(parts[0], parts[1] + parts[2][:1], parts[2][1:]) != known
    assert id_of(parts[0] + parts[1][:1], parts[1][1:], parts[2]) != known


@some(100)
@given(all_changes(), st.integers(0, 2), st.data())
def test_a_record_that_was_changed_is_noticed(changes: Changes, part: int, data: st.DataObject) -> None:
    header = pack_header(HEADER)
    documents = pack_changes(changes)
    stored = [header, *map(stored_form, documents)]
    record = Record(id_of(header, *documents), HEADER.run_id, 7, stored[0], stored[1], stored[2], 0)
    assert plain(changes_of(record, Depth.ALL)) == plain(changes)
    if not stored[part]:
        return
    place, bit = data.draw(st.integers(0, len(stored[part]) - 1)), data.draw(st.integers(0, 7))
    stored[part] = flipped(stored[part], place, bit)
    bent = record._replace(header=stored[0], changes=stored[1], values=stored[2])
    try:
        found = changes_of(bent, Depth.ALL)
    except CheckpointCorrupt:
        return
    # Some bits of a compressed frame mean nothing.
    assert stored[part][:1] == b"\x01"
    assert plain(found) == plain(changes)


# -- a log against a model -------------------------------------------------------------------------


class Step(NamedTuple):
    """A superstep as data: what it does, by number, to whatever is there."""

    writes: list[tuple[int, str, Any]]
    deliveries: list[tuple[bool, list[Any]]]
    buffers: list[tuple[int, int, list[Any]]]
    outputs: list[Any]
    requests: list[Any]
    instances: list[tuple[int, int]]
    drops: list[int]
    happened: list[Any]
    late: bool = False
    """Whether it is committed with what follows."""


class Answers(NamedTuple):
    """Responses to some of the requests that are pending."""

    given: list[tuple[int, Any]]


class Again(NamedTuple):
    """Another process goes on from the head, or from an earlier checkpoint; it may have read all that is there."""

    back: int
    reads: bool


# Few values, so that they meet again; big ones are told from small ones by the limit for what stands in a record.
_POOL: list[Any] = [
    *(0, "", "small", [], [1, 2], {"a": [1]}, None, b"\x00"),
    *(
        "big " * 20,
        "bigger " * 60,
        b"bytes" * 30,
        list(range(60)),
        ["item", {"n": 1}] * 20,
        {"key": "x" * 90},
    ),
    *("lone \ud800" * 12, (1, "tuple" * 20)),
]
VALUES = st.sampled_from(_POOL)
_PLACES = [
    (Scope(None, "shared"), "one"),
    (Scope(None, "shared"), "two"),
    (Scope(ExecutorId("a"), ""), "own"),
    (Scope(ExecutorId("sub#1/a"), "", "sub#1/"), "own"),
    (Scope(None, "inside", "sub#1/"), "one"),
]
_WRITES = st.tuples(
    st.integers(0, len(_PLACES) - 1),
    st.sampled_from(["put", "put", "append", "append", "grow", "cut", "drop"]),
    VALUES,
)
SHORT = st.lists(VALUES, max_size=2)
STEPS = st.builds(
    Step,
    writes=st.lists(_WRITES, max_size=3, unique_by=lambda write: write[0]),
    deliveries=st.lists(st.tuples(st.booleans(), st.lists(VALUES, min_size=1, max_size=3)), max_size=2),
    buffers=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 1), SHORT), max_size=2, unique_by=lambda b: b[0]
    ),
    outputs=SHORT,
    requests=SHORT,
    instances=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=2, unique_by=lambda i: i[0]),
    drops=st.lists(st.integers(0, 9), max_size=1),
    happened=SHORT,
    late=st.booleans(),
)
SCRIPTS = st.lists(
    st.one_of(
        STEPS,
        STEPS,
        STEPS,
        st.builds(Answers, st.lists(st.tuples(st.integers(0, 9), VALUES), min_size=1, max_size=2)),
        st.builds(Again, st.integers(0, 9), st.booleans()),
    ),
    min_size=1,
    max_size=9,
)


class Recording:
    """A store that remembers what was committed to it."""

    def __init__(self, store: Any) -> None:
        self._inner = store
        self.commits: list[Commit] = []

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting: Sequence[Letter] = await self._inner.commit(commit)
        self.commits.append(commit)
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Made(NamedTuple):
    """What must be found at a checkpoint."""

    info: CheckpointInfo
    picture: dict[str, Any]
    manifest: Any
    since_input: int
    happened: list[tuple[ExecutorId | None, Any]]


def _with_start(entry: CheckpointDraft) -> tuple[CheckpointDraft, ...]:
    """The checkpoints that an entry makes: it, and the start of the next superstep if that follows at once."""
    if not entry.goes_on:
        return (entry,)
    return entry, CheckpointDraft(Phase.START, entry.superstep + 1, Cause.SUPERSTEP, RunStatus.RUNNING)


class Writing:
    """Writes a run step by step, and keeps beside it the snapshots that it should give."""

    def __init__(self) -> None:
        self.storage = InMemoryCheckpointStorage()
        self.store = self.storage.catalog.store = Recording(self.storage.catalog.store)
        self.encoder: Encoder = self.storage.catalog.encoder(Codec())
        self.made: list[Made] = []
        self._clock = 0
        self._requests = 0
        self.snapshot = Snapshot()
        self._late: tuple[Snapshot, list[Any]] | None = None
        self.log: RunLog

    def _clock_and_salt(self) -> ClockAndSalt:
        def now() -> int:
            self._clock += 1
            return self._clock

        return ClockAndSalt(now, lambda: bytes(16))

    def capture(self, value: Any) -> Value:
        return self.encoder(value, "value")

    async def begin(self, value: Any) -> None:
        self.snapshot = Snapshot(deliveries=(Delivery(ExecutorId("a"), self.capture(value), None),))
        self.log = self.storage.run_logs.new_log(
            RunId("run"), "Written", self.encoder, self._clock_and_salt()
        )
        given = CheckpointDraft(
            Phase.START, 1, Cause.INPUT, RunStatus.RUNNING, given=self.snapshot, fingerprint="ab" * 16
        )
        await self.append([given], [self.snapshot])

    async def append(self, entries: Sequence[CheckpointDraft], snapshots: Sequence[Snapshot]) -> None:
        before = set(self.log._manifest.digests)
        infos = await self.log.append(entries)
        stored = [blob.digest for blob in self.store.commits[-1].blobs]
        assert len(stored) == len(set(stored))
        assert not before & set(stored), "what the run holds already is not stored again"
        made = [one for entry in entries for one in _with_start(entry)]
        for entry, info, snapshot in zip(made, infos, snapshots, strict=True):
            held = _held(self.log._manifest) if entry is made[-1] else None
            happened = [
                (who, what if isinstance(what, tuple) else what.load()) for who, what in entry.happened
            ]
            self.made.append(Made(info, await picture(snapshot), held, snapshot.since_input, happened))
        self.snapshot = snapshots[-1]

    async def take(self, step: Step | Answers | Again) -> None:
        if isinstance(step, Step):
            await self.superstep(step)
        elif isinstance(step, Answers):
            await self.respond(step)
        else:
            await self.again(step)

    async def superstep(self, step: Step) -> None:
        before = self.snapshot
        delta = self._delta(step)
        after = advance(before, delta)
        happened = [(None, self.capture(value)) for value in step.happened]
        if happened:
            happened += [(ExecutorId("a"), ("Kind", f"text {len(happened)}"))]  # type: ignore[list-item]
        if self._late is not None:
            before, earlier = self._late
            delta, happened = compute_delta(before, after), [*earlier, *happened]
            await as_far(before, delta, after)
        self.snapshot, self._late = after, (before, happened)
        if not step.late:
            await self._commit(delta)

    async def _commit(self, delta: Delta | None = None) -> None:
        """Commit what was put off."""
        if self._late is None:
            return
        after, (before, happened), self._late = self.snapshot, self._late, None
        end = CheckpointDraft(
            Phase.END,
            after.superstep,
            Cause.SUPERSTEP,
            RunStatus.RUNNING,
            before=before,
            delta=compute_delta(before, after) if delta is None else delta,
            since_input=after.since_input if after.since_input != self.log.since_input + 1 else None,
            happened=happened,
            goes_on=bool(after.deliveries),
        )
        await self.append([end], [after, after] if end.goes_on else [after])

    def _delta(self, step: Step) -> Delta:
        writes = {_PLACES[place]: self._write(place, kind, value) for place, kind, value in step.writes}
        buffers: dict[BufferKey, Any] = {}
        for number, source, values in step.buffers:
            key = BufferKey(["", "sub#1/"][number], "fan-in")
            held = self.snapshot.buffers.get(key, {})
            name = ExecutorId(f"s{source}")
            if values:
                grown = held.get(name, Chain.of()).extend([self.capture(value) for value in values])
                buffers[key] = {**held, name: grown}
            elif held:
                buffers[key] = None
        requests = []
        for value in step.requests:
            self._requests += 1
            request_id = RequestId(f"q{self._requests}")
            requests.append(Request(request_id, ExecutorId("a"), self.capture(value), int))
        counts = {ExecutorId(f"sub{number}"): count or None for number, count in step.instances}
        inside = [scope for scope in self.snapshot.state if scope.path]
        dropped = {inside[number % len(inside)] for number in step.drops if inside}
        return Delta(
            tuple(self._delivery(joined, values) for joined, values in step.deliveries),
            {place: write for place, write in writes.items() if write is not None},
            buffers,
            tuple(Output(ExecutorId("a"), self.capture(value)) for value in step.outputs),
            tuple(requests),
            counts,
            tuple(dropped),
        )

    def _delivery(self, joined: bool, values: list[Any]) -> Delivery:
        parts = [self.capture(value) for value in values]
        value = JoinedValue(None, Chain.of(parts)) if joined else parts[0]
        return Delivery(ExecutorId("b"), value, None if joined else ExecutorId("a"))

    def _write(self, place: int, kind: str, value: Any) -> state.Write | None:
        held = state.read(self.snapshot.state, *_PLACES[place])
        if kind == "drop":
            return None if held is None else state.Drop()
        if kind == "append" and (
            held is None or held.type is list or held.type is type(value) in (str, bytes)
        ):
            return state.Append(Chain.of([self.capture(value), self.capture(value)]))
        if held is None or kind in ("put", "append") or held.type not in (list, str, bytes):
            return state.Put(self.capture(value))
        try:
            whole = held.load()
        except Exception:  # not at hand
            return state.Put(self.capture(value))
        tail: Any = {list: [value], str: str(value), bytes: b"tail" * 9}[held.type]
        return state.Put(self.capture(whole + tail if kind == "grow" else whole[: len(whole) // 2] + tail))

    async def respond(self, answers: Answers) -> None:
        await self._commit()
        pending = list(self.snapshot.requests)
        if not pending:
            return
        given = {pending[number % len(pending)]: self.capture(value) for number, value in answers.given}
        ordered = {known: given[known] for known in pending if known in given}
        after = deliver_answers(self.snapshot, ordered)
        superstep = after.superstep + 1
        entry = CheckpointDraft(
            Phase.START, superstep, Cause.RESPONSE, RunStatus.RUNNING, responses=ordered, since_input=0
        )
        await self.append([entry], [after])

    async def again(self, again: Again) -> None:
        """Load the head or an earlier checkpoint, as a new process would, and go on from there."""
        self._late = None  # it is lost
        target = self.made[-1 - again.back % len(self.made)] if again.back % 2 else self.made[-1]
        head = await self.storage.catalog.head("run")
        self.log, loaded, blobs = await self.storage.run_logs.load_log(
            head, self.encoder, self._clock_and_salt(), target.info.seq
        )
        header = loaded.header
        superstep = header.superstep - (header.phase is Phase.START)
        snapshot = snapshot_of(loaded.manifest, superstep, self.encoder, blobs)._replace(since_input=0)
        if again.reads:
            await picture(snapshot)
        self.snapshot = snapshot
        if target is not self.made[-1]:
            self.log.stand_on(loaded.checkpoint_id)
            back = CheckpointDraft(
                header.phase,
                header.superstep,
                Cause.RESTORE,
                RunStatus.RUNNING,
                since_input=0,
                keyframe=True,
            )
            await self.append([back], [snapshot])


async def as_far(before: Snapshot, delta: Delta, after: Snapshot) -> None:
    """Whether one delta leads as far as the supersteps between, in contents and in order."""
    found = advance(before, delta)._replace(superstep=after.superstep, since_input=after.since_input)
    assert not differs(await picture(found), await picture(after)), "the distance leads elsewhere"
    for name in ("state", "buffers", "requests", "instances"):
        assert list(getattr(found, name)) == list(getattr(after, name)), f"{name} are in another order"
    for scope, keys in after.state.items():
        assert list(found.state[scope]) == list(keys), f"the keys of {scope} are in another order"


def _held(manifest: Manifest) -> Any:
    """A deep picture of a manifest."""
    return plain(manifest.as_changes()), dict(manifest.digests), plain(manifest.happened)


async def check(writing: Writing) -> None:
    """Everything that was written must be found again, at each checkpoint and in each way of looking."""
    storage = writing.storage
    report = await storage.verify()
    assert report.ok, report.problems
    assert report.checkpoints == len(writing.made)
    head = await storage.catalog.head("run")
    listed = await storage.list_checkpoints(run_id="run")
    assert [checkpoint.checkpoint_id for checkpoint in listed] == [m.info.checkpoint_id for m in writing.made]
    for made, without in zip(writing.made, listed, strict=True):
        _, loaded, blobs = await storage.run_logs.load_log(
            head, writing.encoder, writing._clock_and_salt(), made.info.seq
        )
        superstep = made.info.superstep - (made.info.phase is Phase.START)
        found = snapshot_of(loaded.manifest, superstep, writing.encoder, blobs)
        for part, expected in made.picture.items():
            assert not differs((await picture(found))[part], expected), (
                f"{part} of checkpoint {made.info.seq}"
            )
        assert found.since_input == made.since_input
        happened = [await told(event, writing.encoder, blobs) for event in loaded.manifest.happened]
        assert not differs(happened, made.happened)
        if made.manifest is not None:
            assert _held(loaded.manifest) == made.manifest
        assert all_of(without.info) == all_of(made.info)
        await check_views(writing, made, without)


def all_of(info: CheckpointInfo) -> list[object]:
    """Everything that an info says, for as such it is equal to any with the same id."""
    return [info.checkpoint_id, info._header, info.new_bytes, info.tags]


async def told(event: Happened, encoder: Encoder, blobs: BlobSource) -> tuple[ExecutorId | None, Any]:
    """What an event that was stored says."""
    if event.event is None:
        return event.executor_id, event.warning
    return event.executor_id, await read(restored(event.event, encoder, blobs))


async def check_views(writing: Writing, made: Made, listed: Any) -> None:
    """A checkpoint as people see it: listed, loaded, and loaded without values."""
    full = await writing.storage.load(made.info.checkpoint_id)
    bare = await writing.storage.load(made.info.checkpoint_id, values=False)
    states = made.picture["state"]
    shared = {scope.path + scope.name: states.get(repr(scope), {}) for scope, _ in _PLACES if not scope.owner}
    for name, expected in shared.items():
        for view in (listed, bare, full):
            assert sorted(view.scopes.get(name, {})) == sorted(expected)
        if not expected:
            continue
        assert not differs({key: full.scopes[name][key] for key in sorted(expected)}, expected)
        key = next(iter(expected))
        with pytest.raises(NotLoaded):
            bare.scopes[name][key]
        if "/" not in name:
            for view in (listed, bare):
                assert not differs(await view.read_state(key, scope_name=name), expected[key])
    assert not differs(list(full.outputs), [value for _, value in made.picture["outputs"]])
    assert len(bare.outputs) == len(listed.outputs) == len(made.picture["outputs"])
    assert [view.data for view in full.pending_requests] == [asked[2] for asked in made.picture["requests"]]
    assert [view.data for view in full.messages] == [d[2] for d in made.picture["deliveries"]]


async def written(script: Sequence[Any]) -> Writing:
    writing = Writing()
    await writing.begin("input " * 12)
    for step in script:
        await writing.take(step)
    await writing._commit()
    return writing


@some(40)
@given(SCRIPTS)
def test_what_is_loaded_is_what_was_written(script: list[Any]) -> None:
    async def main() -> None:
        await check(await written(script))

    asyncio.run(main())


@some(120)
@given(SCRIPTS, st.sampled_from([24, 400]), st.sampled_from([60, 300, 2000]), st.sampled_from([40, 200, 600]))
def test_the_same_with_small_limits(script: list[Any], inline: int, keyframe: int, largest_part: int) -> None:
    async def main() -> None:
        await check(await written(script))

    with small_limits(inline, keyframe, largest_part):
        asyncio.run(main())


# What grows, goes and begins anew within a few supersteps that are committed together.
_OFTEN = st.builds(
    Step,
    writes=st.tuples(st.just(0), st.sampled_from(["append", "append", "put", "drop"]), VALUES).map(
        lambda w: [w]
    ),
    deliveries=st.just([]),
    buffers=st.tuples(st.just(0), st.just(0), st.lists(st.integers(0, 3), max_size=1)).map(lambda b: [b]),
    outputs=st.just([]),
    requests=st.just([]),
    instances=st.just([]),
    drops=st.just([]),
    happened=st.just([]),
    late=st.sampled_from([True, True, False]),
)


@some(150)
@given(st.lists(_OFTEN, min_size=3, max_size=8))
def test_supersteps_that_are_committed_together(script: list[Any]) -> None:
    async def main() -> None:
        await check(await written(script))

    asyncio.run(main())


def test_random_logs_show_all_that_is_claimed() -> None:
    async def explore(script: list[Any]) -> set[str]:
        seen: set[str] = set()
        writing = await written(script)
        for commit in writing.store.commits:
            for record in commit.records:
                parts = [record.changes, record.values]
                framed = [] if record.keyframe is None else [record.keyframe.changes, record.keyframe.values]
                seen.update(
                    name
                    for name, there in {
                        "keyframe": record.keyframe,
                        "blobs": commit.blobs,
                        "changes elsewhere": elsewhere(parts[0]),
                        "values elsewhere": elsewhere(parts[1]),
                        "keyframe elsewhere": any(map(elsewhere, framed)),
                        "compressed": any(part[:1] == b"\x01" for part in parts),
                        "grown": _grows(record),
                    }.items()
                    if there
                )
        seen.update(str(made.info.cause) for made in writing.made)
        return seen

    def shown(script: list[Any], inline: int, largest_part: int) -> set[str]:
        with small_limits(inline, 200, largest_part):
            return asyncio.run(explore(script))

    claimed = {
        *("keyframe", "blobs", "changes elsewhere", "values elsewhere", "keyframe elsewhere", "compressed"),
        *("grown", "input", "superstep", "response", "restore"),
    }
    limits = st.sampled_from([24, 400]), st.sampled_from([100, 600])
    shows_all(claimed, shown, SCRIPTS, *limits)


def _grows(record: Record) -> bool:
    if elsewhere(record.changes) is not None:
        return False
    changes = unpack_changes(plain_form(record.changes), None)
    return any(isinstance(written, Grow) for _, _, written in changes.writes)


# -- what is stored of values that come again ------------------------------------------------------


def put(place: int, value: Any) -> Step:
    return Step([(place, "put", value)], [], [], [], [], [], [], [])


def drop(place: int) -> Step:
    return Step([(place, "drop", None)], [], [], [], [], [], [], [])


BIG = "a text of more than four thousand characters " * 100


def blobs_of(writing: Writing) -> list[int]:
    """How many blobs each commit stored."""
    return [len(commit.blobs) for commit in writing.store.commits]


async def test_the_same_big_value_is_stored_once() -> None:
    everywhere = Step([(1, "put", BIG)], [(False, [BIG])], [(0, 0, [BIG])], [BIG], [BIG], [], [], [])
    writing = await written([put(0, BIG), everywhere, put(2, BIG)])
    assert blobs_of(writing) == [0, 1, 0, 0]
    await check(writing)


async def test_the_same_big_value_twice_in_one_superstep_is_stored_once() -> None:
    both = Step([(0, "put", BIG), (1, "put", BIG)], [(True, [BIG, BIG])], [], [BIG], [], [], [], [])
    writing = await written([both])
    assert blobs_of(writing) == [0, 1]
    await check(writing)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_value_that_left_and_comes_back_is_there(reads: bool) -> None:
    script = [put(0, BIG), drop(0), put(1, BIG), Again(0, reads), drop(1), Again(0, reads), put(0, BIG)]
    writing = await written(script)
    await check(writing)


async def test_a_value_that_leaves_and_comes_in_one_superstep_is_there() -> None:
    moved = Step([(0, "put", 1), (1, "put", BIG)], [], [], [], [], [], [], [])
    writing = await written([put(0, BIG), moved, put(1, 0), put(2, BIG)])
    assert blobs_of(writing)[:3] == [0, 1, 0]
    await check(writing)


async def test_a_value_of_another_branch_is_there() -> None:
    script = [put(0, BIG), put(0, 0), Again(3, False), put(1, BIG), Again(1, False), put(2, BIG)]
    writing = await written(script)
    await check(writing)


# -- whole sequences queued again ------------------------------------------------------------------

_PIECES: dict[type, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["", "x", "some text ", "\u00e4\u20ac\U0001f600", "\ud800", "z" * 50]),
    bytes: st.sampled_from([b"", b"\x00", b"bytes", b"z" * 50]),
    list: st.sampled_from([[], [1], [{"a": 1}, {"b": [True, 1.0]}], ["\ud800"], [[]], [{"c": "z" * 50}]]),
}
KINDS = st.sampled_from([str, bytes, list])


@st.composite
def versions(draw: Callable[[Any], Any]) -> list[Any]:
    """A list, str or bytes as it is queued again and again, edited in between."""
    kind = draw(KINDS)
    piece = _PIECES[kind]
    whole = kind()
    found = []
    for _ in range(draw(st.integers(1, 8))):
        edit = draw(st.sampled_from(["keep", "keep", "keep", "same", "change", "shorten", "empty", "repeat"]))
        tail = draw(piece)
        if edit == "keep":
            whole = whole + tail
        elif edit == "repeat":
            whole = whole + tail + whole
        elif edit == "change":
            whole = tail + whole[1:]
        elif edit == "shorten":
            whole = whole[: draw(st.integers(0, len(whole)))]
        elif edit == "empty":
            whole = kind()
        found.append(whole)
    return found


@some(100)
@given(versions(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_whole_sequences_queued_again_are_exact(wholes: list[Any], agains: list[bool]) -> None:
    script: list[Any] = []
    for whole, again in zip(wholes, agains, strict=False):
        script.append(put(0, whole))
        if again:
            script.append(Again(0, reads=len(whole) % 2 == 0))

    async def main() -> None:
        await check(await written(script))

    with small_limits():
        asyncio.run(main())


@some(60)
@given(KINDS.flatmap(lambda kind: st.lists(_PIECES[kind], min_size=1, max_size=6)), st.booleans())
def test_only_the_tail_of_what_grew_is_stored(tails: list[Any], again: bool) -> None:
    kind = type(tails[0])
    bases: dict[type, Any] = {
        str: "text " * 2000,
        bytes: b"bytes" * 2000,
        list: [{"n": n} for n in range(3000)],
    }
    base = bases[kind]

    async def main() -> None:
        writing = await written([put(0, base)])
        whole = base
        for tail in tails:
            if again:
                await writing.take(Again(0, reads=True))
            whole = whole + tail
            await writing.take(put(0, whole))
            if not (kind is str and slices.opened(encode(tail)) is None):  # a str with lone surrogates
                assert writing.made[-1].info.new_bytes < len(encode(tail)) + 500
        await check(writing)

    asyncio.run(main())


@pytest.mark.parametrize("base", ["text " * 20_000, b"bytes" * 20_000])
async def test_big_text_that_grew_by_little_is_packed_without_a_thread(
    base: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[Any] = []

    async def in_thread(_: Threads, pack: Callable[[], Any]) -> Any:
        threads.append(pack)
        return pack()

    monkeypatch.setattr(Threads, "call", in_thread)
    writing = await written([put(0, base)])
    assert threads
    threads.clear()
    await writing.take(put(0, base + base[:1000]))
    assert not threads
    assert writing.made[-1].info.new_bytes < 1_500
    for other in (base + base, base[1:], base[2:] + base[:10]):
        await writing.take(put(0, other))
        assert threads
        threads.clear()
    await check(writing)


@pytest.mark.parametrize("base", ["text " * 2000, b"bytes" * 2000, list(range(5000))])
async def test_what_does_not_begin_with_what_was_there_is_stored_whole(base: Any) -> None:
    script = [put(0, base), put(0, base[1:]), put(0, base[:-1]), put(0, base[:0]), put(0, base)]
    writing = await written(script)
    assert blobs_of(writing) == [0, 1, 1, 1, 0, 1]
    await check(writing)
