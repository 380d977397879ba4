"""How each side does each workload: one file per side, each with a `CONTESTANT`.

A contestant file is imported only in its own side's process, and uses that side's API as its documentation teaches.
Building the graph is not timed, running it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bench.workloads import Params


@dataclass(frozen=True)
class Outcome:
    """What one run gave: its result for the check, and how many supersteps and events it went through."""

    result: int
    supersteps: int
    events: int


@dataclass(frozen=True)
class Entry:
    """One workload done by one contestant."""

    prepare: Callable[[Params], Callable[[], Awaitable[Outcome]]]
    """Builds what is run (not timed) and returns the run (timed, called many times)."""
    how: str
    """How the side does it, in the words of its API."""
    durability: str = "none"


@dataclass(frozen=True)
class Contestant:
    """A side's entries and the distributions whose versions the report names."""

    packages: tuple[str, ...]
    entries: Mapping[str, Entry]
