"""W6: what it takes to go on in a new process, beside what it takes to import a side and open an empty store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.client import Client, Sample, WorkerFailed, WrongResult, clean_environment, data_folder
from bench.environments import ROOT
from bench.failing import Failed
from bench.measure import Row, Table
from bench.progress import Progress
from bench.workloads import Params, Workload
from bench.workloads.model import UNITS

SECONDS = 300
OPEN, AFTER_W3, LIST, PAGE = "open empty", "after W3", "list all", "list as many as supersteps"


def _params(params: Params) -> dict[str, dict[str, int]]:
    return {
        "W3": {"size": params["size"], "supersteps": params["log_supersteps"]},
        "W4": {"supersteps": params["supersteps"], "message": params["message"]},
    }


class Resumer:
    """The new processes of one side."""

    def __init__(self, client: Client, params: Params, place: Path) -> None:
        self.client = client
        self._params = _params(params)
        self._place = place / client.side.name
        self.counts: set[int] = set()

    def build(self) -> None:
        """Let processes play W3 and W4, and be killed."""
        for workload in self._workloads():
            done = self._start("build", workload, self._built(workload))
            if done.returncode != -signal.SIGKILL:
                raise WorkerFailed(self._complaint("build", workload, done))

    def _workloads(self) -> list[str]:
        return [name for name in self._params if name in self.client.entries]

    def _built(self, workload: str) -> Path:
        return self._place / f"built-{workload}"

    def sample(self, scale: float) -> Sample:
        """One of each."""
        figures = {OPEN: self._seconds("open", "W4", None) * scale}
        if "W3" in self._workloads():
            figures[AFTER_W3] = self._seconds("resume", "W3", self._built("W3")) * scale
        figures[LIST] = self._seconds("list", "W4", self._built("W4")) * scale
        figures[PAGE] = self._seconds("page", "W4", self._built("W4")) * scale
        return Sample(self._seconds("resume", "W4", self._built("W4")) * scale, figures)

    def _seconds(self, what: str, workload: str, built: Path | None) -> float:
        place = self._place / "now"
        shutil.rmtree(place, ignore_errors=True)
        if built is not None:
            shutil.copytree(built, place, symlinks=True)
            # Whoever was killed had its files on the disk: the first sync of who goes on must not write this copy.
            os.sync()
        done = self._start(what, workload, place)
        if not done.stdout:
            raise WorkerFailed(self._complaint(what, workload, done))
        answer = json.loads(done.stdout)
        if what in ("list", "page"):
            self._check_count(answer["count"])
        return float(answer["seconds"])

    def _check_count(self, count: int) -> None:
        """As many as there were supersteps that ended, give or take what each side counts besides."""
        self.counts.add(count)
        if count < self._params["W4"]["supersteps"] - 3:
            raise WrongResult(f"{self.client.side.name}, W6: {count} checkpoints were listed")

    @property
    def counted(self) -> str:
        """How many were listed, of all and as many as there were supersteps."""
        return " and ".join(f"{count:,}" for count in sorted(self.counts))

    def _start(self, what: str, workload: str, place: Path) -> subprocess.CompletedProcess[str]:
        side = self.client.side
        params = json.dumps(self._params[workload])
        command = [str(self.client.python), "-m", "bench.resumer", what, side.module, side.variant, workload]
        return subprocess.run(
            [*command, params, str(place)],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def _complaint(self, what: str, workload: str, done: subprocess.CompletedProcess[str]) -> str:
        tail = "\n".join(done.stderr.splitlines()[-12:])
        return f"{self.client.side.name} could not {what} {workload} in a new process ({done.returncode}):\n{tail}"


def measure_resuming(
    workload: Workload, params: Params, clients: Sequence[Client], rounds: int, progress: Progress
) -> Table:
    """Build what each side goes on with, then go on, in turn."""
    able = [client for client in clients if client.hello["resume"] is not None]
    place = Path(tempfile.mkdtemp(dir=data_folder()))
    scale = UNITS[workload.unit]
    failed = Failed(progress.say)
    try:
        resumers = {client.side.name: Resumer(client, params, place) for client in able}
        for name, resumer in resumers.items():
            progress(f"{workload.id}: {name} builds")
            with failed.noted(name):
                resumer.build()
        samples: dict[str, list[Sample]] = {name: [] for name in resumers}
        for number in range(0 if rounds > 1 else 1, rounds + 1):
            for name, resumer in resumers.items():
                if name in failed:
                    continue
                with failed.noted(name):
                    sample = resumer.sample(scale)
                    progress(
                        f"{workload.id} round {number}/{rounds}: {name} {sample.value:,.1f} {workload.unit}"
                    )
                    if number:
                        samples[name].append(sample)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rows = [
        Row(
            name,
            samples[name],
            resumer.client.side.is_peer,
            f"{resumer.client.hello['resume']}; {resumer.counted} entries were listed",
            resumer.client.side.stores,
        )
        for name, resumer in resumers.items()
        if name not in failed
    ]
    return Table(workload, params, rounds, rows, failed.reasons)
