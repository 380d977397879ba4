"""Exceptions as data: class, arguments and attributes, without traceback and cause."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from holdfast import errors
from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.evolution import Evolution
from holdfast.checkpoint.codec.refused import Malformed
from holdfast.checkpoint.codec.shapes import Shape, slots_of, solid_base

STANDARD: dict[str, type[BaseException]] = {
    found.__name__: found
    for module in (builtins, errors)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, BaseException)
}
"""The exceptions that need no declaration."""

# A live object, the one that lacks the attribute; and what the constructor of a group needs.
_UNKEPT = frozenset({"args", "obj", "message", "exceptions"})


def members_of(cls: type) -> list[str]:
    """The attributes that a builtin exception keeps outside ``__dict__``: ``errno``, ``start``."""
    return [
        name
        for base in cls.__mro__
        for name, attribute in vars(base).items()
        if isinstance(attribute, MemberDescriptorType | GetSetDescriptorType)
        and not name.startswith("__")
        and name not in _UNKEPT
        and base.__module__ == "builtins"
    ]


def attributes_of(error: BaseException) -> dict[str, Any]:
    """The attributes of an exception, those that are None left out where the class has them anyway."""
    found = {name: getattr(error, name, None) for name in members_of(type(error))}
    kept = {name: part for name, part in found.items() if part is not None}
    slots = {name: getattr(error, name) for name in slots_of(type(error)) if hasattr(error, name)}
    return {**kept, **slots, **vars(error)}


def rebuilt(cls: type[BaseException], args: list[Any], attributes: dict[str, Any]) -> BaseException:
    """An exception with these arguments and attributes, without its constructor."""
    base: Any = solid_base(cls)
    if issubclass(cls, BaseExceptionGroup):
        error: BaseException = BaseExceptionGroup.__new__(cls, *args)
    else:
        error = base.__new__(cls)
    error.args = tuple(args)
    outside = {*members_of(cls), *slots_of(cls)}
    for name, part in attributes.items():
        if name in outside:
            setter: Any = base if hasattr(base, name) else object
            setter.__setattr__(error, name, part)
        else:
            vars(error)[name] = part
    return error


class ErrorShape(Shape):
    """An exception of the user's."""

    __slots__ = ("evolution",)
    kind = "an exception"

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self.evolution = Evolution.of(name, cls, ())

    def taken(self, value: Any) -> tuple[int, list[Any]]:
        version = self.evolution.mark.version
        return wire.ERROR, [self.name, version, list(value.args), attributes_of(value)]

    def built(self, code: int, data: list[Any]) -> Any:
        if code != wire.ERROR:
            raise self.mismatch(code)
        _, version, args, attributes = data
        if type(version) is not int or type(args) is not list or type(attributes) is not dict:
            raise Malformed(f"the exception {self.name} is none")
        return rebuilt(self.cls, args, self.evolution.upgraded(version, attributes))

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return error_parts(value)


def error_parts(error: BaseException) -> Iterator[tuple[str, Any]]:
    """The parts of an exception with their paths."""
    yield from ((f".args[{index}]", part) for index, part in enumerate(error.args))
    yield from ((f".{name}", part) for name, part in attributes_of(error).items())


def taken(error: BaseException) -> tuple[int, list[Any]]:
    """A standard exception as plain data."""
    return wire.STANDARD_ERROR, [type(error).__name__, list(error.args), attributes_of(error)]


def built(data: list[Any]) -> BaseException:
    """A standard exception of such data."""
    name, args, attributes = data
    if name not in STANDARD or type(args) is not list or type(attributes) is not dict:
        raise Malformed(f"there is no standard exception {name!r}")
    return rebuilt(STANDARD[name], args, attributes)
