"""What the command costs before it does anything: pairs of fresh processes, with it and with bare Python."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.client import Client, Sample, clean_environment
from bench.environments import ROOT
from bench.measure import Row, Table
from bench.progress import Progress
from bench.sides import OURS
from bench.workloads import Params, Workload
from bench.workloads.model import UNITS

HELP, LIST = "holdfast --help", "holdfast runs ls"


def measure_starts(
    workload: Workload, params: Params, clients: Sequence[Client], rounds: int, progress: Progress
) -> Table:
    """Each value is one process of the command less one of bare Python; the first pair warms up."""
    ours = [client for client in clients if client.side.name == OURS]
    if not ours:
        return Table(workload, params, rounds, [], {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        progress(f"{workload.id}: making {params['runs']:,} runs")
        asyncio.run(_make_runs(path, int(params["runs"])))
        lines = {HELP: ["--help"], LIST: ["--store", f"sqlite:///{path}", "runs", "ls"]}
        samples: dict[str, list[Sample]] = {name: [] for name in lines}
        for number in range(rounds + 1):
            for name, line in lines.items():
                bare = _seconds(ours[0].python, "pass")
                program = f"from holdfast.cli.entry import main; raise SystemExit(main({line!r}))"
                value = (_seconds(ours[0].python, program) - bare) * UNITS[workload.unit]
                progress(f"{workload.id} round {number}/{rounds}: {name} {value:,.1f} {workload.unit}")
                if number:
                    samples[name].append(Sample(value))
    return Table(
        workload,
        params,
        rounds,
        [Row(name, found, False, f"`{name}`") for name, found in samples.items()],
        {},
    )


async def _make_runs(path: Path, count: int) -> None:
    """Make a run, and further ones as rows of the store: so many whole runs would take minutes."""
    from holdfast import SqliteCheckpointStorage, WorkflowBuilder, executor
    from holdfast.checkpoint.store import Commit
    from holdfast.ids import RunId

    @executor
    def double(number: int) -> int:
        return number * 2

    async with SqliteCheckpointStorage(path) as storage:
        workflow = (
            WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(storage).build()
        )
        await workflow.run(1, run_id="first")
        head = await storage.store.head(RunId("first"))
        assert head is not None
        for base in range(1, count, 1000):
            names = [RunId(f"run-{number}") for number in range(base, min(base + 1000, count))]
            heads = [head._replace(run_id=name, family=name, updated=head.updated + base) for name in names]
            await asyncio.gather(*(storage.store.commit(Commit(one, None)) for one in heads))


def _seconds(python: Path, program: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [str(python), "-P", "-s", "-c", program],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin
