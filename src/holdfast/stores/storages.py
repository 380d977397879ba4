"""A storage in memory, and the storage that a URL names."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.retention import Retention
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


def _file(url: str) -> CheckpointStorage:
    from holdfast.stores.file.storage import FileCheckpointStorage

    return FileCheckpointStorage(_path(url))


def _sqlite(url: str) -> CheckpointStorage:
    from holdfast.stores.sqlite.storage import SqliteCheckpointStorage

    return SqliteCheckpointStorage(_path(url))


_SCHEMES: dict[str, Callable[[str], CheckpointStorage]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
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
