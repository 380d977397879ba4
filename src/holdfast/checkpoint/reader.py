"""Bytes to values: what is plain at native speed, extensions by tables; nothing is imported or run by name."""

from __future__ import annotations

from typing import Any

from ormsgpack import unpackb

from holdfast.checkpoint import arrays, failures, wire
from holdfast.checkpoint.nesting import NATIVE_DEPTH, nesting
from holdfast.checkpoint.refused import Malformed, Refused, Unknown
from holdfast.checkpoint.registry import TypeRegistry
from holdfast.checkpoint.shapes import Shape, shape_of
from holdfast.checkpoint.standard import FROM_BYTES, FROM_DATA

_FROM_DATA = {
    **FROM_DATA,
    wire.STANDARD_ERROR: failures.built,
    wire.ARRAY: arrays.array_of,
    wire.SCALAR: arrays.scalar_of,
}
_OF_CLASSES = frozenset({wire.RECORD, wire.MODEL, wire.MEMBER, wire.FLAG, wire.ERROR})


class Reader:
    """Reads one value; ``shapes`` is shared between readers and holds what was found out about classes."""

    __slots__ = ("_data", "_depth", "_length", "_levels", "_shapes", "_types", "failure")

    def __init__(self, types: TypeRegistry, shapes: dict[type, Shape], data: bytes) -> None:
        self._types = types
        self._shapes = shapes
        self._data: bytes | None = data  # None once it is known not to be too deep
        self._depth = 0
        self._levels = 0  # how many arrays and maps can lie around what is read now, at most
        self._length = len(data)
        self.failure: BaseException | None = None

    def extension(self, code: int, payload: bytes) -> Any:
        """The value of an extension; called back by the native reader, which hides what is raised here."""
        try:
            flat = FROM_BYTES.get(code)
            if flat is not None:
                return flat(payload)
            build = _FROM_DATA.get(code)
            if build is not None:
                return build(self._packed(payload))
            if code not in _OF_CLASSES:
                raise Malformed(f"there is no extension {code}")
            data = self._packed(payload)
            return self._shape(data).built(code, data)
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def _packed(self, payload: bytes) -> Any:
        outer, levels = self._length, self._levels
        length = self._length = len(payload)
        self._depth += 1
        # Each array or map around the payload took a byte of what is around it.
        self._levels = inner = levels + min(NATIVE_DEPTH, outer - length)
        if self._depth > wire.MAX_EXTENSIONS:
            raise Malformed("it is nested too deeply")
        if inner + min(NATIVE_DEPTH, length) > wire.MAX_NESTING and self._data is not None:
            if nesting(self._data) > wire.MAX_NESTING:
                raise Malformed("it is nested too deeply")
            self._data = None
        value = unpackb(payload, ext_hook=self.extension)
        self._depth -= 1
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
