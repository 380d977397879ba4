"""What is said of a value that cannot be kept: what it is, and what to do."""

from __future__ import annotations

from datetime import tzinfo
from types import ModuleType
from typing import Any

from holdfast.checkpoint.codec.reach import is_foundation
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import PlainShape, kind_of
from holdfast.engine.copying import solid_base

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)


def refusal(value: Any, types: TypeRegistry) -> str:
    """Why ``value`` itself, not a part of it, cannot be kept, and the fix."""
    kind = type(value)
    name = kind.__name__
    if isinstance(value, type):
        return f"the class {value.__name__} is not checkpointable; send its name, or an instance"
    if isinstance(value, memoryview):
        return "memoryview is not checkpointable; send bytes(...) of it"
    if isinstance(value, tzinfo):
        return f"the time zone {name} is not checkpointable; use zoneinfo.ZoneInfo or datetime.timezone"
    if isinstance(value, ModuleType) or (callable(value) and is_foundation(kind)):
        return f"{name} is not checkpointable; send plain data, and look such things up where they are used"
    storable = kind_of(kind)
    if storable is not None and storable is not PlainShape and types.name_of(kind) is None:
        return (
            f"{name} is not declared in the workflow; name it in the annotations of a handler or in a StateKey, "
            f"or decorate it with @checkpointable"
        )
    solid = solid_base(kind)
    if solid in _PLAIN or any(base in _PLAIN for base in kind.__mro__):
        return (
            f"{name} is derived from {solid.__name__}, so it is not checkpointable; "
            f"use a {solid.__name__}, or a dataclass that holds one"
        )
    if solid is object and not is_foundation(kind):
        return f"{name} is not checkpointable; make it a dataclass, or decorate it with @checkpointable"
    return f"{name} is not checkpointable; send plain data, and open such things where they are used"
