"""Encoded lists, str and bytes as things that can be cut and put together without decoding them."""

from __future__ import annotations

from collections.abc import Sequence

# What the encoding of a plain list, str or bytes begins with; anything else is no sequence that can be cut.
_LIST, _STR, _BYTES = "list", "str", "bytes"
SEQUENCES = (_LIST, _STR, _BYTES)

# MessagePack's first bytes, and how many bytes of length follow.
_LENGTHS = {
    0xDC: (_LIST, 2),
    0xDD: (_LIST, 4),
    0xD9: (_STR, 1),
    0xDA: (_STR, 2),
    0xDB: (_STR, 4),
    0xC4: (_BYTES, 1),
    0xC5: (_BYTES, 2),
    0xC6: (_BYTES, 4),
}


def opened(data: bytes) -> tuple[str, int, int] | None:
    """The kind of an encoded sequence, its length (of a list: items), and where its content begins; None for others.

    >>> opened(bytes([0x92, 1, 2])), opened(b"\\xa2hi"), opened(b"\\xc0")
    (('list', 2, 1), ('str', 2, 1), None)
    """
    first = data[0]
    if first & 0xF0 == 0x90:
        return _LIST, first & 0x0F, 1
    if first & 0xE0 == 0xA0:
        return _STR, first & 0x1F, 1
    if first not in _LENGTHS:
        return None
    kind, width = _LENGTHS[first]
    return kind, int.from_bytes(data[1 : 1 + width], "big"), 1 + width


def begun(kind: str, length: int) -> bytes:
    """The bytes with which the encoding of such a sequence begins.

    >>> begun("list", 2), begun("str", 300)
    (b'\\x92', b'\\xda\\x01,')
    """
    if kind == _LIST and length < 16:
        return bytes([0x90 | length])
    if kind == _STR and length < 32:
        return bytes([0xA0 | length])
    for first, (other, width) in _LENGTHS.items():
        if other == kind and length < 1 << (8 * width):
            return bytes([first]) + length.to_bytes(width, "big")
    raise ValueError(f"a {kind} of {length:,} is too long to be stored in one piece")


def tail_of(before: bytes, after: bytes) -> bytes | None:
    """Return the encoding of what ``after`` has behind ``before``; None if ``after`` does not begin with it."""
    one, other = opened(before), opened(after)
    if one is None or other is None or one[0] != other[0] or one[1] > other[1]:
        return None
    kind, length, start = one
    begin = other[2]
    # By this, and not by comparing two views, which goes byte by byte and takes a hundred times as long.
    if not after.startswith(memoryview(before)[start:], begin):
        return None
    return begun(kind, other[1] - length) + after[begin + len(before) - start :]


def listed(items: Sequence[bytes]) -> bytes:
    """The encoding of a list of encoded items."""
    return begun(_LIST, len(items)) + b"".join(items)


def joined(slices: Sequence[bytes]) -> bytes:
    """The encoding of encoded sequences of one kind, put together."""
    found = [opened(data) for data in slices]
    kinds = {one[0] for one in found if one is not None}
    assert len(kinds) == 1, "only sequences of one kind can be put together"
    assert None not in found, "only sequences can be put together"
    content = [data[one[2] :] for data, one in zip(slices, found, strict=True) if one is not None]
    return begun(kinds.pop(), sum(one[1] for one in found if one is not None)) + b"".join(content)
