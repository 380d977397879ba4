"""The conversion of an answer from the outside to its declared type."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from binascii import a2b_base64
from collections import Counter, abc, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, Flag
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast, get_args

from holdfast.graph.typing.match import explain_misfit, matches, show_error, show_value
from holdfast.graph.typing.types import (
    MARK,
    TypeForm,
    args_of,
    find_mark,
    is_anything,
    is_typed_dict,
    members,
    origin_of,
    substitute_variables,
    type_name,
)


class Unconvertible(Exception):
    """A value cannot be converted to a type; the message has the path of the part and the reason."""


def convert(value: object, form: TypeForm, path: str = "response") -> Any:
    """Convert ``value`` to ``form``: unchanged if it matches, else made from plain data, as a web page would send it.

    A dict becomes a dataclass, a list a tuple or set, a str an Enum, a date, a UUID or bytes (base64), an int a float.
    ``holdfast.graph.typing.schema`` describes what is taken for each type.

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
    origin = CONCRETE.get(origin_of(form), origin_of(form))
    if origin is Literal:
        return _as_literal(value, form, path)
    if origin is typing.Any or not isinstance(origin, type):
        raise _unfit(value, form, path)
    if (decode := decoder_of(origin)) is not None:
        return _as_decoded(value, origin, decode, path)
    if issubclass(origin, Enum):
        return _as_enum(value, origin, path)
    if hasattr(origin, "model_validate"):  # a pydantic model knows best
        return _call(origin.model_validate, value, form, path)
    if is_struct(origin):  # as do the structs of msgspec
        return _call(lambda given: sys.modules["msgspec"].convert(given, form), value, form, path)
    if (fields := fields_of(form)) is not None:
        return _as_record(value, origin, fields, path)
    if issubclass(origin, (*ARRAYS, dict)):
        return _as_container(value, origin, args_of(form), path)
    if origin is float and type(value) is int:
        return _call(float, value, form, path)
    return _from_text(value, origin, form, path)


def _from_text(value: object, origin: type, form: TypeForm, path: str) -> Any:
    """Convert a str to a value that JSON has no type for."""
    if not isinstance(value, str):
        raise _unfit(value, form, path)
    if hasattr(origin, "fromisoformat"):
        return _call(origin.fromisoformat, value, form, path)
    if origin is bytes or origin is bytearray:
        return _call(lambda text: origin(a2b_base64(text, strict_mode=True)), value, form, path)
    if origin is timedelta:
        return _call(parse_duration, value, form, path)
    if full_name(origin) in FROM_TEXT:
        return _call(origin, value, form, path)
    raise _unfit(value, form, path)


# The class to make for an abstract container.
CONCRETE: dict[Any, type] = {
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Mapping, abc.MutableMapping), dict),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}
ARRAYS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)

# By name, so that nobody pays for the import of a module that is not used.
FROM_TEXT = frozenset(
    {
        *("builtins.complex", "decimal.Decimal", "fractions.Fraction", "uuid.UUID", "zoneinfo.ZoneInfo"),
        *(f"pathlib.{name}" for name in ("Path", "PurePath", "PurePosixPath", "PureWindowsPath")),
    }
)


def full_name(cls: type) -> str:
    """Return the package and the name of a class; a module inside the package may have it in one Python version only.

    >>> full_name(deque)
    'collections.deque'
    """
    return f"{cls.__module__.partition('.')[0]}.{cls.__name__}"


def decoder_of(cls: type) -> Callable[[Any], Any] | None:
    """Return the function that ``checkpointable(cls, encode=..., decode=...)`` gave for a class; None without one."""
    found: Callable[[Any], Any] | None = getattr(find_mark(cls), "decode", None)
    return found


def _as_decoded(value: object, origin: type, decode: Callable[[Any], Any], path: str) -> Any:
    made = _call(decode, value, origin, path)
    if not isinstance(made, origin):
        raise Unconvertible(
            f"{path}: decode of {origin.__name__} gave a {type(made).__name__} for {show_value(value, 80)}"
        )
    return made


def is_struct(cls: type) -> bool:
    """Return True for a struct of msgspec."""
    return hasattr(cls, "__struct_config__") and "msgspec" in sys.modules


_DURATION = re.compile(
    r"([+-]?)P(?!$)(?:(\d+)W)?(?:(\d+)D)?(?:T(?!$)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,6})?)S)?)?", re.ASCII
)


