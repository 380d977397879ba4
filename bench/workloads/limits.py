"""What no engine can do without: asyncio by itself, the import, and a new process."""

from __future__ import annotations

from bench.workloads.model import Workload, whole

L1 = Workload(
    id="L1",
    title="limit: one bare await",
    what="Awaiting a coroutine that does nothing, in a loop.",
    unit="us",
    per="await",
    params={"count": 100_000},
    value=whole(lambda params: params["count"]),
    answer=lambda params: params["count"],
)

L2 = Workload(
    id="L2",
    title="limit: one asyncio task",
    what="Creating a task around a coroutine that does nothing, and awaiting it, one at a time.",
    unit="us",
    per="task",
    params={"count": 10_000},
    value=whole(lambda params: params["count"]),
    answer=lambda params: params["count"],
)

L3 = Workload(
    id="L3",
    title="limit: one gather of 100",
    what="`asyncio.gather` of 100 coroutines that do nothing.",
    unit="ms",
    per="gather",
    params={"count": 50, "width": 100},
    value=whole(lambda params: params["count"]),
    answer=lambda params: params["count"] * params["width"],
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

W6 = Workload(
    id="W6",
    title="going on in a new process, and listing all metadata",
    what=(
        "A process plays W3 or W4 and is killed at the start of its last superstep but one. A new process goes on: the "
        "time from its first statement, before the import of the side, to the first executor that runs. Beside it: the "
        "time to import the side and open an empty store. After W4, one more new process lists the metadata of all "
        "checkpoints (the time of the call alone)."
    ),
    unit="ms",
    per="going on after W4",
    params={"size": 50_000_000, "log_supersteps": 6, "supersteps": 500, "message": 1000},
    value=lambda timed, _: timed.seconds,
    answer=None,
    quick={"size": 5_000_000, "supersteps": 100},
    rounds=3,
    quick_rounds=1,
)
