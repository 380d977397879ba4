"""W3, W4, W7, W8, W9, W10: scripts that change state, stored at each superstep."""

from __future__ import annotations

import gc
from typing import Any

from bench.scripts import SCRIPTS, Params, expected, summary
from bench.workloads.model import (
    WITHOUT_COPY,
    Workload,
    after_first,
    first,
    first_of,
    last_of,
    supersteps_of,
    whole,
    without_own,
)


def _played(id: str, title: str, what: str, params: Params, **more: Any) -> Workload:
    """A script that is played once on a new store; by default the mean superstep after the first counts."""
    usual = {
        "unit": "ms",
        "per": "superstep after the first",
        "value": after_first,
        "figures": {"first": first},
        "answer": lambda params: summary(expected(SCRIPTS[id](params))),
        "supersteps": supersteps_of,
        "rounds": 5,
        "quick_rounds": 1,
        "fresh": True,
        "counted": True,
        "large": True,
    }
    return Workload(id=id, title=title, what=what, params=params, **{**usual, **more})


W3 = _played(
    "W3",
    "a 50 MB log in shared state while a counter changes",
    "The first superstep puts a log of 50 MB into shared state, the others change a counter and leave the log alone. "
    "The value is the mean superstep after the first.",
    {"size": 50_000_000, "supersteps": 30},
    quick={"size": 5_000_000, "supersteps": 10},
    counting={"supersteps": 4},
    warming={"size": 100_000, "supersteps": 5},
)

W4 = _played(
    "W4",
    "a history that grows by a 1 KB message each superstep",
    "Each superstep appends one message of 1,000 characters to a list in shared state.",
    {"supersteps": 500, "message": 1000},
    per="superstep",
    value=whole(supersteps_of),
    figures={"first 50": first_of(50), "last 50": last_of(50)},
    quick={"supersteps": 100},
    warming={"supersteps": 20},
    large=False,
)


YOUNG = 50_000
"""How many new objects the garbage collector waits for, where many runs live in one process."""


def _runs(runs: int, id: str, quick: int, rounds: int, young: int = YOUNG) -> Workload:
    return _played(
        id,
        f"{runs:,} concurrent runs of 20 supersteps in one process",
        "Each run changes a counter in its own state 20 times; all runs are started at once in one event loop, "
        "on one store. The value is the whole time by all supersteps of all runs. The garbage collector of every side "
        f"looks at new objects once there are {young:,} of them"
        + (", as docs/how-to/run-many-runs.md advises." if young == YOUNG else ", as Python has it."),
        {"runs": runs, "supersteps": 20, "young": young},
        unit="us",
        per="superstep",
        value=whole(lambda params: params["runs"] * params["supersteps"]),
        figures={},
        answer=lambda params: params["runs"],
        supersteps=lambda params: params["runs"] * params["supersteps"],
        quick={"runs": quick},
        warming={"runs": 5},
        counting={"runs": 10},
        rounds=rounds,
        large=False,
    )


W7_FEW = _runs(10, "W7-few", 10, rounds=10)
W7 = _runs(200, "W7", 30, rounds=8)
W7_MANY = _runs(1000, "W7-many", 100, rounds=5)
W7_DEFAULT = _runs(1000, "W7-default", 100, rounds=5, young=gc.get_threshold()[0])


def _growing(id: str, title: str, how: str, **more: Any) -> Workload:
    return _played(
        id,
        title,
        "The first superstep puts a text of 50 MB into shared state; each other one adds 1,000 characters to it, "
        + how,
        {"size": 50_000_000, "supersteps": 12, "message": 1000},
        quick={"size": 5_000_000, "supersteps": 8},
        counting={"supersteps": 4},
        warming={"size": 100_000, "supersteps": 5},
        **more,
    )


W8 = _growing(
    "W8",
    "a 50 MB text that gets 1 KB appended each superstep",
    "in the cheapest way that a side has.",
    beside="W2",
)

W8_WHOLE = _growing(
    "W8-whole",
    "the same text, read and stored as a whole each superstep",
    "by reading the whole text and storing the whole text, as code does that knows no better. What the handler itself "
    "does, a longer copy of the text, is part of the value on both sides. *Without the copy* leaves out the time in "
    "which that copy is made and memory of its size is given back: what is left is what a side does besides.",
    figures={"first": first, WITHOUT_COPY: without_own},
)

W9 = _played(
    "W9",
    "10,000 keys of state, one changed each superstep",
    "The first superstep writes all keys, each other one changes one of them.",
    {"keys": 10_000, "supersteps": 60},
    quick={"supersteps": 20},
    counting={"supersteps": 10},
    warming={"keys": 1000, "supersteps": 5},
    beside="W2",
)

W10 = _played(
    "W10",
    "a tool-calling loop of 100 rounds with 36 KB results",
    "Two executors in turn: one stands for the model and appends a short call to the history, the other for the "
    "tool and appends a result of 36,000 characters. Two supersteps per round.",
    {"rounds": 100, "result": 36_000},
    per="superstep",
    value=whole(lambda params: 2 * params["rounds"]),
    figures={"last 50": last_of(50)},
    supersteps=lambda params: 2 * params["rounds"],
    quick={"rounds": 20},
    counting={"rounds": 40},
    warming={"rounds": 5},
)
