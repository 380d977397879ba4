"""`bench/RESULTS.md`: what one run measured, with all that is needed to judge it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.client import Client
from bench.measure import Table
from bench.report import cells, head
from bench.verdicts import Verdict

ABOUT = (
    "Every side ran in its own process, one at a time, in turn, in the same run, after a round that does not count; "
    "before each sample what others had left to be written was synced; "
    "every result was checked, where there is a store by reading it anew. Shown are medians over the rounds; ratios "
    "are ratios of medians, `x ours` is how many times as long as ours (on SQLite where ours stores, without storage "
    "elsewhere). Compare within one table only: the machine drifts between tables, and yours is another one."
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
BUSY = "The machine was busy with something else: times say little, bytes and counts are right."
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
    busy = float(machine.get("load at start", "0")) > 1
    lines = [
        "# Benchmark results",
        "",
        *([f"**{ROUGH}**", ""] if "--quick" in command else []),
        *([f"**{BUSY}**", ""] if busy else []),
        f"Written by `{command}` on {today}. {ABOUT}",
        "",
        AGAIN,
        "",
        *(line for side, reason in unable.items() for line in (f"{side} did not start: {reason}", "")),
        "## What has to be shown",
        "",
        *grid(
            ("workload", "verdict", "target", "measured"),
            [(one.workload, one.word or "told", one.target, one.measured) for one in found],
        ),
        "",
        *(line for title, name in plots for line in (f"![{title}]({name})", "")),
        *_machine(clients, machine),
        *_durability(clients),
        f"{COLUMNS}",
        "",
        *(line for table in tables for line in _workload(table, clients)),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")


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
    rows = [
        (client.side.name, client.hello["kill"], client.hello["power"])
        for client in clients
        if client.side.stores in ("disk", "synced")
    ]
    return [
        "## What is lost",
        "",
        LOST,
        "",
        *grid(("side", "`kill -9` loses", "a power cut loses"), rows),
        "",
    ]


def _workload(table: Table, clients: Sequence[Client]) -> list[str]:
    workload = table.workload
    params = ", ".join(f"{name} = {value:,}" for name, value in table.params.items())
    missing = _missing(workload.id, clients) if workload.id.startswith("W") else []
    return [
        f"## {workload.id}: {workload.title}",
        "",
        workload.what,
        "",
        f"{workload.unit} per {workload.per}, {table.rounds} rounds"
        + (f"; {params}" if params else "")
        + ".",
        "",
        *grid(head(table), [cells(table, row) for row in table.rows] + _failed(table)),
        "",
        *grid(("side", "how"), [(row.side, row.how) for row in table.rows]),
        "",
        *(["Not there:", "", *missing, ""] if missing else []),
    ]


def _failed(table: Table) -> list[tuple[str, ...]]:
    """What stands where the numbers of sides would be that failed."""
    rest = ("",) * (len(head(table)) - 2)
    return [(side, f"failed: {reason}", *rest) for side, reason in table.failed.items()]


def _missing(workload: str, clients: Sequence[Client]) -> list[str]:
    """Why sides do not do a workload; none where the reason is that another configuration of theirs does."""
    if workload == "W6":
        return []
    lines = []
    for client in clients:
        reasons = client.hello["missing"]
        reason = reasons.get(workload) or reasons.get("*")
        if workload in client.entries or not client.side.is_peer or reason is None:
            continue
        if reason.startswith(("nothing is stored", "W1 is without")):
            continue
        lines.append(f"- {client.side.name}: {reason}")
    return lines


def grid(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table."""
    return ["| " + " | ".join(line) + " |" for line in (head, tuple("---" for _ in head), *rows)]
