"""Bytes to values: what is plain at native speed, extensions by tables; nothing is imported or run by name."""

from __future__ import annotations

from typing import Any

from ormsgpack import unpackb

from holdfast.checkpoint.codec import arrays, failures, wire
from holdfast.checkpoint.codec.nesting import NATIVE_DEPTH, nesting
from holdfast.checkpoint.codec.refused import Malformed, Refused, Unknown
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import Shape, shape_of
from holdfast.checkpoint.codec.standard import FROM_BYTES, FROM_DATA

_FROM_DATA = {
    **FROM_DATA,
    wire.STANDARD_ERROR: failures.built,
    wire.ARRAY: arrays.array_of,
    wire.SCALAR: arrays.scalar_of,
}
_OF_CLASSES = frozenset({wire.RECORD, wire.MODEL, wire.MEMBER, wire.FLAG, wire.ERROR})


class Reader:
    """Reads one value; ``shapes`` is shared between readers and holds what was found out about classes."""

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
        """The value of an extension; called back by the native reader, which hides what is raised here."""
        try:
            if code in _OF_CLASSES:
                data = self._packed(payload)
                return self._shape(data).built(code, data)
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
        """What a payload holds, with an eye on the stack."""
        outer, levels = self._length, self._levels
        length = self._length = len(payload)
        # Each array or map around the payload took a byte of what is around it.
        self._levels = levels + min(NATIVE_DEPTH, outer - length)
        if self._levels + min(NATIVE_DEPTH, length) > wire.MAX_NESTING:
            if nesting(data) > wire.MAX_NESTING:
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
            except Refused as refused:
                raise Unknown(f"the data has the type {name!r}, but {refused}") from None
        return found
