"""`python -m bench`: measure, count, show, write the results."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine, plots, report, results
from bench.client import Client, data_folder
from bench.environments import ROOT, folder, interpreter
from bench.failing import Failed
from bench.imports import measure_imports
from bench.measure import Table, count_all, measure
from bench.progress import Progress
from bench.resuming import measure_resuming
from bench.serving import measure_serving
from bench.sides import SIDES, Side
from bench.starts import measure_starts
from bench.verdicts import verdicts
from bench.workloads import WORKLOADS, Params, Workload, select


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Holdfast beside its peers, in one run."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smaller sizes, fewer rounds, the main sides: a rough answer in two minutes",
    )
    parser.add_argument(
        "--workloads",
        default="",
        metavar="W1,W5",
        help=f"of {', '.join(w.id for w in WORKLOADS)}, limits, w7, w8",
    )
    parser.add_argument(
        "--sides", default="", metavar="A,B", help=f"of {', '.join(side.name for side in SIDES)}"
    )
    parser.add_argument("--rounds", type=int, help="measured rounds for each workload")
    parser.add_argument(
        "--param", action="append", default=[], metavar="W1.supersteps=500", help="change a parameter"
    )
    parser.add_argument("--no-count", action="store_true", help="do not count bytes and syncs")
    parser.add_argument(
        "--output", type=Path, help="the report; a full run writes bench/RESULTS.md, others .bench/RESULTS.md"
    )
    parser.add_argument(
        "--profile", metavar="W1", help="run our side of one workload under cProfile, and nothing else"
    )
    options = parser.parse_args(arguments)
    try:
        options.selected = select(options.workloads)
        options.params = parameters(options.param, options.quick)
        if options.profile:
            named = [one for one in select(options.profile) if one.id.lower() == options.profile.lower()]
            options.profiled = named[0] if named else None
            if options.profiled is None or options.profiled.supersteps is None:
                raise ValueError(f"--profile {options.profile}: not one workload that our side does")
    except ValueError as error:
        parser.error(str(error))
    names = {name.strip() for name in options.sides.split(",") if name.strip()}
    if unknown := names - {side.name for side in SIDES}:
        parser.error(f"unknown side {', '.join(sorted(unknown))}")
    everyone = [side for side in SIDES if side.quick or not options.quick]
    options.chosen = [side for side in SIDES if side.name in names] if names else everyone
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def parameters(changes: Sequence[str], quick: bool) -> dict[str, Params]:
    """Every workload's parameters, with those of the command line laid over them."""
    params = {w.id: {**w.params, **(w.quick if quick else {})} for w in WORKLOADS}
    for change in changes:
        name, _, value = change.partition("=")
        workload, _, key = name.partition(".")
        if key not in params.get(workload, {}) or not value.isdigit() or int(value) < 1:
            raise ValueError(f"--param {change}: expected <workload>.<parameter>=<positive integer>")
        params[workload][key] = int(value)
    return dict(params)


def measure_all(options: argparse.Namespace, clients: Sequence[Client], progress: Progress) -> list[Table]:
    """All chosen workloads, each shown as soon as it is done; then what is counted."""
    tables = []
    for workload in options.selected:
        table = _measure_one(workload, options, clients, progress)
        progress.clear()
        if table.rows or table.failed:
            tables.append(table)
            print(report.show(table) + "\n", flush=True)
    for client in clients:
        client.close()
    if not options.no_count:
        tables = count_all(tables, clients, options.params, progress, options.quick)
        progress.clear()
    return tables


def _measure_one(
    workload: Workload, options: argparse.Namespace, clients: Sequence[Client], progress: Progress
) -> Table:
    rounds = options.rounds or (workload.quick_rounds if options.quick else workload.rounds)
    params = options.params[workload.id]
    if workload.id == "import":
        return measure_imports(workload, clients, rounds, progress)
    if workload.id == "start":
        return measure_starts(workload, params, clients, rounds, progress)
    if workload.id in ("serve", "watch"):
        return measure_serving(workload, params, rounds, progress)
    if workload.id == "W6":
        return measure_resuming(workload, params, clients, rounds, progress)
    return measure(workload, params, clients, rounds, progress, quick=options.quick)


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit code is 0 even where a target is missed, because a clock is no test.

    It is 1 where a side failed: the others are measured all the same.
    """
    options = parse(arguments)
    if options.profile:
        from bench.profiling import profile

        print(profile(options.profiled, options.params[options.profiled.id]))
        return 0
    facts = machine.describe()
    progress = Progress()
    unable = Failed(progress.say)
    try:
        with ExitStack() as stack:
            clients = start(options.chosen, stack, unable, progress)
            tables = measure_all(options, clients, progress)
            output = _written(options, tables, clients, facts, arguments, progress, unable)
    finally:
        shutil.rmtree(data_folder(), ignore_errors=True)
    print(f"written: {os.path.relpath(output)}")
    failed = {*unable.reasons, *(side for table in tables for side in table.failed)}
    if failed:
        print(f"bench: failed: {', '.join(sorted(failed))}", file=sys.stderr)
    return 1 if failed else 0


def start(sides: Sequence[Side], stack: ExitStack, unable: Failed, progress: Progress) -> list[Client]:
    """The workers of all sides that can be started."""
    clients = []
    for side in sides:
        with unable.noted(side.name):
            client = stack.enter_context(Client(side, interpreter(side.environment, progress.say)))
            client.start()
            clients.append(client)
    return clients


def _written(
    options: argparse.Namespace,
    tables: Sequence[Table],
    clients: Sequence[Client],
    facts: dict[str, str],
    arguments: Sequence[str],
    progress: Progress,
    unable: Failed,
) -> Path:
    found = verdicts(tables, machine.is_busy(facts))
    print(report.show_verdicts(found))
    changed = options.quick or options.workloads or options.sides or options.rounds or options.param
    output: Path = options.output or (folder() if changed else ROOT / "bench") / "RESULTS.md"
    drawn = plots.draw(tables, output.parent / "plots", progress.say)
    command = " ".join(["python -m bench", *arguments])
    results.write(output, tables, found, clients, facts, command, drawn, unable.reasons)
    return output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
