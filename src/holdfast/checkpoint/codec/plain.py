"""Values as plain JSON: trees with the names of types, of live values and of stored bytes, which need no classes.

docs/reference/json-forms.md describes the form. A dict with the key ``$type`` stands for a value that JSON has no type
for; a key of a user that begins with ``$`` gets another ``$`` in front.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, TypeAlias

from holdfast.checkpoint.codec import arrays, exceptions, type_forms, wire
from holdfast.checkpoint.codec.codec import Codec
from holdfast.checkpoint.codec.refusals import NotStorable
from holdfast.checkpoint.codec.registry import mark_of
from holdfast.checkpoint.codec.shapes import kind_of, shape_of
from holdfast.checkpoint.codec.standard import TAKEN, dict_of, find_lazy_taker
from holdfast.checkpoint.codec.value_tree import Extension, tree_of
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.graph.typing.conversion import parse_duration
from holdfast.graph.typing.match import show_value
from holdfast.graph.typing.schema import DIALECT, DescribedType, json_schema
from holdfast.graph.typing.types import type_name

TYPE, VALUE, TEXT = "$type", "$value", "$text"
_DEEPEST = 200  # what is nested deeper is cut, for not every reader of JSON takes it
_LONGEST_TEXT = 200
_AS_THEY_ARE = frozenset({type(None), bool, int, str})

Walk: TypeAlias = Callable[[Any], Any]


class PlainValue(dict[str, Any]):
    """A value as plain JSON, under ``$type`` with the name of its type; a dict that ``json.dumps`` takes.

    >>> PlainValue({"$type": "Report", "title": "Q3"})["title"]
    'Q3'
    """

    __slots__ = ()


def plain_value(value: object) -> Any:
    """Return a live value as plain JSON; a part that cannot be stored is shown as text.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     tags: set[str]
    >>> plain_value([Point(1, {"a"}), 2.5])
    [{'$type': 'Point', 'x': 1, 'tags': {'$type': 'set', '$value': ['a']}}, 2.5]
    """
    return _Walker(_take_live).walk(value)


def plain_of_bytes(data: bytes) -> Any:
    """Return an encoded value as plain JSON, without its classes; raise ``NotATree`` if it cannot be read.

    >>> plain_of_bytes(b"\\x82\\xa1a\\x01\\xa1b\\xc0")
    {'a': 1, 'b': None}
    """
    return _Walker(_take_stored).walk(tree_of(data))


class _Walker:
    """Turns one value or node into plain JSON; ``take`` gives the extension code and the parts of what JSON lacks."""

    def __init__(self, take: Callable[[Any], tuple[int, Any]]) -> None:
        self._take = take
        self._around: set[int] = set()

    def walk(self, node: Any) -> Any:
        kind = type(node)
        if kind in _AS_THEY_ARE or kind is PlainValue:
            return node
        if kind is float:
            return node if math.isfinite(node) else _tagged("float", str(node))
        if kind is bytes:
            return _tagged("bytes", b64encode(node).decode())
        if len(self._around) >= _DEEPEST or id(node) in self._around:
            loop = id(node) in self._around
            return _shown(node, "contains itself" if loop else "nested too deeply")
        self._around.add(id(node))
        try:
            if kind is list:
                return [self.walk(part) for part in node]
            if kind is dict:
                return _mapping(list(node), list(node.values()), self.walk)
            return self._other(node)
        finally:
            self._around.discard(id(node))

    def _other(self, node: Any) -> Any:
        try:
            code, data = self._take(node)
            return _FORMS[code](data, self.walk)
        except RecursionError:
            raise
        except Exception:  # what is broken, or cannot be taken apart, is shown as far as it can be
            return _shown(node, show_value(node, _LONGEST_TEXT))


def _shown(node: Any, text: str) -> PlainValue:
    return PlainValue({TYPE: _local(type(node).__qualname__), TEXT: text})


def _local(name: str) -> str:
    """Return the name of a class without the function that it was defined in."""
    return name.rpartition("<locals>.")[2]


def _take_stored(node: Extension) -> tuple[int, Any]:
    return node.code, node.payload if node.code in wire.FLAT else node.unpack()


def _take_live(value: Any) -> tuple[int, Any]:
    kind = type(value)
    if kind is set or kind is frozenset:
        return (wire.SET if kind is set else wire.FROZENSET), list(value)
    take = TAKEN.get(kind) or find_lazy_taker(kind)
    if take is not None:
        return take(value)
    if arrays.is_numpy(kind):
        return arrays.take_apart(value)
    if exceptions.STANDARD.get(kind.__name__) is kind:
        return exceptions.take_apart(value)
    if kind_of(kind) is None:
        raise NotStorable(kind.__qualname__)
    mark = mark_of(kind)
    return shape_of(kind, kind.__qualname__ if mark is None else mark.name).take_apart(value)


# -- the form of each extension --------------------------------------------------------------------


def _tagged(name: str, value: Any, /, **more: Any) -> PlainValue:
    return PlainValue({TYPE: name, VALUE: value, **{f"${key}": part for key, part in more.items()}})


def _key(name: str) -> str:
    return f"${name}" if name.startswith("$") else name


def _mapping(keys: list[Any], values: list[Any], walk: Walk) -> Any:
    if all(type(key) is str for key in keys):
        return {_key(key): walk(part) for key, part in zip(keys, values, strict=True)}
    return _tagged("dict", _pairs([keys, values], walk))


def _pairs(data: Any, walk: Walk) -> list[Any]:
    keys, values = data
    return [[walk(key), walk(part)] for key, part in zip(keys, values, strict=True)]


def _items(name: str) -> Callable[[Any, Walk], Any]:
    return lambda data, walk: _tagged(name, [walk(part) for part in data])


def _members(name: str) -> Callable[[Any, Walk], Any]:
    # By their texts, because a set has no order of its own.
    return lambda data, walk: _tagged(name, sorted(map(walk, data), key=lambda part: json.dumps(part)))


def _text(name: str) -> Callable[[Any, Walk], Any]:
    return lambda payload, walk: _tagged(name, payload.decode())


def _uuid_text(payload: bytes) -> str:
    digits = payload.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def duration_text(span: timedelta) -> str:
    """Return a time span as an ISO 8601 duration, exactly.

    >>> duration_text(timedelta(days=1, seconds=1.5)), duration_text(timedelta(hours=-1)), duration_text(timedelta())
    ('P1DT1.5S', '-PT3600S', 'PT0S')
    """
    size = abs(span)
    days = f"{size.days}D" if size.days else ""
    fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    seconds = f"T{size.seconds}{fraction}S" if size.seconds or fraction or not days else ""
    return f"{'-' if span < timedelta() else ''}P{days}{seconds}"


def _in_zone(name: str) -> Callable[[Any, Walk], Any]:
    def form(data: Any, walk: Walk) -> Any:
        text, fold, zone = data
        return _tagged(name, text, zone=walk(zone), **({"fold": fold} if fold else {}))

    return form


def _timezone(data: Any, walk: Walk) -> Any:
    offset, name = data
    return _tagged("timezone", walk(offset)[VALUE], **({} if name is None else {"name": name}))


def _complex(payload: bytes, walk: Walk) -> Any:
    return _tagged("complex", [walk(part) for part in struct.unpack(">dd", payload)])


def _default_dict(data: Any, walk: Walk) -> Any:
    factory, *rest = data
    return _tagged("defaultdict", _pairs(rest, walk), factory=factory)


def _deque(data: Any, walk: Walk) -> Any:
    longest, items = data
    return _tagged(
        "deque", [walk(part) for part in items], **({} if longest is None else {"maxlen": longest})
    )


def _instance(name: str, version: int, walk: Walk, *held: Mapping[str, Any] | None) -> PlainValue:
    fields = {_key(key): walk(part) for parts in held for key, part in (parts or {}).items()}
    return PlainValue({TYPE: _local(name), **({} if version == 1 else {"$version": version}), **fields})


def _record(data: Any, walk: Walk) -> Any:
    name, version, *held = data
    return _instance(name, version, walk, *held[:2])


def _model(data: Any, walk: Walk) -> Any:
    name, version, fields, attributes, _, extra, private, *_ = data
    return _instance(name, version, walk, fields, attributes, extra, private)


def _error(data: Any, walk: Walk) -> Any:
    name, *version, args, attributes = data
    plain = _instance(name, version[0] if version else 1, walk, attributes)
    return PlainValue({TYPE: plain.pop(TYPE), "$args": [walk(part) for part in args], **plain})


def _array(data: Any, walk: Walk) -> Any:
    dtype, order, shape, content, *_ = data
    more = {"order": order} if order != "C" else {}
    return _tagged("ndarray", b64encode(content).decode(), dtype=_dtype(dtype), shape=list(shape), **more)


def _dtype(described: Any) -> Any:
    """Return the type of an array as JSON; that of a structured one is a list of its fields."""
    if isinstance(described, Extension):
        described = described.unpack()
    return [_dtype(part) for part in described] if isinstance(described, list | tuple) else described


_FORMS: Mapping[int, Callable[[Any, Walk], Any]] = {
    wire.BIG_INT: lambda payload, walk: int.from_bytes(payload, "big", signed=True),
    wire.COMPLEX: _complex,
    wire.SURROGATES: lambda payload, walk: payload.decode("utf-8", "surrogatepass"),
    wire.BYTEARRAY: lambda payload, walk: _tagged("bytearray", b64encode(payload).decode()),
    wire.TUPLE: _items("tuple"),
    wire.SET: _members("set"),
    wire.FROZENSET: _members("frozenset"),
    wire.DICT: lambda data, walk: _mapping(data[0], data[1], walk),
    wire.RANGE: _items("range"),
    wire.ELLIPSIS: lambda payload, walk: _tagged("ellipsis", "..."),
    wire.DECIMAL: _text("Decimal"),
    wire.FRACTION: lambda data, walk: _tagged("Fraction", f"{data[0]}/{data[1]}"),
    wire.UUID: lambda payload, walk: _tagged("UUID", _uuid_text(payload)),
    wire.DATE: _text("date"),
    wire.DATETIME: _text("datetime"),
    wire.DATETIME_IN_ZONE: _in_zone("datetime"),
    wire.TIME: _text("time"),
    wire.TIME_IN_ZONE: _in_zone("time"),
    wire.TIMEDELTA: lambda data, walk: _tagged("timedelta", duration_text(timedelta(*data))),
    wire.TIMEZONE: _timezone,
    wire.ZONE_INFO: _text("ZoneInfo"),
    wire.PATH: lambda data, walk: _tagged(*data),
    wire.ORDERED_DICT: lambda data, walk: _tagged("OrderedDict", _pairs(data, walk)),
    wire.DEFAULT_DICT: _default_dict,
    wire.COUNTER: lambda data, walk: _tagged("Counter", _pairs(data, walk)),
    wire.DEQUE: _deque,
    wire.RECORD: _record,
    wire.MODEL: _model,
    wire.MEMBER: lambda data, walk: PlainValue({TYPE: _local(data[0]), "$member": data[1]}),
    wire.FLAG: lambda data, walk: _tagged(_local(data[0]), data[1]),
    wire.STANDARD_ERROR: _error,
    wire.ERROR: _error,
    wire.ARRAY: _array,
    wire.SCALAR: lambda data, walk: _tagged(
        "numpy.generic", b64encode(data[1]).decode(), dtype=_dtype(data[0])
    ),
}


# -- types -----------------------------------------------------------------------------------------


def described_type(form: bytes, schema: str | None = None) -> DescribedType:
    """Return a stored type annotation without its classes: its name, and its schema.

    The schema of a type of the language is made here; one of classes is given as JSON, else it says no more than the
    name.

    >>> from holdfast.checkpoint.codec import Codec
    >>> described_type(Codec().encode_form(list[int] | None, "here"))
    list[int] | None
    """
    try:
        described = tree_of(form)
        if schema is None and not _names_class(described):
            found = type_forms.form_of(_READ.decode(form), _READ.types)
            return DescribedType(type_name(found), json_schema(found))
        name = _form_name(described)
        return DescribedType(
            name, {"$schema": DIALECT, "title": name} if schema is None else json.loads(schema)
        )
    except HoldfastError:
        raise
    except Exception as error:  # broken bytes may raise anything
        raise CheckpointCorrupt(f"type: the bytes are no encoding of a type: {error!r}") from error


_READ = Codec()


def _names_class(described: Any) -> bool:
    """Return True if a stored type names a class, also one of an enum in a literal."""
    if isinstance(described, Extension):
        return True
    if not isinstance(described, list):
        return False
    return described[:1] == ["class"] or any(map(_names_class, described[1:]))


def _form_name(described: Any) -> str:
    """Return the name of a stored type, as ``type_name`` writes it."""
    if isinstance(described, str):
        return described
    kind, *rest = described
    if kind == "class":
        return _local(rest[0])
    if kind == "literal":
        return f"Literal[{', '.join(sorted(map(_literal_name, rest)))}]"
    names = list(map(_form_name, rest))
    if kind == "union":
        return " | ".join(sorted(names, key=lambda name: (name == "None", name)))
    return f"{names[0]}[{', '.join(names[1:]) or '()'}]"


def _literal_name(node: Any) -> str:
    plain = _Walker(_take_stored).walk(node)
    if isinstance(plain, PlainValue) and "$member" in plain:
        return f"{plain[TYPE]}.{plain['$member']}"
    return repr(plain)


# -- back ------------------------------------------------------------------------------------------


def value_of_plain(plain: Any) -> Any:
    """Return the value of plain JSON: values of the language as they were, those of classes as ``PlainValue``.

    >>> value_of_plain({"$type": "tuple", "$value": [1, {"$type": "date", "$value": "2026-03-01"}]})
    (1, datetime.date(2026, 3, 1))
    >>> type(value_of_plain({"$type": "Report", "title": "Q3"})).__name__
    'PlainValue'
    """
    if isinstance(plain, list):
        return [value_of_plain(part) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if TYPE not in plain:
        return {key.removeprefix("$"): value_of_plain(part) for key, part in plain.items()}
    name = plain[TYPE]
    read = _READERS.get(name) if VALUE in plain and isinstance(name, str) else None
    if read is not None:
        try:
            return read(plain)
        except Exception:  # something else has this name
            pass
    return PlainValue(plain)


def _read_pairs(plain: Any) -> dict[Any, Any]:
    pairs = [(value_of_plain(key), value_of_plain(part)) for key, part in plain[VALUE]]
    return dict_of([[key for key, _ in pairs], [part for _, part in pairs]])


def _read_moment(kind: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def read(plain: Any) -> Any:
        moment = kind.fromisoformat(plain[VALUE])
        if "$zone" not in plain:
            return moment
        return moment.replace(tzinfo=value_of_plain(plain["$zone"]), fold=plain.get("$fold", 0))

    return read


def _named(module: str, name: str) -> Callable[[Any], Any]:
    """Return what makes a value of a class from its text; the module is imported when that is needed."""

    def read(plain: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(plain[VALUE])

    return read


_FACTORIES = {
    kind.__name__: kind for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
}


def _read_default_dict(plain: Any) -> Any:
    factory = plain["$factory"]
    return defaultdict(None if factory is None else _FACTORIES[factory], _read_pairs(plain))


def _read_counter(plain: Any) -> Any:
    return Counter(_read_pairs(plain))


def _values(plain: Any) -> list[Any]:
    return [value_of_plain(part) for part in plain[VALUE]]


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "float": lambda plain: float(plain[VALUE]),
    "bytes": lambda plain: b64decode(plain[VALUE], validate=True),
    "bytearray": lambda plain: bytearray(b64decode(plain[VALUE], validate=True)),
    "tuple": lambda plain: tuple(_values(plain)),
    "set": lambda plain: set(_values(plain)),
    "frozenset": lambda plain: frozenset(_values(plain)),
    "dict": _read_pairs,
    "range": lambda plain: range(*plain[VALUE]),
    "complex": lambda plain: complex(*_values(plain)),
    "ellipsis": lambda plain: Ellipsis,
    "Decimal": _named("decimal", "Decimal"),
    "Fraction": _named("fractions", "Fraction"),
    "UUID": _named("uuid", "UUID"),
    "date": lambda plain: date.fromisoformat(plain[VALUE]),
    "datetime": _read_moment(datetime),
    "time": _read_moment(time),
    "timedelta": lambda plain: parse_duration(plain[VALUE]),
    "timezone": lambda plain: timezone(
        parse_duration(plain[VALUE]), *([plain["$name"]] if "$name" in plain else [])
    ),
    "ZoneInfo": _named("zoneinfo", "ZoneInfo"),
    **{name: _named("pathlib", name) for name in ("Path", "PurePosixPath", "PureWindowsPath")},
    "OrderedDict": lambda plain: OrderedDict(_read_pairs(plain)),
    "Counter": _read_counter,
    "defaultdict": _read_default_dict,
    "deque": lambda plain: deque(_values(plain), plain.get("$maxlen")),
}
