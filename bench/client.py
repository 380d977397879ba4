"""The harness's end of a worker: one process per side, asked one thing at a time."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.environments import ROOT, folder
from bench.meters import stored
from bench.sides import Side
from bench.workloads import Params, Timed, Workload
from bench.workloads.model import UNITS

PATIENCE = 300.0
"""Seconds after which a silent worker is given up."""

_LARGE = 16 << 20

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""All that workers see of the environment: no tracing, proxy or Python settings reach any side."""


class WorkerFailed(Exception):
    """A worker died, raised or hung."""


class WrongResult(Exception):
    """A side computed something else than the workload's answer, so its time means nothing."""


@dataclass(frozen=True)
class Sample:
    """One timed run of one workload by one side, in the workload's unit."""

    value: float
    figures: dict[str, float] = field(default_factory=dict)
    supersteps: int = 0
    events: int = 0
    peak: int = 0
    stored: int = 0
    marks: tuple[float, ...] = ()


def clean_environment() -> dict[str, str]:
    """The environment that every measured process gets; our own sources come first, where they are not installed."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def data_folder() -> Path:
    """Where workers store: beside the environments, so that it is the disk of the repository."""
    place = folder() / "data"
    place.mkdir(exist_ok=True)
    return place


class Client:
    """A worker of one side, started when it is first needed."""

    def __init__(self, side: Side, python: Path, tracer: Sequence[str] = ()) -> None:
        self.side = side
        self.python = python
        self.hello: dict[str, Any] = {}
        self._tracer = tracer
        self._log = folder() / f"{side.name.replace(': ', '-').replace(' ', '-')}.log"
        self._log.write_text("")
        self._process: subprocess.Popen[str] | None = None

    @property
    def entries(self) -> dict[str, str]:
        """How the side does each workload that it can do."""
        found: dict[str, str] = self.hello["entries"]
        return found

    def start(self) -> None:
        """Start the worker if it does not run, and let it say who it is."""
        if self._process is not None:
            return
        module, variant = self.side.module, self.side.variant
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._tracer, str(self.python), "-m", "bench.worker", module, variant],
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self.hello = self._answer()

    def run(self, workload: Workload, params: Params) -> Sample:
        """One timed run, checked."""
        answer = self.ask(workload, params, count=False)
        timed = Timed(answer["seconds"], tuple(answer["marks"]), answer["own"])
        scale = UNITS[workload.unit]
        return Sample(
            workload.value(timed, params) * scale,
            {
                name: figure(timed, params) * scale
                for name, figure in workload.figures.items()
                if len(timed.marks) > 1
            },
            answer["supersteps"],
            answer["events"],
            answer["peak"],
            answer["stored"],
            timed.marks,
        )

    def ask(self, workload: Workload, params: Params, count: bool) -> dict[str, Any]:
        """One run in a new folder, checked."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        place = Path(tempfile.mkdtemp(dir=data_folder()))
        request = {
            "workload": workload.id,
            "params": dict(params),
            "folder": str(place / "store"),
            "fresh": workload.fresh,
            "count": count,
        }
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        except OSError as error:
            raise WorkerFailed(self._complaint("went away")) from error
        finally:
            # Small stores stay until the end of the bench: for minutes after files were removed, ext4 takes a hundred
            # times as long to make new ones beside them, and a side that makes many would pay for that.
            if stored(place) > _LARGE:
                shutil.rmtree(place, ignore_errors=True)
        self._check(workload, params, answer)
        return answer

    def _check(self, workload: Workload, params: Params, answer: dict[str, Any]) -> None:
        assert workload.answer is not None
        right = json.loads(json.dumps(workload.answer(params)))
        facts = [("result", right, answer["result"])]
        if workload.supersteps is not None:
            facts.append(("supersteps", workload.supersteps(params), answer["supersteps"]))
        for name, right, got in facts:
            if got != right:
                raise WrongResult(f"{self.side.name}, {workload.id}: {name} is {got!r}, should be {right!r}")

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._selector.select(PATIENCE):
            raise WorkerFailed(self._complaint(f"was silent for {PATIENCE:g} seconds"))
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._complaint("ended"))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.side.name} raised:\n{answer['error']}")
        return answer

    def _complaint(self, what: str) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        tail = "\n".join(self._log.read_text().splitlines()[-12:])
        return f"the worker of {self.side.name} {what}; the end of {self._log.relative_to(ROOT)}:\n{tail}"

    def close(self) -> None:
        """End the worker; the next workload starts a new one, with a heap and a peak of its own."""
        process, self._process = self._process, None
        if process is None:
            return
        self._selector.close()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
