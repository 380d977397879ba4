"""W11: what durable calls cost an agent."""

from __future__ import annotations

from bench.scripts import Params
from bench.workloads.model import Workload, whole


def calls_of(params: Params) -> int:
    """Count the model calls and tool calls of a loop: one of each in a round, and the model's last word."""
    return 2 * int(params["rounds"]) + 1


W11 = Workload(
    id="W11",
    title="a tool loop of an agent whose model answers at once",
    what=(
        "An agent of pydantic-ai asks its model, calls the tool that it wants, and so on for 20 rounds; model and tool "
        "do nothing. Called directly, and as an executor of a workflow, which records each call before the next. The "
        "store is open already: runs are repeated, and one goes before."
    ),
    unit="us",
    per="call",
    params={"rounds": 20},
    value=whole(calls_of),
    answer=lambda params: "done",
    counted=True,
    rounds=10,
    quick_rounds=3,
    warming={"rounds": 3},
)
