"""The events of a team of agents; stored with the run, so that ``storage.watch`` gives them as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.events.events import WorkflowEvent


@checkpointable(name="holdfast.WorkflowAgentStartedEvent")
@dataclass
class WorkflowAgentStartedEvent(WorkflowEvent):
    """An agent of a team begins to work.

    >>> WorkflowAgentStartedEvent("review", 1).agent
    'review'
    """

    agent: str = ""
    layer: int = 0
    round: int = 1
    """The round of the innermost loop around the agent."""
    replayed: bool = False
    """True if it happened before the run was resumed, and is told again."""


@checkpointable(name="holdfast.WorkflowAgentCompletedEvent")
@dataclass
class WorkflowAgentCompletedEvent(WorkflowEvent):
    """An agent of a team is done, or failed where its errors do not stop the run.

    >>> WorkflowAgentCompletedEvent("review", outputs={"score": 7}).outputs["score"]
    7
    """

    agent: str = ""
    layer: int = 0
    success: bool = True
    duration: float = 0.0
    """Seconds since it began, with the time in which people were asked."""
    progress: float = 0.0
    """The share of the team's layers up to that of this agent, from 0 to 1."""
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    replayed: bool = False


@checkpointable(name="holdfast.WorkflowAgentSkippedEvent")
@dataclass
class WorkflowAgentSkippedEvent(WorkflowEvent):
    """No edge to an agent was taken, so it does not work this time.

    >>> WorkflowAgentSkippedEvent("refund", reason="edge 'triage' -> 'refund': kind is 'refund'").agent
    'refund'
    """

    agent: str = ""
    layer: int = 0
    reason: str = ""
    """The edges that were refused, with their conditions."""
    replayed: bool = False


@checkpointable(name="holdfast.WorkflowEdgeTraversedEvent")
@dataclass
class WorkflowEdgeTraversedEvent(WorkflowEvent):
    """An edge was taken.

    >>> WorkflowEdgeTraversedEvent("triage", "refund", "kind is 'refund'").condition
    "kind is 'refund'"
    """

    source: str = ""
    target: str = ""
    condition: str | None = None
    """The condition that was met, in words; None for an edge without one."""
    replayed: bool = False


@checkpointable(name="holdfast.WorkflowLayerStartedEvent")
@dataclass
class WorkflowLayerStartedEvent(WorkflowEvent):
    """The agents of a layer begin; those of a loop are told anew in each of its rounds.

    >>> WorkflowLayerStartedEvent(1, 2).node_count
    2
    """

    index: int = 0
    node_count: int = 0
    replayed: bool = False


@checkpointable(name="holdfast.WorkflowLayerCompletedEvent")
@dataclass
class WorkflowLayerCompletedEvent(WorkflowEvent):
    """Each agent of a layer is done, failed or was skipped.

    >>> WorkflowLayerCompletedEvent(1, 2.5, 2).successes
    2
    """

    index: int = 0
    duration: float = 0.0
    successes: int = 0
    replayed: bool = False


@checkpointable(name="holdfast.WorkflowDiagnosticEvent")
@dataclass
class WorkflowDiagnosticEvent(WorkflowEvent):
    """Something that whoever looks after a team may want to know.

    >>> WorkflowDiagnosticEvent("warning", "approval", "nobody answered in time", "refund").level
    'warning'
    """

    level: Literal["info", "warning", "error"] = "info"
    source: str = ""
    """The part of the team that tells it: ``"approval"``, ``"router"``, ``"errors"``, ``"end"``."""
    message: str = ""
    node: str | None = None
    replayed: bool = False
