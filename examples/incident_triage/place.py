"""The place of an incident between two starts of the demo: a folder with its storage, gone when it is decided."""

import shutil
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = Path(__file__).resolve().parents[2] / ".demo"


@dataclass(frozen=True)
class Place:
    """The folder of one incident."""

    root: Path
    incident: str

    @property
    def folder(self) -> Path:
        return self.root / self.incident

    @property
    def database(self) -> Path:
        return self.folder / "checkpoints.db"

    @property
    def fetches(self) -> Path:
        """Return the notes of the telemetry service: a line for each time that somebody fetches from it."""
        return self.folder / "fetches.log"

    def fetched_by(self) -> list[str]:
        """Return the processes that fetched the telemetry, in order."""
        return self.fetches.read_text().splitlines() if self.fetches.exists() else []

    def clear(self) -> None:
        """Forget the incident, so that the next start begins anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.root.rmdir()
        except OSError:  # another incident is there
            pass
