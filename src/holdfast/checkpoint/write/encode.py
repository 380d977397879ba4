"""Encodes the checkpoints of one commit: their values become refs, and blobs where they are big."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.codec.declared_types import classes_in
from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import (
    NOTHING,
    Asked,
    Changes,
    Delivered,
    DropRef,
    Grow,
    Happened,
    Part,
    PutRef,
    Ref,
    Written,
)
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import digest_of
from holdfast.checkpoint.format.stored_form import stored_form
from holdfast.checkpoint.threads import packing_threads
from holdfast.checkpoint.values import INLINE, Encoded, Encoder, PiecedValue
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft, EditDraft
from holdfast.engine import state
from holdfast.engine.message import Delivery, Request
from holdfast.engine.snapshot import Buffer, BufferKey, Delta, Snapshot
from holdfast.engine.value import JoinedValue, NotAtHand, Value
from holdfast.ids import Digest, ExecutorId

# Many small items become several slices, each far smaller than what can be read at once.
_LARGEST_SLICE = 1 << 26


class ValueNamer:
    """Names the values of one commit, and collects the blobs that it has to store.

    Blobs that the run has already are not stored again: ``manifest`` knows those of its checkpoint, ``noted`` are those
    of its journal.
    """

    def __init__(self, manifest: Manifest, noted: Container[Digest] = ()) -> None:
        self.blobs: dict[Digest, bytes] = {}
        self._manifest = manifest
        self._noted = noted
        self._told = 0
        # With the values themselves, so that no other can get the identity of one of them meanwhile.
        self._refs: dict[int, tuple[Value, Ref]] = {}

    def parts(self, kind: type, items: Sequence[Value]) -> tuple[Part, ...]:
        """Return the parts of items that were appended: big ones alone, the others in slices."""
        label = kind.__name__
        parts: list[Part] = []
        small: list[bytes] = []
        size = 0

        def flush() -> None:
            if small:
                data = slices.listed(small) if kind is list else slices.joined(small)
                parts.append(Part(False, self.name(label, data)))
                small.clear()

        for item in items:
            data = item.data if isinstance(item, Encoded) else bytes_of(item)
            if len(data) <= INLINE and (kind is list or slices.opened(data) is not None):
                size += len(data)
                if size > _LARGEST_SLICE:
                    flush()
                    size = len(data)
                small.append(data)
            else:
                flush()
                parts.append(Part(kind is list, self.name(_label(item), data)))
        flush()
        return tuple(parts)

    def ref(self, value: Value) -> Ref:
        """Return the ref of a value; its content is stored if it is not yet."""
        if isinstance(value, Encoded):
            ref = value.ref
            if ref is None or (ref.digest is not None and not self._has(ref.digest)):
                ref = value.ref = self.name(value.label, value.data)
            return ref
        if isinstance(value, PiecedValue):
            return value.ref
        assert isinstance(value, JoinedValue), f"{value!r} was not captured by the encoder of a storage"
        known = self._refs.get(id(value))
        if known is None:
            known = self._refs[id(value)] = (value, self._name_joined(value))
        return known[1]

    def _name_joined(self, value: JoinedValue) -> Ref:
        base, tail = value.parts()
        parts = self.parts(value.type, tuple(tail))
        if base is not None:
            parts = (Part(False, self.ref(base)), *parts)
        if not parts:
            return self.name("list", slices.listed([]))
        if len(parts) == 1 and not parts[0].is_item:
            return parts[0].ref
        return Ref(value.type.__name__, sum(part.ref.size for part in parts), parts=list(parts))

    def name(self, label: str, data: bytes) -> Ref:
        """Return the ref of encoded content: small content stands in it, other content becomes a blob."""
        if len(data) <= INLINE:
            return Ref(label, len(data), None, data)
        return Ref(label, len(data), self.store_blob(data))

    def store_blob(self, data: bytes) -> Digest:
        """Store ``data`` as a blob, unless the run has it already."""
        digest = digest_of(data)
        if not self._has(digest):
            self.blobs[digest] = stored_form(data)
        return digest

    def _has(self, digest: Digest) -> bool:
        """Return True if the run has a blob: named by its checkpoint, by its journal, or in this commit."""
        return digest in self._manifest.digests or digest in self._noted or digest in self.blobs

    def new_blob_bytes(self) -> int:
        """Return the size of the blobs that came since the last call."""
        if not self.blobs:
            return 0
        size = sum(map(len, self.blobs.values()))
        told, self._told = self._told, size
        return size - told

    def compact(self, ref: Ref) -> Ref:
        """Return a ref with the small parts of a value put together, so that a keyframe names few."""
        if ref.parts is None:
            return ref
        parts: list[Part] = []
        small: list[bytes] = []

        def flush() -> None:
            if small:
                parts.append(Part(False, self.name(ref.label, slices.joined(small))))
                small.clear()

        for part in ref.parts:
            data = part.ref.data
            if data is not None and part.is_item:
                small.append(slices.listed([data]))
            elif data is not None and slices.opened(data) is not None:
                small.append(data)
            else:
                flush()
                parts.append(part)
        flush()
        return Ref(ref.label, ref.size, parts=parts)


def bytes_of(value: Value) -> bytes:
    """Return the encoding of a value, put together where it consists of parts."""
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, JoinedValue):
        base, tail = value.parts()
        pieces = [] if base is None else [bytes_of(base)]
        items = [bytes_of(item) for item in tail]
        return slices.joined([*pieces, *([slices.listed(items)] if value.type is list else items)])
    assert isinstance(value, PiecedValue)
    return slices.joined(
        [slices.listed([bytes_of(piece)]) if is_item else bytes_of(piece) for is_item, piece in value.pieces]
    )


def _label(value: Value) -> str:
    return value.label if isinstance(value, Encoded) else value.type.__name__


Buffered: TypeAlias = "tuple[BufferKey, Sequence[tuple[ExecutorId, Sequence[Ref]]] | None]"


class Packer(ValueNamer):
    """Makes the changes of the checkpoints of one commit, and names their values."""

    def __init__(self, manifest: Manifest, encoder: Encoder, noted: Container[Digest] = ()) -> None:
        super().__init__(manifest, noted)
        self._encoder = encoder
        self._growths: dict[state.Place, tuple[Value, Grow]] = {}
        self._described: set[bytes] = set()

    def grew_by_little(self, entry: CheckpointDraft, value: Value, little: int) -> bool:
        """Return True if a text that an entry brings is the one that was there, with at most so much behind it.

        Then nothing else of it is encoded. Telling takes one comparison, which lets no other thread run anyway.
        """
        if entry.delta is None or entry.before is None or not isinstance(value, Encoded):
            return False
        for place, change in entry.delta.writes.items():
            if isinstance(change, state.Put) and change.value is value:
                held = state.read(entry.before.state, *place)
                if not isinstance(held, Encoded) or not held.is_text:
                    return False
                if value.size_hint - held.size_hint > little:
                    return False
                growth = self._grown(place, held, value)
                if growth is not None:
                    self._growths[place] = value, growth
                return growth is not None
        return False

    def changes(self, entry: CheckpointDraft) -> Changes:
        """Return the changes of an entry."""
        if entry.delta is not None:
            assert entry.before is not None
            return self._ended(entry.before, entry.delta, entry.since_input, self._happened(entry))
        if entry.given is not None:
            given = entry.given
            return Changes(
                deliveries=[self._delivered(delivery) for delivery in given.deliveries],
                instances=list(given.instances.items()),
                since_input=given.since_input,
                fingerprint=entry.fingerprint,
                graph=None if entry.graph is None else self.ref(entry.graph),
            )
        if entry.further is not None:
            further = entry.further
            return Changes(
                deliveries=[self._delivered(delivery) for delivery in further.deliveries],
                instances=list(further.instances.items()),
                since_input=0,
                renewed=further.renews,
            )
        if entry.asked_again:
            return self._asked_again(entry)
        told = (entry.responses, entry.since_input, entry.fingerprint, entry.edits)
        if told == (None, None, None, None):
            return NOTHING
        edits = entry.edits or EditDraft()
        delivered = edits.deliveries
        return Changes(
            deliveries=None if delivered is None else [self._delivered(delivery) for delivery in delivered],
            writes=[(*place, PutRef(self.ref(put.value))) for place, put in edits.writes.items()],
            request_edits=[
                (known, None if data is None else self.ref(data)) for known, data in edits.requests.items()
            ],
            answers=[
                (request_id, self.ref(value), entry.answered_by.get(request_id))
                for request_id, value in (entry.responses or {}).items()
            ],
            since_input=entry.since_input,
            fingerprint=entry.fingerprint,
            graph=None if entry.graph is None else self.ref(entry.graph),
            renames=entry.renames,
            rounds=list(entry.rounds.items()),
        )

    def _asked_again(self, entry: CheckpointDraft) -> Changes:
        ids = [request.request_id for request in entry.asked_again]
        # The class may have changed since the schema was stored: those who answer have to know what it takes now.
        now = self._schemas_of([self._manifest.requests[known] for known in ids], entry.asked_again)
        changed = [(form, text) for form, text in now.items() if self._manifest.schemas.get(form) != text]
        return Changes(asked_again=ids, schemas=changed, happened=self._happened(entry))

    def _ended(
        self, before: Snapshot, delta: Delta, since_input: int | None, happened: Sequence[Happened]
    ) -> Changes:
        deliveries, writes, buffers, outputs, requests, instances, dropped, rounds, answers = delta
        delivered = [self._delivered(delivery) for delivery in deliveries]
        # Most supersteps have little of the rest: what is not there should cost nothing.
        written: Sequence[tuple[state.Scope, str, Written]] = ()
        if writes:
            written = [(*place, self._written(before, place, change)) for place, change in writes.items()]
        rest = happened or buffers or outputs or requests or instances or dropped or rounds or answers
        if since_input is None and not rest:
            return Changes(delivered, written)
        asked = [self._asked(request) for request in requests] if requests else ()
        return Changes(
            delivered,
            written,
            dropped=dropped,
            buffers=[
                change
                for key, buffer in buffers.items()
                for change in self._buffered(key, before.buffers.get(key), buffer)
            ]
            if buffers
            else (),
            outputs=[(output.executor_id, self.ref(output.value)) for output in outputs] if outputs else (),
            requests=asked,
            answers=[(known, self.ref(value), None) for known, value in answers.items()] if answers else (),
            instances=list(instances.items()) if instances else (),
            since_input=since_input,
            happened=happened,
            rounds=list(rounds.items()) if rounds else (),
            schemas=self._new_schemas(asked, requests) if requests else (),
        )

    def _happened(self, entry: CheckpointDraft) -> Sequence[Happened]:
        if not entry.happened:
            return ()
        return [
            Happened(executor_id, None, what)
            if isinstance(what, tuple)
            else Happened(executor_id, self.ref(what))
            for executor_id, what in entry.happened
        ]

    def _delivered(self, delivery: Delivery) -> Delivered:
        target, value, source, request = delivery
        return Delivered(target, source, self.ref(value), None if request is None else self._asked(request))

    def _asked(self, request: Request) -> Asked:
        form = self._encoder.codec.encode_form(request.response_type, "response_type")
        return Asked(request.request_id, request.executor_id, self.ref(request.data), form, 0, request.expiry)

    def _new_schemas(self, asked: Sequence[Asked], requests: Sequence[Request]) -> list[tuple[bytes, str]]:
        """Return the schemas of answers that the run has not told yet."""
        told = self._manifest.schemas.keys() | self._described
        new = [(one, request) for one, request in zip(asked, requests, strict=True) if one.form not in told]
        found = self._schemas_of([one for one, _ in new], [request for _, request in new])
        self._described |= found.keys()
        return list(found.items())

    def _schemas_of(self, asked: Sequence[Asked], requests: Sequence[Request]) -> dict[bytes, str]:
        """Return the schemas of answers as JSON, by their types; those without classes follow from the type."""
        from holdfast.graph.typing.schema import json_schema  # few runs ask for classes

        found: dict[bytes, str] = {}
        for one, request in zip(asked, requests, strict=True):
            if one.form not in found and next(iter(classes_in(request.response_type)), None) is not None:
                found[one.form] = json.dumps(json_schema(request.response_type), separators=(",", ":"))
        return found

    def _buffered(self, key: BufferKey, before: Buffer | None, after: Buffer | None) -> list[Buffered]:
        """Return what came into the buffer of a fan-in; None if it is gone, and None first if it began anew."""
        if after is None:
            return [(key, None)]
        held = before or {}
        anew = any(
            source not in after or next(iter(after[source])) is not first for source, first in _firsts(held)
        )
        extended = [
            (source, [self.ref(value) for value in islice(values, known, None)])
            for source, values in after.items()
            for known in (0 if anew else len(held.get(source, ())),)
            if len(values) > known
        ]
        return [(key, None), (key, extended)] if anew else [(key, extended)]

    def _written(self, before: Snapshot, place: state.Place, change: state.Write) -> Written:
        if isinstance(change, state.Put) and getattr(change.value, "size_hint", INLINE + 1) <= INLINE:
            return PutRef(self.ref(change.value))  # as most are; what was there before does not matter
        if isinstance(change, state.Drop):
            return DropRef()
        held = state.read(before.state, *place)
        if isinstance(change, state.Append):
            kind = list if held is None else held.type
            return Grow(kind.__name__, self.parts(kind, tuple(change.items)))
        known = self._growths.get(place)
        if known is not None and known[0] is change.value:
            return known[1]
        return self._grown(place, held, change.value) or PutRef(self.ref(change.value))

    def _grown(self, place: state.Place, held: Value | None, value: Value) -> Grow | None:
        """Return the growth of a list or text that was queued again with something behind what was there, else None."""
        if not isinstance(value, Encoded) or held is None or held.type is not value.type:
            return None
        if value.type not in (list, str, bytes):
            return None
        scope, key = place
        if key not in self._manifest.state.get(scope, {}):
            return None
        try:
            tail = _tail(held, value)
        except NotAtHand:  # who does not read what is there seldom queues it again
            return None
        opened = None if tail is None else slices.opened(tail)
        if tail is None or opened is None:
            return None
        if value.type is list:
            value.grew_from(held, tail)
        label, (_, length, _) = value.type.__name__, opened
        return Grow(label, (Part(False, self.name(label, tail)),) if length else ())


def _firsts(buffer: Buffer) -> Iterator[tuple[ExecutorId, Value]]:
    return ((source, next(iter(values))) for source, values in buffer.items())


def _tail(held: Value, value: Encoded) -> bytes | None:
    if value.type is list:
        return slices.tail_of(bytes_of(held), value.data)
    before, after = held.peek(), value.peek()
    if not after.startswith(before) or not before:
        return None
    return value.encoded(after[len(before) :])


T = TypeVar("T")

Packed: TypeAlias = tuple[Packer, Sequence[Changes]]
"""The changes of checkpoints, and the packer that named their values."""

# Values of more than this are encoded, hashed and compressed in a thread.
_HEAVY = 64 * 1024


async def pack_entries(entries: Sequence[CheckpointDraft], packer: Callable[[], Packer]) -> Packed:
    """Return the changes of checkpoints; each try takes a new packer."""
    at_once = _at_once(entries, packer())
    if at_once is not None:
        return at_once
    values = [value for entry in entries for value in entry.values()]
    return await pack_in_time(lambda: _by(packer(), entries), values)


def _by(packer: Packer, entries: Sequence[CheckpointDraft]) -> Packed:
    return packer, [packer.changes(entry) for entry in entries]


def _at_once(entries: Sequence[CheckpointDraft], packer: Packer) -> Packed | None:
    """Return None if that takes a while, or something is not at hand."""
    for entry in entries:
        for value in entry.values():
            if _is_heavy(value) and not packer.grew_by_little(entry, value, _HEAVY):
                return None
    try:
        return _by(packer, entries)
    except NotAtHand:
        return None


async def pack_in_time(pack: Callable[[], T], values: Iterable[Value]) -> T:
    """Call ``pack``, in a thread if any of the values is big; call it again after a value had to be fetched."""
    heavy = any(map(_is_heavy, values))
    while True:
        try:
            return await packing_threads.call(pack) if heavy else pack()
        except NotAtHand as absent:
            await absent.fetch()


def _is_heavy(value: Value) -> bool:
    return getattr(value, "size_hint", 0) > _HEAVY
