"""Codec: turns values into bytes and back, by an allow-list of types."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from ormsgpack import packb, unpackb

from holdfast.checkpoint.codec import exceptions, type_forms, wire
from holdfast.checkpoint.codec.reader import ValueReader, measure_nesting
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, TooDeep, Unknown
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import Shape, kind_of, shape_of
from holdfast.checkpoint.codec.standard import TAKEN
from holdfast.checkpoint.codec.writer import Takers, ValueWriter
from holdfast.engine.copies import nesting_error
from holdfast.errors import CheckpointCorrupt, NotCheckpointable, UnknownType
from holdfast.graph.typing.types import TypeForm

_SCALARS = frozenset({bool, bytes, float, int, str, type(None)})

_SHALLOW = 11  # so many extensions inside each other cannot be too deep, however deep each is

# Stands behind the bytes of a value while they are read; no data can know it.
_END = int.from_bytes(os.urandom(8), "big") | 1 << 63
_END_BYTES = packb(_END)


_LARGE = 1 << 20
_HEADERS = {0xC6: 5, 0xDB: 5, 0xC9: 6}  # of bytes, texts and extensions that are large


def _extent(data: bytes) -> int:
    """Read the length of an encoded large text, bytes or extension from its header; 0 for anything else."""
    header = _HEADERS.get(data[0], 0)
    return header and header + int.from_bytes(data[1:5], "big")


class Codec:
    """Turns values into bytes and back, exactly; ``holdfast.checkpoint.codec.wire`` describes the bytes.

    Plain data and the value types of the standard library need nothing; classes must be allowed by ``types``.
    Nothing in the bytes is ever imported or run.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Report:
    ...     title: str
    ...     rows: list[tuple[int, float]]
    >>> codec = Codec(TypeRegistry([("example", Report)]))
    >>> codec.decode(codec.encode({"draft": Report("Q3", [(1, 0.5)])}))
    {'draft': Report(title='Q3', rows=[(1, 0.5)])}
    >>> codec.encode(Report("Q4", [open]), place="message")
    Traceback (most recent call last):
    ...
    holdfast.errors.NotCheckpointable: message.rows[0]: builtin_function_or_method is not checkpointable; ...
    """

    def __init__(self, types: TypeRegistry | None = None) -> None:
        self.types = TypeRegistry() if types is None else types
        self._takers: Takers = dict(TAKEN)
        self._shapes: dict[type, Shape] = {}

    def encode(self, value: object, place: str = "value") -> bytes:
        """Return the bytes of ``value``, the same in every process.

        Raises ``NotCheckpointable`` with the path of the part that cannot be stored; the path begins with ``place``.
        """
        if type(value) in _SCALARS:
            try:
                return packb(value, None, wire.NATIVE)
            except TypeError:  # a large int, a lone surrogate
                pass
        writer = ValueWriter(self.types, self._takers)
        try:
            data = writer.pack(value)
        except (NotStorable, RecursionError):
            raise self._refused(value, place) from None
        if (
            writer.deepest > _SHALLOW
            and len(data) > wire.MAX_NESTING
            and measure_nesting(data) > wire.MAX_NESTING
        ):
            raise nesting_error(value, place)
        return data

    def _refused(self, value: object, place: str) -> NotCheckpointable:
        def pack(part: object) -> None:
            ValueWriter(self.types, self._takers).pack(part)

        path, reason = find_culprit(value, place, self.types, pack)
        if reason is None:
            return nesting_error(value, place)
        return NotCheckpointable(f"{path}: {reason}")

    def decode(self, data: bytes, place: str = "value") -> Any:
        """Return the value of bytes that ``encode`` made, here or in another process; ``place`` names it in errors.

        Raises ``UnknownType`` for types that are not allowed or have changed, ``CheckpointCorrupt`` for bytes that
        are no encoding.
        """
        reader = ValueReader(self.types, self._shapes, data)
        try:
            if len(data) > _LARGE and _extent(data) == len(data):  # without another copy of it
                return unpackb(data, ext_hook=reader.extension)
            # Between marks, because the native reader does not mind what comes behind a value.
            value, end = unpackb(b"\x92" + data + _END_BYTES, ext_hook=reader.extension)
            if end == _END and type(end) is int:
                return value
            reason: BaseException = Malformed("there is more than one value")
        except Exception as error:
            reason = reader.failure or error
        if isinstance(reason, Unknown):
            raise UnknownType(f"{place}: {reason}") from reason.__cause__
        # An interrupt, or the lack of memory, is no fault of the data.
        if not isinstance(reason, Exception) or isinstance(reason, MemoryError):
            raise reason
        raise CheckpointCorrupt(f"{place}: the bytes are no encoding of a value: {reason}") from reason

    def encode_form(self, form: TypeForm, place: str) -> bytes:
        """Return the bytes of a type annotation; raise ``NotCheckpointable`` for one that cannot be stored."""
        try:
            described = type_forms.describe_form(form, self.types)
        except NotStorable as refused:
            raise NotCheckpointable(f"{place}: {refused}") from None
        return self.encode(described, place)

    def decode_form(self, data: bytes) -> TypeForm:
        """Return the type annotation of bytes that ``encode_form`` made."""
        described = self.decode(data, "type")
        try:
            return type_forms.form_of(described, self.types)
        except Unknown as unknown:
            raise UnknownType(f"type: {unknown}") from unknown.__cause__
        except Exception as error:
            raise CheckpointCorrupt(f"type: the bytes are no encoding of a type: {error}") from error

    def label(self, value: object) -> str:
        """Return the name of the type of a value, as lists show it.

        >>> Codec().label([1]), Codec().label(None)
        ('list', 'None')
        """
        return "None" if value is None else type(value).__name__


_FOLLOWED = 500  # the culprit is looked for down to this depth


def find_culprit(
    value: Any, place: str, types: TypeRegistry, pack: Callable[[Any], None]
) -> tuple[str, str | None]:
    """Return the path of the innermost part that ``pack`` refuses, and the reason; None if it is only too deep."""
    around: list[Any] = []
    while len(around) < _FOLLOWED:
        around.append(value)
        for path, part in _list_parts(value, place, types):
            if any(part is outer for outer in around):
                return path, f"{type(part).__name__} contains itself; send its parts without the loop"
            if _refusal(part, pack) is not None:
                value, place = part, path
                break
        else:
            return place, str(_refusal(value, pack) or "") or None
    return place, None


def _list_parts(value: Any, place: str, types: TypeRegistry) -> list[tuple[str, Any]]:
    try:
        return list(parts_of(value, place, types))
    except Exception:  # a value that cannot be taken apart is the culprit itself
        return []


def _refusal(value: Any, pack: Callable[[Any], None]) -> Exception | None:
    try:
        pack(value)
    except RecursionError:
        return TooDeep()
    except NotStorable as refused:
        return refused
    return None


def parts_of(value: Any, place: str, types: TypeRegistry) -> Iterator[tuple[str, Any]]:
    """Give the parts of a value with their paths; none if it cannot be taken apart."""
    kind = type(value)
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{place} key {_short(key)}", key
            yield f"{place}[{_short(key)}]", part
    elif kind in (list, tuple) or kind.__name__ == "deque":
        yield from ((f"{place}[{index}]", part) for index, part in enumerate(value))
    elif kind in (set, frozenset):
        yield from ((f"{place}{{{_short(part)}}}", part) for part in value)
    elif exceptions.STANDARD.get(kind.__name__) is kind:
        yield from ((place + path, part) for path, part in exceptions.error_parts(value))
    elif kind.__name__ in ("datetime", "time"):
        yield f"{place}.tzinfo", value.tzinfo
    elif (name := types.name_of(kind)) is not None and kind_of(kind) is not None:
        yield from ((place + path, part) for path, part in shape_of(kind, name).parts(value))


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # of the user's __repr__
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
