"""When supersteps began: every executor of a workload with state says so, on every side, in the same way."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

times: list[float] = []
"""When each superstep's executor was entered, in the run under way."""

_watcher: Callable[[int], None] | None = None


def enter() -> None:
    """Called by an executor as its first act."""
    times.append(perf_counter())
    if _watcher is not None:
        _watcher(len(times))


def begin(watcher: Callable[[int], None] | None = None) -> None:
    """Forget the last run; `watcher` is called with the number of each superstep (slow: not where time counts)."""
    global _watcher
    times.clear()
    _watcher = watcher
