"""Programs whose allocations are counted beside their commits; each runs in a process of its own.

They are those of ``durable_costs``, read with a meter that sees more. That one is slow, and slows all that it counts.
"""

import gc
import sys
import tracemalloc
from typing import Any

from holdfast import CheckpointStorage
from tests.support import durable_costs


class Meter(durable_costs.Meter):
    """Also counts transactions, the blocks of memory that are kept, and the most that was in use at a time."""

    made: list["Meter"] = []  # noqa: RUF012  # of this process, of which there is one

    def __init__(self, storage: CheckpointStorage) -> None:
        super().__init__(storage)
        self.peaks: list[int] = []
        self._used = 0
        Meter.made.append(self)
        tracemalloc.start()

    def read(self) -> None:
        """The peak is what a superstep needed beyond what was in use when it began."""
        peak = tracemalloc.get_traced_memory()[1]
        self.peaks.append(peak - self._used if self.readings else 0)
        super().read()
        gc.collect()
        self.readings[-1] |= {
            "blocks": sys.getallocatedblocks(),
            "transactions": self._storage.store.transactions,  # type: ignore[attr-defined]
        }
        tracemalloc.reset_peak()
        self._used = tracemalloc.get_traced_memory()[0]

    def report(self) -> list[dict[str, int]]:
        """What each superstep did: from one reading to the next."""
        return [{**done, "peak": peak} for done, peak in zip(super().report(), self.peaks[1:], strict=True)]


def guarded(program: str, *args: Any) -> None:
    """Run a program of ``durable_costs`` with this meter."""
    durable_costs.Meter = Meter  # type: ignore[misc]
    getattr(durable_costs, program)(*args)


def leaking(program: str, *args: Any) -> None:
    """The same with two planted bugs: each superstep keeps a list of a hundred, and copies 256 KB."""
    kept: list[list[str]] = []
    read = Meter.read

    def read_and_keep(self: Meter) -> None:
        kept.append([f"{len(kept)}-{number}" for number in range(100)])
        bytearray(256 * 1024)
        read(self)

    Meter.read = read_and_keep  # type: ignore[method-assign]
    guarded(program, *args)
