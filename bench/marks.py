"""When supersteps began: every executor of a workload with state says so, on every side, in the same way."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

times: list[float] = []
"""When each superstep's executor was entered, in the run under way."""

own: list[tuple[float, int]] = []
"""Work of handlers that no side can spare them, in the run under way: the seconds it took, and the memory it took."""

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
    own.append((perf_counter() - begun, len(longer)))
    return longer


def own_seconds() -> float:
    """The seconds of that work, and of giving the memory back: someone does for each copy, when it is let go.

    Sides let go where no clock of the handler sees it. So as much memory is given back here, when the run is over.
    """
    seconds = 0.0
    for made, size in own:
        spare = "x" * size
        begun = perf_counter()
        del spare
        seconds += made + perf_counter() - begun
    return seconds


def begin(watcher: Callable[[int], None] | None = None) -> None:
    """Forget the last run; `watcher` is called with the number of each superstep (slow: not where time counts)."""
    global _watcher
    times.clear()
    own.clear()
    _watcher = watcher
