"""URLs of storages: ``open_storage`` opens the storage that one names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import Anchor
    from holdfast.checkpoint.keys.keyring import Keyring


def _parse_path(url: str) -> str:
    """Return the path in a URL like ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``file:folder``."""
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


class _Opening(NamedTuple):
    """The arguments with which a storage is opened."""

    read_only: bool
    keys: Keyring | None
    anchor: Anchor | str | os.PathLike[str] | None


def _open_memory(url: str, how: _Opening) -> CheckpointStorage:
    if url.partition(":")[2].strip("/"):
        raise InvalidArgument(f"storage URL {url!r}: memory has no path; write memory:")
    if how.read_only:
        raise InvalidArgument(
            f"storage URL {url!r}: a new store in memory is empty, so read_only makes no sense"
        )
    from holdfast.stores.memory import InMemoryCheckpointStorage

    return InMemoryCheckpointStorage(keys=how.keys, anchor=how.anchor)


def _open_file(url: str, how: _Opening) -> CheckpointStorage:
    from holdfast.stores.file.storage import FileCheckpointStorage

    return FileCheckpointStorage(_parse_path(url), **how._asdict())


def _open_sqlite(url: str, how: _Opening) -> CheckpointStorage:
    from holdfast.stores.sqlite.storage import SqliteCheckpointStorage

    return SqliteCheckpointStorage(_parse_path(url), **how._asdict())


_SCHEMES: dict[str, Callable[[str, _Opening], CheckpointStorage]] = {
    "memory": _open_memory,
    "file": _open_file,
    "sqlite": _open_sqlite,
}


def open_storage(
    url: str,
    *,
    read_only: bool = False,
    keys: Keyring | None = None,
    anchor: Anchor | str | os.PathLike[str] | None = None,
) -> CheckpointStorage:
    """Open the storage of a URL: ``memory:``, ``file:///folder``, ``sqlite:///holdfast.db``.

    After ``//`` a path with one more slash is relative, with two it is absolute, as in SQLAlchemy.
    With ``read_only`` nothing is written, and what would write is refused; a store that is not there is not made.
    ``keys`` and ``anchor`` are those of ``CheckpointStorage``.

    >>> type(open_storage("memory:")).__name__
    'InMemoryCheckpointStorage'
    """
    scheme = str(url).partition(":")[0]
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}:" for name in _SCHEMES)
        raise InvalidArgument(f"storage URL {url!r}: it must begin with one of {known}")
    return _SCHEMES[scheme](url, _Opening(read_only, keys, anchor))
