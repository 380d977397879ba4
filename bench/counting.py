"""Bytes and syncs, counted in runs of their own, because counting costs time.

Bytes passed to write() are what Linux counts for the whole process (`wchar` in /proc/self/io), so that SQLite's count
too. Syncs are seen by strace, where it is installed; the worker calls fsync on a descriptor that nobody has open
right before and right after the run, so that opening and closing do not count.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client import Client, data_folder
from bench.meters import NO_FILE
from bench.workloads import Params, Workload

_CALL = re.compile(r"\b(?:fsync|fdatasync)\((\d+)")
SECONDS_FOR_THE_TRACE = 5.0


@dataclass(frozen=True)
class Counted:
    """What one superstep wrote and synced, on the average of a run."""

    supersteps: int
    written: int
    """Bytes passed to write() in all."""
    written_first: int
    """Of these, until the second superstep began."""
    syncs: int | None
    """None where there is no strace."""

    @property
    def written_each(self) -> float:
        """Bytes passed to write() for each superstep."""
        return self.written / self.supersteps

    @property
    def written_later(self) -> float:
        """Bytes passed to write() for each superstep after the first."""
        return (self.written - self.written_first) / max(self.supersteps - 1, 1)

    @property
    def syncs_each(self) -> float | None:
        """Syncs for each superstep."""
        return None if self.syncs is None else self.syncs / self.supersteps


def syncs_between_marks(trace: str) -> int | None:
    """How many syncs a trace has between its last two marks; None if it has less than two."""
    calls = [int(found) for found in _CALL.findall(trace)]
    places = [place for place, descriptor in enumerate(calls) if descriptor == NO_FILE]
    return places[-1] - places[-2] - 1 if len(places) > 1 else None


class Counter:
    """A worker that is traced."""

    def __init__(self, client: Client) -> None:
        program = shutil.which("strace")
        self._trace: Path | None = None
        tracer: list[str] = []
        if program is not None:
            self._trace = data_folder() / f"{client.side.module}-{client.side.variant}.trace"
            self._trace.unlink(missing_ok=True)
            tracer = [program, "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync"]
            tracer += ["-e", "signal=none", "-o", str(self._trace)]
        self._client = Client(client.side, client.python, tracer)
        self._marks = 0

    def count(self, workload: Workload, params: Params) -> Counted:
        """One run."""
        answer = self._client.ask(workload, {**params, **workload.counting}, count=True)
        self._marks += 2
        return Counted(answer["supersteps"], answer["written"], answer["written_first"], self._syncs())

    def _syncs(self) -> int | None:
        if self._trace is None:
            return None
        end = time.monotonic() + SECONDS_FOR_THE_TRACE
        while time.monotonic() < end:
            trace = self._trace.read_text() if self._trace.exists() else ""
            if len(re.findall(rf"\bfsync\({NO_FILE}", trace)) >= self._marks:
                return syncs_between_marks(trace)
            time.sleep(0.02)
        return None

    def close(self) -> None:
        """End the worker; the next count starts a new one."""
        self._client.close()
        self._marks = 0
        if self._trace is not None:
            self._trace.unlink(missing_ok=True)


@contextmanager
def counter(client: Client) -> Iterator[Counter]:
    """A worker that is traced, for a while."""
    found = Counter(client)
    try:
        yield found
    finally:
        found.close()
