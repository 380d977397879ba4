"""What a workflow declares: the types that its checkpoints can hold."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.graph.executor import Executor, FunctionExecutor, Recipe, RequestInfoExecutor
from holdfast.graph.graph import Graph
from holdfast.graph.spec import ExecutorSpec
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.types import TypeForm


def declared_forms(graph: Graph, path: str = "") -> Iterator[tuple[str, TypeForm]]:
    """The types that handlers take, send, give out, ask with and are answered with, and those of state keys.

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
    """What is declared outside signatures: by state keys, and as the response that is asked for."""
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
    """The types of the state keys that an attribute is, or that a function refers to."""
    if isinstance(thing, StateKey):
        yield thing.type
        return
    thing = getattr(thing, "__func__", thing)  # of a classmethod or staticmethod
    while isinstance(wrapped := getattr(thing, "__wrapped__", None), FunctionType):
        thing = wrapped
    if isinstance(thing, FunctionType):
        yield from (key.type for key in _named_in(thing) if isinstance(key, StateKey))


def _named_in(function: FunctionType) -> Iterator[object]:
    """What a function can reach by name: globals, closure cells, and attributes of modules and classes."""
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
    """The names in a function's code and in the functions inside it, each once."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= dict.fromkeys(_names_in(constant))
    return list(names)
