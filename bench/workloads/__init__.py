"""What is measured: each workload's parameters, unit and right answer.

Nothing here is imported from any side, because workers load this package in every environment.
To add a workload: describe it here, then give it an entry in each contestant that can do it.
"""

from __future__ import annotations

from bench.scripts import Params
from bench.workloads.agents import W11
from bench.workloads.limits import IMPORT, L1, L2, L3, START, W6
from bench.workloads.model import Timed, Workload
from bench.workloads.plain import W1, W2, W5
from bench.workloads.serving import SERVE, WATCH
from bench.workloads.stored import W3, W4, W7, W7_DEFAULT, W7_FEW, W7_MANY, W8, W8_WHOLE, W9, W10

__all__ = ["GROUPS", "WORKLOADS", "Params", "Timed", "Workload", "select"]

WORKLOADS = (
    *(W1, W2, W3, W4, W5, W6, W7_FEW, W7, W7_MANY, W7_DEFAULT, W8, W8_WHOLE, W9, W10, W11),
    *(L1, L2, L3, IMPORT, START, SERVE, WATCH),
)

GROUPS = {
    "limits": ("L1", "L2", "L3"),
    "w7": ("W7-few", "W7", "W7-many", "W7-default"),
    "w8": ("W8", "W8-whole"),
}
"""Names that stand for several workloads on the command line."""


def select(names: str) -> tuple[Workload, ...]:
    """The workloads of a comma-separated list of ids or group names, in the order of the table; "" means all."""
    known = {workload.id.lower(): workload.id for workload in WORKLOADS}
    wanted: set[str] = set()
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name.lower() in GROUPS:
            wanted.update(GROUPS[name.lower()])
        elif name.lower() in known:
            wanted.add(known[name.lower()])
        else:
            raise ValueError(f"unknown workload {name!r}; known: {', '.join([*known.values(), *GROUPS])}")
    return tuple(workload for workload in WORKLOADS if not wanted or workload.id in wanted)
