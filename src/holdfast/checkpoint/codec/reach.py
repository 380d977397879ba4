"""Which classes a form names, and what their fields are declared as."""

from __future__ import annotations

import sys
import typing
from collections import deque
from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any, Literal, get_args

from holdfast.graph.typing.types import TypeForm, members, origin_of

# Classes of these are not the user's: they are not followed, and what is derived from them is not allowed by that.
_FOUNDATIONS = sys.stdlib_module_names | {
    "msgspec",
    "numpy",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
}

# Values of these are encoded without being declared, or are never encoded.
_UNNAMED = frozenset(
    {
        *("abc", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "msgspec", "numpy"),
        *("pathlib", "pydantic", "pydantic_core", "types", "typing", "typing_extensions", "uuid", "zoneinfo"),
    }
)


def is_foundation(cls: type) -> bool:
    """Whether a class belongs to the language or to a library of data classes, not to the user."""
    return _root(cls) in _FOUNDATIONS


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def classes_in(form: TypeForm) -> Iterator[type]:
    """The classes that a form names, in unions, containers, literals and arguments; not those of the language."""
    waiting, seen = [form], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):  # the parameters of a Callable
            waiting += part
            continue
        for member in members(part):
            if id(member) in seen:  # a recursive alias
                continue
            seen.add(id(member))
            origin = origin_of(member)
            if origin is Literal:
                yield from {type(value): None for value in get_args(member) if isinstance(value, Enum)}
                continue
            if isinstance(origin, type) and _root(origin) not in _UNNAMED:
                yield origin
            waiting += get_args(member)


def field_forms(cls: type) -> Iterator[TypeForm]:
    """What the fields of a class are declared as; a hint that cannot be resolved is left out."""
    if is_foundation(cls):
        return
    if (fields := vars(cls).get("__pydantic_fields__")) is not None:  # resolved by pydantic, which knows best
        yield from (field.annotation for field in fields.values())
    for base in getattr(cls, "__orig_bases__", ()):
        yield from get_args(base)
    try:
        yield from typing.get_type_hints(cls, include_extras=True).values()
    except Exception:  # an annotation is an expression, so anything may come of it
        yield from _each_hint(cls)


def _neighbours(cls: type) -> dict[str, type]:
    """Classes of the scopes around a class by name: where those are functions, no namespace is left to ask.

    A function that was called again made all of them again: so of several with one name, the one that stands
    where ``cls`` stands among those with its own name, counted from the newest.
    """
    scopes = {cls.__qualname__[:end] for end, letter in enumerate(cls.__qualname__) if letter == "."} | {""}
    found: dict[str, list[type]] = {cls.__qualname__: []}
    for other in _live(object):
        if other.__module__ == cls.__module__ and other.__qualname__.rpartition(".")[0] in scopes:
            found.setdefault(other.__qualname__, []).append(other)
    own = found[cls.__qualname__]
    age = len(own) - own.index(cls)
    return {others[-1].__name__: others[max(0, len(others) - age)] for others in found.values()}


def _live(root: type) -> Iterator[type]:
    """The classes derived from ``root``, oldest first below each."""
    seen: set[type] = set()
    waiting = deque([root])
    while waiting:
        derived: list[type] = type.__subclasses__(waiting.popleft())
        fresh = [cls for cls in derived if cls not in seen]
        seen.update(fresh)
        waiting += fresh
        yield from fresh


def _annotations(cls: type) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found


def _each_hint(cls: type) -> Iterator[TypeForm]:
    local = {**_neighbours(cls), cls.__name__: cls}
    for base in cls.__mro__:
        names = getattr(sys.modules.get(base.__module__), "__dict__", {})
        for name, hint in _annotations(base).items():
            holder = SimpleNamespace(__annotations__={name: hint})
            try:
                yield from typing.get_type_hints(holder, names, {**local, **vars(base)}).values()
            except Exception:  # this one stays unknown; the others do not
                continue
