"""How deep encoded data is nested, told without recursion.

The native reader needs stack for each array and map, and a fresh start of it for each packed extension: hostile
data of a few kilobytes could exhaust the stack. So data is measured before it is read, where it could be deep.
"""

from __future__ import annotations

import struct

from holdfast.checkpoint.codec import wire

NATIVE_DEPTH = 1023
"""How deep arrays and maps can be in what the native reader takes at once."""

# The length of what follows the first byte: (bytes that hold the length, bytes before the content).
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0),
    0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIX_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_COUNTED = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}


def nesting(data: bytes) -> int:
    """How many arrays, maps and extensions lie around the innermost value; stops above ``MAX_NESTING``.

    >>> nesting(b"\\x91\\x91\\xc0"), nesting(b"\\xc0")
    (2, 0)
    """
    deepest, position, size = 0, 0, len(data)
    open_items = [1]  # how many values are still to come in each array or map
    while open_items and position < size:
        open_items[-1] -= 1
        count, position = _entered(data, position)
        if count:
            open_items.append(count)
            deepest = max(deepest, len(open_items) - 1)
            if deepest > wire.MAX_NESTING:
                return deepest
        while open_items and open_items[-1] <= 0:
            open_items.pop()
    return deepest


def _entered(data: bytes, position: int) -> tuple[int, int]:
    """How many values the value at ``position`` holds, and where the next one begins."""
    first, position = data[position], position + 1
    if first <= 0x7F or first >= 0xE0:
        return 0, position
    if first <= 0x8F:
        return 2 * (first & 0x0F), position
    if first <= 0x9F:
        return first & 0x0F, position
    if first <= 0xBF:
        return 0, position + (first & 0x1F)
    if first in _COUNTED:
        form, each = _COUNTED[first]
        width = struct.calcsize(form)
        return each * int.from_bytes(data[position : position + width], "big"), position + width
    if first in _FIX_EXT:
        return _extension(data[position : position + 1], position + 1, _FIX_EXT[first])
    if first in _SIZED:
        width, more = _SIZED[first]
        length = int.from_bytes(data[position : position + width], "big")
        position += width
        if more:
            return _extension(data[position : position + 1], position + 1, length)
        return 0, position + length
    return 0, position + _FIXED.get(first, 0)


def _extension(code: bytes, start: int, length: int) -> tuple[int, int]:
    """A packed extension holds one value, its payload; others none."""
    return (0, start + length) if not code or code[0] in wire.FLAT else (1, start)
