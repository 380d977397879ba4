"""The result of giving unused room back to the file system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.store import Store


@dataclass(frozen=True)
class VacuumReport:
    """The result of ``storage.vacuum``: the room that the files of a store took before and take now.

    >>> report = VacuumReport(5_000_000, 1_200_000, 0.25)
    >>> report.freed
    3800000
    >>> print(report)
    3,800,000 of 5,000,000 bytes were given back; writers waited for 0.2 s at most
    """

    before: int
    after: int
    seconds: float = 0.0
    """For so long writers of the store had to wait, at most."""

    @property
    def freed(self) -> int:
        """The number of bytes that were given back; others may have written meanwhile, so it is never negative."""
        return max(0, self.before - self.after)

    def __str__(self) -> str:
        waited = f"; writers waited for {self.seconds:.1f} s at most" if self.seconds else ""
        return f"{self.freed:,} of {self.before:,} bytes were given back{waited}"


async def vacuum_store(store: Store, progress: Progress | None) -> VacuumReport:
    """Let a store give back the room that it does not use; one that has no such method has no such room."""
    vacuum = getattr(store, "vacuum", None)
    if vacuum is None:
        await store.open()
        return VacuumReport(0, 0)
    return await cast("Callable[[Progress | None], Awaitable[VacuumReport]]", vacuum)(progress)
