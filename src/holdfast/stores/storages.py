"""The storages that come with Holdfast, each imported with the store beneath it when it is first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.arguments import check_progress, checked_path
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.steps import Progress
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import InvalidArgument


class InMemoryCheckpointStorage(CheckpointStorage):
    """Checkpoints in the memory of this process: for tests, and for runs that need not outlive it.

    >>> InMemoryCheckpointStorage().counters.commits
    0
    """

    def __init__(self, retention: Retention | None = None) -> None:
        from holdfast.stores.memory import MemoryStore

        super().__init__(MemoryStore(), retention)


class FileCheckpointStorage(CheckpointStorage):
    """Checkpoints in a directory that a person can read: JSON records, blobs by digest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = FileCheckpointStorage(folder)
    """

    def __init__(self, storage_path: str | os.PathLike[str], retention: Retention | None = None) -> None:
        from holdfast.stores.file import FileStore

        super().__init__(FileStore(checked_path("storage_path", storage_path)), retention)


class SqliteCheckpointStorage(CheckpointStorage):
    """Checkpoints in one SQLite file, and big values in a folder beside it: the embedded default.

    Several runs commit together, several processes may use one file, and what was acknowledged survives a power cut.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = SqliteCheckpointStorage(f"{folder}/holdfast.db")
    """

    def __init__(self, path: str | os.PathLike[str], retention: Retention | None = None) -> None:
        from holdfast.stores.sqlite import SqliteStore

        self._database = SqliteStore(checked_path("path", path))
        super().__init__(self._database, retention)

    async def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copy the whole storage, large values included, to a new file while runs go on; it can be opened as one.

        The copy is that of one moment, and gets its name when it is complete. Nobody drives a run in it: those that
        are RUNNING can be resumed there. ``progress`` is called with how many bytes are copied, and of how many.
        """
        check_progress(progress)
        await self._database.backup(checked_path("path", path), progress)


def _path(url: str) -> str:
    """The path in a URL like ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``file:folder``."""
    parts = urlsplit(url)
    if parts.netloc:
        raise InvalidArgument(
            f"storage URL {url!r} names the host {parts.netloc!r}; for a relative path write "
            f"{parts.scheme}:///{parts.netloc}{parts.path}, for an absolute one {parts.scheme}:////..."
        )
    if parts.query or parts.fragment:
        raise InvalidArgument(f"storage URL {url!r}: there are no options after '?' or '#'")
    path = unquote(parts.path)
    if "://" in url:
        path = path[1:]
    if not path:
        raise InvalidArgument(f"storage URL {url!r} has no path; write {parts.scheme}:///path")
    return path


def _memory(url: str) -> CheckpointStorage:
    if url.partition(":")[2].strip("/"):
        raise InvalidArgument(f"storage URL {url!r}: memory has no path; write memory:")
    return InMemoryCheckpointStorage()


_SCHEMES: dict[str, Callable[[str], CheckpointStorage]] = {
    "memory": _memory,
    "file": lambda url: FileCheckpointStorage(_path(url)),
    "sqlite": lambda url: SqliteCheckpointStorage(_path(url)),
}


def open_storage(url: str) -> CheckpointStorage:
    """The storage that a URL names: ``memory:``, ``file:///folder``, ``sqlite:///holdfast.db``.

    After ``//`` a path with one more slash is relative, with two it is absolute, as in SQLAlchemy.

    >>> type(open_storage("memory:")).__name__
    'InMemoryCheckpointStorage'
    """
    scheme = str(url).partition(":")[0]
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}:" for name in _SCHEMES)
        raise InvalidArgument(f"storage URL {url!r}: it must begin with one of {known}")
    return _SCHEMES[scheme](url)
