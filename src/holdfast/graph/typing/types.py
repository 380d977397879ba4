"""Type annotations, taken apart.

A *form* is a type annotation as the user wrote it, already resolved (not a string). Everything here
sees through `Annotated`, `NewType`, `type X = ...` and type variables, because at run time only
classes, unions, literals and elements can be seen. What cannot be seen is allowed, never refused.
"""

from __future__ import annotations

import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Never, NewType, TypeAlias, TypeVar, Union, get_args, get_origin

TypeForm: TypeAlias = Any

_STANDARD = frozenset({"builtins", "collections", "collections.abc"})


# -- what a form says ----------------------------------------------------------------------------


def type_name(form: TypeForm) -> str:
    """Write a form readably, and the same way in every Python version; equal meanings give equal names.

    >>> type_name(typing.Optional[int]), type_name(typing.List[str]), type_name(Literal["b", "a"])
    ('int | None', 'list[str]', "Literal['a', 'b']")
    """
    return render_form(form, exact=False)


MARK = "__holdfast_mark__"
"""The attribute in which a class has what ``@checkpointable`` says of it, among that its ``name``."""

marks_of_others: dict[type, Any] = {}
"""The settings that ``checkpointable`` gives classes of others, which are not changed for it."""


def find_mark(cls: type) -> Any:
    """Return the settings of ``@checkpointable`` for this very class, None without them."""
    return marks_of_others.get(cls) or vars(cls).get(MARK)


def stored_type_name(form: TypeForm) -> str:
    """Write a form as ``type_name`` does, with the stored names of classes, which stay if a class is renamed.

    >>> from holdfast import checkpointable
    >>> @checkpointable(name="Cart")
    ... class Basket: ...
    >>> stored_type_name(list[Basket]), type_name(list[Basket])
    ('list[Cart]', 'list[Basket]')
    """
    return render_form(form, exact=False, stored=True)


def members(form: TypeForm) -> tuple[TypeForm, ...]:
    """Flatten a union into its distinct members, with wrappers removed; anything else is its one member.

    >>> members(int | None), members(Annotated[str, "a note"])
    ((<class 'int'>, <class 'NoneType'>), (<class 'str'>,))
    """
    if type(form) is type:  # a plain class, as most forms are: nothing to see through
        return (form,)
    form = _unwrap(form)
    if origin_of(form) not in (Union, UnionType):
        return (form,)
    flat: list[TypeForm] = []
    for part in get_args(form):
        flat.extend(member for member in members(part) if member not in flat)
    return tuple(flat)


def is_anything(form: TypeForm) -> bool:
    """Return True if the form takes every value: `Any`, `object`, or a union with one of them.

    >>> is_anything(Any), is_anything(int | object), is_anything(int)
    (True, True, False)
    """
    return any(member is Any or member is object for member in members(form))


def is_nothing(form: TypeForm) -> bool:
    """Return True if the form says that there is no value: `None`, `Never` or `NoReturn`.

    >>> is_nothing(None), is_nothing(Never), is_nothing(int | None)
    (True, True, False)
    """
    return all(member is NoneType or member is Never for member in members(form))


def open_variable(form: TypeForm) -> TypeVar | None:
    """Find a type variable in a form that has neither bound nor constraints, so that it may be anything.

    >>> open_variable(dict[str, list[TypeVar("T")]]), open_variable(TypeVar("T", bound=int)), open_variable(int)
    (~T, None, None)
    """
    if type(form) is type:
        return None
    if isinstance(form, TypeVar):
        return form if form.__bound__ is None and not form.__constraints__ else None
    return next((found for part in get_args(form) if (found := open_variable(part)) is not None), None)


def variables_of(
    cls: type, base: type, known: Mapping[Any, TypeForm] = MappingProxyType({})
) -> dict[Any, TypeForm]:
    """Find the types that the variables of a generic base class stand for in a class derived from it.

    Those that nothing is said of are left out. ``known`` is what the variables of ``cls`` itself stand for.

    >>> T = TypeVar("T")
    >>> class Box(typing.Generic[T]): ...
    >>> class Boxes(Box[list[T]], typing.Generic[T]): ...
    >>> class Numbers(Boxes[int]): ...
    >>> variables_of(Numbers, Boxes), variables_of(Numbers, Box), variables_of(Boxes, Box)
    ({~T: <class 'int'>}, {~T: list[int]}, {~T: list[~T]})
    """
    if cls is base:
        return dict(known)
    for above in (*vars(cls).get("__orig_bases__", ()), *cls.__bases__):
        origin, args = get_origin(above) or above, get_args(above)
        if isinstance(origin, type) and issubclass(origin, base):
            names = getattr(origin, "__parameters__", ())
            said = dict(zip(names, args, strict=True)) if len(names) == len(args) else {}
            return variables_of(
                origin, base, {name: substitute_variables(form, known) for name, form in said.items()}
            )
    return {}


def substitute_variables(form: TypeForm, variables: Mapping[Any, TypeForm]) -> TypeForm:
    """Replace type variables by the types that they stand for.

    >>> T = TypeVar("T")
    >>> substitute_variables(dict[str, T], {T: int}), substitute_variables(T | None, {})
    (dict[str, int], typing.Optional[~T])
    """
    if isinstance(form, TypeVar):
        return variables.get(form, form)
    names = () if isinstance(form, type) and not get_args(form) else getattr(form, "__parameters__", ())
    if not any(name in variables for name in names):
        return form
    return form[tuple(variables.get(name, name) for name in names)]


