"""Finds the types that a workflow declares, and the classes that a type names."""

from __future__ import annotations

import sys
import typing
from collections import deque
from collections.abc import Iterator
from enum import Enum
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Literal, get_args

from holdfast.graph.executor import Executor, FunctionExecutor, Recipe, RequestInfoExecutor
from holdfast.graph.graph import Graph
from holdfast.graph.spec import ExecutorSpec
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.types import TypeForm, members, origin_of


def declared_forms(graph: Graph, path: str = "") -> Iterator[tuple[str, TypeForm]]:
    """Give the types that handlers take, send, give out, ask with and are answered with, and those of state keys.

    Each comes with the executor that declares it, for errors.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def count(text: str) -> int:
    ...     return len(text)
    >>> list(declared_forms(WorkflowBuilder(name="Count").set_start_executor(count).build().graph))
    [("executor 'count'", <class 'str'>), ("executor 'count'", <class 'int'>)]
    """
    for spec in graph.executors.values():
        where = f"executor {path + spec.id!r}"
        for handler in spec.handlers:
            signed = handler.signature
            yield where, signed.accepts
            yield from ((where, form) for form in (*signed.sends, *signed.yields, *signed.returns))
            if signed.request is not None:
                yield where, signed.request
        yield from ((where, form) for form in _further(spec))
        if spec.nested is not None:
            yield from declared_forms(spec.nested, f"{path}{spec.id}/")


def _further(spec: ExecutorSpec) -> Iterator[TypeForm]:
    """Give the types that are declared outside signatures: by state keys, and as the response to a request."""
    placed = spec.shared_instance or getattr(spec.create, "__self__", None)
    if isinstance(placed, FunctionExecutor):
        yield from _keys_of(placed.function)
    if isinstance(placed, RequestInfoExecutor):
        yield placed.response_type
    if isinstance(placed, Recipe) and issubclass(placed.executor_class, RequestInfoExecutor):
        yield placed.kwargs.get("response_type", *placed.args[1:2])
    cls = placed.executor_class if isinstance(placed, Recipe) else type(placed)
    for base in cls.__mro__:
        if base not in (object, Executor):
            for attribute in vars(base).values():
                yield from _keys_of(attribute)


def _keys_of(thing: Any) -> Iterator[TypeForm]:
    """Give the type of an attribute that is a state key, or the types of those that a function refers to."""
    if isinstance(thing, StateKey):
        yield thing.type
        return
    thing = getattr(thing, "__func__", thing)  # of a classmethod or staticmethod
    while isinstance(wrapped := getattr(thing, "__wrapped__", None), FunctionType):
        thing = wrapped
    if isinstance(thing, FunctionType):
        yield from (key.type for key in _named_in(thing) if isinstance(key, StateKey))


def _named_in(function: FunctionType) -> Iterator[object]:
    """Give the objects that a function can name: globals, closure cells, attributes of modules and classes."""
    names = _names_in(function.__code__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        found = function.__globals__.get(name)
        yield found
        if isinstance(found, ModuleType | type):
            yield from (vars(found).get(attribute) for attribute in names)


def _names_in(code: CodeType) -> list[str]:
    """Return the names in a function's code and in the functions inside it, each once."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= dict.fromkeys(_names_in(constant))
    return list(names)


# Classes of these libraries are not the user's: they are not followed, and do not make derived classes allowed.
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
    """Return True if a class belongs to the language or to a library of data classes, not to the user."""
    return _root(cls) in _FOUNDATIONS


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def classes_in(form: TypeForm) -> Iterator[type]:
    """Give the classes that a form names, in unions, containers, literals and arguments; not those of the language."""
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
    """Give the declared types of the fields of a class, without hints that cannot be resolved."""
    if is_foundation(cls):
        return
    if (fields := vars(cls).get("__pydantic_fields__")) is not None:  # resolved by pydantic, which knows best
        yield from (field.annotation for field in fields.values())
    for base in getattr(cls, "__orig_bases__", ()):
        yield from get_args(base)
    try:
        yield from typing.get_type_hints(cls, include_extras=True).values()
    except Exception:  # an annotation is an expression, which may raise anything
        yield from _each_hint(cls)


def _neighbours(cls: type) -> dict[str, type]:
    """Return the classes in the scopes around a class, by name; the namespaces of functions are gone by then.

    A function that was called again made all of its classes again. Of several with one name, the one is taken whose age
    among them is that of ``cls`` among the classes with its name.
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
    """Give the classes derived from ``root``, oldest first below each."""
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
            except Exception:  # skip this hint, not the others
                continue
