"""Exceptions as plain data: class, arguments and attributes, without traceback and cause."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from operator import is_
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from holdfast import errors
from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.evolution import Evolution
from holdfast.checkpoint.codec.refusals import Malformed
from holdfast.checkpoint.codec.shapes import Shape
from holdfast.engine.copies import read_slots, slots_of, solid_base

STANDARD: dict[str, type[BaseException]] = {
    found.__name__: found
    for module in (builtins, errors)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, BaseException)
}
"""The exceptions that need no declaration."""

# ``obj`` is a live object, the one that lacks the attribute; the others are written apart.
_UNKEPT = frozenset({"args", "obj", "message", "exceptions"})
_ARGS: Any = vars(BaseException)["args"]  # a class may define another ``args``


def members_of(cls: type) -> dict[str, Any]:
    """Return the attributes that a builtin exception keeps outside ``__dict__``: ``errno``, ``start``."""
    return {
        name: attribute
        for base in reversed(cls.__mro__)
        if base.__module__ == "builtins"
        for name, attribute in vars(base).items()
        if isinstance(attribute, MemberDescriptorType | GetSetDescriptorType)
        and not name.startswith("__")
        and name not in _UNKEPT
    }


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception, without those of builtin classes that are None."""
    cls = type(error)
    members = read_slots(members_of(cls), error)
    kept = {name: part for name, part in members.items() if part is not None}
    if isinstance(error, BaseExceptionGroup) and not _says_all(error):
        kept |= {"message": error.message, "exceptions": list(error.exceptions)}
    return {**kept, **read_slots(slots_of(cls), error), **vars(error)}


def _says_all(group: BaseExceptionGroup[Any]) -> bool:
    """Return True if the arguments of a group are its message and exceptions; derived classes may take others."""
    args = _ARGS.__get__(group)
    if len(args) != 2 or args[0] is not group.message or not isinstance(args[1], list | tuple):
        return False
    held = group.exceptions
    return len(args[1]) == len(held) and all(map(is_, args[1], held))


def rebuild_exception(cls: type[BaseException], args: list[Any], attributes: dict[str, Any]) -> BaseException:
    """Make an exception with these arguments and attributes without calling its constructor."""
    base: Any = solid_base(cls)
    if issubclass(cls, BaseExceptionGroup):
        attributes = dict(attributes)
        message, held = attributes.pop("message", None), attributes.pop("exceptions", None)
        error: BaseException = BaseExceptionGroup.__new__(cls, *(args if held is None else (message, held)))
    else:
        error = base.__new__(cls)
    _ARGS.__set__(error, tuple(args))
    outside = {**members_of(cls), **slots_of(cls)}
    for name, part in attributes.items():
        if name in outside:
            outside[name].__set__(error, part)
        else:
            vars(error)[name] = part
    return error


class ErrorShape(Shape):
    """Stores exceptions of classes that users define."""

    __slots__ = ("evolution",)
    kind = "an exception"

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self.evolution = Evolution.of(name, cls, ())

    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        version = self.evolution.mark.version
        return wire.ERROR, [self.name, version, list(_ARGS.__get__(value)), attributes_of(value)]

    def rebuild(self, code: int, data: list[Any]) -> Any:
        if code != wire.ERROR:
            raise self.mismatch(code)
        _, version, args, attributes = data
        if type(version) is not int or type(args) is not list or type(attributes) is not dict:
            raise Malformed(f"the exception {self.name} is none")
        return rebuild_exception(self.cls, args, self.evolution.upgrade(version, attributes))

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return error_parts(value)


def error_parts(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Give the parts of an exception with their paths."""
    yield from ((f".args[{index}]", part) for index, part in enumerate(_ARGS.__get__(error)))
    yield from ((f".{name}", part) for name, part in attributes_of(error).items())


def take_apart(error: BaseException) -> tuple[int, list[Any]]:
    """Take a standard exception apart into plain data."""
    return wire.STANDARD_ERROR, [type(error).__name__, list(_ARGS.__get__(error)), attributes_of(error)]


def rebuild(data: list[Any]) -> BaseException:
    """Rebuild a standard exception from plain data."""
    name, args, attributes = data
    if name not in STANDARD or type(args) is not list or type(attributes) is not dict:
        raise Malformed(f"there is no standard exception {name!r}")
    return rebuild_exception(STANDARD[name], args, attributes)
