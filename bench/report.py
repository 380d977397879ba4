"""Tables on the terminal, and the cells that both reports share."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import Row, Table
from bench.sides import OURS, OURS_STORED
from bench.verdicts import Verdict


def number(value: float) -> str:
    """Return a number with about three significant digits, with thousands marked."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def size(value: float) -> str:
    """Return bytes as text with a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def measured_ours(table: Table) -> Row | None:
    """Return the row that others are compared with: on SQLite if ours stores, else without storage."""
    return table.row(OURS_STORED) or table.row(OURS)


def head(table: Table) -> tuple[str, ...]:
    """Return the names of the columns of a table."""
    counted = ("written each", "stored", "syncs each") if table.workload.counted else ()
    later = ("written later",) if table.workload.counted and "first" in table.workload.figures else ()
    figures = (f"{name} ({table.workload.unit})" for name in table.figure_names())
    peak = ("peak",) if any(row.peak for row in table.rows) else ()
    return (
        "side",
        f"median ({table.workload.unit})",
        "quartiles",
        "x ours",
        *figures,
        *counted,
        *later,
        *peak,
    )


def cells(table: Table, row: Row) -> tuple[str, ...]:
    """Return the cells of one side."""
    ours = measured_ours(table)
    low, high = row.quartiles
    found = [
        row.side,
        number(row.median),
        f"{number(low)} to {number(high)}",
        f"{row.median / ours.median:.2f}" if ours else "",
    ]
    for name in table.figure_names():
        value = row.figure(name)
        found.append("" if value is None else number(value))
    if table.workload.counted:
        found += _counted(row)
        if "first" in table.workload.figures:
            found.append(size(row.counted.written_later) if row.counted else "")
    if any(other.peak for other in table.rows):
        found.append(size(row.peak))
    return tuple(found)


def _counted(row: Row) -> list[str]:
    counted = row.counted
    if counted is None:
        return ["", size(row.stored) if row.stored else "", ""]
    syncs = counted.syncs_each
    return [size(counted.written_each), size(row.stored), "not counted" if syncs is None else f"{syncs:.2f}"]


def show(table: Table) -> str:
    """Return one workload as plain text."""
    workload = table.workload
    lines = [head(table), *(cells(table, row) for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [f"{workload.id}  {workload.title}: {workload.unit} per {workload.per}, {table.rounds} rounds"]
    for line in lines:
        padded = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        text.append("    " + "  ".join(padded).rstrip())
    text += [f"    {side}  failed: {reason}" for side, reason in table.failed.items()]
    return "\n".join(text)


def show_verdicts(found: Sequence[Verdict]) -> str:
    """Return verdicts and comparisons as plain text."""
    width = max((len(one.word) for one in found), default=0)
    return "\n".join(
        f"{one.workload:9}{(one.word or '-').ljust(width)}  {one.target}: {one.measured}" for one in found
    )
