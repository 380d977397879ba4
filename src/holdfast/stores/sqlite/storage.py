"""The storage that users open on a SQLite file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from holdfast.checkpoint.arguments import check_flag, check_progress, checked_path
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.stores.common.read_only import ReadOnlyStore
from holdfast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring


class SqliteCheckpointStorage(CheckpointStorage):
    """Checkpoints in one SQLite file, and big values in a folder beside it: the embedded default.

    Several runs commit together, several processes may use one file, and what was acknowledged survives a power cut.
    With ``read_only`` nothing is written, not even beside the file, and what would write is refused. With ``keys``
    everything is encrypted and authenticated, as ``CheckpointStorage`` says.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = SqliteCheckpointStorage(f"{folder}/holdfast.db")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        retention: Retention | None = None,
        *,
        read_only: bool = False,
        keys: Keyring | None = None,
        anchor: Anchor | str | os.PathLike[str] | None = None,
    ) -> None:
        check_flag("read_only", read_only)
        store = SqliteStore(checked_path("path", path), read_only=read_only, keyed=keys is not None)
        self._database: SqliteStore = (
            cast(SqliteStore, ReadOnlyStore(store, f"the store {str(store.path)!r}")) if read_only else store
        )
        super().__init__(self._database, retention, keys=keys, anchor=anchor)

    async def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copy the whole storage, large values included, to a new file while runs go on; it can be opened as one.

        The copy is that of one moment, and gets its name when it is complete. Nobody drives a run in it: those that
        are RUNNING can be resumed there. ``progress`` is called with how many bytes are copied, and of how many.
        """
        check_progress(progress)
        await self._database.backup(checked_path("path", path), progress)
