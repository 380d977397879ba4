"""Bytes to values: plain data at native speed, extensions by tables; nothing is imported or run by name."""

from __future__ import annotations

import struct
from typing import Any

from ormsgpack import unpackb

from holdfast.checkpoint.codec import arrays, exceptions, wire
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, Unknown
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import Shape, shape_of
from holdfast.checkpoint.codec.standard import FROM_BYTES, FROM_DATA

_FROM_DATA = {
    **FROM_DATA,
    wire.STANDARD_ERROR: exceptions.rebuild,
    wire.ARRAY: arrays.array_of,
    wire.SCALAR: arrays.scalar_of,
}
_OF_CLASSES = frozenset({wire.RECORD, wire.MODEL, wire.MEMBER, wire.FLAG, wire.ERROR})


class ValueReader:
    """Reads one value; ``shapes`` is a cache that readers share."""

    # Defaults on the class: a reader is made for each value, and most need none of them.
    _depth = 0  # how many extensions are being read around each other
    _levels = 0  # how many arrays and maps can lie around what is read now, at most
    failure: BaseException | None = None

    def __init__(self, types: TypeRegistry, shapes: dict[type, Shape], data: bytes) -> None:
        self._types = types
        self._shapes = shapes
        self._length = len(data)
        # None once it is known not to be too deep: each level takes a byte.
        self._data = data if self._length > wire.MAX_NESTING else None

    def extension(self, code: int, payload: bytes) -> Any:
        """Return the value of an extension; called by the native reader, which hides errors that are raised here."""
        try:
            if code in _OF_CLASSES:
                data = self._packed(payload)
                return self._shape(data).rebuild(code, data)
            flat = FROM_BYTES.get(code)
            if flat is not None:
                return flat(payload)
            build = _FROM_DATA.get(code)
            if build is not None:
                return build(self._packed(payload))
            raise Malformed(f"there is no extension {code}")
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def _packed(self, payload: bytes) -> Any:
        self._depth = depth = self._depth + 1
        if depth > wire.MAX_EXTENSIONS:
            raise Malformed("it is nested too deeply")
        if self._data is None:
            value = unpackb(payload, ext_hook=self.extension)
        else:
            value = self._packed_deep(payload, self._data)
        self._depth = depth - 1
        return value

    def _packed_deep(self, payload: bytes, data: bytes) -> Any:
        """Unpack a payload, and check that its nesting cannot exhaust the stack."""
        outer, levels = self._length, self._levels
        length = self._length = len(payload)
        # Each array or map around the payload took a byte of what is around it.
        self._levels = levels + min(NATIVE_DEPTH, outer - length)
        if self._levels + min(NATIVE_DEPTH, length) > wire.MAX_NESTING:
            if measure_nesting(data) > wire.MAX_NESTING:
                raise Malformed("it is nested too deeply")
            self._data = None
        value = unpackb(payload, ext_hook=self.extension)
        self._length, self._levels = outer, levels
        return value

    def _shape(self, data: Any) -> Shape:
        if type(data) is not list or len(data) < 2 or type(data[0]) is not str:
            raise Malformed("an instance names no class")
        name = data[0]
        cls = self._types.class_of(name)
        if cls is None:
            raise Unknown(
                f"the data has the type {name!r}, which is not declared here; name it in the annotations of a "
                f"handler or in a StateKey of the workflow, or decorate it with @checkpointable"
            )
        found = self._shapes.get(cls)
        if found is None:
            try:
                found = self._shapes[cls] = shape_of(cls, name)
            except NotStorable as refused:
                raise Unknown(f"the data has the type {name!r}, but {refused}") from None
        return found


NATIVE_DEPTH = 1023
"""The depth of arrays and maps that the native reader takes at once."""

# The length of what follows the first byte: (bytes that hold the length, bytes before the content).
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0),
    0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIX_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_COUNTED = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}


def measure_nesting(data: bytes) -> int:
    """Return the number of arrays, maps and extensions around the innermost value; stops above ``MAX_NESTING``.

    The native reader needs stack for each array and map, and again for each packed extension: hostile data of a few
    kilobytes could exhaust it. So data that could be deep is measured, without recursion, before it is read.

    >>> measure_nesting(b"\\x91\\x91\\xc0"), measure_nesting(b"\\xc0")
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
    """Return the number of values in the value at ``position``, and the position of the next one."""
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
    """Return the same for an extension: a packed one holds one value, its payload, others none."""
    return (0, start + length) if not code or code[0] in wire.FLAT else (1, start)
