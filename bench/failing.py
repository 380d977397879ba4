"""A side that fails does not end the benchmark: it is told where its numbers would stand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from bench.client import WorkerFailed, WrongResult
from bench.environments import EnvironmentFailed

T = TypeVar("T")

FAILURES = (EnvironmentFailed, WorkerFailed, WrongResult, subprocess.SubprocessError, OSError)
LONGEST = 300


class Failed:
    """The sides that failed in one workload, with the reasons; ``say`` gets all of each at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.reasons: dict[str, str] = {}
        self._say = say

    @contextmanager
    def noted(self, side: str, doing: str = "") -> Iterator[None]:
        """Note that a side fails within this context, instead of ending."""
        try:
            yield
        except FAILURES as error:
            self._say(f"bench: {doing}{error}")
            self.reasons[side] = doing + reason(error)

    def __contains__(self, side: object) -> bool:
        return side in self.reasons


def reason(error: BaseException) -> str:
    """An error in one line that fits into a table: how it begins and, where that is a traceback or a log, how it ends.

    >>> reason(ValueError("x raised:\\nTraceback\\n  here | there\\nKeyError: 3"))
    'x raised: KeyError: 3'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    told = told.replace("|", "/")
    return told if len(told) <= LONGEST else told[: LONGEST - 3] + "..."
