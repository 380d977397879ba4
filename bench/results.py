"""Writes `bench/RESULTS.md`: verdicts, one table a workload, and an appendix with all that is needed to judge them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.client import Client
from bench.machine import is_busy
from bench.measure import Table
from bench.report import cells, head
from bench.verdicts import ENOUGH_ROUNDS, Verdict

ABOUT = (
    "Medians over the rounds of one run, in which the sides took turns. `x ours` is how many times as long as ours a "
    "side takes (ours is on SQLite if it stores, else without storage). Compare within one table only: the machine "
    "drifts between tables, and yours is another one. The appendix has [how it was measured](#how-it-was-measured), "
    "machine, versions, what each side does and what it can lose."
)
HOW = (
    "Every side ran in its own process, one at a time, in turn, in the same run, after a round that does not count. "
    "Before each sample, what others had left to be written was synced. Every result was checked, with a store by "
    f"reading it anew. Ratios are ratios of medians. A verdict has at least {ENOUGH_ROUNDS} rounds behind it, and a "
    "busy machine gives none."
)
COLUMNS = (
    "*written each*: bytes passed to write() for each superstep, by all threads of the process (`wchar` of "
    "`/proc/self/io`), *written later*: the same after the first superstep; *syncs each*: calls of fsync and fdatasync "
    "for each superstep, seen by strace between two marks around the run, so that opening and closing do not count. "
    "Both were counted in a run of their own, because counting costs time. *stored*: bytes of all files after the "
    "store was closed. *peak*: the most memory that the process held during the run (`VmHWM`, set back before)."
)
AGAIN = (
    "Run it again: `make bench`, or `make bench ARGS=--quick` for a rough answer with smaller sizes; "
    "`make bench ARGS=--help` says more. Peers are installed from the registry into `.bench/`, once."
)
ROUGH = (
    "A rough answer: sizes are smaller, rounds fewer, and targets that grow with the size are not reached."
)
BUSY_NOTE = (
    "The machine was busy with something else: times say little, so there are no verdicts. "
    "Bytes and counts are right."
)
LOST = (
    "Sides that are not listed store nothing, or in memory, and lose all. A power cut is taken at its word: a drive "
    "keeps what it said it wrote, and nothing else is kept. Nobody cut the power here: this follows from which calls a "
    "side makes, which *syncs each* counts. Sides that do not wait for the disk differ in how far they run ahead: our "
    "`async` is one superstep ahead at most, and shows nothing that can be lost; LangGraph's, its default, has "
    "no bound."
)


def write(
    path: Path,
    tables: Sequence[Table],
    found: Sequence[Verdict],
    clients: Sequence[Client],
    machine: Mapping[str, str],
    command: str,
    plots: Sequence[tuple[str, str]],
    unable: Mapping[str, str],
) -> None:
    """Write the report of one run; `plots` are titles and file names beside it, `unable` sides that did not start."""
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        "# Benchmark results",
        "",
        *([f"**{ROUGH}**", ""] if "--quick" in command else []),
        *([f"**{BUSY_NOTE}**", ""] if is_busy(machine) else []),
        f"Written by `{command}` on {today}. {ABOUT}",
        "",
        *(line for side, reason in unable.items() for line in (f"{side} did not start: {reason}", "")),
        "## Verdicts",
        "",
        *_judged(found),
        "",
        *(line for title, name in plots for line in (f"![{title}]({name})", "")),
        "## Workloads",
        "",
        *(line for table in tables for line in _workload(table)),
        "# Appendix",
        "",
        "## How it was measured",
        "",
        HOW,
        "",
        COLUMNS,
        "",
        AGAIN,
        "",
        *_compared(found),
        *_machine(clients, machine),
        *_durability(clients),
        *_sides(tables, clients),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")


def _judged(found: Sequence[Verdict]) -> list[str]:
    rows = [(one.workload, one.word, one.target, one.measured) for one in found if one.word]
    return grid(("workload", "verdict", "target", "measured"), rows)


def _compared(found: Sequence[Verdict]) -> list[str]:
    rows = [(one.workload, one.target, one.measured) for one in found if not one.word]
    return ["## Further comparisons", "", *grid(("workload", "comparison", "measured"), rows), ""]


def _workload(table: Table) -> list[str]:
    workload = table.workload
    params = ", ".join(f"{name} = {value:,}" for name, value in table.params.items())
    return [
        f"### {workload.id}: {workload.title}",
        "",
        workload.what,
        "",
        f"{workload.unit} per {workload.per}, {table.rounds} rounds"
        + (f"; {params}" if params else "")
        + ".",
        "",
        *grid(head(table), [cells(table, row) for row in table.rows] + _failed(table)),
        "",
    ]


def _failed(table: Table) -> list[tuple[str, ...]]:
    """Return the cells of sides that failed: the reason in place of numbers."""
    rest = ("",) * (len(head(table)) - 2)
    return [(side, f"failed: {reason}", *rest) for side, reason in table.failed.items()]


def _machine(clients: Sequence[Client], machine: Mapping[str, str]) -> list[str]:
    environments: dict[str, tuple[str, str]] = {}
    for client in clients:
        versions = ", ".join(f"{name} {version}" for name, version in client.hello["versions"].items())
        name = client.side.environment or "ours and limits"
        if versions or name not in environments:
            environments.setdefault(name, (client.hello["python"], versions))
    return [
        "## Machine and versions",
        "",
        *grid(("what", "value"), list(machine.items())),
        "",
        *grid(
            ("environment", "Python", "packages"), [(name, *facts) for name, facts in environments.items()]
        ),
        "",
    ]


def _durability(clients: Sequence[Client]) -> list[str]:
    """Return what sides lose; those that lose the same share a row."""
    losses = [
        ((client.hello["kill"], client.hello["power"]), client.side.name)
        for client in clients
        if client.side.stores in ("disk", "synced")
    ]
    rows = [(", ".join(sides), *lost) for lost, sides in _group(losses).items()]
    return [
        "## What is lost",
        "",
        LOST,
        "",
        *grid(("sides", "`kill -9` loses", "a power cut loses"), rows),
        "",
    ]


def _sides(tables: Sequence[Table], clients: Sequence[Client]) -> list[str]:
    """Return what sides do, and why some do not do a workload; workloads that share a text share a row."""
    does = _group(((row.side, row.how), table.workload.id) for table in tables for row in table.rows)
    lacks = _group(
        (missing, table.workload.id) for table in tables for missing in _missing(table.workload.id, clients)
    )
    lines: list[str] = []
    for title, column, found in (
        ("What each side does", "how", does),
        ("What sides do not do", "why", lacks),
    ):
        rows = [(side, ", ".join(ids), text) for (side, text), ids in found.items()]
        rows.sort(key=lambda row: row[0])
        lines += [f"## {title}", "", *grid(("side", "workloads", column), rows), ""] if rows else []
    return lines


def _missing(workload: str, clients: Sequence[Client]) -> list[tuple[str, str]]:
    """Return the sides that lack a workload, with the reason, unless another configuration of them has it."""
    if workload == "W6" or not workload.startswith("W"):
        return []
    found = []
    for client in clients:
        reasons = client.hello["missing"]
        reason = reasons.get(workload) or reasons.get("*")
        if workload in client.entries or not client.side.is_peer or reason is None:
            continue
        if not reason.startswith(("nothing is stored", "W1 is without")):
            found.append((client.side.name, reason))
    return found


def _group(pairs: Iterable[tuple[tuple[str, str], str]]) -> dict[tuple[str, str], list[str]]:
    """Return the second parts of pairs by their first."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def grid(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table in Markdown."""
    return ["| " + " | ".join(line) + " |" for line in (head, tuple("---" for _ in head), *rows)]
