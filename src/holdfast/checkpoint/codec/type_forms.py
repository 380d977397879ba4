"""Type annotations as plain data.

A form is the name of a type of the language (``"int"``, ``"Any"``, ``"None"``, ``"Sequence"``, ``"Decimal"``), or a
list that begins with what it is: ``["class", wire name]``, ``["of", origin, argument, ...]``, ``["union", form, ...]``,
``["literal", value, ...]``. ``"..."`` is the argument in ``tuple[int, ...]``.
"""

from __future__ import annotations

import collections
import collections.abc
import datetime
import sys
import types
from importlib import import_module
from typing import Any, Literal, Never, Union, get_args

from holdfast.checkpoint.codec.exceptions import STANDARD
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, TooDeep, Unknown
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.standard import too_many_alike
from holdfast.graph.typing.types import TypeForm, args_of, members, origin_of, type_name

_BUILTINS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    list,
    tuple,
    set,
    frozenset,
    dict,
    range,
    object,
)

NAMED: dict[str, TypeForm] = {
    "Any": Any,
    "None": types.NoneType,
    "Never": Never,
    **{kind.__name__: kind for kind in _BUILTINS},
    **{
        name: getattr(datetime, name)
        for name in ("date", "datetime", "time", "timedelta", "timezone", "tzinfo")
    },
    **{name: getattr(collections, name) for name in ("OrderedDict", "defaultdict", "Counter", "deque")},
    **{name: getattr(collections.abc, name) for name in collections.abc.__all__ if name != "Callable"},
    **STANDARD,
}
_NAMES = {form: name for name, form in NAMED.items()}

# By name, so that a module is imported only if it is used.
_LAZY = {
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "ZoneInfo": "zoneinfo",
    **dict.fromkeys(
        ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath"), "pathlib"
    ),
    "ndarray": "numpy",
}


def describe_form(form: TypeForm, registry: TypeRegistry) -> Any:
    """Return plain data that describes a form; raise ``NotStorable`` for one that cannot be stored."""
    try:
        return _described(form, registry)
    except RecursionError:
        raise TooDeep(f"the type {type_name(form)} contains itself") from None


def _described(form: TypeForm, registry: TypeRegistry) -> Any:
    options = members(form)
    if len(options) > 1:
        return ["union", *(_described(option, registry) for option in options)]
    form = options[0]
    origin, args = origin_of(form), args_of(form)
    if origin is Literal:
        return ["literal", *get_args(form)]
    name = _name(origin, registry)
    if args is None or name == "ndarray":  # whose arguments no value shows
        return name
    return ["of", name, *("..." if part is Ellipsis else _described(part, registry) for part in args)]


def _name(origin: Any, registry: TypeRegistry) -> Any:
    try:
        if origin in _NAMES:
            return _NAMES[origin]
    except TypeError:  # what cannot be hashed
        pass
    if isinstance(origin, type):
        for name, module in _LAZY.items():
            if getattr(sys.modules.get(module), name, None) is origin:
                return name
        if (known := registry.name_of(origin)) is not None:
            return ["class", known]
    raise NotStorable(
        f"the type {type_name(origin)} is not checkpointable; use one that is declared in the workflow, "
        f"or decorate it with @checkpointable"
    )


def form_of(data: Any, registry: TypeRegistry) -> TypeForm:
    """Return the form that plain data describes."""
    if type(data) is str:
        return _named(data)
    if type(data) is not list or not data:
        raise Malformed("a type is neither a name nor a list")
    kind, *rest = data
    if kind == "class" and len(rest) == 1:
        return _class(rest[0], registry)
    if kind == "literal" and rest:
        if too_many_alike(rest):
            raise Malformed("too many values of a Literal have the same hash")
        return Literal[tuple(rest)]
    if kind == "union" and rest:
        return Union[tuple(form_of(part, registry) for part in rest)]  # noqa: UP007
    if kind == "of" and rest:
        args = tuple(Ellipsis if part == "..." else form_of(part, registry) for part in rest[1:])
        return _subscripted(form_of(rest[0], registry), args)
    raise Malformed(f"there is no type like {kind!r}")


def _named(name: str) -> TypeForm:
    if name in NAMED:
        return NAMED[name]
    if name not in _LAZY:
        raise Malformed(f"there is no type {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ImportError as error:
        raise Unknown(f"the data has the type {name}; install the package {_LAZY[name]}") from error


def _class(name: Any, registry: TypeRegistry) -> TypeForm:
    found = registry.class_of(name) if type(name) is str else None
    if found is None:
        raise Unknown(
            f"the data has the type {name!r}, which is not declared here; name it in the annotations of a "
            f"handler or in a StateKey of the workflow, or decorate it with @checkpointable"
        )
    return found


def _subscripted(origin: Any, args: tuple[TypeForm, ...]) -> TypeForm:
    if not args and origin is not tuple:
        raise Malformed("a type has no arguments")
    return origin[args]
