"""MessagePack as JSON that a person can read, and exactly back.

What JSON has no word for is an object with one key that begins with ``$``:

=========  ======================================================  =================================
``$pack``  bytes that are MessagePack themselves                   ``{"$pack": [1, 2]}``
``$utf8``  bytes that are text                                     ``{"$utf8": "héllo"}``
``$hex``   16 or 32 other bytes, such as digests and ids           ``{"$hex": "00ff..."}``
``$bin``   other bytes, in base64                                  ``{"$bin": "AP8="}``
``$ext``   an extension: its code and its bytes                    ``{"$ext": [5, {"$pack": [1]}]}``
``$int``   a whole number that not every reader of JSON can hold   ``{"$int": "18446744073709551615"}``
``$float`` what is no finite number; an odd NaN by its bits        ``{"$float": "nan"}``
``$map``   a map with keys that are not text, or begin with ``$``  ``{"$map": [[1, "one"]]}``
=========  ======================================================  =================================
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from math import isfinite
from struct import pack, unpack
from typing import Any

import ormsgpack

# Deeper ones might not be read again, for want of stack.
_DEEPEST = 60
_EXACT = 2**53
_PLAIN_FLOATS = {pack(">d", float(text)) for text in ("inf", "-inf", "nan")}
_OPTION = ormsgpack.OPT_NON_STR_KEYS


class Unreadable(ValueError):
    """The bytes are no MessagePack that could be told from JSON exactly."""


class _Ext:
    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


def shown(packed: bytes) -> Any:
    """What the bytes say, as a value for JSON; raises ``Unreadable`` where ``packed_from`` would not give them back.

    >>> shown(b"\\x82\\xa2id\\x01\\x02\\xc4\\x03abc")
    {'$map': [['id', 1], [2, {'$utf8': 'abc'}]]}
    """
    value = _shown(_unpacked(packed), _DEEPEST)
    if packed_from(value) != packed:
        raise Unreadable("these bytes would not come back")
    return value


def packed_from(value: Any) -> bytes:
    """The bytes that were shown so; raises an ``Exception`` of some kind if there are none.

    >>> packed_from({"$map": [["id", 1], [2, {"$utf8": "abc"}]]})
    b'\\x82\\xa2id\\x01\\x02\\xc4\\x03abc'
    """
    return _packed(_meant(value))


def _packed(value: Any) -> bytes:
    return ormsgpack.packb(value, default=_as_ext, option=_OPTION)


def _as_ext(value: Any) -> ormsgpack.Ext:
    if isinstance(value, _Ext):
        return ormsgpack.Ext(value.code, value.data)
    raise TypeError(type(value).__name__)


def _unpacked(packed: bytes) -> Any:
    try:
        value = ormsgpack.unpackb(packed, ext_hook=_Ext, option=_OPTION)
        if _packed(value) != packed:
            raise Unreadable("these bytes would not come back")
        return value
    except (ValueError, TypeError) as error:
        raise Unreadable(str(error)) from error


def _shown(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -_EXACT <= value <= _EXACT else {"$int": str(value)}
    if kind is float:
        return value if isfinite(value) else {"$float": _spelled(value)}
    if not depth:
        raise Unreadable("it is nested too deeply")
    if kind is dict:
        return _shown_map(value, depth - 1)
    if kind is list:
        return [_shown(item, depth - 1) for item in value]
    if kind is bytes:
        return _shown_bytes(value, depth - 1)
    if kind is _Ext:
        return {"$ext": [value.code, _shown_bytes(value.data, depth - 1)]}
    raise Unreadable(f"a {kind.__name__} is a key")


def _spelled(value: float) -> str:
    """An infinity, a NaN, or the bits of a NaN unlike others."""
    bits = pack(">d", value)
    return str(value) if bits in _PLAIN_FLOATS else bits.hex()


def _meant_float(text: str) -> float:
    if len(text) < 16:
        return float(text)
    (value,) = unpack(">d", bytes.fromhex(text))
    return float(value)


def _shown_map(value: dict[Any, Any], depth: int) -> Any:
    for key in value:
        if not isinstance(key, str) or key.startswith("$"):
            return {"$map": [[_shown(key, depth), _shown(item, depth)] for key, item in value.items()]}
    return {key: _shown(item, depth) for key, item in value.items()}


def _shown_bytes(data: bytes, depth: int) -> Any:
    try:
        return {"$pack": _shown(_unpacked(data), depth)}
    except Unreadable:
        pass
    try:
        text = data.decode()
        if text.replace("\n", "").replace("\t", "").isprintable():
            return {"$utf8": text}
    except UnicodeDecodeError:
        pass
    return {"$hex": data.hex()} if len(data) in (16, 32) else {"$bin": b64encode(data).decode()}


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key.startswith("$"):
                return _NOTATIONS[key](inner)
        return {key: _meant(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_meant(item) for item in value]
    return value


def _meant_ext(inner: Any) -> _Ext:
    code, data = inner
    return _Ext(code, _meant(data))


_NOTATIONS: dict[str, Callable[[Any], Any]] = {
    "$hex": bytes.fromhex,
    "$utf8": str.encode,
    "$pack": packed_from,
    "$bin": lambda inner: b64decode(inner, validate=True),
    "$ext": _meant_ext,
    "$int": int,
    "$float": _meant_float,
    "$map": lambda inner: {_meant(key): _meant(item) for key, item in inner},
}
