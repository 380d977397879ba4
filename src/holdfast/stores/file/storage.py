"""The storage in a directory; whoever names it uses it, so its store is imported with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from holdfast.checkpoint.arguments import check_flag, checked_path
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Store
from holdfast.stores.common.read_only import ReadOnlyStore
from holdfast.stores.file.store import FileStore

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring


class FileCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that a person can read: JSON records, blobs by digest.

    With ``read_only`` nothing is written to it, and what would write is refused. With ``keys`` everything is encrypted
    and authenticated, as ``CheckpointStorage`` says: then a line shows how a run stands, and ciphertext.

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
        keys: Keyring | None = None,
        anchor: Anchor | str | os.PathLike[str] | None = None,
    ) -> None:
        check_flag("read_only", read_only)
        path = checked_path("storage_path", storage_path)
        store = FileStore(path, read_only=read_only, keyed=keys is not None)
        held: Store = (
            cast(Store, ReadOnlyStore(store, f"the store {str(store.path)!r}")) if read_only else store
        )
        super().__init__(held, retention, keys=keys, anchor=anchor)
