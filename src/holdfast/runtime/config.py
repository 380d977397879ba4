"""The settings of a workflow's runs, and the workflow as its runs need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.durability import Durability
from holdfast.engine.limits import Limits

# Imported with ``holdfast`` itself, so it imports little.
if TYPE_CHECKING:
    from holdfast.checkpoint.retention import Retention
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.graph.graph import Graph
    from holdfast.ids import ExecutorId
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


class WorkflowDefinition(NamedTuple):
    """A workflow as its runs need it."""

    graph: Graph
    name: str
    config: RunConfig
    environment: Environment
    shared: Mapping[ExecutorId, PlacedExecutor]
    """The executors that serve all runs."""
