"""The storage in a directory; whoever names it uses it, so its store is imported with it."""

from __future__ import annotations

import os

from holdfast.checkpoint.arguments import checked_path
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.stores.file.store import FileStore


class FileCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that a person can read: JSON records, blobs by digest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = FileCheckpointStorage(folder)
    """

    def __init__(self, storage_path: str | os.PathLike[str], retention: Retention | None = None) -> None:
        super().__init__(FileStore(checked_path("storage_path", storage_path)), retention)
