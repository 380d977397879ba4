"""What may stand in an edge, and what to say about what may not."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.errors import GraphError
from holdfast.graph.executor import Executor, FunctionExecutor, Recipe
from holdfast.graph.graph import Graph
from holdfast.graph.nested import WorkflowExecutor
from holdfast.graph.spec import ExecutorSpec, spec_of

Placeable: TypeAlias = type[Executor] | Recipe | Executor | str
"""What may stand in an edge: a class, a recipe, an instance, a decorated function or an id."""


def spec_of_placeable(
    executor: type[Executor] | Recipe | Executor, known: dict[type[Executor], ExecutorSpec] | None = None
) -> ExecutorSpec:
    """The spec of what was put in an edge; raises ``GraphError`` if it cannot stand there."""
    if not isinstance(executor, Recipe | Executor) and not _is_executor_class(executor):
        raise GraphError(_why_not_placeable(executor))
    if isinstance(executor, Recipe) and issubclass(executor.executor_class, WorkflowExecutor):
        raise GraphError(f"{executor!r}: nest a workflow with WorkflowExecutor(workflow, id='...') itself")
    return spec_of(executor, known=known)


def id_hint(executor: object) -> str:
    """How to give an executor another id."""
    if isinstance(executor, FunctionExecutor):
        return "@executor(id='...')"
    cls = executor if isinstance(executor, type) else type(executor)
    if isinstance(executor, Recipe):
        cls = executor.executor_class
    return f"{cls.__name__}.bind(id='...')"


def _is_executor_class(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Executor)


def _why_not_placeable(thing: object) -> str:
    if isinstance(getattr(thing, "graph", None), Graph):
        return f"{thing!r} cannot stand in an edge itself; nest it with WorkflowExecutor(workflow, id='...')"
    if isinstance(thing, type):
        return f"class {thing.__name__} is not an Executor; derive it from Executor"
    if callable(thing):
        name = getattr(thing, "__name__", repr(thing))
        return f"function {name!r} is not an executor; decorate it with @executor"
    return (
        f"{thing!r} cannot stand in an edge; use an Executor class, Class.bind(...), an instance, "
        f"a function decorated with @executor, or an id"
    )
