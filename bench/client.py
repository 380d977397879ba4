"""The harness's end of a worker: one process per side, asked one thing at a time."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.environments import ROOT, folder
from bench.sides import Side
from bench.workloads import Params, Workload

PATIENCE = 300.0
"""Seconds after which a silent worker is given up."""

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""All that workers see of the environment: no tracing, proxy or Python settings reach any side."""


class WorkerFailed(Exception):
    """A worker died, raised or hung."""


class WrongResult(Exception):
    """A side computed something else than the workload's answer, so its time means nothing."""


@dataclass(frozen=True)
class Sample:
    """One timed run of one workload by one side."""

    value: float
    supersteps: int = 0
    events: int = 0
    peak_rss: int = 0


def clean_environment() -> dict[str, str]:
    """The environment that every measured process gets."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


class Client:
    """A running worker of one side."""

    def __init__(self, side: Side, python: Path) -> None:
        self.side = side
        self.python = python
        self._log = folder() / f"{side.name}.log"
        self._log.write_text("")
        self._start()

    def _start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [str(self.python), "-m", "bench.worker", self.side.module],
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
        self._used = False
        hello = self._answer()
        self.python_version: str = hello["python"]
        self.versions: dict[str, str] = hello["versions"]
        self.entries: dict[str, dict[str, str]] = hello["entries"]

    def refresh(self) -> None:
        """Start the process anew if it ran anything, so that no workload meets the heap or the peak of another one."""
        if self._used:
            self.close()
            self._start()

    def run(self, workload: Workload, params: Params) -> Sample:
        """One timed run, checked."""
        assert self._process.stdin is not None
        params = {**params, **self.side.settings}
        self._used = True
        try:
            self._process.stdin.write(json.dumps({"workload": workload.id, "params": params}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerFailed(self._complaint("went away")) from error
        answer = self._answer()
        self._check(workload, params, answer)
        return Sample(
            workload.value(answer["seconds"], params),
            answer["supersteps"],
            answer["events"],
            answer["peak_rss"],
        )

    def _check(self, workload: Workload, params: Params, answer: dict[str, Any]) -> None:
        assert workload.answer is not None
        facts = [("result", workload.answer(params), answer["result"])]
        if workload.supersteps is not None:
            facts.append(("supersteps", workload.supersteps(params), answer["supersteps"]))
        for name, right, got in facts:
            if got != right:
                raise WrongResult(f"{self.side.name}, {workload.id}: {name} is {got!r}, should be {right!r}")

    def _answer(self) -> dict[str, Any]:
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
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        tail = "\n".join(self._log.read_text().splitlines()[-12:])
        return f"the worker of {self.side.name} {what}; the end of {self._log.relative_to(ROOT)}:\n{tail}"

    def close(self) -> None:
        """End the worker."""
        self._selector.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
