"""Values of runs that are stored: captured by encoding them, and after a resume fetched when someone reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.registry import excluded_fields
from holdfast.checkpoint.codec.shapes import ModelShape, ObjectShape, PlainShape, kind_of
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.format.changes import Ref
from holdfast.checkpoint.format.slices import SEQUENCES
from holdfast.checkpoint.format.stored_form import LARGEST
from holdfast.engine.copies import ListMaker, Maker, differs, is_immutable, maker_of, size_in_bytes
from holdfast.engine.value import Fetchable, NotAtHand, Value, missing_of, read_all
from holdfast.errors import CheckpointCorrupt, LimitExceeded
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import Digest

_ATOMS = frozenset({int, float, bool, type(None), complex})
_MISSING: Final = object()
# A value up to this size is decoded once for all who only peek, and compared to tell whether it was changed.
_SMALL = 256 * 1024
_MOST_IN_FRONT = 16
Growth: TypeAlias = tuple[ListMaker, bytes]
"""A maker of copies of a list, and the encoding of the items that were added behind it since."""
# In place of what makes copies of a value: it was read once.
_READ: Final = "read"
INLINE = 4096
"""Values up to this size stand in the record itself."""


_BUILTIN: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (str, bytes, list, dict, tuple, set, frozenset, int, float, bool, type(None), bytearray)
}


_LABELS = {kind: kind.__qualname__ for kind in _BUILTIN.values()}


Wanted: TypeAlias = Sequence[Digest] | Mapping[Digest, int]
"""Blobs that are to be read; with the size that each must have, where something names it."""


class BlobSource(Protocol):
    """The source of blobs."""

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        """The plain content of all these blobs; raises ``CheckpointCorrupt`` for one that is missing or broken."""
        ...


class Encoder:
    """Captures values by encoding them: what cannot be stored fails where it is sent or queued."""

    __slots__ = ("_limit", "_surely_small", "codec", "counters")

    def __init__(self, codec: Codec, limit: int, counters: Counters) -> None:
        self.codec = codec
        self.counters = counters
        # Nobody reads more than LARGEST, with what an encoding has in front of a text.
        self._limit = min(limit, LARGEST - _MOST_IN_FRONT)
        self._surely_small = self._limit // 4  # characters, which have four bytes at most

    def __call__(self, value: object, place: str) -> Encoded:
        kind = type(value)
        if kind in _ATOMS:
            return Encoded(self, kind, value)
        if kind is str or kind is bytes:
            if len(value) > self._surely_small and size_in_bytes(value, self._limit) > self._limit:  # type: ignore[arg-type]
                raise self._too_big(kind, place)
            return Encoded(self, kind, value)
        data = self.encode(value, place)
        if len(data) > self._limit:
            raise self._too_big(kind, place)
        return Encoded(self, kind, value if is_immutable(value) else _MISSING, data)

    def _too_big(self, kind: type, place: str) -> LimitExceeded:
        return LimitExceeded(
            "max_value_size",
            self._limit,
            f"{place}: a {kind.__name__} of more than {self._limit:,} bytes; keep it outside and pass a reference, "
            f"or allow more with Limits(max_value_size=...), up to {LARGEST - _MOST_IN_FRONT:,} bytes",
        )

    def allow(self, form: TypeForm, where: str) -> None:
        self.codec.types.declare(form, where)

    def changed(self, value: object, captured: Value) -> bool:
        return len(captured.data) <= _SMALL and self._now(value) != captured.data  # type: ignore[attr-defined]

    def differs(self, value: object, held: Value) -> bool:
        if isinstance(held, Encoded):
            return self._now(value) != held.data
        return differs(held.peek(), value, unsure=True)

    def _now(self, value: object) -> bytes | None:
        try:
            return self.codec.encode(value)
        except Exception:  # it became something that cannot be stored
            return None

    def encode(self, value: object, place: str = "value") -> bytes:
        """The bytes of a value."""
        self.counters.encoded += 1
        return self.codec.encode(value, place)

    def decode(self, data: bytes) -> Any:
        """A value of its own."""
        self.counters.decoded += 1
        return self.codec.decode(data)


class Encoded:
    """A value of a stored run: the object itself if it cannot be changed, its bytes, or the name of its blob."""

    __slots__ = (
        "_copies",
        "_data",
        "_encoder",
        "_object",
        "_peeked",
        "_source",
        "mutable",
        "ref",
        "size_hint",
        "type",
    )

    def __init__(
        self,
        encoder: Encoder,
        kind: type,
        value: object = _MISSING,
        data: bytes | None = None,
        ref: Ref | None = None,
        source: BlobSource | None = None,
    ) -> None:
        self._encoder = encoder
        self.type = kind
        self._object = value
        self._data = data
        self._peeked = _MISSING
        # An int: it is better decoded each time; that was found out when it had this size.
        self._copies: Maker | Growth | int | str | None = None
        self._source = source
        self.mutable = value is _MISSING
        self.ref = ref
        """The ref under which it is stored, if it is."""
        self.size_hint = 16
        """About how many bytes it takes, as far as that was known when it was made."""
        if data is not None:
            self.size_hint = len(data)
        elif kind is str or kind is bytes:
            self.size_hint = 16 if value is _MISSING else len(value)  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        """The type, for people."""
        return _LABELS.get(self.type) or label_of(self.type, self._encoder.codec)

    @property
    def at_hand(self) -> bool:
        """True if it can be read without fetching anything."""
        return self._object is not _MISSING or self._data is not None

    @property
    def is_text(self) -> bool:
        """True if it is a text or bytes that are held as such, and need not be decoded."""
        return self._object is not _MISSING and (self.type is str or self.type is bytes)

    def missing(self) -> Sequence[Encoded]:
        return () if self.at_hand else (self,)

    def inline(self) -> Ref | None:
        """Its name, if it is small enough to stand in a record, and at hand."""
        ref = self.ref
        if ref is not None:
            return None if ref.data is None else ref
        data = self._data
        if self.size_hint > INLINE or (data is None and self._object is _MISSING):
            return None
        if data is None:
            data = self._encoder.encode(self._object)
            if len(data) > INLINE:
                return None
        ref = self.ref = Ref(self.label, len(data), None, data)
        return ref

    @property
    def data(self) -> bytes:
        """Its bytes; of an object that cannot change they are made anew each time, for nobody needs them often."""
        if self._data is not None:
            return self._data
        if self._object is _MISSING:
            raise NotAtHand([self])
        return self._encoder.encode(self._object)

    def encoded(self, part: object) -> bytes:
        """The encoding of a part of this value."""
        return self._encoder.encode(part)

    def peek(self) -> Any:
        if self._object is not _MISSING:
            return self._object
        if self._peeked is not _MISSING:
            return self._peeked
        value = self._decoded()
        if self.at_hand and self._object is _MISSING and len(self.data) <= _SMALL:
            self._peeked = value
        return value

    def load(self) -> Any:
        if self._object is not _MISSING:
            return self._object
        copies = self._copies
        if copies is None:  # as most values, which are read once
            value = self._decoded()
            self._copies = _READ
            return value
        if copies is _READ:
            size = len(self.data)
            copies = self._copies = maker_of(self.peek(), _is_record, size) or size
        elif type(copies) is tuple:
            maker, tail = copies
            copies = self._copies = maker.extend(self._encoder.decode(tail), _is_record) or len(self.data)
        return self._decoded() if type(copies) is int else copies()  # type: ignore[operator]

    def grew_from(self, held: Value, tail: bytes) -> None:
        """Note that this list is ``held`` with ``tail`` behind it: what is known of that need not be decoded again."""
        if self._copies is not None or not isinstance(held, Encoded):
            return
        copies = held._copies
        if isinstance(copies, ListMaker):
            self._copies = copies, tail
        elif isinstance(copies, int):
            self._copies = copies if len(self.data) < 2 * copies else _READ
        elif copies is _READ:
            self._copies = _READ

    def _decoded(self) -> Any:
        if self._data is None:
            raise NotAtHand([self])
        value = self._encoder.decode(self._data)
        if self._source is not None and is_immutable(value):
            self._object, self._data = value, None
        return value

    async def fetch(self, values: Sequence[Any]) -> None:
        """Bring these values, all of the same run, into memory."""
        assert self._source is not None
        content = await self._source.read({value.ref.digest: value.ref.size for value in values})
        for value in values:
            value.bring(content)

    def bring(self, content: Mapping[Digest, bytes]) -> None:
        """Take its bytes from blobs that were read."""
        assert self.ref is not None
        self._data = content[self.ref.digest]  # type: ignore[index]

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "peek") and not differs(self.peek(), other.peek())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Encoded({self.peek()!r})" if self.at_hand else f"Encoded({self.ref!r})"


def _has_attributes_only(kind: type) -> bool:
    """Tell whether instances are their attributes and nothing else: copying these then equals decoding."""
    return kind_of(kind) in (ObjectShape, PlainShape, ModelShape) and not excluded_fields(kind)


_is_record = lru_cache(maxsize=1024)(_has_attributes_only)


class PiecedValue:
    """A list, str or bytes that was stored piece by piece; put together when someone reads."""

    __slots__ = ("_type", "pieces", "ref")

    mutable = False

    def __init__(self, kind: type, parts: Sequence[tuple[bool, Value]], ref: Ref) -> None:
        self._type = kind
        self.pieces = parts
        self.ref = ref

    @property
    def type(self) -> type:
        return self._type

    def missing(self) -> Sequence[Fetchable]:
        return missing_of(piece for _, piece in self.pieces)

    def peek(self) -> Any:
        return self._assembled(False)

    def load(self) -> Any:
        return self._assembled(True)

    def _assembled(self, own: bool) -> Any:
        pieces = read_all([part for _, part in self.pieces], lambda part: part.load() if own else part.peek())
        kind = self._type
        for (is_item, _), piece in zip(self.pieces, pieces, strict=True):
            if kind is not list if is_item else type(piece) is not kind:
                raise CheckpointCorrupt(
                    f"a {kind.__name__} has a {type(piece).__name__} as one of its {len(pieces)} parts; "
                    f"'await storage.verify()' lists what is affected"
                )
        if kind is not list:
            return kind().join(pieces)
        items: list[Any] = []
        for (is_item, _), piece in zip(self.pieces, pieces, strict=True):
            if is_item:
                items.append(piece)
            else:
                items += piece
        return items

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "peek") and not differs(self.peek(), other.peek())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pieces({self.ref!r})"


def label_of(kind: type, codec: Codec) -> str:
    """The type of a value, for people."""
    return codec.types.name_of(kind) or kind.__qualname__


def class_of(label: str, codec: Codec) -> type:
    """The class that a label names; ``object`` if it is not known here."""
    return _BUILTIN.get(label) or codec.types.class_of(label) or object


def restored(ref: Ref, encoder: Encoder, source: BlobSource) -> Value:
    """The value that a ref names, not yet read."""
    if ref.parts is None:
        kind = class_of(ref.label, encoder.codec)
        return Encoded(encoder, kind, data=ref.data, ref=ref, source=source)
    if ref.label not in SEQUENCES:  # and never a class of the user's, which would have to be called
        raise CheckpointCorrupt(
            f"a {ref.label} is stored in {len(ref.parts)} parts, as only {', '.join(SEQUENCES)} are; "
            f"'await storage.verify()' lists what is affected"
        )
    parts = [(part.is_item, restored(part.ref, encoder, source)) for part in ref.parts]
    return PiecedValue(_BUILTIN[ref.label], parts, ref.copy())  # that of a manifest may grow
