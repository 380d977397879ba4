"""Workflows to compare, and what is said about their differences."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from holdfast import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, handler
from tests.support.parts import describe_difference, description_text

Build = Callable[[WorkflowBuilder], object]


@cache  # two classes would be two executors
def placed(name: str, accepts: Any = object, sends: Any = Any, yields: Any = None) -> Any:
    async def work(self: Any, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    mark = handler(input=accepts, output=sends, workflow_output=yields)
    cls: Any = type("Placed", (Executor,), {"work": mark(work)})
    return cls.bind(id=name)


A, B, C, D = (placed(name) for name in "ABCD")


def built(build: Build, start: Any = A, name: str = "Sample") -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(start)
    build(builder)
    return builder.build()


def told(before: Workflow, after: Workflow) -> list[str]:
    """The difference as a resumed run sees it: one description comes back from where it was stored."""
    stored = json.loads(description_text(before.graph))
    lines = describe_difference(stored, after.graph.description, after.graph)
    assert all(line.isprintable() and line for line in lines)
    assert (lines == []) == (before.fingerprint == after.fingerprint)
    return lines


def between(before: Build, after: Build) -> list[str]:
    return told(built(before), built(after))


def direct(condition: Any = None, label: str | None = None) -> Build:
    return lambda builder: builder.add_edge(A, B, condition=condition, label=label)


def always(message: object) -> bool:
    return True


def pipeline(*names: str, aliases: dict[str, str] | None = None) -> Workflow:
    """A chain whose last but one can go back to the first, of executors that all take and send the same."""

    def build(builder: WorkflowBuilder) -> None:
        chain = [placed(name, str, str) for name in names]
        builder.add_chain(chain).add_edge(chain[-2], chain[0], always, "again")
        for old, new in (aliases or {}).items():
            builder.with_alias(old, new)

    return built(build, start=placed(names[0], str, str))


def guess(old: str, new: str) -> str:
    return f"executor {old!r} may be called {new!r} now: say so with .with_alias({old!r}, {new!r})"


def nesting(*inner: Workflow) -> Workflow:
    """Hosts ``review``, ``review1`` and so on, one after the other."""
    hosts = [WorkflowExecutor(w, id=f"review{number or ''}") for number, w in enumerate(inner)]
    return built(lambda b: b.add_chain([A, *hosts]), name=f"Outer{max(w.graph.depth for w in inner)}")
