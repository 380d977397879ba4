"""What is measured: each workload's parameters, unit, right answer and target, in one place.

Nothing here is imported from any side, because workers load this file in every environment.
To add a workload: describe it in `WORKLOADS`, then give it an entry in each contestant that can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Params = Mapping[str, int]
"""Parameters of a workload by name, as given by `--param W1.supersteps=500`."""

UNITS = {"us": 1e6, "ms": 1e3}


@dataclass(frozen=True)
class Target:
    """What our side has to reach; reported as PASS or MISS, never asserted."""

    factor: float | None = None
    """At least this many times faster than the fastest peer."""
    below: float | None = None
    """Our median below this, in the workload's unit."""

    def describe(self, unit: str) -> str:
        """The target in words."""
        if self.factor is not None:
            return f"at least {self.factor:g} times faster than the fastest peer"
        return f"below {self.below:g} {unit}"


@dataclass(frozen=True)
class Workload:
    """One thing that every side does in its own way, with one right answer."""

    id: str
    title: str
    what: str
    unit: str
    per: str
    """What one measured value is the time of."""
    params: Params
    divisor: Callable[[Params], int]
    """How many of `per` one run holds."""
    answer: Callable[[Params], int] | None
    """The result that every side has to give; None where the harness measures without a worker."""
    supersteps: Callable[[Params], int] | None = None
    """How many supersteps every side has to report, where the topology fixes it."""
    target: Target | None = None
    quick: Params = field(default_factory=dict)
    """Parameters that differ in a quick run."""

    def value(self, seconds: float, params: Params) -> float:
        """The measured value of one run, in the workload's unit."""
        return seconds / self.divisor(params) * UNITS[self.unit]


def fan_answer(params: Params) -> int:
    """The sum that the hub holds after the last round: each of `width` workers adds its index to the round."""
    width, last = params["width"], params["rounds"] - 1
    return width * last + width * (width - 1) // 2


WORKLOADS = (
    Workload(
        id="W1",
        title="chain of trivial supersteps, no storage",
        what=(
            "A chain of distinct async executors; each takes an int, adds 1 and passes it on, the last one yields it. "
            "One superstep per executor. All events on, consumed as a stream; nothing is stored. "
            "A chain and not a loop, because every side expresses it with static edges only: a loop needs a "
            "condition, which costs langgraph about as much again as the step itself."
        ),
        unit="us",
        per="superstep",
        params={"supersteps": 200},
        divisor=lambda params: params["supersteps"],
        answer=lambda params: params["supersteps"],
        supersteps=lambda params: params["supersteps"],
        target=Target(factor=10),
    ),
    Workload(
        id="W5",
        title="fan-out of 1 to 100 and back to 1, ten rounds, no storage",
        what=(
            "A hub sends the round number to 100 workers; each adds its own index; the hub gets all 100 answers, "
            "checks their count and sum, and starts the next round. Two supersteps per round (the hub is both ends "
            "of the fan, which spares every side a superstep). All events on, consumed as a stream; nothing is stored."
        ),
        unit="ms",
        per="round",
        params={"width": 100, "rounds": 10},
        divisor=lambda params: params["rounds"],
        answer=fan_answer,
        supersteps=lambda params: 2 * params["rounds"] + 1,
        target=Target(factor=5),
    ),
    Workload(
        id="L1",
        title="limit: one bare await",
        what="Awaiting a coroutine that does nothing, in a loop.",
        unit="us",
        per="await",
        params={"count": 100_000},
        divisor=lambda params: params["count"],
        answer=lambda params: params["count"],
    ),
    Workload(
        id="L2",
        title="limit: one asyncio task",
        what="Creating a task around a coroutine that does nothing, and awaiting it, one at a time.",
        unit="us",
        per="task",
        params={"count": 10_000},
        divisor=lambda params: params["count"],
        answer=lambda params: params["count"],
    ),
    Workload(
        id="L3",
        title="limit: one gather of 100",
        what="`asyncio.gather` of 100 coroutines that do nothing.",
        unit="ms",
        per="gather",
        params={"count": 50, "width": 100},
        divisor=lambda params: params["count"],
        answer=lambda params: params["count"] * params["width"],
    ),
    Workload(
        id="import",
        title="what the import adds to bare Python",
        what=(
            "The wall time of `python -I -c 'import ...'` less that of `python -I -c pass`, "
            "in pairs of fresh processes."
        ),
        unit="ms",
        per="import",
        params={},
        divisor=lambda _: 1,
        answer=None,
        target=Target(below=60),
    ),
)

GROUPS = {"limits": ("L1", "L2", "L3")}
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
