"""W3, W4, W7, W8, W9, W10: scripts that change state, stored at each superstep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.scripts import SCRIPTS, Params, expected, summary
from bench.workloads.model import Workload, after_first, first, first_of, last_of, whole


def _state(script: str) -> Callable[[Params], Any]:
    return lambda params: summary(expected(SCRIPTS[script](params)))


def _supersteps(params: Params) -> int:
    return params["supersteps"]


W3 = Workload(
    id="W3",
    large=True,
    title="a 50 MB log in shared state while a counter changes",
    what=(
        "The first superstep puts a log of 50 MB into shared state, the others change a counter and leave the log "
        "alone. The value is the mean superstep after the first."
    ),
    unit="ms",
    per="superstep after the first",
    params={"size": 50_000_000, "supersteps": 30},
    value=after_first,
    figures={"first": first},
    answer=_state("W3"),
    supersteps=_supersteps,
    quick={"size": 5_000_000, "supersteps": 10},
    counting={"supersteps": 4},
    warming={"size": 100_000, "supersteps": 5},
    rounds=2,
    quick_rounds=1,
    fresh=True,
    counted=True,
)

W4 = Workload(
    id="W4",
    title="a history that grows by a 1 KB message each superstep",
    what="Each superstep appends one message of 1,000 characters to a list in shared state.",
    unit="ms",
    per="superstep",
    params={"supersteps": 500, "message": 1000},
    value=whole(_supersteps),
    figures={"first 50": first_of(50), "last 50": last_of(50)},
    answer=_state("W4"),
    supersteps=_supersteps,
    quick={"supersteps": 100},
    warming={"supersteps": 20},
    rounds=3,
    quick_rounds=1,
    fresh=True,
    counted=True,
)


def _runs(runs: int, id: str, quick: int, rounds: int) -> Workload:
    return Workload(
        id=id,
        title=f"{runs:,} concurrent runs of 20 supersteps in one process",
        what=(
            "Each run changes a counter in its own state 20 times; all runs are started at once in one event loop, "
            "on one store. The value is the whole time by all supersteps of all runs."
        ),
        unit="us",
        per="superstep",
        params={"runs": runs, "supersteps": 20},
        value=whole(lambda params: params["runs"] * params["supersteps"]),
        answer=lambda params: params["runs"],
        supersteps=lambda params: params["runs"] * params["supersteps"],
        quick={"runs": quick},
        warming={"runs": 5},
        counting={"runs": 10},
        rounds=rounds,
        quick_rounds=1,
        fresh=True,
        counted=True,
    )


W7_FEW = _runs(10, "W7-few", 10, rounds=10)
W7 = _runs(200, "W7", 30, rounds=2)
W7_MANY = _runs(1000, "W7-many", 100, rounds=2)

GROWING = (
    "The first superstep puts a text of 50 MB into shared state; each other one adds 1,000 characters to it"
)

W8 = Workload(
    id="W8",
    large=True,
    beside="W2",
    title="a 50 MB text that gets 1 KB appended each superstep",
    what=f"{GROWING}, in the cheapest way that a side has.",
    unit="ms",
    per="superstep after the first",
    params={"size": 50_000_000, "supersteps": 12, "message": 1000},
    value=after_first,
    figures={"first": first},
    answer=_state("W8"),
    supersteps=_supersteps,
    quick={"size": 5_000_000, "supersteps": 8},
    counting={"supersteps": 4},
    warming={"size": 100_000, "supersteps": 5},
    rounds=2,
    quick_rounds=1,
    fresh=True,
    counted=True,
)

W8_WHOLE = Workload(
    id="W8-whole",
    large=True,
    title="the same text, read and stored as a whole each superstep",
    what=f"{GROWING}, by reading the whole text and storing the whole text, as code does that knows no better.",
    unit="ms",
    per="superstep after the first",
    params={"size": 50_000_000, "supersteps": 12, "message": 1000},
    value=after_first,
    figures={"first": first},
    answer=_state("W8-whole"),
    supersteps=_supersteps,
    quick={"size": 5_000_000, "supersteps": 8},
    counting={"supersteps": 4},
    warming={"size": 100_000, "supersteps": 5},
    rounds=2,
    quick_rounds=1,
    fresh=True,
    counted=True,
)

W9 = Workload(
    id="W9",
    large=True,
    title="10,000 keys of state, one changed each superstep",
    what="The first superstep writes all keys, each other one changes one of them.",
    unit="ms",
    per="superstep after the first",
    params={"keys": 10_000, "supersteps": 60},
    value=after_first,
    figures={"first": first},
    answer=_state("W9"),
    supersteps=_supersteps,
    quick={"supersteps": 20},
    counting={"supersteps": 10},
    warming={"keys": 1000, "supersteps": 5},
    beside="W2",
    rounds=3,
    quick_rounds=1,
    fresh=True,
    counted=True,
)

W10 = Workload(
    id="W10",
    large=True,
    title="a tool-calling loop of 100 rounds with 36 KB results",
    what=(
        "Two executors in turn: one stands for the model and appends a short call to the history, the other for the "
        "tool and appends a result of 36,000 characters. Two supersteps per round."
    ),
    unit="ms",
    per="superstep",
    params={"rounds": 100, "result": 36_000},
    value=whole(lambda params: 2 * params["rounds"]),
    figures={"last 50": last_of(50)},
    answer=_state("W10"),
    supersteps=lambda params: 2 * params["rounds"],
    quick={"rounds": 20},
    counting={"rounds": 40},
    warming={"rounds": 5},
    rounds=2,
    quick_rounds=1,
    fresh=True,
    counted=True,
)
