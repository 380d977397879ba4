"""What a superstep changed, with names of stored values in place of values."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import (
    NOTHING,
    Asked,
    Changes,
    Delivered,
    Drop,
    Grow,
    Happened,
    Part,
    Put,
    Ref,
    Written,
)
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.values import INLINE, Encoded, Encoder
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.names import Names, bytes_of
from holdfast.engine import state
from holdfast.engine.message import Delivery, Request
from holdfast.engine.snapshot import Buffer, BufferKey, Delta, Snapshot
from holdfast.engine.value import NotAtHand, Value
from holdfast.ids import Digest, ExecutorId

Buffered: TypeAlias = "tuple[BufferKey, Sequence[tuple[ExecutorId, Sequence[Ref]]] | None]"


class Packer(Names):
    """Tells what the checkpoints of one commit change, while it names their values."""

    def __init__(self, manifest: Manifest, encoder: Encoder, noted: Container[Digest] = ()) -> None:
        super().__init__(manifest, noted)
        self._encoder = encoder
        self._growths: dict[state.Place, tuple[Value, Grow]] = {}

    def grew_by_little(self, entry: Entry, value: Value, little: int) -> bool:
        """Whether a text that an entry brings is the one that was there, with at most so much behind it.

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

    def changes(self, entry: Entry) -> Changes:
        """What an entry changes."""
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
        told = (entry.responses, entry.since_input, entry.fingerprint, entry.edits)
        if told == (None, None, None, None):
            return NOTHING
        return Changes(
            writes=[
                (scope, key, Put(self.ref(put.value))) for (scope, key), put in (entry.edits or {}).items()
            ],
            answers=[(request_id, self.ref(value)) for request_id, value in (entry.responses or {}).items()],
            since_input=entry.since_input,
            fingerprint=entry.fingerprint,
            graph=None if entry.graph is None else self.ref(entry.graph),
            renames=entry.renames,
            rounds=list(entry.rounds.items()),
        )

    def _ended(
        self, before: Snapshot, delta: Delta, since_input: int | None, happened: Sequence[Happened]
    ) -> Changes:
        deliveries, writes, buffers, outputs, requests, instances, dropped, rounds = delta
        delivered = [self._delivered(delivery) for delivery in deliveries]
        # Most supersteps have little of the rest: what is not there should cost nothing.
        written: Sequence[tuple[state.Scope, str, Written]] = ()
        if writes:
            written = [(*place, self._written(before, place, change)) for place, change in writes.items()]
        rest = happened or buffers or outputs or requests or instances or dropped or rounds
        if since_input is None and not rest:
            return Changes(delivered, written)
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
            requests=[self._asked(request) for request in requests] if requests else (),
            instances=list(instances.items()) if instances else (),
            since_input=since_input,
            happened=happened,
            rounds=list(rounds.items()) if rounds else (),
        )

    def _happened(self, entry: Entry) -> Sequence[Happened]:
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

    def _buffered(self, key: BufferKey, before: Buffer | None, after: Buffer | None) -> list[Buffered]:
        """What came into the buffer of a fan-in; None if it is no longer there, and first if it began anew."""
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
            return Put(self.ref(change.value))  # as most are; what was there before does not matter
        if isinstance(change, state.Drop):
            return Drop()
        held = state.read(before.state, *place)
        if isinstance(change, state.Append):
            kind = list if held is None else held.type
            return Grow(kind.__name__, self.parts(kind, tuple(change.items)))
        known = self._growths.get(place)
        if known is not None and known[0] is change.value:
            return known[1]
        return self._grown(place, held, change.value) or Put(self.ref(change.value))

    def _grown(self, place: state.Place, held: Value | None, value: Value) -> Grow | None:
        """A whole list or text that was queued again, with something behind what was there: only that is stored."""
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
        return Grow(label, (Part(False, self.named(label, tail)),) if length else ())


def _firsts(buffer: Buffer) -> Iterator[tuple[ExecutorId, Value]]:
    return ((source, next(iter(values))) for source, values in buffer.items())


def _tail(held: Value, value: Encoded) -> bytes | None:
    if value.type is list:
        return slices.tail_of(bytes_of(held), value.data)
    before, after = held.peek(), value.peek()
    if not after.startswith(before) or not before:
        return None
    return value.encoded(after[len(before) :])
