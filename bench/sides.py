"""Who is measured: the pinned packages and the contestant of each side, in each of its configurations."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "holdfast"
OURS_STORED = "holdfast-sqlite"
OURS_MEMORY, OURS_FILE = "holdfast-memory", "holdfast-file"
OURS_BUSY = "holdfast-sqlite-busy"
OURS_KEYED = "holdfast-sqlite-keyed"
AGENT, AGENT_STORED = "pydantic-ai", "holdfast-sqlite + pydantic-ai"

ENVIRONMENTS = {
    "agent-framework": ("agent-framework-core==1.23.0",),
    "langgraph": ("langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2", "aiosqlite==0.22.1"),
    "dbos": ("dbos==3.3.0",),
    "pydantic-graph": ("pydantic-graph==2.66.0",),
    "llama-index": ("llama-index-workflows==2.26.1",),
    "burr": ("apache-burr==0.42.0", "aiosqlite==0.22.1"),
    "plots": ("matplotlib==3.11.2",),
    "langgraph-server": ("langgraph-api==0.16.7", "langgraph-cli[inmem]==0.4.40"),
}
"""What pip installs into environments of their own."""


@dataclass(frozen=True)
class Side:
    """One contestant in one configuration, run in a process of its own."""

    name: str
    module: str
    """The package in `bench/contestants/`."""
    variant: str
    stores: str = "nothing"
    """`nothing`, `memory`, `disk` (what is stored is not synced) or `synced`."""
    environment: str | None = None
    """The key in `ENVIRONMENTS`; None runs in the harness's own."""
    quick: bool = True
    """Whether a quick run has it."""
    imports: tuple[str, ...] = ()
    """The statements whose cost is the cost of importing this side; the first one counts for the target."""

    @property
    def is_peer(self) -> bool:
        """Whether targets compare us with it."""
        return self.environment is not None


AF, LG, LI = "agent-framework", "langgraph", "llama-index"

SIDES = (
    Side(
        OURS,
        "holdfast",
        "none",
        imports=(
            "import holdfast",
            "from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler",
        ),
    ),
    Side(OURS_MEMORY, "holdfast", "memory", "memory", quick=False),
    Side(OURS_STORED, "holdfast", "sqlite", "synced"),
    Side(OURS_FILE, "holdfast", "file", "synced", quick=False),
    Side(OURS_BUSY, "holdfast", "busy", "synced", quick=False),
    Side(OURS_KEYED, "holdfast", "keyed", "synced"),
    Side("holdfast-sqlite-async", "holdfast", "async", "synced"),
    Side("holdfast-sqlite-exit", "holdfast", "exit", "synced"),
    Side(
        AF,
        "agent_framework",
        "none",
        environment=AF,
        imports=("from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler",),
    ),
    Side(f"{AF}-memory", "agent_framework", "memory", "memory", AF, quick=False),
    Side(f"{AF}-file", "agent_framework", "file", "disk", AF),
    Side(LG, "langgraph", "none", environment=LG, imports=("from langgraph.graph import StateGraph",)),
    Side(f"{LG}-memory", "langgraph", "memory", "memory", LG, quick=False),
    Side(f"{LG}-sqlite", "langgraph", "sqlite", "synced", LG),
    Side(f"{LG}-sqlite-sync", "langgraph", "sqlite-sync", "synced", LG, quick=False),
    Side(f"{LG}-sqlite-exit", "langgraph", "sqlite-exit", "synced", LG, quick=False),
    Side(f"{LG}-delta", "langgraph", "delta", "synced", LG),
    Side(
        "dbos-sqlite",
        "dbos",
        "sqlite",
        "synced",
        "dbos",
        imports=("from dbos import DBOS",),
    ),
    Side(
        "pydantic-graph",
        "pydantic_graph",
        "none",
        environment="pydantic-graph",
        imports=("from pydantic_graph import GraphBuilder",),
    ),
    Side(LI, "llama_index", "none", environment=LI, imports=("from workflows import Workflow, step",)),
    Side(f"{LI}-file", "llama_index", "file", "disk", LI),
    Side("burr", "burr", "none", environment="burr", imports=("from burr.core import ApplicationBuilder",)),
    Side("burr-sqlite", "burr", "sqlite", "synced", "burr"),
    Side(AGENT, "agents", "direct"),
    Side("holdfast-memory + pydantic-ai", "agents", "memory", "memory", quick=False),
    Side(AGENT_STORED, "agents", "sqlite", "synced"),
    Side("limit: asyncio task", "limits", "asyncio"),
    Side("limit: append + fdatasync", "limits", "append", "synced"),
    Side("limit: bare transaction", "limits", "transaction", "synced"),
    Side("limit: same rows", "limits", "rows", "synced"),
    Side("limit: same rows + hop", "limits", "hop", "synced"),
    Side("limit: zstd-1 + fsync", "limits", "zstd", "synced"),
)
