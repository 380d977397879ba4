"""Bugs on purpose in how stores use a disk: each campaign must find those that it is there for.

A process plants one in itself before it does anything; it is gone with the process.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.stores.sqlite import connection
from tests.support.parts import Disk


def _no_folder_sync() -> None:
    """Leave it to the system when names become durable."""
    Disk.sync_folder = lambda self, folder: None  # type: ignore[method-assign]


def _names_first() -> None:
    """Let a file have its name before it is synced."""
    genuine_publish, genuine_sync_folder = Disk.publish, Disk.sync_folder
    published: list[Path] = []

    def publish(self: Disk, temp: Path, place: Path) -> None:
        genuine_publish(self, temp, place)
        published.append(place)

    def sync_folder(self: Disk, folder: Path) -> None:
        genuine_sync_folder(self, folder)
        while published:
            with suppress(FileNotFoundError):  # it was removed since
                self.sync_file(published.pop())

    def write(self: Disk, data: bytes) -> Path:
        path = self.new_file()
        path.write_bytes(data)
        return path

    Disk.publish, Disk.sync_folder, Disk.write = publish, sync_folder, write  # type: ignore[method-assign]


def _swallow_errors() -> None:
    """Take a sync that failed for one that did not."""
    genuine = Disk._sync

    def sync(self: Disk, handle: int) -> None:
        try:
            genuine(self, handle)
        except OSError:
            pass

    Disk._sync = sync  # type: ignore[method-assign]


def _write_in_place() -> None:
    """Write a file under the name by which others find it."""

    def publish(self: Disk, temp: Path, place: Path) -> None:
        with open(place, "xb") as file:
            file.write(temp.read_bytes())
        self.remove(temp)

    Disk.publish = publish  # type: ignore[method-assign]


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
    "no-log-sync": _connect_as(_Lazy),
    "no-transactions": _connect_as(_Piecemeal),
}
PLANTED = list(_BUGS)


def plant(name: str) -> None:
    """Plant a bug in this process; none without a name."""
    if name:
        _BUGS[name]()
