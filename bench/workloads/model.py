"""What a workload is: parameters, unit, right answer, and how values come from what a worker measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.scripts import Params

UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0}
WITHOUT_COPY = "without the copy"


@dataclass(frozen=True)
class Timed:
    """What a worker says of one run: seconds in all, and when each superstep began, from the start of the run."""

    seconds: float
    marks: tuple[float, ...] = ()
    own: float = 0.0
    """The seconds in which handlers did work of their own, which no store can spare them."""


Value: TypeAlias = Callable[[Timed, Params], float]
"""Seconds, taken from a run."""


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
    value: Value
    """The seconds of one `per`."""
    answer: Callable[[Params], Any] | None
    """The result that every side has to give; None where the harness measures without a worker."""
    supersteps: Callable[[Params], int] | None = None
    """How many supersteps every side has to report, where the topology fixes it."""
    figures: Mapping[str, Value] = field(default_factory=dict)
    """More times to be taken from the same run, by name."""
    quick: Params = field(default_factory=dict)
    """Parameters that differ in a quick run."""
    counting: Params = field(default_factory=dict)
    """Parameters that differ in the run in which bytes and syncs are counted."""
    warming: Params = field(default_factory=dict)
    """Parameters that differ in the round that warms up."""
    beside: str = ""
    """Another workload that our side does right after this one, for comparison: machines drift between tables."""
    rounds: int = 20
    quick_rounds: int = 5
    fresh: bool = False
    """Whether each run gets a new folder, and is one run; otherwise runs are repeated until they fill a moment."""
    large: bool = False
    """Whether processes are left with a large heap, so that the next workload wants new ones."""
    counted: bool = False
    """Whether bytes and syncs are counted."""


def supersteps_of(params: Params) -> int:
    """As many as the parameters say."""
    return params["supersteps"]


def whole(divisor: Callable[[Params], int]) -> Value:
    """The whole run, by how many of `per` it holds."""
    return lambda timed, params: timed.seconds / divisor(params)


def after_first(timed: Timed, _: Params) -> float:
    """The mean superstep but the first, until the run is over."""
    return (timed.seconds - timed.marks[1]) / (len(timed.marks) - 1)


def without_own(timed: Timed, params: Params) -> float:
    """The same without what handlers did themselves."""
    return after_first(timed, params) - timed.own / (len(timed.marks) - 1)


def first(timed: Timed, _: Params) -> float:
    """From the first executor's start to the second one's."""
    return timed.marks[1] - timed.marks[0]


def first_of(count: int) -> Value:
    """The mean of so many supersteps at the beginning (of a tenth of all, where there are few)."""

    def value(timed: Timed, _: Params) -> float:
        some = _some(timed, count)
        return (timed.marks[some] - timed.marks[0]) / some

    return value


def last_of(count: int) -> Value:
    """The mean of so many supersteps at the end (of a tenth of all, where there are few)."""

    def value(timed: Timed, _: Params) -> float:
        some = _some(timed, count)
        return (timed.marks[-1] - timed.marks[-1 - some]) / some

    return value


def _some(timed: Timed, count: int) -> int:
    return min(count, max(len(timed.marks) // 10, 1))
