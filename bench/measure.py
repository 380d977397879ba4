"""The interleaved rounds and their statistics: one side at a time, in turn, so that drift hits all alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.client import Client, Sample
from bench.counting import Counted, counter
from bench.failing import Failed
from bench.progress import Progress
from bench.sides import OURS_STORED
from bench.workloads import WORKLOADS, Params, Workload
from bench.workloads.model import UNITS

BESIDE = "W2 beside it"


@dataclass(frozen=True)
class Row:
    """All that was measured of one side in one workload."""

    side: str
    samples: Sequence[Sample]
    is_peer: bool = False
    how: str = ""
    stores: str = "nothing"
    counted: Counted | None = None

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

    def figure(self, name: str) -> float | None:
        """The middle value of another figure."""
        values = [sample.figures[name] for sample in self.samples if name in sample.figures]
        return statistics.median(values) if values else None

    @property
    def peak(self) -> int:
        """The most memory the side's process held."""
        return max(sample.peak for sample in self.samples)

    @property
    def stored(self) -> int:
        """The bytes that lie in the store after it was closed."""
        return max(sample.stored for sample in self.samples)


@dataclass(frozen=True)
class Table:
    """One workload with a row per side."""

    workload: Workload
    params: Params
    rounds: int
    rows: Sequence[Row] = field(default_factory=tuple)
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why sides have no row, or one that lacks something."""

    def row(self, side: str) -> Row | None:
        """The row of one side."""
        return next((row for row in self.rows if row.side == side), None)

    def figure_names(self) -> list[str]:
        """The names of all figures that some row has."""
        return [*dict.fromkeys(name for row in self.rows for name in row.samples[0].figures)]


def _run(client: Client, workload: Workload, params: Params) -> Sample:
    sample = client.run(workload, params)
    if not workload.beside or client.side.name != OURS_STORED:
        return sample
    beside = next(other for other in WORKLOADS if other.id == workload.beside)
    other = client.run(beside, beside.params)
    value = other.value / UNITS[beside.unit] * UNITS[workload.unit]
    return replace(sample, figures={**sample.figures, BESIDE: value})


def measure(
    workload: Workload,
    params: Params,
    clients: Sequence[Client],
    rounds: int,
    progress: Progress,
    quick: bool,
) -> Table:
    """Run one workload on all sides that have it: a round that does not count, then `rounds` that do.

    A quick run spares workers their new starts, and the round to warm up before a single one.
    """
    able = [client for client in clients if workload.id in client.entries]
    samples: dict[str, list[Sample]] = {client.side.name: [] for client in able}
    failed = Failed(progress.say)
    for number in range(1 if quick and rounds == 1 else 0, rounds + 1):
        for client in able:
            name = client.side.name
            if name in failed:
                continue
            which = f"round {number}/{rounds}" if number else "warm-up"
            with failed.noted(name):
                sample = _run(client, workload, params if number else {**params, **workload.warming})
                progress(
                    f"{workload.id} {which}: {name} {sample.value:,.2f} {workload.unit} per {workload.per}"
                )
                if number:
                    samples[name].append(sample)
    for client in able:
        if (workload.large and not quick) or client.side.name in failed:
            client.close()
    rows = [_row(client, workload, samples) for client in able if client.side.name not in failed]
    return Table(workload, params, rounds, rows, failed.reasons)


def _row(client: Client, workload: Workload, samples: dict[str, list[Sample]]) -> Row:
    side = client.side
    return Row(side.name, samples[side.name], side.is_peer, client.entries[workload.id], side.stores)


QUICKLY_COUNTED = ("W2", "W3", "W4")


def count_all(
    tables: Sequence[Table],
    clients: Sequence[Client],
    params: dict[str, Params],
    progress: Progress,
    quick: bool,
) -> list[Table]:
    """Count bytes and syncs of all sides that store something, each in one process."""
    counted: dict[tuple[str, str], Counted] = {}
    failed = {table.workload.id: Failed(progress.say) for table in tables}
    wanted = [
        table
        for table in tables
        if table.workload.counted and (not quick or table.workload.id in QUICKLY_COUNTED)
    ]
    for client in clients:
        name = client.side.name
        mine = [table.workload for table in wanted if table.row(name) is not None]
        if not mine or client.side.stores not in ("disk", "synced"):
            continue
        with counter(client) as traced:
            for workload in mine:
                progress(f"counting {workload.id}: {name}")
                with failed[workload.id].noted(name, "counting: "):
                    counted[workload.id, name] = traced.count(workload, params[workload.id])
                if name in failed[workload.id]:
                    traced.close()  # the next one gets a new worker
    return [
        replace(
            table,
            rows=[replace(row, counted=counted.get((table.workload.id, row.side))) for row in table.rows],
            failed={**table.failed, **failed[table.workload.id].reasons},
        )
        for table in tables
    ]
