"""The match of a value, or of a declared type, against a form."""

from __future__ import annotations

import typing
from abc import ABC
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, Never, get_args

from holdfast.graph.typing.types import (
    TypeForm,
    args_of,
    atoms_of,
    class_of,
    is_anything,
    is_typed_dict,
    is_unpacked,
    members,
    origin_of,
    sees_elements,
    type_name,
)

_DEPTH = 10  # how far can_match follows type arguments; a recursive alias has no end of its own


def matches(value: object, form: TypeForm) -> bool:
    """Check a value against a form, elements included, by Python's class relations (an int is no float).

    >>> matches([1, 2], list[int]), matches([1, "2"], list[int]), matches(1, float), matches(True, int)
    (True, False, False, True)
    """
    return any(_fits(value, member) for member in members(form))


def explain_misfit(value: object, form: TypeForm) -> str:
    """Return a text that names the part of a value that keeps it from matching the form.

    >>> explain_misfit([1, "two"], list[int])
    "[1] is a str, not int: 'two'"
    >>> explain_misfit("two", int)
    "a str, not int: 'two'"
    """
    path, part, wanted = _misfit("", value, form)
    return f"{path} is a {type(part).__name__}, not {type_name(wanted)}: {show_value(part, 80)}".removeprefix(
        " is "
    )


