"""The content of stored values in pieces: compares two by the names of their pieces, without reading them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import Part, Ref, sizes_in
from holdfast.checkpoint.format.record import digest_of
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import Digest

_PLAIN = Codec()
_EMPTY: Mapping[str, Any] = {"str": "", "bytes": b""}


class Verdict(Enum):
    """The result of comparing two values by their names."""

    SAME = "same"
    DIFFERENT = "different"
    UNSURE = "unsure"
    """They are cut into different pieces, which must be read."""


class PiecePair(NamedTuple):
    """Two values in pieces: those with which both begin, and the rest of each."""

    shared: Sequence[Part]
    old: Sequence[Part]
    new: Sequence[Part]

    @property
    def verdict(self) -> Verdict:
        """True if the values are the same."""
        if not self.old and not self.new:
            return Verdict.SAME
        if not self.old or not self.new or (_is_one(self.old) and _is_one(self.new)):
            return Verdict.DIFFERENT
        return Verdict.UNSURE

    @property
    def shared_size(self) -> int:
        """The size of the pieces with which both begin, in bytes."""
        return sum(part.ref.size for part in self.shared)


def _is_one(pieces: Sequence[Part]) -> bool:
    return len(pieces) == 1 and not pieces[0].is_item


def compare_pieces(old: Ref, new: Ref) -> PiecePair:
    """Cut two values into pieces and find those with which both begin.

    >>> hello, again = Ref("str", 6, data=b"\\xa5hello"), Ref("str", 6, data=b"\\xa5again")
    >>> grown = Ref("str", 12, parts=[Part(False, hello), Part(False, again)])
    >>> compare_pieces(hello, grown).new == [Part(False, again)], compare_pieces(hello, grown).verdict.value
    (True, 'different')
    """
    before, after = pieces_of(old), pieces_of(new)
    if not before and not after and old.label != new.label:  # an empty list is not an empty text
        return PiecePair((), [Part(False, old)], [Part(False, new)])
    common = 0
    for one, other in zip(before, after, strict=False):
        if one.is_item != other.is_item or name_of(one.ref) != name_of(other.ref):
            break
        common += 1
    return PiecePair(before[:common], before[common:], after[common:])


def pieces_of(ref: Ref) -> list[Part]:
    """Return the pieces of a value that have no parts themselves, without empty ones."""
    return [part for part in _leaves(Part(False, ref)) if not _is_empty(part)]


def _leaves(part: Part) -> Iterator[Part]:
    if part.ref.parts is None or part.is_item:
        yield part
    else:
        for inner in part.ref.parts:
            yield from _leaves(inner)


def _is_empty(part: Part) -> bool:
    data = part.ref.data
    if part.is_item or data is None or part.ref.label not in slices.SEQUENCES:
        return False
    found = slices.opened(data)
    return found is not None and not found[1]


def name_of(ref: Ref) -> bytes:
    """Return the name of a content: equal names mean equal contents, and the reverse if both are cut alike."""
    if ref.parts is not None:
        return digest_of(b"".join(bytes([part.is_item]) + name_of(part.ref) for part in pieces_of(ref)))
    if ref.digest is not None:
        return ref.digest
    assert ref.data is not None, "a value that was read without its content cannot be compared"
    return digest_of(ref.data)


def sizes_of(parts: Sequence[Part]) -> dict[Digest, int]:
    """Return the blobs that hold the content of pieces, with their sizes."""
    return sizes_in(part.ref for part in parts)


def content_of(label: str, parts: Sequence[Part], content: Mapping[Digest, bytes]) -> bytes:
    """Return the encoded value that consists of these pieces."""
    try:
        data = [_data(part.ref, content) for part in parts]
        if _is_one(parts):
            return data[0]
        if label == "list":
            items = [
                slices.listed([one]) if part.is_item else one for part, one in zip(parts, data, strict=True)
            ]
            return slices.joined([slices.listed([]), *items])
        # They are decoded because a text with lone surrogates has another form.
        return _PLAIN.encode(_EMPTY[label].join(map(_PLAIN.decode, data)))
    except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointCorrupt(
            f"a {label} is stored in {len(parts)} pieces that do not fit together ({error!r}); "
            f"'await storage.verify()' lists what is affected"
        ) from error


def _data(ref: Ref, content: Mapping[Digest, bytes]) -> bytes:
    if ref.parts is not None:
        return content_of(ref.label, pieces_of(ref), content)
    if ref.data is not None:
        return ref.data
    assert ref.digest is not None
    return content[ref.digest]