def parse_duration(text: str) -> timedelta:
    """Return the time span of an ISO 8601 duration; one with months or years has no fixed length."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(
            "it is no ISO 8601 duration of weeks, days, hours, minutes and seconds, like P1DT2H30M"
        )
    sign, weeks, days, hours, minutes, seconds = found.groups(default="0")
    whole, _, fraction = seconds.partition(".")
    span = timedelta(
        weeks=int(weeks),
        days=int(days),
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(whole),
        microseconds=int(fraction.ljust(6, "0")),
    )
    return -span if sign == "-" else span


def _unfit(value: object, form: TypeForm, path: str) -> Unconvertible:
    return Unconvertible(f"{path}: {explain_misfit(value, form)}")


def _call(make: Any, value: object, form: TypeForm, path: str) -> Any:
    try:
        return make(value)
    except Exception as error:  # whatever the class makes of it
        reason = show_error(error)
        raise Unconvertible(f"{path}: {show_value(value, 80)} is no {type_name(form)}: {reason}") from error


def _as_literal(value: object, form: TypeForm, path: str) -> Any:
    """Convert to a member of an Enum that a literal names; other literals are as they are, and did not match."""
    for option in get_args(form):
        if isinstance(option, Enum):
            try:
                if _as_enum(value, type(option), path) is option:
                    return option
            except Unconvertible:
                continue
    raise _unfit(value, form, path)


def _as_enum(value: object, origin: type[Enum], path: str) -> Enum:
    for member in origin:
        kinds = type(value), type(member.value)
        if member.value == value and (kinds[0] is kinds[1] or kinds == (int, float)):
            return member
    if isinstance(value, str) and value in origin.__members__:
        return origin.__members__[value]
    if issubclass(origin, Flag) and type(value) is int:
        return cast(Enum, _call(origin, value, origin, path))
    known = ", ".join(repr(member.value) for member in origin)
    raise Unconvertible(f"{path}: {show_value(value, 80)} is no {origin.__name__}; it is one of {known}")


class RecordField(NamedTuple):
    """A field of a class that is made from a dict: its type, and its default if it need not be given."""

    form: TypeForm
    required: bool = True
    default: Any = None


def fields_of(form: TypeForm) -> dict[str, RecordField] | None:
    """Return the fields by which an instance is made; None for a class that is not made from a dict.

    Dataclasses, TypedDicts and NamedTuples have fields, and classes with ``@checkpointable`` the parameters of their
    constructor.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> fields_of(Point)["y"]
    RecordField(form=<class 'int'>, required=False, default=0)
    """
    origin = origin_of(form)
    if not isinstance(origin, type):
        return None
    hints = {name: _filled_in(form, hint) for name, hint in _hints(origin).items()}
    if dataclasses.is_dataclass(origin):
        return {
            field.name: RecordField(
                hints.get(field.name, Any),
                field.default is field.default_factory is dataclasses.MISSING,
                None if field.default is dataclasses.MISSING else field.default,
            )
            for field in dataclasses.fields(origin)
            if field.init
        }
    if is_typed_dict(origin):
        needed: Any = origin.__required_keys__  # type: ignore[attr-defined]
        return {name: RecordField(hint, name in needed) for name, hint in hints.items()}
    if issubclass(origin, tuple) and hasattr(origin, "_fields"):
        known: Any = origin
        return {
            name: RecordField(
                hints.get(name, Any), name not in known._field_defaults, known._field_defaults.get(name)
            )
            for name in known._fields
        }
    if hasattr(origin, MARK) and not issubclass(origin, BaseException):
        return _parameters(origin, form)
    return None


def _filled_in(form: TypeForm, hint: TypeForm) -> TypeForm:
    """Replace the type variables of a generic class by the arguments that a form gives it."""
    variables = getattr(origin_of(form), "__parameters__", ())
    return substitute_variables(hint, dict(zip(variables, args_of(form) or (), strict=False)))


def _parameters(origin: type, form: TypeForm) -> dict[str, RecordField] | None:
    """Return the parameters of a constructor; None if it does not take each of them by its name."""
    try:
        signature = inspect.signature(origin)
    except (TypeError, ValueError):
        return None
    hints = _hints(origin.__init__)  # type: ignore[misc]
    found: dict[str, RecordField] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            return None
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        found[name] = RecordField(_filled_in(form, hints.get(name, Any)), required, default)
    return found


def _as_record(value: object, origin: Any, fields: dict[str, RecordField], path: str) -> Any:
    """Convert a dict to an instance of a class with fields, or a list to a NamedTuple."""
    if hasattr(origin, "_fields") and isinstance(value, list | tuple) and len(value) <= len(fields):
        value = dict(zip(fields, value, strict=False))
    if not isinstance(value, dict):
        raise Unconvertible(
            f"{path}: a {type(value).__name__}, not {origin.__name__} (a dict with {_join_names(fields)})"
        )
    needed = {name for name, field in fields.items() if field.required}
    if missing := needed - value.keys():
        raise Unconvertible(
            f"{path}: {origin.__name__} needs {_join_names(sorted(missing))}, which is missing"
        )
    if unknown := [name for name in value if name not in fields]:
        raise Unconvertible(
            f"{path}: {origin.__name__} has no {_join_names(unknown)}; it has {_join_names(fields)}"
        )
    parts = {name: convert(part, fields[name].form, f"{path}.{name}") for name, part in value.items()}
    return _call(lambda given: origin(**given), parts, origin, path)


def _hints(origin: Any) -> dict[str, TypeForm]:
    """Return the types of the fields; a field with an annotation that cannot be resolved may hold anything."""
    try:
        return typing.get_type_hints(origin)
    except (NameError, TypeError):
        return _resolvable_hints(origin)


def _resolvable_hints(origin: Any) -> dict[str, TypeForm]:
    """Return the type of each field whose annotation can be resolved, and Any for the others."""
    hints: dict[str, TypeForm] = {}
    for base in reversed(getattr(origin, "__mro__", (origin,))):
        for name, hint in _annotations(base).items():
            holder = SimpleNamespace(__annotations__={name: hint})
            known = {**vars(sys.modules.get(base.__module__, typing)), getattr(base, "__name__", ""): base}
            try:
                hints.update(typing.get_type_hints(holder, known))
            except (NameError, TypeError):
                hints[name] = Any
    return hints


def _annotations(origin: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):  # where reading them may raise
        import annotationlib

        return annotationlib.get_annotations(origin, format=annotationlib.Format.FORWARDREF)
    found: dict[str, Any] = getattr(origin, "__annotations__", {})
    return found


def _join_names(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _as_container(value: Any, origin: type, args: tuple[TypeForm, ...] | None, path: str) -> Any:
    if issubclass(origin, dict):
        if not isinstance(value, dict):
            raise _unfit(value, origin, path)
        of_key, of_value = pair_forms(origin, args)
        pairs = {
            _as_key(key, of_key, f"{path} key {key!r}"): convert(part, of_value, f"{path}[{key!r}]")
            for key, part in value.items()
        }
        made: Any = partial(defaultdict, None) if origin is defaultdict else origin
        return _call(made, pairs, origin, path)
    if not isinstance(value, ARRAYS):
        raise _unfit(value, origin, path)
    parts = list(value)
    forms = _element_forms(origin, args, len(parts))
    if forms is None:
        raise Unconvertible(f"{path}: has {len(parts)} elements, not {len(args or ())}")
    paths = [f"{path}[{index}]" for index in range(len(parts))]
    return _call(origin, list(map(convert, parts, forms, paths)), origin, path)


def pair_forms(origin: type, args: tuple[TypeForm, ...] | None) -> tuple[TypeForm, TypeForm]:
    """Return the types of the keys and of the values of a dict.

    >>> pair_forms(dict, (str, int)), pair_forms(Counter, (str,))
    ((<class 'str'>, <class 'int'>), (<class 'str'>, <class 'int'>))
    """
    if issubclass(origin, Counter):
        return (args[0] if args else Any), int
    return (args[0], args[1]) if args and len(args) == 2 else (Any, Any)


def _as_key(key: object, form: TypeForm, path: str) -> Any:
    """Convert the key of a dict; in JSON all keys are texts, also numbers."""
    try:
        return convert(key, form, path)
    except Unconvertible:
        for member in members(form):
            if isinstance(key, str) and member in (int, float):
                return _call(member, key, form, path)
        raise


def _element_forms(origin: type, args: tuple[TypeForm, ...] | None, count: int) -> list[TypeForm] | None:
    """Return the form of each element, or None if there are too many or too few."""
    if args is None:
        return [Any] * count
    if issubclass(origin, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
        return list(args) if len(args) == count else None
    return [args[0]] * count
