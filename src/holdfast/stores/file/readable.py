"""MessagePack as JSON that a person can read, and exactly back.

JSON has no word for some values. Each of them is an object with one key that begins with ``$``:

=========  ======================================================  =================================
``$pack``  bytes that are MessagePack themselves                   ``{"$pack": [1, 2]}``
``$utf8``  bytes that are text                                     ``{"$utf8": "héllo"}``
``$hex``   16 or 32 other bytes, such as digests and ids           ``{"$hex": "00ff..."}``
``$bin``   other bytes, in base64                                  ``{"$bin": "AP8="}``
``$ext``   an extension: its code and its bytes                    ``{"$ext": [5, {"$pack": [1]}]}``
``$float`` a float that is not finite; an unusual NaN by its bits  ``{"$float": "nan"}``
``$text``  text with half a character, in base64                   ``{"$text": "7aCA"}``
``$map``   a map with keys that are not text, or begin with ``$``  ``{"$map": [[1, "one"]]}``
=========  ======================================================  =================================
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from math import isfinite
from struct import pack, unpack
from typing import Any

import ormsgpack

# Deeper values might not be read again, for want of stack.
_DEEPEST = 60
_BRACKETS = re.compile(r"[\[\]{}]")
_PLAIN_FLOATS = {pack(">d", float(text)) for text in ("inf", "-inf", "nan")}
_OPTION = ormsgpack.OPT_NON_STR_KEYS

# By the first byte of a packed value: how many bytes it has, or 0 where that depends on what follows.
_LENGTHS = [1] * 0x80 + [0] * 0x20 + [1 + length for length in range(32)] + [0] * 0x40
_LENGTHS[0xC0:0xC4] = [1] * 4  # nil, false, true
_LENGTHS[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # numbers
_LENGTHS[0xE0:] = [1] * 32  # small negative numbers


class NotReadable(ValueError):
    """Raised for bytes that JSON cannot say exactly."""


class _Extension:
    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


def to_json(packed: bytes) -> str:
    """Return MessagePack as JSON text; raise ``NotReadable`` where ``from_json`` would not give the bytes back.

    >>> to_json(b"\\x82\\xa2id\\x01\\x02\\xc4\\x03abc")
    '{"$map":[["id",1],[2,{"$utf8":"abc"}]]}'
    """
    try:
        text = encode_exactly(unpack_exactly(packed))
        if text is not None:
            return text
    except NotReadable:
        pass
    text = _ENCODER.encode(_spell_out(_unpack(packed), _DEEPEST))
    try:
        if from_json(text) == packed:
            return text
    except (ValueError, TypeError):  # such as an extension with a negative code
        pass
    raise NotReadable("these bytes would not come back")


def unpack_exactly(packed: bytes) -> Any:
    """Unpack a value whose maps have texts as keys; raise ``NotReadable`` unless packing it gives the same bytes."""
    try:
        value = ormsgpack.unpackb(packed, ext_hook=_Extension)
        if pack_value(value) == packed:
            return value
    except (ValueError, TypeError) as error:
        raise NotReadable(str(error)) from error
    raise NotReadable("these bytes would not come back")


def encode_exactly(value: Any) -> str | None:
    """Return JSON from which ``DECODER`` gives back a value that ``unpack_exactly`` gave; None if that is in doubt.

    JSON has texts, finite numbers, lists and maps with texts as keys just as MessagePack has them, and each notation
    is exact. So what is left to be noticed are infinities, deep nesting, and keys of others that look like notations.
    """
    notations = _Notations()
    encoder = json.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,  # it was bytes, so nothing in it holds itself
        allow_nan=False,
        separators=(",", ":"),
        default=notations.spell,
    )
    try:
        text = encoder.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None
    # To count one character takes less time, and mostly is enough.
    is_exact = text.count("$") == notations.count or text.count('"$') == notations.count
    return text if is_exact and not _is_deep(text) else None


def from_json(text: str) -> bytes:
    """Return the MessagePack that ``to_json`` was given; raise an ``Exception`` of some kind for any other text.

    >>> from_json('{"$map":[["id",1],[2,{"$utf8":"abc"}]]}')
    b'\\x82\\xa2id\\x01\\x02\\xc4\\x03abc'
    """
    return pack_value(DECODER.decode(text))


def pack_value(value: Any) -> bytes:
    """Pack a value that ``DECODER`` gave."""
    return ormsgpack.packb(value, default=_as_extension, option=_OPTION)


def _as_extension(value: Any) -> ormsgpack.Ext:
    if isinstance(value, _Extension):
        return ormsgpack.Ext(value.code, value.data)
    raise TypeError(type(value).__name__)


def _unpack(packed: bytes) -> Any:
    try:
        return ormsgpack.unpackb(packed, ext_hook=_Extension, option=_OPTION)
    except (ValueError, TypeError) as error:
        raise NotReadable(str(error)) from error


def _is_deep(text: str) -> bool:
    """Return True if JSON may be nested deeper than is safe to read; counts brackets in strings as well."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    deepest = depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest > _DEEPEST


