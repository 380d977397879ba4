"""Bugs on purpose in how stores use a disk: each campaign must find those that it is there for.

A process plants one in itself before it does anything; it is gone with the process.
"""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.stores.file.line_file import LineFile
from holdfast.stores.file.run_lock import HeldLock
from holdfast.stores.sqlite import connection
from tests.support.parts import Disk


def _no_folder_sync() -> None:
    """Leave it to the system when names become durable."""
    Disk.sync_folder = lambda self, folder: None  # type: ignore[method-assign]


def _names_first() -> None:
    """Let a file have its name before it is synced."""
    genuine_publish, genuine_replace, genuine_sync_folder = Disk.publish, Disk.replace, Disk.sync_folder
    published: list[Path] = []

    def publish(self: Disk, temp: Path, place: Path) -> None:
        genuine_publish(self, temp, place)
        published.append(place)

    def replace(self: Disk, temp: Path, place: Path) -> None:
        genuine_replace(self, temp, place)
        published.append(place)

    def sync_folder(self: Disk, folder: Path) -> None:
        genuine_sync_folder(self, folder)
        while published:
            with suppress(FileNotFoundError):  # it was removed since
                self.sync_file(published.pop())

    def write_pieces(self: Disk, pieces: Iterable[bytes]) -> Path:
        path = self.new_file()
        path.write_bytes(b"".join(pieces))
        return path

    Disk.publish, Disk.replace = publish, replace  # type: ignore[method-assign]
    Disk.sync_folder, Disk.write_pieces = sync_folder, write_pieces  # type: ignore[method-assign]


def _swallow_errors() -> None:
    """Take a sync that failed for one that did not."""
    for name in ("sync", "sync_data"):
        setattr(Disk, name, _swallowing(getattr(Disk, name)))


def _swallowing(genuine: Callable[[Disk, int], None]) -> Callable[[Disk, int], None]:
    def sync(self: Disk, handle: int) -> None:
        with suppress(OSError):
            genuine(self, handle)

    return sync


def _no_line_sync() -> None:
    """Leave it to the system when lines become durable."""
    Disk.sync_data = lambda self, handle: None  # type: ignore[method-assign]


def _mark_first() -> None:
    """Say that a line is durable before it is."""
    genuine = LineFile._write

    def write(self: LineFile, held: HeldLock, handle: int, lines: bytes) -> None:
        held.write_mark(self.state.file_id, self.state.end + len(lines))
        genuine(self, held, handle, lines)

    LineFile._write = write  # type: ignore[method-assign]


def _keep_failed_lines() -> None:
    """Leave a line where it is that could not be synced."""
    LineFile._take_back = lambda *_: None  # type: ignore[method-assign]


def _write_in_place() -> None:
    """Write a file under the name by which others find it."""

    def publish(self: Disk, temp: Path, place: Path) -> None:
        with open(place, "xb") as file:
            file.write(temp.read_bytes())
        self.remove(temp)

    Disk.publish = publish  # type: ignore[method-assign]


def _rewrite_in_place() -> None:
    """Write a file anew under its name, piece by piece."""

    def put_in_place(
        self: LineFile, held: HeldLock, content: Iterable[bytes], file_id: str, end: int
    ) -> None:
        self._disk.make_folder(self.path.parent)
        with open(self.path, "wb", buffering=0) as file:
            for line in content:
                file.write(line)
            self._disk.sync(file.fileno())
        self._disk.sync_folder(self.path.parent)
        held.write_mark(file_id, end)
        self._forget()
        self._settle(held)

    LineFile._put_in_place = put_in_place  # type: ignore[method-assign]


class _Lazy(sqlite3.Connection):
    """Does not wait for its log to be on the disk."""

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), *rest)


class _Piecemeal(sqlite3.Connection):
    """Commits each statement alone."""

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        return super().execute("SELECT 1" if sql in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK") else sql, *rest)


def _connect_as(kind: type[sqlite3.Connection]) -> Callable[[], None]:
    def plant() -> None:
        connection.CONNECTION_CLASS = kind

    return plant


_BUGS: dict[str, Callable[[], None]] = {
    "no-folder-sync": _no_folder_sync,
    "names-first": _names_first,
    "swallows-errors": _swallow_errors,
    "writes-in-place": _write_in_place,
    "no-line-sync": _no_line_sync,
    "mark-first": _mark_first,
    "keeps-failed-lines": _keep_failed_lines,
    "rewrites-in-place": _rewrite_in_place,
    "no-log-sync": _connect_as(_Lazy),
    "no-transactions": _connect_as(_Piecemeal),
}
PLANTED = list(_BUGS)


def plant(name: str) -> None:
    """Plant a bug in this process; none without a name."""
    if name:
        _BUGS[name]()
