"""Writes `RESULTS.md`: machine, versions, durability, tables, targets, and how to run it again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.client import Client
from bench.measure import Table
from bench.report import HEAD, cells, remarks, verdict


def write(
    path: Path, tables: Sequence[Table], clients: Sequence[Client], machine: Mapping[str, str], command: str
) -> None:
    """Write the report of one run."""
    path.write_text(
        "\n".join([*_head(tables, clients, machine, command), *_workloads(tables)]).rstrip() + "\n"
    )


def _head(
    tables: Sequence[Table], clients: Sequence[Client], machine: Mapping[str, str], command: str
) -> list[str]:
    today = datetime.datetime.now(datetime.UTC).date()
    about = (
        f"Written by `{command}` on {today}. Every side ran in its own process, one at a time, in turn, in the same "
        "run; every result was checked. A value is the mean of as many runs as fill 50 ms, at least one; shown "
        "are medians over the rounds, and ratios are ratios of medians. Events are those of one run; "
        "peak MB is the most memory the side's process held. Compare within one table only: the machine drifts between "
        "runs, and yours is another one."
    )
    again = (
        "Run it again: `make bench`, or `make bench ARGS=--quick` for a rough answer; `make bench ARGS=--help` says "
        "more. Peers are installed from the registry into `.bench/`, once."
    )
    lines = [
        "# Benchmark results",
        "",
        about,
        "",
        again,
        "",
        "## Targets",
        "",
        *_grid(
            ("workload", "verdict"),
            [(table.workload.id, verdict(table)) for table in tables if verdict(table)],
        ),
        "",
        "## Machine and versions",
        "",
        *_grid(("what", "value"), list(machine.items())),
        "",
        *_grid(
            ("side", "Python", "packages"),
            [
                (
                    client.side.name,
                    client.python_version,
                    ", ".join(f"{name} {version}" for name, version in client.versions.items())
                    or "standard library",
                )
                for client in clients
            ],
        ),
        "",
    ]
    if said := remarks(tables):
        lines += ["## Beside the limits", "", *(f"- {line}" for line in said), ""]
    return lines


def _workloads(tables: Sequence[Table]) -> list[str]:
    lines: list[str] = []
    for table in tables:
        workload = table.workload
        params = ", ".join(f"{name} = {value:,}" for name, value in table.params.items())
        lines += [
            f"## {workload.id}: {workload.title}",
            "",
            workload.what,
            "",
            f"{workload.unit} per {workload.per}, {table.rounds} rounds"
            + (f"; {params}" if params else "")
            + ".",
            "",
            *_grid(HEAD, [cells(table, row) for row in table.rows]),
            "",
        ]
        if said := verdict(table):
            lines += [f"**{said}.**", ""]
        durable = any(row.durability for row in table.rows)
        lines += [
            *_grid(
                ("side", "durability", "how") if durable else ("side", "how"),
                [
                    (row.side, row.durability, row.how) if durable else (row.side, row.how)
                    for row in table.rows
                ],
            ),
            "",
        ]
    return lines


def _grid(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, tuple("---" for _ in head), *rows)]