def show_value(value: object, most: int) -> str:
    """Return the repr of a value, cut to ``most`` characters; never raise."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<repr failed: {error!r}>"
    return text if len(text) <= most else f"{text[:most]}..."


def show_error(error: BaseException) -> str:
    """Return the message of an error, or the name of its class if it has none; never raise.

    >>> show_error(ValueError("too big")), show_error(KeyError())
    ('too big', 'KeyError')
    """
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def _misfit(path: str, value: object, form: TypeForm) -> tuple[str, object, TypeForm]:
    """Follow the first element that does not match, as far in as one member of the form explains it."""
    forms = members(form)
    args = args_of(forms[0]) if len(forms) == 1 else None
    if args is not None and isinstance(value, list) and len(args) == 1:
        for index, part in enumerate(value):
            if not matches(part, args[0]):
                return _misfit(f"{path}[{index}]", part, args[0])
    if args is not None and isinstance(value, dict) and len(args) == 2:
        for key, part in value.items():
            if not matches(part, args[1]):
                return _misfit(f"{path}[{key!r}]", part, args[1])
    return path, value, form


def _fits(value: object, form: TypeForm) -> bool:
    """Check a value against one union member."""
    if type(form) is type:  # a plain class, not a TypedDict or Protocol: the common case, and fast
        return isinstance(value, form)
    if form is Any or form is Never:
        return form is Any
    if origin_of(form) is Literal:
        return any(type(option) is type(value) and option == value for option in get_args(form))
    cls, args = class_of(form), args_of(form)
    if cls is None:
        return True
    if not is_instance(value, cls):
        return False
    if is_typed_dict(origin_of(form)):
        return _fits_fields(value, origin_of(form))
    return args is None or not sees_elements(cls) or _fits_args(value, cls, args)


def is_instance(value: object, cls: type) -> bool:
    """Check by isinstance; a Protocol that is not runtime_checkable, by its attribute names."""
    try:
        return isinstance(value, cls)
    except TypeError:
        if not getattr(cls, "_is_protocol", False):
            return False
    names = getattr(cls, "__protocol_attrs__", None)  # 3.12 and typing_extensions
    if names is None:
        names = typing._get_protocol_attrs(cls)  # type: ignore[attr-defined]
    return all(hasattr(value, name) for name in names)


def _fits_fields(value: Any, form: Any) -> bool:
    """Check a dict against a TypedDict: required keys are there, declared values match, more keys may be."""
    complete = form.__required_keys__ <= value.keys()
    return complete and all(matches(value[k], hint) for k, hint in _fields(form).items() if k in value)


@lru_cache(maxsize=256)
def _fields(form: Any) -> dict[str, TypeForm]:
    """Return the field types of a TypedDict; fields whose annotations cannot be resolved may hold anything."""
    try:
        return typing.get_type_hints(form)
    except (NameError, TypeError):
        return {}


def _fits_args(value: Any, cls: type, args: tuple[TypeForm, ...]) -> bool:
    """Check the elements of a standard container, if looking at them does not use them up."""
    if cls is tuple:
        return _fits_tuple(value, args)
    if cls is type:
        return any(_fits_class(value, member) for member in members(args[0]))
    if issubclass(cls, Mapping) and len(args) == 2:
        return _all_fit(value.keys(), args[0]) and _all_fit(value.values(), args[1])
    if len(args) != 1 or not isinstance(value, Collection):
        return True
    if isinstance(value, str):  # a str holds strs without end, so only classes are asked
        return any(m is Any or (isinstance(m, type) and is_instance(value, m)) for m in members(args[0]))
    return _all_fit(value, args[0])


def _all_fit(values: Iterable[object], form: TypeForm) -> bool:
    """Check each of many values against one form."""
    forms = members(form)
    return any(form is Any or form is object for form in forms) or all(
        any(_fits(value, form) for form in forms) for value in values
    )


def _fits_tuple(value: tuple[object, ...], args: tuple[TypeForm, ...]) -> bool:
    """Check a tuple against `tuple[X, ...]` or `tuple[X, Y]`."""
    if len(args) == 2 and args[1] is Ellipsis:
        return _all_fit(value, args[0])
    if any(is_unpacked(arg) for arg in args):
        return True
    return len(value) == len(args) and all(map(matches, value, args))


def _fits_class(value: type, form: TypeForm) -> bool:
    """Check a class, itself the value, against the X of `type[X]`."""
    cls = None if form is Any else class_of(form)
    return cls is None or getattr(cls, "_is_protocol", False) or issubclass(value, cls)


def can_match(produced: TypeForm, accepted: TypeForm) -> bool:
    """Return True if a value declared as `produced` could be one that `accepted` takes; asked before any run.

    A producer may send a subclass of what it declares, so relations count in both directions.

    >>> can_match(int | str, str), can_match(list[int], list[str]), can_match(None, int)
    (True, False, False)
    """
    return _can_match(produced, accepted, _DEPTH)


def covers(accepted: TypeForm, produced: TypeForm) -> bool:
    """Return True if every value declared as `produced` is one that `accepted` takes, by class.

    >>> covers(int, bool), covers(bool, int), covers(int | None, int), covers(int, int | None)
    (True, False, True, False)
    """
    if is_anything(accepted):
        return True
    if is_anything(produced):
        return False
    return all(any(_covers(x, y) for x in atoms_of(accepted)) for y in atoms_of(produced))


def _covers(accepted: TypeForm, produced: TypeForm) -> bool:
    """Answer `covers` for two atoms."""
    taken, given = class_of(accepted), class_of(produced)
    if taken is None or given is None:
        return True
    return (issubclass(given, taken) or _is_abstract(taken)) and can_match(produced, accepted)


def _can_match(produced: TypeForm, accepted: TypeForm, depth: int) -> bool:
    """Answer `can_match`; below `depth` levels of type arguments, permissively."""
    if depth == 0 or is_anything(produced) or is_anything(accepted):
        return True
    return any(_pair_can_match(x, y, depth) for x in atoms_of(produced) for y in atoms_of(accepted))


def _pair_can_match(produced: TypeForm, accepted: TypeForm, depth: int) -> bool:
    """Answer `can_match` for two atoms."""
    if produced is Never or accepted is Never:
        return False
    left, right = class_of(produced), class_of(accepted)
    if left is None or right is None:
        return True
    if left is NoneType or right is NoneType:  # its one value is known, so no guess is needed
        return is_instance(None, left) and is_instance(None, right)
    related = _is_abstract(left) or _is_abstract(right) or issubclass(left, right) or issubclass(right, left)
    ours, theirs = args_of(produced), args_of(accepted)
    if not related or ours is None or theirs is None:
        return related
    if left is tuple and right is tuple:
        return _tuples_can_match(ours, theirs, depth)
    comparable = left is right or (sees_elements(left) and sees_elements(right))
    if not comparable or len(ours) != len(theirs):
        return True
    return all(_can_match(x, y, depth - 1) for x, y in zip(ours, theirs, strict=True))


def _tuples_can_match(ours: tuple[TypeForm, ...], theirs: tuple[TypeForm, ...], depth: int) -> bool:
    """Answer `can_match` for the arguments of two tuples, each of fixed or of any length."""
    if any(is_unpacked(arg) for arg in (*ours, *theirs)):
        return True
    open_ours, open_theirs = ours[1:] == (...,), theirs[1:] == (...,)
    if open_ours:
        ours = ours[:1] * (1 if open_theirs else len(theirs))
    if open_theirs:
        theirs = theirs[:1] * len(ours)
    return len(ours) == len(theirs) and all(map(_can_match, ours, theirs, [depth - 1] * len(ours)))


def _is_abstract(cls: type) -> bool:
    """Return True if unrelated classes may be instances of this one: a Protocol or an abstract base class."""
    marked = getattr(cls, "_is_protocol", False) or getattr(cls, "__abstractmethods__", ())
    return bool(marked) or ABC in cls.__bases__
