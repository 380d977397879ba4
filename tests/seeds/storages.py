"""Opening the same checkpoints again and again, as one process after the other would."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
)

OpenStorage: TypeAlias = Callable[[], CheckpointStorage]

KINDS = ("memory", "file", "sqlite")


class Storages:
    """Opens the storage of one kind in a folder; what is in memory has only one opening."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._opened: list[CheckpointStorage] = []

    def open(self) -> CheckpointStorage:
        """The checkpoints, in a storage of its own where there can be several."""
        if self._kind == "memory" and self._opened:
            return self._opened[0]
        self._opened.append(self._new())
        return self._opened[-1]

    def _new(self) -> CheckpointStorage:
        match self._kind:
            case "file":
                return FileCheckpointStorage(self._folder / "storage")
            case "sqlite":
                return SqliteCheckpointStorage(self._folder / "storage.db")
            case _:
                return InMemoryCheckpointStorage()

    async def close(self) -> None:
        """Close all that was opened."""
        for storage in self._opened:
            await storage.close()
