"""What no engine can do without: asyncio by itself, the import, a new process, and going on in one (W6)."""

from __future__ import annotations

from bench.scripts import Params
from bench.workloads.model import Workload, whole


def _counted(id: str, title: str, what: str, unit: str, per: str, params: Params) -> Workload:
    return Workload(
        id=id,
        title=title,
        what=what,
        unit=unit,
        per=per,
        params=params,
        value=whole(lambda params: params["count"]),
        answer=lambda params: params["count"] * params.get("width", 1),
    )


L1 = _counted(
    "L1",
    "limit: one bare await",
    "Awaiting a coroutine that does nothing, in a loop.",
    "us",
    "await",
    {"count": 100_000},
)
L2 = _counted(
    "L2",
    "limit: one asyncio task",
    "Creating a task around a coroutine that does nothing, and awaiting it, one at a time.",
    "us",
    "task",
    {"count": 10_000},
)
L3 = _counted(
    "L3",
    "limit: one gather of 100",
    "`asyncio.gather` of 100 coroutines that do nothing.",
    "ms",
    "gather",
    {"count": 50, "width": 100},
)

IMPORT = Workload(
    id="import",
    title="what the import adds to bare Python",
    what=(
        "The wall time of `python -c 'import ...'` less that of `python -c pass`, "
        "in pairs of fresh processes."
    ),
    unit="ms",
    per="import",
    params={},
    value=lambda timed, _: timed.seconds,
    answer=None,
    rounds=5,
    quick_rounds=1,
)

START = Workload(
    id="start",
    title="what a start of the command adds to bare Python",
    what=(
        "The wall time of `holdfast --help`, and of `holdfast runs ls` on a store with many runs, less that of "
        "`python -c pass`, in pairs of fresh processes."
    ),
    unit="ms",
    per="start",
    params={"runs": 100_000},
    value=lambda timed, _: timed.seconds,
    answer=None,
    rounds=15,
    quick_rounds=1,
)

W6 = Workload(
    id="W6",
    title="going on in a new process, and listing all metadata",
    what=(
        "A process plays W3 or W4 and is killed at the start of its last superstep but one. A new process goes on: the "
        "time from its first statement, before the import of the side, to the first executor that runs. Beside it: the "
        "time to import the side and open an empty store. After W4, one more new process lists the metadata of all "
        "checkpoints, and another that of as many as there were supersteps, where the side can list fewer than all "
        "(the time of the call alone)."
    ),
    unit="ms",
    per="going on after W4",
    params={"size": 50_000_000, "log_supersteps": 6, "supersteps": 500, "message": 1000},
    value=lambda timed, _: timed.seconds,
    answer=None,
    quick={"size": 5_000_000, "supersteps": 100},
    rounds=5,
    quick_rounds=1,
)
