"""When supersteps began: every executor of a workload with state says so, on every side, in the same way."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

times: list[float] = []
"""When each superstep's executor was entered, in the run under way."""

own: list[float] = []
"""The seconds that handlers took for work of their own which no side can spare them, in the run under way."""

_watcher: Callable[[int], None] | None = None


def enter() -> None:
    """Called by an executor as its first act."""
    times.append(perf_counter())
    if _watcher is not None:
        _watcher(len(times))


def grown(text: str, added: str) -> str:
    """A longer copy of a text, as a handler makes it that stores all of it again; its time is told apart."""
    begun = perf_counter()
    longer = text + added
    own.append(perf_counter() - begun)
    return longer


def begin(watcher: Callable[[int], None] | None = None) -> None:
    """Forget the last run; `watcher` is called with the number of each superstep (slow: not where time counts)."""
    global _watcher
    times.clear()
    own.clear()
    _watcher = watcher
