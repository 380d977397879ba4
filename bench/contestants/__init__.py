"""How each side does each workload: one package per side, each with a function `contestant(variant)`.

A contestant is imported only in its own side's process, and uses that side's API as its documentation teaches.
Opening stores and building graphs is not timed, running is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from bench.scripts import Params


@dataclass(frozen=True)
class Job:
    """One workload to be done once, by one side, in a folder of its own."""

    workload: str
    params: Params
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What one run gave: its result for the check, and how many supersteps and events it went through."""

    result: Any
    supersteps: int
    events: int = 0


Run: TypeAlias = Callable[[], Awaitable[Outcome]]
Prepare: TypeAlias = Callable[[Job], AbstractAsyncContextManager[Run]]


@dataclass(frozen=True)
class Entry:
    """One workload done by one contestant."""

    prepare: Prepare
    """Opens and builds what is run (not timed), gives the run (timed), closes (not timed)."""
    how: str
    """How the side does it, in the words of its API."""
    check: Callable[[Job], Awaitable[Any]] | None = None
    """Reads the result from the store after the run, where the run itself does not give it (not timed)."""


@dataclass(frozen=True)
class Resume:
    """What a new process does with what another one left (W6)."""

    build: Prepare
    """Runs a workload until the process is killed."""
    open_empty: Callable[[Job], Awaitable[None]]
    """Opens a store that is not there yet."""
    resume: Callable[[Job], Awaitable[None]]
    """Goes on with the run that was killed."""
    listing: Callable[[Job, int | None], Awaitable[int]]
    """Lists the metadata of all checkpoints, or of so many if the side can, and says how many there were."""
    how: str = ""


@dataclass(frozen=True)
class Contestant:
    """A side's entries and the distributions whose versions the report names."""

    packages: tuple[str, ...]
    entries: Mapping[str, Entry]
    kill: str = "all"
    """What `kill -9` loses."""
    power: str = "all"
    """What a power cut loses."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a workload is not done, by its id; "*" stands for the others."""
    resume: Resume | None = None


def make(folder: Path) -> None:
    """Make a folder if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
