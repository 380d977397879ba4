"""Who is measured: the pinned packages and the contestant file of each side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OURS = "holdfast"


@dataclass(frozen=True)
class Side:
    """One contestant in one configuration, run in one long-lived process."""

    name: str
    module: str
    """The file in `bench/contestants/`, without its ending."""
    requirement: str | None = None
    """What pip installs into the side's own environment; None runs in the harness's own."""
    extra_requirements: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    """The statements whose cost is the cost of importing this side; the first one counts for the target."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Parameters laid over those of every workload: the same contestant may enter twice, set up differently."""

    @property
    def is_peer(self) -> bool:
        """Whether targets compare us with it."""
        return self.requirement is not None


SIDES = (
    Side(
        name=OURS,
        module="holdfast",
        imports=(
            "import holdfast",
            "from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler",
        ),
    ),
    Side(
        name="agent-framework",
        module="agent_framework",
        requirement="agent-framework-core==1.23.0",
        imports=("from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler",),
    ),
    Side(
        name="langgraph",
        module="langgraph",
        requirement="langgraph==1.2.20",
        imports=("from langgraph.graph import StateGraph",),
    ),
    Side(name="asyncio", module="limits"),
)
