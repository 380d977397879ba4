"""Values to bytes: plain data at native speed, other values part by part."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from datetime import tzinfo
from types import ModuleType
from typing import Any, TypeAlias

from ormsgpack import Ext, packb

from holdfast.checkpoint.codec import arrays, exceptions, wire
from holdfast.checkpoint.codec.declared_types import is_foundation
from holdfast.checkpoint.codec.refusals import NotStorable, TooDeep
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import PlainShape, Shape, kind_of, shape_of
from holdfast.checkpoint.codec.standard import TAKEN, Taken, explain_alike, find_lazy_taker, too_many_alike
from holdfast.engine.copies import solid_base


def array(parts: list[bytes]) -> bytes:
    """Return the array of these encoded items.

    >>> array([b"\\x01", b"\\x02"]).hex()
    '920102'
    """
    return _header(len(parts), 0x90, b"\xdc", b"\xdd") + b"".join(parts)


def mapping(pairs: list[bytes]) -> bytes:
    """Return the map of these pairs, each an encoded key with an encoded value behind it."""
    return _header(len(pairs), 0x80, b"\xde", b"\xdf") + b"".join(pairs)


def _header(count: int, short: int, middle: bytes, long: bytes) -> bytes:
    if count < 16:
        return bytes([short | count])
    if count < 1 << 16:
        return middle + count.to_bytes(2, "big")
    return long + count.to_bytes(4, "big")


_PLAIN = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)


def explain_refusal(value: Any, types: TypeRegistry) -> str:
    """Return the reason why ``value`` itself, not a part of it, cannot be stored, and the fix."""
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
    if kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
        return (
            f"{name} is not checkpointable; send plain data, or tell how it is stored: "
            f"checkpointable({name}, encode=..., decode=...)"
        )
    return f"{name} is not checkpointable; send plain data, and open such things where they are used"


Takers: TypeAlias = dict[type, Callable[[Any], Taken]]

_SCALARS = frozenset({bool, bytes, float, int, str, type(None)})
_CONTAINERS = frozenset({list, dict})
_BUFFERS = frozenset({bytearray, memoryview})
_SHALLOW = 16  # so many extensions inside each other cannot exhaust the stack, however deep each is
_TOO_BIG = "{} with a part of more than 4,294,967,295 bytes is not checkpointable; keep it outside and pass a reference"
_NATIVE_DEPTH = 254  # how deep lists and dicts can be in what the native packer takes at once


class ValueWriter:
    """Writes one value; ``takers`` is a cache that writers share."""

    # Defaults on the class: a writer is made for each value, and most need none of them.
    _depth = 0  # how many extensions are being written around each other
    deepest = 0
    _levels = 0  # how many lists and dicts lie around what is written now, counted from _SHALLOW on
    _failure: BaseException | None = None

    def __init__(self, types: TypeRegistry, takers: Takers) -> None:
        self._types = types
        self._takers = takers

    def pack(self, value: Any) -> bytes:
        """Return the bytes of a value; raise ``NotStorable`` if it cannot be stored."""
        try:
            data = packb(value, self._default, wire.NATIVE)
        except TypeError as error:
            if self._failure is not None:  # the native packer does not pass it on
                raise self._failure from None
            if str(error) == "Recursion limit reached":
                raise TooDeep from None
            if str(error) == "write error":
                raise NotStorable(_TOO_BIG.format(type(value).__name__)) from None
            return self._by_parts(value)
        if _may_hold_bytes(data) and _holds_buffer(value):
            return self._by_parts(value)
        return data

    def _default(self, value: Any) -> Ext:
        """Return an extension for a value that the native packer does not know."""
        try:
            self._depth = depth = self._depth + 1
            if depth > self.deepest:
                self.deepest = depth
                if depth > wire.MAX_EXTENSIONS:
                    raise TooDeep
            kind = type(value)
            if kind is set or kind is frozenset:
                ext = Ext(wire.SET if kind is set else wire.FROZENSET, self._sorted(value))
            else:
                code, data = (self._takers.get(kind) or self._find_taker(kind, value))(value)
                if type(data) is not bytes:
                    data = self.pack(data) if depth <= _SHALLOW else self._pack_deep(data)
                ext = Ext(code, data)
            self._depth = depth - 1
            return ext
        except BaseException as error:
            failure: BaseException = error
            if not isinstance(error, NotStorable | RecursionError | MemoryError) and isinstance(
                error, Exception
            ):
                failure = NotStorable(
                    f"{type(value).__name__} cannot be taken apart ({error!r}), so it is not checkpointable; "
                    f"make it with its constructor"
                )
            self._failure = failure
            raise failure from None

    def _pack_deep(self, value: Any) -> bytes:
        """Pack a value inside many extensions, and check that its nesting cannot exhaust the stack of a reader."""
        levels = _levels_in(value)
        self._levels += levels
        if self._levels > wire.MAX_NESTING:
            raise TooDeep
        data = self.pack(value)
        self._levels -= levels
        return data

    def _find_taker(self, kind: type, value: Any) -> Callable[[Any], Taken]:
        """Find the function that takes values of a new class apart."""
        take = find_lazy_taker(kind)
        if take is None and arrays.is_numpy(kind):
            take = arrays.take_apart
        if take is None and exceptions.STANDARD.get(kind.__name__) is kind:
            take = exceptions.take_apart
        if take is None:
            take = shape_for(kind, self._types, value).take_apart
        self._takers[kind] = take
        return take

    def _sorted(self, items: Any) -> bytes:
        if too_many_alike(items):
            raise NotStorable(explain_alike(type(items).__name__))
        if _SCALARS.issuperset(map(type, items)):
            try:
                return array(sorted([packb(item, None, wire.NATIVE) for item in items]))
            except TypeError:  # a large int, a lone surrogate
                pass
        return array(sorted([self.pack(item) for item in items]))

    # -- where native packing cannot do it -----------------------------------------------------------

    def _by_parts(self, value: Any) -> bytes:
        """Return the bytes of a value that native packing refuses, or takes for something else."""
        kind = type(value)
        if kind is list:
            return array([self.pack(item) for item in value])
        if kind is dict:
            if all(type(key) is str and _is_text(key) for key in value):
                return mapping([packb(key) + self.pack(part) for key, part in value.items()])
            if too_many_alike(value):
                raise NotStorable(explain_alike("dict"))
            return _extended(wire.DICT, self.pack([list(value), list(value.values())]))
        if kind is str:
            return _extended(wire.SURROGATES, value.encode("utf-8", "surrogatepass"))
        if kind is bytearray:
            return _extended(wire.BYTEARRAY, bytes(value))
        raise NotStorable(explain_refusal(value, self._types))


def is_storable_as_it_is(cls: type) -> bool:
    """Return True for the classes of the language and of numpy whose values need no declaration."""
    return (
        cls in TAKEN
        or cls in _SCALARS
        or cls in _CONTAINERS
        or cls in (set, frozenset, bytearray)
        or find_lazy_taker(cls) is not None
        or arrays.is_numpy(cls)
        or exceptions.STANDARD.get(cls.__name__) is cls
    )


def _extended(code: int, payload: bytes) -> bytes:
    try:
        return packb(Ext(code, payload))
    except TypeError:
        raise NotStorable(_TOO_BIG.format("a value")) from None


def shape_for(kind: type, types: TypeRegistry, value: Any) -> Shape:
    """Return the shape of a class; raise ``NotStorable`` if it is not allowed, or cannot be stored."""
    name = types.name_of(kind)
    if name is None or kind_of(kind) is None:
        raise NotStorable(explain_refusal(value, types))
    twin = types.twin_of(kind)
    if twin is not None:
        raise NotStorable(
            f"{kind.__name__} of {kind.__module__} is called {name!r} in stored data, as is that of "
            f"{twin.__module__}; give one of them another name: @checkpointable(name=...)"
        )
    return shape_of(kind, name)


def _may_hold_bytes(data: bytes) -> bool:
    """Return True if any byte of ``data`` could begin a ``bin``, which the native packer also makes of a bytearray."""
    size = len(data)
    return b"\xc4" in data or (size > 0xFF and b"\xc5" in data) or (size > 0xFFFF and b"\xc6" in data)


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _levels_in(value: Any) -> int:
    """Return the depth of nested lists and dicts, as far as the native packer goes."""
    level = [value]
    for depth in range(_NATIVE_DEPTH):
        level = _plain_containers(level)
        if not level:
            return depth
        level = gc.get_referents(*level)
    return _NATIVE_DEPTH


def _plain_containers(parts: list[Any]) -> list[Any]:
    return list({id(part): part for part in parts if type(part) is list or type(part) is dict}.values())


def _holds_buffer(value: Any) -> bool:
    """Return True if lists and dicts hold a bytearray or memoryview, which native packing takes for bytes."""
    parts = [value]
    while True:
        kinds = set(map(type, parts))
        if not kinds.isdisjoint(_BUFFERS):
            return True
        if kinds.isdisjoint(_CONTAINERS):
            return False
        if not kinds <= _CONTAINERS:
            parts = [part for part in parts if type(part) is list or type(part) is dict]
        parts = gc.get_referents(*parts)