def _spell_bytes(data: bytes) -> dict[str, Any]:
    """Return bytes in the notation that a person can read best."""
    if data and _LENGTHS[data[0]] in (0, len(data)):  # else there is no need to try, which takes long
        try:
            return {"$pack": unpack_exactly(data)}
        except NotReadable:
            pass
    if len(data) not in (16, 32):
        try:
            text = data.decode()
            if text.replace("\n", "").replace("\t", "").isprintable():
                return {"$utf8": text}
        except UnicodeDecodeError:
            pass
        return {"$bin": b64encode(data).decode()}
    return {"$hex": data.hex()}


class _Notations:
    """Spells what JSON has no word for, as ``json`` asks for it, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def spell(self, value: Any) -> dict[str, Any]:
        self.count += 1
        if type(value) is bytes:
            return _spell_bytes(value)
        if type(value) is _Extension:
            return {"$ext": [value.code, value.data]}
        raise TypeError(type(value).__name__)


def _spell_out(value: Any, depth: int) -> Any:
    """Return a value with a notation wherever JSON needs one: slow, and exact for all keys and floats."""
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        return value
    if kind is float:
        return value if isfinite(value) else {"$float": _spell_float(value)}
    if not depth:
        raise NotReadable("it is nested too deeply")
    if kind is dict:
        return _spell_map(value, depth - 1)
    if kind is list:
        return [_spell_out(item, depth - 1) for item in value]
    if kind is bytes:
        return _spell_exactly(value, depth - 1)
    if kind is _Extension:
        return {"$ext": [value.code, _spell_exactly(value.data, depth - 1)]}
    raise NotReadable(f"a {kind.__name__} is a key")


def _spell_exactly(data: bytes, depth: int) -> dict[str, Any]:
    try:
        inner = _spell_out(_unpack(data), depth)
        if pack_value(DECODER.decode(_ENCODER.encode(inner))) == data:
            return {"$pack": inner}
    except (ValueError, TypeError):
        pass
    spelled = _spell_bytes(data)
    return spelled if "$pack" not in spelled else {"$bin": b64encode(data).decode()}


def _spell_map(value: dict[Any, Any], depth: int) -> Any:
    for key in value:
        if not isinstance(key, str) or key.startswith("$"):
            return {
                "$map": [[_spell_out(key, depth), _spell_out(item, depth)] for key, item in value.items()]
            }
    return {key: _spell_out(item, depth) for key, item in value.items()}


def _spell_float(value: float) -> str:
    bits = pack(">d", value)
    return str(value) if bits in _PLAIN_FLOATS else bits.hex()


def _read_float(text: str) -> float:
    if len(text) < 16:
        return float(text)
    (value,) = unpack(">d", bytes.fromhex(text))
    return float(value)


def _read_extension(inner: Any) -> _Extension:
    code, data = inner
    return _Extension(code, data)


_NOTATIONS: dict[str, Callable[[Any], Any]] = {
    "$hex": bytes.fromhex,
    "$utf8": str.encode,
    "$pack": pack_value,
    "$bin": lambda inner: b64decode(inner, validate=True),
    "$ext": _read_extension,
    "$float": _read_float,
    "$text": lambda inner: b64decode(inner, validate=True).decode("utf-8", "surrogatepass"),
    "$map": dict,
}


def _read_notation(value: dict[str, Any]) -> Any:
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key[:1] == "$":
            return _NOTATIONS[key](inner)
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
DECODER = json.JSONDecoder(object_hook=_read_notation)
"""Reads JSON with notations; bytes come back as bytes."""
