"""`python -m bench`: measure, show, write the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import machine, report, results
from bench.client import Client, WorkerFailed, WrongResult
from bench.environments import ROOT, EnvironmentFailed, folder, interpreter
from bench.imports import measure_imports
from bench.measure import Table, measure
from bench.sides import SIDES
from bench.workloads import WORKLOADS, Params, Workload, select

ROUNDS, QUICK_ROUNDS = 30, 7
WARMUP = 3


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Holdfast beside its peers, in one run."
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}: a rough answer"
    )
    parser.add_argument(
        "--workloads", default="", metavar="W1,W5", help=f"of {', '.join(w.id for w in WORKLOADS)}, limits"
    )
    parser.add_argument(
        "--sides", default="", metavar="A,B", help=f"of {', '.join(side.name for side in SIDES)}"
    )
    parser.add_argument("--rounds", type=int, help="measured rounds for each workload")
    parser.add_argument(
        "--param", action="append", default=[], metavar="W1.supersteps=500", help="change a parameter"
    )
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
            options.profiled = select(options.profile)[0]
            if options.profile.lower() != options.profiled.id.lower() or options.profiled.supersteps is None:
                raise ValueError(f"--profile {options.profile}: not one workload that our side does")
    except ValueError as error:
        parser.error(str(error))
    names = {name.strip() for name in options.sides.split(",") if name.strip()}
    if unknown := names - {side.name for side in SIDES}:
        parser.error(f"unknown side {', '.join(sorted(unknown))}")
    options.chosen = [side for side in SIDES if not names or side.name in names]
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


def measure_all(
    options: argparse.Namespace, clients: Sequence[Client], progress: report.Progress
) -> list[Table]:
    """All chosen workloads, each shown as soon as it is done."""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    tables = []
    for workload in options.selected:
        table = _measure_one(workload, options.params[workload.id], clients, rounds, progress)
        progress.clear()
        if table.rows:
            tables.append(table)
            print(report.show(table) + "\n", flush=True)
    for remark in report.remarks(tables):
        print(remark)
    return tables


def _measure_one(
    workload: Workload, params: Params, clients: Sequence[Client], rounds: int, progress: report.Progress
) -> Table:
    if workload.answer is None:
        return measure_imports(workload, clients, min(rounds, 15), progress)
    return measure(workload, params, clients, rounds, WARMUP, progress)


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit code is 0 even where a target is missed, because a clock is no test."""
    options = parse(arguments)
    if options.profile:
        from bench.profiling import profile

        print(profile(options.profiled, options.params[options.profiled.id]))
        return 0
    facts = machine.describe()
    progress = report.Progress()
    try:
        with ExitStack() as stack:
            pythons = [(side, interpreter(side, progress.say)) for side in options.chosen]
            clients = [stack.enter_context(Client(side, python)) for side, python in pythons]
            tables = measure_all(options, clients, progress)
            whole = not (
                options.quick or options.workloads or options.sides or options.rounds or options.param
            )
            output = options.output or (ROOT / "bench" if whole else folder()) / "RESULTS.md"
            results.write(output, tables, clients, facts, " ".join(["python -m bench", *arguments]))
    except (EnvironmentFailed, WorkerFailed, WrongResult) as error:
        progress.clear()
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"written: {os.path.relpath(output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
