"""The storage in a directory; whoever names it uses it, so its store is imported with it."""

from __future__ import annotations

import os
from typing import cast

from holdfast.checkpoint.arguments import check_flag, checked_path
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Store
from holdfast.stores.common.read_only import ReadOnlyStore
from holdfast.stores.file.store import FileStore


class FileCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that a person can read: JSON records, blobs by digest.

    With ``read_only`` nothing is written to it, and what would write is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = FileCheckpointStorage(folder)
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        retention: Retention | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        check_flag("read_only", read_only)
        store = FileStore(checked_path("storage_path", storage_path), read_only=read_only)
        held: Store = (
            cast(Store, ReadOnlyStore(store, f"the store {str(store.path)!r}")) if read_only else store
        )
        super().__init__(held, retention)
