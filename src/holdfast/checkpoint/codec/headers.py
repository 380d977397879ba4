"""Arrays and maps of parts that are encoded already."""

from __future__ import annotations


def array(parts: list[bytes]) -> bytes:
    """The array of these encoded items.

    >>> array([b"\\x01", b"\\x02"]).hex()
    '920102'
    """
    return _header(len(parts), 0x90, b"\xdc", b"\xdd") + b"".join(parts)


def mapping(pairs: list[bytes]) -> bytes:
    """The map of these pairs, each an encoded key with an encoded value behind it."""
    return _header(len(pairs), 0x80, b"\xde", b"\xdf") + b"".join(pairs)


def _header(count: int, short: int, middle: bytes, long: bytes) -> bytes:
    if count < 16:
        return bytes([short | count])
    if count < 1 << 16:
        return middle + count.to_bytes(2, "big")
    return long + count.to_bytes(4, "big")
