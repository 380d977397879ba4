"""Tables on the terminal, and the verdicts that both reports share."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.measure import Row, Table
from bench.sides import OURS

HEAD = ("side", "median", "min", "quartiles", "x ours", "events", "peak MB")


class Progress:
    """One line that is overwritten on a terminal, and one line in a while elsewhere."""

    def __init__(self, every: int = 20) -> None:
        self._live = sys.stderr.isatty()
        self._every = every
        self._count = 0

    def __call__(self, text: str) -> None:
        """Show the newest state of a long piece of work."""
        self._count += 1
        if self._live:
            print(f"\r\x1b[K{text}"[:120], end="", file=sys.stderr, flush=True)
        elif self._count % self._every == 1:
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the live line away."""
        self._count = 0
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Three significant digits or so, with thousands marked."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def cells(table: Table, row: Row) -> tuple[str, ...]:
    """One side's line."""
    ours = table.row(OURS)
    low, high = row.quartiles
    return (
        row.side,
        number(row.median),
        number(row.least),
        f"{number(low)} to {number(high)}",
        f"{row.median / ours.median:.1f}" if ours else "",
        f"{row.samples[0].events:,}" if row.samples[0].events else "",
        f"{row.peak_rss / 1e6:.0f}" if row.peak_rss else "",
    )


def verdict(table: Table) -> str:
    """PASS or MISS with the number, or "" where there is no target or one side is missing."""
    workload, ours, peer = table.workload, table.row(OURS), table.fastest_peer()
    target = workload.target
    if target is None or ours is None:
        return ""
    if target.factor is not None:
        if peer is None:
            return ""
        ratio, ratio_least = peer.median / ours.median, peer.least / ours.least
        word = "PASS" if ratio >= target.factor else "MISS"
        return (
            f"{word}: {ratio:.1f} times faster than {peer.side} ({ratio_least:.1f} by minima); "
            f"target: {target.describe(workload.unit)}"
        )
    assert target.below is not None
    word = "PASS" if ours.median < target.below else "MISS"
    return f"{word}: {number(ours.median)} {workload.unit}; target: {target.describe(workload.unit)}"


def remarks(tables: Sequence[Table]) -> list[str]:
    """Our costs counted in limits, where both were measured."""
    ours = {table.workload.id: row.median for table in tables if (row := table.row(OURS)) is not None}
    limits = {
        table.workload.id: table.rows[0].median for table in tables if table.workload.id.startswith("L")
    }
    found = []
    if "W1" in ours and "L2" in limits:
        found.append(
            f"One of our supersteps (W1) takes as long as {ours['W1'] / limits['L2']:.1f} asyncio tasks."
        )
    if "W5" in ours and "L3" in limits:
        found.append(
            f"One of our rounds of 1-100-1 (W5) takes as long as {ours['W5'] / limits['L3']:.1f} gathers of 100."
        )
    return found


def show(table: Table) -> str:
    """One workload as plain text."""
    workload = table.workload
    lines = [HEAD, *(cells(table, row) for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [f"{workload.id}  {workload.title}: {workload.unit} per {workload.per}, {table.rounds} rounds"]
    for line in lines:
        padded = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        text.append("    " + "  ".join(padded).rstrip())
    if said := verdict(table):
        text.append(f"    {said}")
    return "\n".join(text)
