"""The settings of a workflow's runs, the workflow as its runs need it, and what a caller gives to one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from holdfast.engine.durability import Durability
from holdfast.engine.limits import Limits
from holdfast.errors import RunContextMissing, WrongType

# Imported with ``holdfast`` itself, so it imports little.
if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.receipts import Receipt
    from holdfast.checkpoint.retention import Retention
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.graph.graph import Graph
    from holdfast.ids import ExecutorId
    from holdfast.runtime.durable.fork_edits import ForkEdits
    from holdfast.runtime.environment import Environment
    from holdfast.runtime.step.executors import PlacedExecutor


class RunConfig(NamedTuple):
    """The settings that all runs of one workflow share.

    >>> RunConfig(max_iterations=9).durability
    'sync'
    """

    max_iterations: int = 100
    limits: Limits = Limits()
    environment: Environment | None = None
    """The clock, ids and timers of the runs; None is the environment that is current when the workflow is made."""
    storage: CheckpointStorage | None = None
    retention: Retention | None = None
    durability: Durability = "sync"
    team_size: tuple[int, int] | None = None
    """The numbers of agents and layers of a team of agents, which its started event tells."""


class WorkflowDefinition(NamedTuple):
    """A workflow as its runs need it."""

    graph: Graph
    name: str
    config: RunConfig
    environment: Environment
    shared: Mapping[ExecutorId, PlacedExecutor]
    """The executors that serve all runs."""


class ResumeCall(NamedTuple):
    """A call that goes on with a stored run: from where, with what, and on whose behalf."""

    checkpoint: str | CheckpointInfo | None = None
    """The checkpoint to go on from; None for where the run ``run_id`` stands."""
    run_id: str | None = None
    responses: Mapping[Any, Any] | None = None
    allow_graph_change: bool = False
    take_over: bool = False
    key: str | None = None
    """Makes the call once in the life of the run."""
    by: str | None = None


class ForkCall(NamedTuple):
    """A call that forks a stored run: from where, edited how, under which id, and on whose behalf."""

    checkpoint: str | CheckpointInfo
    edits: Mapping[Any, Any] | ForkEdits | None = None
    run_id: str | None = None
    """The id of the new run; None for a made-up one."""
    allow_graph_change: bool = False
    by: str | None = None
    receipt: Receipt | None = None
    """Says that a call with a key made the fork; kept with its first commit."""


class RunContext(Mapping[str, Any]):
    """The values that a caller gave to a run, for its handlers: read-only, and never stored.

    >>> given = RunContext({"tenant": "acme"})
    >>> given["tenant"], given.get("token"), given
    ('acme', None, RunContext with 'tenant')
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise WrongType(
                f"run_context is a dict of names and values, like {{'client': client}}, not a {type(values).__name__}"
            )
        self._values = dict(values) if values else {}
        for name in self._values:
            if not isinstance(name, str):
                raise WrongType(
                    f"run_context: its names are texts, but one is a {type(name).__name__}: {name!r}"
                )

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise RunContextMissing(
                # Without the names that it has: a store keeps this text as the reason why the run failed.
                f"the run context has no {name!r}; give it where the run is started or gone on with, like "
                f"workflow.start(..., run_context={{{name!r}: ...}}), also to resume, and for runs that a host wakes "
                f"with Host(..., run_context=function)",
                name=name,
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        # Values may be secret, and this gets into logs and errors.
        return f"RunContext with {', '.join(map(repr, self._values)) or 'nothing'}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the run context is never stored, copied or sent; send what you need of it")


NO_RUN_CONTEXT = RunContext()
