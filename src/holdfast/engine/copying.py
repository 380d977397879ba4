"""Copies of values, and what can be told about values without copying them."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any

from holdfast.errors import NotCheckpointable

_ATOMS = frozenset(
    {
        *(int, float, bool, str, bytes, complex, range, type(None), type(Ellipsis), type(NotImplemented)),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    }
)
# By name, so that nobody pays for the import of a module that is not used.
_ATOMS_BY_NAME = frozenset(
    {("decimal", "Decimal"), ("uuid", "UUID"), ("fractions", "Fraction"), ("zoneinfo", "ZoneInfo")}
)
# How many parts of a value are compared to tell whether it changed: enough for messages, bounded for giants.
_COMPARED_PARTS = 10_000


def is_immutable(value: object) -> bool:
    """Whether no part of ``value`` can be changed, so that it may be shared."""
    kind: Any = type(value)
    if kind in _ATOMS or (kind.__module__, kind.__qualname__) in _ATOMS_BY_NAME or isinstance(value, Enum):
        return True
    if getattr(value, "__dict__", None) and isinstance(value, tuple):
        return False
    if kind is frozenset or (isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields"))):
        return all(is_immutable(part) for part in value)  # type: ignore[attr-defined]
    if _is_record(kind) and kind.__dataclass_params__.frozen:
        return all(is_immutable(part) for _, part in _attributes(value))
    return False


def size_of_text(value: object, enough: int) -> int:
    """The characters, bytes and elements in ``value``, counted until there are more than ``enough``."""
    size = 0
    waiting = [value]
    while waiting and size <= enough:
        part = waiting.pop()
        if isinstance(part, str | bytes | bytearray):
            size += len(part)
        elif type(part) in _ATOMS:
            continue
        elif isinstance(part, list | tuple | set | frozenset | dict):
            size += len(part)
            waiting += part
            if isinstance(part, dict):
                waiting += part.values()
        elif not isinstance(part, type):
            waiting += [attribute for _, attribute in _attributes(part)]
    return size


def copied(value: object, place: str) -> Any:
    """A deep copy that shares nothing that can be changed; a part that stands twice is copied twice.

    Raises ``NotCheckpointable`` with the path of the part that cannot be copied.
    """
    try:
        return _copied(value)
    except RecursionError:
        raise endless(value, place) from None
    except Exception as error:
        path, culprit = _culprit(value, place)
        raise NotCheckpointable(
            f"{path}: {type(culprit).__name__} is not checkpointable; "
            f"send plain data, and open such things where they are used"
        ) from error


def endless(value: object, place: str) -> NotCheckpointable:
    """The error for a value in which following parts comes to no end."""
    return NotCheckpointable(f"{place}: {type(value).__name__} contains itself or is nested too deeply")


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return [_copied(part) for part in value]
    if kind is dict:
        return {_copied(key): _copied(part) for key, part in value.items()}
    if kind is tuple or kind is set or kind is frozenset:
        return kind([_copied(part) for part in value])
    if _is_record(kind):
        twin = object.__new__(kind)
        for name, part in _attributes(value):
            object.__setattr__(twin, name, _copied(part))
        return twin
    if isinstance(value, BaseException):
        return _copied_error(value)
    return copy.deepcopy(value)


def _copied_error(error: BaseException) -> BaseException:
    """An exception as data: its arguments and attributes, without what it was raised from."""
    if type(error).__module__ == "builtins":
        return copy.deepcopy(error)
    # Not through its constructor, which may make something else of the arguments.
    twin = type(error).__new__(type(error), *error.args)
    twin.args = _copied(error.args)
    vars(twin).update(_copied(vars(error)))
    return twin


def _record(kind: Any) -> bool:
    """Whether a class is a dataclass that holds nothing but attributes: not also a list or an exception."""
    return (
        hasattr(kind, "__dataclass_fields__")
        and not hasattr(kind, "__deepcopy__")
        and all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    )


_is_record: Callable[[Any], bool] = lru_cache(maxsize=1024)(_record)


_HEAP_TYPE = (
    1 << 9
)  # Py_TPFLAGS_HEAPTYPE: defined in Python, so that instances have no content of their own in C


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """The attributes that an instance holds, in ``__dict__`` and in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            spelt = f"_{base.__name__.lstrip('_')}{name}" if private else name  # as the compiler spells it
            if spelt not in ("__dict__", "__weakref__") and hasattr(value, spelt):
                yield spelt, getattr(value, spelt)


def _children(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The parts of ``value`` with their paths."""
    if isinstance(value, dict):
        yield from ((f"{place}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{place}{{...}}", part) for part in value)
    elif not isinstance(value, type | ModuleType):
        yield from ((f"{place}.{name}", part) for name, part in _attributes(value))


def _culprit(value: object, place: str) -> tuple[str, object]:
    """The innermost part of ``value`` that cannot be copied."""
    for path, part in _children(value, place):
        try:
            _copied(part)
        except Exception:
            return _culprit(part, path)
    return place, value


def differs(one: object, other: object, *, unsure: bool = False) -> bool:
    """Whether two values differ in type or content; ``unsure`` is the answer where that cannot be told.

    Unlike ``==`` it tells 1 from True and 1.0, takes NaN for equal to itself, and looks into plain objects. After ten
    thousand equal parts, or at parts that cannot be compared, it cannot tell.
    """
    waiting = [(one, other)]
    doubt = False
    for _ in range(_COMPARED_PARTS):
        if not waiting:
            return unsure and doubt
        left, right = waiting.pop()
        if left is right:
            continue
        if type(left) is not type(right):
            return True
        pairs = _paired(left, right)
        if pairs is None:
            return True
        if pairs is _UNTOLD:
            doubt = True
        waiting += reversed(pairs)
    return unsure


# What _paired gives where nothing can be told.
_UNTOLD: list[tuple[Any, Any]] = []


def _paired(left: Any, right: Any) -> list[tuple[Any, Any]] | None:
    """The parts of two values of one type that must be equal, or None where they differ already."""
    kind = type(left)
    if kind is list or kind is tuple:
        return list(zip(left, right, strict=True)) if len(left) == len(right) else None
    if kind is dict:
        try:
            if list(left) != list(right):
                return None
            return [(part, right[key]) for key, part in left.items()]
        except Exception:  # of keys that cannot be compared
            return _UNTOLD
    if hasattr(kind, "__dataclass_fields__") or (_is_plain(kind) and hasattr(left, "__dict__")):
        mine, theirs = dict(_attributes(left)), dict(_attributes(right))
        return _paired(mine, theirs)
    if _is_plain(kind):
        return _UNTOLD
    try:
        same = left == right or (left != left and right != right)
        return [] if _true(same) else None
    except Exception:  # whatever a foreign comparison raises
        return _UNTOLD


def _is_plain(kind: Any) -> bool:
    """Whether instances are equal only to themselves."""
    return kind.__eq__ is object.__eq__


def _true(same: Any) -> bool:
    try:
        return bool(same)
    except ValueError:  # arrays compare element by element
        return bool(same.all())
