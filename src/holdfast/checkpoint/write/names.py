"""Values of one commit get their names, and blobs where they are big."""

from __future__ import annotations

from collections.abc import Container, Sequence

from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import Part, Ref
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import digest_of, stored_form
from holdfast.checkpoint.values import INLINE, Encoded, Pieces
from holdfast.engine.value import Joined, Value
from holdfast.ids import Digest

# Many small items become several slices, each far smaller than what can be read at once.
_LARGEST_SLICE = 1 << 26


class Names:
    """Names the values of one commit, and collects the blobs that it has to store.

    What the run has already is not stored again: ``manifest`` knows the blobs of its checkpoint, ``noted`` are those
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
        """Items that were appended: big ones alone, the others in slices."""
        label = kind.__name__
        parts: list[Part] = []
        small: list[bytes] = []
        size = 0

        def flush() -> None:
            if small:
                data = slices.listed(small) if kind is list else slices.joined(small)
                parts.append(Part(False, self.named(label, data)))
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
                parts.append(Part(kind is list, self.named(_label(item), data)))
        flush()
        return tuple(parts)

    def ref(self, value: Value) -> Ref:
        """How a value is named; its content is stored if it is not yet."""
        if isinstance(value, Encoded):
            ref = value.ref
            if ref is None or (ref.digest is not None and not self._has(ref.digest)):
                ref = value.ref = self.named(value.label, value.data)
            return ref
        if isinstance(value, Pieces):
            return value.ref
        assert isinstance(value, Joined), f"{value!r} was not captured by the encoder of a storage"
        known = self._refs.get(id(value))
        if known is None:
            known = self._refs[id(value)] = (value, self._joined(value))
        return known[1]

    def _joined(self, value: Joined) -> Ref:
        base, tail = value.parts()
        parts = self.parts(value.type, tuple(tail))
        if base is not None:
            parts = (Part(False, self.ref(base)), *parts)
        if not parts:
            return self.named("list", slices.listed([]))
        if len(parts) == 1 and not parts[0].is_item:
            return parts[0].ref
        return Ref(value.type.__name__, sum(part.ref.size for part in parts), parts=list(parts))

    def named(self, label: str, data: bytes) -> Ref:
        """The name of encoded content: small content stands in it, other content becomes a blob."""
        if len(data) <= INLINE:
            return Ref(label, len(data), None, data)
        return Ref(label, len(data), self.blob(data))

    def blob(self, data: bytes) -> Digest:
        """Store ``data`` as a blob, unless the run has it already."""
        digest = digest_of(data)
        if not self._has(digest):
            self.blobs[digest] = stored_form(data)
        return digest

    def _has(self, digest: Digest) -> bool:
        """Whether the run has a blob: named by its checkpoint, by its journal, or in this commit."""
        return digest in self._manifest.digests or digest in self._noted or digest in self.blobs

    def new_blob_bytes(self) -> int:
        """The size of the blobs that came since this was last asked."""
        if not self.blobs:
            return 0
        size = sum(map(len, self.blobs.values()))
        told, self._told = self._told, size
        return size - told

    def compacted(self, ref: Ref) -> Ref:
        """The same value with its small parts put together, so that a keyframe names few."""
        if ref.parts is None:
            return ref
        parts: list[Part] = []
        small: list[bytes] = []

        def flush() -> None:
            if small:
                parts.append(Part(False, self.named(ref.label, slices.joined(small))))
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
    """The encoding of a value, put together where it consists of parts."""
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, Joined):
        base, tail = value.parts()
        pieces = [] if base is None else [bytes_of(base)]
        items = [bytes_of(item) for item in tail]
        return slices.joined([*pieces, *([slices.listed(items)] if value.type is list else items)])
    assert isinstance(value, Pieces)
    return slices.joined(
        [slices.listed([bytes_of(piece)]) if is_item else bytes_of(piece) for is_item, piece in value.pieces]
    )


def _label(value: Value) -> str:
    return value.label if isinstance(value, Encoded) else value.type.__name__
