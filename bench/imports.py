"""What an import costs: pairs of fresh processes, with and without it, all sides in turn."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.client import Client, Sample, clean_environment
from bench.environments import ROOT
from bench.failing import Failed
from bench.measure import Row, Table
from bench.progress import Progress
from bench.sides import OURS
from bench.workloads import Workload
from bench.workloads.model import UNITS


def measure_imports(workload: Workload, clients: Sequence[Client], rounds: int, progress: Progress) -> Table:
    """Each value is one process with the import less one without, in the same environment; the first pair warms up."""
    entries = [
        (client, statement if index else client.side.name, statement)
        for client in clients
        for index, statement in enumerate(client.side.imports)
    ]
    samples: dict[str, list[Sample]] = {name: [] for _, name, _ in entries}
    failed = Failed(progress.say)
    for number in range(0 if rounds > 1 else 1, rounds + 1):
        for client, name, statement in entries:
            if name in failed:
                continue
            which = f"round {number}/{rounds}" if number else "warm-up"
            with failed.noted(name):
                bare = _seconds(client.python, "pass")
                value = (_seconds(client.python, statement) - bare) * UNITS[workload.unit]
                progress(f"{workload.id} {which}: {name} {value:,.1f} {workload.unit}")
                if number:
                    samples[name].append(Sample(value))
    rows = [
        Row(
            name if name == client.side.name else f"{OURS} (names)",
            samples[name],
            client.side.is_peer,
            f"`{statement}`",
        )
        for client, name, statement in entries
        if name not in failed
    ]
    return Table(workload, {}, rounds, rows, failed.reasons)


def _seconds(python: Path, statement: str) -> float:
    # Without -I our own sources would be found by PYTHONPATH only; with it, only what is installed.
    begin = time.perf_counter()
    subprocess.run([str(python), "-P", "-s", "-c", statement], cwd=ROOT, env=clean_environment(), check=True)
    return time.perf_counter() - begin