def _unwrap(form: TypeForm) -> TypeForm:
    """Remove what leaves no trace at run time, until a class, union, literal or generic is left."""
    while True:
        if origin_of(form) is Annotated:
            form = get_args(form)[0]
        elif isinstance(form, NewType):
            form = form.__supertype__
        elif isinstance(form, TypeVar):
            bound = Any if form.__bound__ is None else form.__bound__
            form = Union[form.__constraints__] if form.__constraints__ else bound  # noqa: UP007
        elif is_alias(form):
            form = _alias_value(form)
        elif form is None:
            return NoneType
        elif form is typing.NoReturn:
            return Never
        else:
            return str if form is typing.LiteralString else form


def origin_of(form: TypeForm) -> Any:
    """Return the X of `X[...]`, the class behind `typing.List`, and any other form as it is."""
    if type(form) is type:
        return form
    found: Any = typing.get_origin(form)
    return form if found is None else found


def is_alias(form: TypeForm) -> bool:
    """Return True if the form is a `type X = ...` alias; by name, for 3.11 and typing_extensions."""
    return type(origin_of(form)).__name__ == "TypeAliasType"


def _alias_value(form: TypeForm) -> TypeForm:
    """Return the form that an alias stands for, with its type parameters filled in."""
    alias = origin_of(form)
    value = alias.__value__
    given = dict(zip(alias.__type_params__, get_args(form), strict=False))
    parameters = getattr(value, "__parameters__", ())
    return value[tuple(given.get(p, Any) for p in parameters)] if given and parameters else value


def atoms_of(form: TypeForm) -> list[TypeForm]:
    """Return the members, with a literal of many values as many literals of one value."""
    atoms: list[TypeForm] = []
    for member in members(form):
        values = get_args(member) if origin_of(member) is Literal else ()
        atoms.extend([Literal[value] for value in values] or [member])
    return atoms


def class_of(form: TypeForm) -> type | None:
    """Return the class whose instances an atom describes; None if no class does."""
    origin = origin_of(form)
    if origin is Literal:
        return type(get_args(form)[0])
    if is_typed_dict(origin):
        return dict
    return origin if isinstance(origin, type) else None


def args_of(form: TypeForm) -> tuple[TypeForm, ...] | None:
    """Return the type arguments: None for a bare `list` or `List`, () only for `tuple[()]`."""
    return get_args(form) if origin_of(form) is not form and hasattr(form, "__args__") else None


def sees_elements(cls: type) -> bool:
    """Return True if a value shows the type arguments of its class: a list does, a Box or iterator does not."""
    container = issubclass(cls, (Iterable, Container)) and not issubclass(cls, Iterator)
    return cls is type or (container and cls.__module__ in _STANDARD)


def is_typed_dict(form: TypeForm) -> bool:
    """Return True if the form is a TypedDict class, of typing or of typing_extensions."""
    return isinstance(form, type) and hasattr(form, "__required_keys__")


def is_unpacked(form: TypeForm) -> bool:
    """Return True if the form is a starred type argument, as in `tuple[int, *tuple[str, ...]]`."""
    return origin_of(form) is typing.Unpack or getattr(form, "__unpacked__", False) is True


# -- names ---------------------------------------------------------------------------------------


def render_form(form: TypeForm, exact: bool, seen: tuple[TypeForm, ...] = (), *, stored: bool = False) -> str:
    """Write a form for people or, `exact`, as a key that is equal when no value can tell two forms apart.

    ``stored`` calls classes by the names that they have in stored data.
    """
    if type(form) is type:
        return _render_member(form, exact, seen, stored)
    if isinstance(form, list):  # the parameters of a Callable
        return f"[{', '.join(render_form(part, exact, seen, stored=stored) for part in form)}]"
    if is_alias(form):
        if form in seen:  # a recursive alias: its name is its end
            return _simple_name(form)
        seen = (*seen, form)
    return " | ".join(_none_last({_render_member(member, exact, seen, stored) for member in members(form)}))


def _render_member(form: TypeForm, exact: bool, seen: tuple[TypeForm, ...], stored: bool) -> str:
    """Write one union member."""
    origin, args = origin_of(form), args_of(form)
    if origin is Literal:
        return f"Literal[{', '.join(_none_last({_value_name(value, stored) for value in get_args(form)}))}]"
    name = _simple_name(origin, stored)
    if exact and isinstance(origin, type):
        origin = object if origin is Any else origin
        name = f"{name if origin is not object else ''}@{id(origin)}"
        args = args if sees_elements(origin) else None
    if args is None:
        return name
    return f"{name}[{', '.join(render_form(arg, exact, seen, stored=stored) for arg in args) or '()'}]"


def _none_last(names: set[str]) -> list[str]:
    """Sort names, None at the end."""
    return sorted(names, key=lambda name: (name == "None", name))


def _simple_name(form: TypeForm, stored: bool = False) -> str:
    """Return the name of a class or special form, without its module and enclosing function."""
    if stored and isinstance(form, type) and (mark := find_mark(form)) is not None:
        return str(mark.name).rpartition("<locals>.")[2]
    if form is NoneType:
        return "None"
    if form is Ellipsis:
        return "..."
    if isinstance(form, str):
        return form
    for attribute in ("__qualname__", "__name__", "__forward_arg__"):
        if isinstance(name := getattr(form, attribute, None), str):
            return name.rpartition("<locals>.")[2]
    return type(form).__name__


def _value_name(value: object, stored: bool) -> str:
    """Write a literal's value; an enum member by its name, since its repr differs between versions."""
    if hasattr(type(value), "__members__"):
        return f"{_simple_name(type(value), stored)}.{getattr(value, 'name', '')}"
    return repr(value)
