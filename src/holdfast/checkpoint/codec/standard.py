"""Values of the language and of its standard library, as plain data or flat bytes.

``TAKEN`` and ``LAZY`` say how a value is taken apart: into an extension code and either bytes, which are the
payload, or plain data, which is packed. ``FROM_BYTES`` and ``FROM_DATA`` put it together again.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, TypeAlias

from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, Unknown

Taken: TypeAlias = tuple[int, Any]

_FACTORIES: dict[str | None, Any] = {
    None: None,
    **{kind.__name__: kind for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)},
}
_FACTORY_NAMES = {factory: name for name, factory in _FACTORIES.items()}


_SEEDED = frozenset({str, bytes})  # their hashes differ from process to process
_MODULUS = sys.hash_info.modulus  # of the hashes of ints: smaller ones are their own


# -- apart -----------------------------------------------------------------------------------------


def _int(value: int) -> Taken:
    return wire.BIG_INT, value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def _keyed(code: int) -> Callable[[Any], Taken]:
    def taken(value: Any) -> Taken:
        if vars(value):
            raise NotStorable(
                f"{type(value).__name__} with attributes of its own ({', '.join(map(str, vars(value)))}) is not "
                f"checkpointable; keep them beside it, in a dataclass"
            )
        return code, _keys_and_values(value)

    return taken


def _keys_and_values(value: dict[Any, Any]) -> list[Any]:
    if too_many_alike(value):
        raise NotStorable(explain_alike(type(value).__name__))
    return [list(value), list(value.values())]


def _defaultdict(value: defaultdict[Any, Any]) -> Taken:
    try:
        name = _FACTORY_NAMES[value.default_factory]
    except (KeyError, TypeError):
        raise NotStorable(
            "defaultdict with such a factory is not checkpointable; use a dict, or one of the factories "
            + ", ".join(str(known) for known in _FACTORIES)
        ) from None
    return wire.DEFAULT_DICT, [name, *_keys_and_values(value)]


def _is_offset(zone: tzinfo | None) -> bool:
    """Return True if ISO 8601 can express a zone: none, or an offset in whole seconds without a name."""
    if type(zone) is not timezone:
        return zone is None
    offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
    return not name and not offset.microseconds


def _datetime(value: datetime) -> Taken:
    zone = value.tzinfo
    if not value.fold and (zone is UTC or _is_offset(zone)):
        return wire.DATETIME, value.isoformat().encode()
    return wire.DATETIME_IN_ZONE, [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone]


def _time(value: time) -> Taken:
    zone = value.tzinfo
    if not value.fold and _is_offset(zone):
        return wire.TIME, value.isoformat().encode()
    return wire.TIME_IN_ZONE, [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone]


def _timezone(value: timezone) -> Taken:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    return wire.TIMEZONE, [offset, name[0] if name else None]


def _zone_info(value: Any) -> Taken:
    if value.key is None:
        raise NotStorable("ZoneInfo without a key is not checkpointable; make it with ZoneInfo(key)")
    return wire.ZONE_INFO, value.key.encode()


def _fraction_taken(value: Any) -> Taken:
    parts = [value.numerator, value.denominator]
    if not all(type(part) is int for part in parts):
        kinds = " and ".join(type(part).__name__ for part in parts)
        raise NotStorable(f"Fraction of {kinds} is not checkpointable; make it of two ints")
    return wire.FRACTION, parts


def _path(value: Any) -> Taken:
    pathlib = sys.modules["pathlib"]
    if type(value)(str(value)) != value:
        raise NotStorable(
            f"{value!r} is another path than its text says, so it is not checkpointable; use its text"
        )
    kind = "Path" if isinstance(value, pathlib.Path) else type(value).__name__
    return wire.PATH, [kind, str(value)]


TAKEN: dict[type, Callable[[Any], Taken]] = {
    int: _int,
    complex: lambda value: (wire.COMPLEX, struct.pack(">dd", value.real, value.imag)),
    bytearray: lambda value: (wire.BYTEARRAY, bytes(value)),
    tuple: lambda value: (wire.TUPLE, list(value)),
    range: lambda value: (wire.RANGE, [value.start, value.stop, value.step]),
    type(Ellipsis): lambda value: (wire.ELLIPSIS, b""),
    OrderedDict: _keyed(wire.ORDERED_DICT),
    Counter: _keyed(wire.COUNTER),
    defaultdict: _defaultdict,
    deque: lambda value: (wire.DEQUE, [value.maxlen, list(value)]),
    date: lambda value: (wire.DATE, value.isoformat().encode()),
    datetime: _datetime,
    time: _time,
    timedelta: lambda value: (wire.TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    timezone: _timezone,
}

# By name, so that a module is imported only if it is used.
LAZY: dict[tuple[str, str], Callable[[Any], Taken]] = {
    ("decimal", "Decimal"): lambda value: (wire.DECIMAL, str(value).encode()),
    ("fractions", "Fraction"): _fraction_taken,
    ("uuid", "UUID"): lambda value: (wire.UUID, value.bytes),
    ("zoneinfo", "ZoneInfo"): _zone_info,
    **{("pathlib", name): _path for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
}


def find_lazy_taker(cls: type) -> Callable[[Any], Taken] | None:
    """Return the function that takes values apart of a class whose module may not be imported; None for others."""
    for (module, name), take in LAZY.items():
        if getattr(sys.modules.get(module), name, None) is cls:
            return take
    return None


# -- together --------------------------------------------------------------------------------------


def _decimal(payload: bytes) -> Any:
    from decimal import Decimal

    return Decimal(payload.decode())


def _fraction(data: Any) -> Any:
    from fractions import Fraction

    numerator, denominator = data
    if type(numerator) is not int or type(denominator) is not int or denominator < 1:
        raise Malformed("a Fraction is not two ints")
    # Not through the constructor, which would look for a common divisor of numbers that have none.
    value: Any = object.__new__(Fraction)
    value._numerator, value._denominator = numerator, denominator
    return value


def _uuid(payload: bytes) -> Any:
    from uuid import UUID

    return UUID(bytes=payload)


def _in_zone(kind: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def built(data: Any) -> Any:
        text, fold, zone = data
        if zone is not None and not isinstance(zone, tzinfo):
            raise Malformed(f"the zone of a {kind.__name__} is none")
        return kind.fromisoformat(text).replace(tzinfo=zone, fold=fold)

    return built


def _zone(payload: bytes) -> Any:
    from zoneinfo import ZoneInfo

    key = payload.decode()
    try:
        return ZoneInfo(key)
    except Exception as error:  # of several kinds, also those of files
        raise Unknown(
            f"the time zone {key!r} is not known here; install the package tzdata, or update it"
        ) from error


def _path_of(data: Any) -> Any:
    import pathlib

    kind, text = data
    if kind not in ("Path", "PurePosixPath", "PureWindowsPath") or type(text) is not str:
        raise Malformed(f"{kind!r} is no kind of path")
    return getattr(pathlib, kind)(text)


def too_many_alike(keys: Collection[Any]) -> bool:
    """Return True if more than ``wire.MAX_ALIKE`` keys have one hash: a dict needs quadratic time for them."""
    if len(keys) <= wire.MAX_ALIKE:
        return False
    kinds = {*map(type, keys)}
    if kinds <= _SEEDED or (kinds == {int} and min(keys) > -_MODULUS and max(keys) < _MODULUS):
        return False  # as most are
    if len(keys) - len({*map(hash, keys)}) < wire.MAX_ALIKE:
        return False
    return max(Counter(map(hash, keys)).values()) > wire.MAX_ALIKE


def explain_alike(kind: str) -> str:
    """Return the reason why a dict or set with such keys cannot be stored."""
    return (
        f"{kind} with more than {wire.MAX_ALIKE} keys of the same hash is not checkpointable; use a list, or keys "
        f"whose hashes differ"
    )


def dict_of(data: Any) -> dict[Any, Any]:
    """Make a dict of a list of keys and a list of values."""
    keys, values = data
    if type(keys) is not list or type(values) is not list:
        raise Malformed("a dict is not two lists")
    if too_many_alike(keys):
        raise Malformed(f"more than {wire.MAX_ALIKE} keys of a dict have the same hash")
    made = dict(zip(keys, values, strict=True))
    if len(made) != len(keys):
        raise Malformed("a dict has the same key twice")
    return made


def _counter_of(data: Any) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, dict_of(data))  # its own update would add
    return made


def _defaultdict_of(data: Any) -> defaultdict[Any, Any]:
    name, *rest = data
    return defaultdict(_FACTORIES[name], dict_of(rest))


def items_of(data: Any) -> list[Any]:
    """Return the data, if it is a list."""
    if type(data) is not list:
        raise Malformed("items are not a list")
    return data


def set_maker(kind: type[set[Any]] | type[frozenset[Any]]) -> Callable[[Any], Any]:
    """Return the function that makes a set of the list of its items."""

    def built(data: Any) -> Any:
        if too_many_alike(items_of(data)):
            raise Malformed(f"more than {wire.MAX_ALIKE} items of a set have the same hash")
        made = kind(data)
        if len(made) != len(data):
            raise Malformed("a set has the same item twice")
        return made

    return built


def _ellipsis(payload: bytes) -> Any:
    if payload:
        raise Malformed("Ellipsis has a content")
    return Ellipsis


FROM_BYTES: dict[int, Callable[[bytes], Any]] = {
    wire.BIG_INT: lambda payload: int.from_bytes(payload, "big", signed=True),
    wire.COMPLEX: lambda payload: complex(*struct.unpack(">dd", payload)),
    wire.SURROGATES: lambda payload: payload.decode("utf-8", "surrogatepass"),
    wire.BYTEARRAY: bytearray,
    wire.ELLIPSIS: _ellipsis,
    wire.DECIMAL: _decimal,
    wire.UUID: _uuid,
    wire.DATE: lambda payload: date.fromisoformat(payload.decode()),
    wire.DATETIME: lambda payload: datetime.fromisoformat(payload.decode()),
    wire.TIME: lambda payload: time.fromisoformat(payload.decode()),
    wire.ZONE_INFO: _zone,
}

FROM_DATA: dict[int, Callable[[Any], Any]] = {
    wire.TUPLE: lambda data: tuple(items_of(data)),
    wire.SET: set_maker(set),
    wire.FROZENSET: set_maker(frozenset),
    wire.DICT: dict_of,
    wire.RANGE: lambda data: range(*data),
    wire.FRACTION: _fraction,
    wire.DATETIME_IN_ZONE: _in_zone(datetime),
    wire.TIME_IN_ZONE: _in_zone(time),
    wire.TIMEDELTA: lambda data: timedelta(*data),
    wire.TIMEZONE: lambda data: timezone(data[0]) if data[1] is None else timezone(*data),
    wire.PATH: _path_of,
    wire.ORDERED_DICT: lambda data: OrderedDict(dict_of(data)),
    wire.DEFAULT_DICT: _defaultdict_of,
    wire.COUNTER: _counter_of,
    wire.DEQUE: lambda data: deque(items_of(data[1]), data[0]),
}
