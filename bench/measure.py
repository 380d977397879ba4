"""The interleaved rounds and their statistics: one side at a time, in turn, so that drift hits all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.client import Client, Sample
from bench.workloads import Params, Workload

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """All that was measured of one side in one workload."""

    side: str
    samples: Sequence[Sample]
    is_peer: bool = False
    how: str = ""
    durability: str = ""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(sample.value for sample in self.samples)

    @property
    def least(self) -> float:
        """The smallest value."""
        return min(sample.value for sample in self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The values below which a quarter and three quarters of all lie."""
        values = [sample.value for sample in self.samples]
        if len(values) < 2:
            return values[0], values[0]
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, high

    @property
    def peak_rss(self) -> int:
        """The most memory the side's process held."""
        return max(sample.peak_rss for sample in self.samples)


@dataclass(frozen=True)
class Table:
    """One workload with a row per side."""

    workload: Workload
    params: Params
    rounds: int
    rows: Sequence[Row] = field(default_factory=tuple)

    def row(self, side: str) -> Row | None:
        """The row of one side."""
        return next((row for row in self.rows if row.side == side), None)

    def fastest_peer(self) -> Row | None:
        """The peer to beat."""
        return min((row for row in self.rows if row.is_peer), key=lambda row: row.median, default=None)


def measure(
    workload: Workload,
    params: Params,
    clients: Sequence[Client],
    rounds: int,
    warmup: int,
    progress: Progress,
) -> Table:
    """Run one workload on all sides that have it: `warmup` rounds that do not count, then `rounds` that do."""
    able = [client for client in clients if workload.id in client.entries]
    samples: dict[str, list[Sample]] = {client.side.name: [] for client in able}
    for client in able:
        client.refresh()
    for number in range(1 - warmup, rounds + 1):
        for client in able:
            sample = client.run(workload, params)
            which = f"round {number}/{rounds}" if number > 0 else "warm-up"
            progress(
                f"{workload.id} {which}: {client.side.name} {sample.value:,.2f} {workload.unit} per {workload.per}"
            )
            if number > 0:
                samples[client.side.name].append(sample)
    rows = [
        Row(client.side.name, samples[client.side.name], client.side.is_peer, **client.entries[workload.id])
        for client in able
    ]
    return Table(workload, params, rounds, rows)
