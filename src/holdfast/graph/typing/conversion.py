"""The conversion of an answer from the outside to its declared type."""

from __future__ import annotations

import dataclasses
import typing
from collections import abc
from enum import Enum
from typing import Any, Literal

from holdfast.graph.typing.match import explain_misfit, matches, show_value
from holdfast.graph.typing.types import (
    TypeForm,
    args_of,
    is_anything,
    is_typed_dict,
    members,
    origin_of,
    type_name,
)


class Unconvertible(Exception):
    """A value cannot be converted to a type; the message has the path of the part and the reason."""


def convert(value: object, form: TypeForm, path: str = "response") -> Any:
    """Convert ``value`` to ``form``: unchanged if it matches, else made from plain data, as a web page would send it.

    A dict becomes a dataclass, a list a tuple or set, a str an Enum, a date or a UUID, an int a float.

    >>> import datetime
    >>> convert({"day": "2026-03-01"}, dict[str, datetime.date])
    {'day': datetime.date(2026, 3, 1)}
    >>> convert("yes", bool)
    Traceback (most recent call last):
    ...
    holdfast.graph.typing.conversion.Unconvertible: response: a str, not bool: 'yes'
    """
    if is_anything(form) or matches(value, form):
        return value
    options = members(form)
    reasons = []
    for option in options:
        try:
            return _as_one(value, option, path)
        except Unconvertible as reason:
            reasons.append(str(reason))
    if len(options) == 1:
        raise Unconvertible(reasons[0])
    raise Unconvertible(f"{path}: {explain_misfit(value, form)} ({'; '.join(reasons)})")


def _as_one(value: Any, form: TypeForm, path: str) -> Any:
    """Convert ``value`` to one union member."""
    origin = _CONCRETE.get(origin_of(form), origin_of(form))
    if origin is Literal or origin is typing.Any or not isinstance(origin, type):
        raise _unfit(value, form, path)
    if dataclasses.is_dataclass(origin) or is_typed_dict(origin) or hasattr(origin, "_fields"):
        return _as_record(value, origin, path)
    if issubclass(origin, Enum):
        return _as_enum(value, origin, path)
    if hasattr(origin, "model_validate"):  # a pydantic model knows best
        return _call(origin.model_validate, value, form, path)
    if issubclass(origin, list | tuple | set | frozenset | dict):
        return _as_container(value, origin, args_of(form), path)
    if origin is float and type(value) is int:
        return float(value)
    if isinstance(value, str) and hasattr(origin, "fromisoformat"):
        return _call(origin.fromisoformat, value, form, path)
    if isinstance(value, str) and (origin.__module__, origin.__name__) in _FROM_TEXT:
        return _call(origin, value, form, path)
    raise _unfit(value, form, path)


# The class to make for an abstract container.
_CONCRETE: dict[Any, type] = {
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Mapping, abc.MutableMapping), dict),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}

# By name, so that nobody pays for the import of a module that is not used.
_FROM_TEXT = frozenset({("decimal", "Decimal"), ("uuid", "UUID")})


def _unfit(value: object, form: TypeForm, path: str) -> Unconvertible:
    return Unconvertible(f"{path}: {explain_misfit(value, form)}")


def _call(make: Any, value: object, form: TypeForm, path: str) -> Any:
    try:
        return make(value)
    except Exception as error:  # whatever the class makes of it
        raise Unconvertible(f"{path}: {show_value(value, 80)} is no {type_name(form)}: {error}") from error


def _as_enum(value: object, origin: type[Enum], path: str) -> Enum:
    for member in origin:
        if member.value == value and type(member.value) is type(value):
            return member
    if isinstance(value, str) and value in origin.__members__:
        return origin.__members__[value]
    known = ", ".join(repr(member.value) for member in origin)
    raise Unconvertible(f"{path}: {show_value(value, 80)} is no {origin.__name__}; it is one of {known}")


def _as_record(value: object, origin: Any, path: str) -> Any:
    """Convert a dict to a dataclass, TypedDict or NamedTuple, or a list to a NamedTuple."""
    hints = _hints(origin)
    if dataclasses.is_dataclass(origin):
        fields = {
            field.name: hints.get(field.name, Any) for field in dataclasses.fields(origin) if field.init
        }
        needed = {
            field.name
            for field in dataclasses.fields(origin)
            if field.init and field.default is field.default_factory is dataclasses.MISSING
        }
    elif is_typed_dict(origin):
        fields = {name: hints.get(name, Any) for name in origin.__annotations__}
        needed = set(origin.__required_keys__)
    else:
        fields = {name: hints.get(name, Any) for name in origin._fields}
        needed = set(fields) - origin._field_defaults.keys()
        if isinstance(value, list | tuple) and len(value) <= len(fields):
            value = dict(zip(fields, value, strict=False))
    if not isinstance(value, dict):
        raise Unconvertible(
            f"{path}: a {type(value).__name__}, not {origin.__name__} (a dict with {_join_names(fields)})"
        )
    if missing := needed - value.keys():
        raise Unconvertible(
            f"{path}: {origin.__name__} needs {_join_names(sorted(missing))}, which is missing"
        )
    if unknown := [name for name in value if name not in fields]:
        raise Unconvertible(
            f"{path}: {origin.__name__} has no {_join_names(unknown)}; it has {_join_names(fields)}"
        )
    parts = {name: convert(part, fields[name], f"{path}.{name}") for name, part in value.items()}
    return _call(lambda given: origin(**given), parts, origin, path)


def _hints(origin: Any) -> dict[str, TypeForm]:
    """Return the types of the fields; a field with an annotation that cannot be resolved may hold anything."""
    try:
        return typing.get_type_hints(origin)
    except (NameError, TypeError):
        return {}


def _join_names(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _as_container(value: Any, origin: type, args: tuple[TypeForm, ...] | None, path: str) -> Any:
    if issubclass(origin, dict):
        if not isinstance(value, dict):
            raise _unfit(value, origin, path)
        of_key, of_value = args if args else (Any, Any)
        pairs = [
            (convert(key, of_key, f"{path} key {key!r}"), convert(part, of_value, f"{path}[{key!r}]"))
            for key, part in value.items()
        ]
        return _call(origin, pairs, origin, path)
    if not isinstance(value, list | tuple | set | frozenset):
        raise _unfit(value, origin, path)
    parts = list(value)
    forms = _element_forms(origin, args, len(parts))
    if forms is None:
        raise Unconvertible(f"{path}: has {len(parts)} elements, not {len(args or ())}")
    paths = [f"{path}[{index}]" for index in range(len(parts))]
    return _call(origin, list(map(convert, parts, forms, paths)), origin, path)


def _element_forms(origin: type, args: tuple[TypeForm, ...] | None, count: int) -> list[TypeForm] | None:
    """Return the form of each element, or None if there are too many or too few."""
    if args is None:
        return [Any] * count
    if issubclass(origin, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
        return list(args) if len(args) == count else None
    return [args[0]] * count
