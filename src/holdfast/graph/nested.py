"""A workflow as an executor of another workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.graph.executor import Executor

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph


class Nestable(Protocol):
    """What a workflow must show to be nested."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def graph(self) -> Graph:
        """Its graph."""
        ...


class WorkflowExecutor(Executor):
    """Nests a workflow: each message that it takes starts it anew, its outputs are sent on.

    Nesting is inlining: the nested executors run in the supersteps of the outer workflow, with addresses
    like ``review#1/draft`` and state of their own. Their questions surface with that address.

    >>> from holdfast import WorkflowBuilder, WorkflowExecutor, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> inner = WorkflowBuilder(name="Inner").set_start_executor(double).build()
    >>> outer = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="twice")).build()
    >>> outer.run_sync(21).outputs
    [42]
    """

    shareable = True

    def __init__(self, workflow: Nestable, id: str | None = None) -> None:
        super().__init__(id if id is not None else workflow.name)
        self._workflow = workflow

    @property
    def workflow(self) -> Nestable:
        """The workflow that is nested."""
        return self._workflow
