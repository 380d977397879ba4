"""An incident of the demo: what was asked for on the command line, and the folder that keeps it between two starts."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM ends a process as roughly


@dataclass(frozen=True)
class DemoModel:
    """A model that speaks chat completions: a real one, or the one that ships with the demo and is started by it."""

    name: str = "demo-model"
    url: str = ""
    """The URL of its API; of the local one it is known once that is started."""
    is_local: bool = True


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo; they travel to the process that drives the run as JSON.

    >>> options = DemoOptions("checkout", folder="/tmp/demo")
    >>> DemoOptions.from_json(options.to_json()) == options
    True
    """

    service: str = "checkout"
    is_calm: bool = False
    answer: bool | None = None
    """The decision, if it was given in advance."""
    is_killed: bool = True
    is_fast: bool = False
    folder: str = ".demo"
    model: DemoModel = DemoModel()

    def to_json(self) -> str:
        """Return the options as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoOptions:
        """Return the options that ``to_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        return cls(**{**given, "model": DemoModel(**given["model"])})

    @property
    def place(self) -> IncidentFolder:
        """The folder of the incident that these options describe."""
        return IncidentFolder(Path(self.folder) / (f"{self.service}-calm" if self.is_calm else self.service))


@dataclass(frozen=True)
class ModelBill:
    """The calls for which the local model was paid, by its own count."""

    askers: dict[str, int]
    """The number of calls of each process."""
    repeated: int
    """The number of calls that asked again what had been asked before."""

    @property
    def calls(self) -> int:
        """The number of all calls."""
        return sum(self.askers.values())

    def __str__(self) -> str:
        """Say it in plain words."""
        askers = ", ".join(f"{count} by {asker}" for asker, count in self.askers.items())
        return f"{self.calls} calls, {self.repeated or 'none'} paid twice: {askers}"


@dataclass(frozen=True)
class IncidentFolder:
    """The folder of one incident: its storage, the notes of the telemetry service, and the bill of the model."""

    path: Path

    @property
    def database(self) -> Path:
        """The file of the storage."""
        return self.path / "checkpoints.db"

    @property
    def fetches(self) -> Path:
        """The notes of the telemetry service: a line for each time that somebody fetched from it."""
        return self.path / "fetches.log"

    @property
    def bill(self) -> Path:
        """The bill that the local model writes: a line of JSON for each call."""
        return self.path / "model_calls.jsonl"

    @property
    def is_decided(self) -> bool:
        """True if the demo came to its end here, so that the next start begins anew."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.path / "decided"

    @property
    def _is_ours(self) -> bool:
        return self.database.exists() or self.fetches.exists() or self.bill.exists()

    def fetched_by(self) -> list[str]:
        """Return the processes that fetched the telemetry, in order."""
        return self.fetches.read_text().splitlines() if self.fetches.exists() else []

    def read_bill(self) -> ModelBill:
        """Return what the local model was paid for."""
        lines = self.bill.read_text(encoding="utf-8").splitlines() if self.bill.exists() else []
        calls = [json.loads(line) for line in lines]
        questions = {call["question"] for call in calls}
        return ModelBill(dict(Counter(call["asked_by"] for call in calls)), len(calls) - len(questions))

    def begin(self, is_fresh: bool) -> None:
        """Make the folder; forget what an earlier start left if it came to its end, or if ``is_fresh``."""
        if self.path.exists() and any(self.path.iterdir()) and not self._is_ours:
            raise FileExistsError(f"{self.path} holds something else; give the demo another --folder")
        if is_fresh or self.is_decided:
            shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True, exist_ok=True)

    def end(self) -> None:
        """Note that the demo came to its end; everything stays, so that it can be looked at."""
        self._mark.touch()
