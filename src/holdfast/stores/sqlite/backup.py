"""Copies a database that is in use, with its large values: completely, or not at all. All functions here block.

The database is copied first, as it stands at one moment, then the files of the large values that this copy names: so
no record of the copy misses one. Large values never change. A sweep removes the row of a value before its file, so a
file that is missing though the copy names it was removed since; then the backup begins anew.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.progress import Stopped
from holdfast.errors import CheckpointCorrupt, HoldfastError, StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.disk import Disk, IrregularFile, is_regular, open_regular, reject_link
from holdfast.stores.common.locks import Locks
from holdfast.stores.common.seals import MODULUS
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.notes_and_letters import has_table, read_number
from holdfast.stores.sqlite.row_reader import read_head
from holdfast.stores.sqlite.row_writer import change_content
from holdfast.stores.sqlite.schema import create
from holdfast.stores.sqlite.sqlite_errors import make_storage_error, retry_while_busy

Report: TypeAlias = Callable[[int, int], None]
"""Called with how many bytes are copied, and of how many; an error that it raises ends the backup."""

# In pages: 2 MB. Between two steps progress is reported, and the backup can be stopped.
_STEP = 1024
_CHUNK = 1 << 20
_MOST_TRIES = 5
_OWNED_RUNS = "SELECT id, namespace, run FROM runs WHERE owner <> ''"
_ROW_OF_RUN = "SELECT id, content FROM source.runs WHERE namespace = ? AND run = ?"
_HAS_SOURCE_TABLE = "SELECT 1 FROM source.sqlite_master WHERE type = 'table' AND name = ?"
_CHECKPOINTS_OF_RUN = "(SELECT id FROM source.checkpoints WHERE run = :run)"
_ROWS_OF_RUN = (
    ("meta", ""),
    ("runs", "WHERE id = :run"),
    ("checkpoints", "WHERE run = :run"),
    ("keyframes", f"WHERE checkpoint IN {_CHECKPOINTS_OF_RUN}"),
    ("tags", f"WHERE checkpoint IN {_CHECKPOINTS_OF_RUN}"),
    ("notes", "WHERE run = :run"),
    ("letters", "WHERE run = :run"),
    ("events", "WHERE run = :run"),
    ("families", "WHERE family = (SELECT family FROM source.runs WHERE id = :run)"),
)
"""The tables in which a run has rows, and the conditions that select them."""
_ENDINGS = ("-wal", "-shm", "-journal")
_LOCK = ".backup"
"""The lock of a backup: a second one to the same path would remove common files if it failed."""

_LARGE_VALUES = (
    "SELECT namespace, families.family, digest, size FROM blobs JOIN families ON families.id = blobs.family "
    "WHERE data IS NULL"
)
_IS_LARGE = _LARGE_VALUES + " AND namespace = ? AND families.family = ? AND digest = ?"


class LargeValue(NamedTuple):
    """A value that is stored as a file beside the database."""

    namespace: str
    family: RunId
    digest: Digest
    size: int

    def find_path(self, database: Path) -> Path:
        """Return the path of its file."""
        return BlobFiles(_get_blob_folder(database), self.namespace).path(self.family, self.digest)


class _ValueRemoved(Exception):
    """A large value was removed during the backup."""


def back_up(source: DatabaseLocation, target: Path, report: Report) -> None:
    """Copy a database to a free path; the copy gets its name when all of it is durable."""
    reader = DatabaseConnection(source, reads_only=True)
    try:
        _check_free(target)
        _Backup(reader, source, target, report).make()
    except (HoldfastError, Stopped):
        raise
    except Exception as error:
        doing = f"backing up {str(source.path)!r} to"
        raise make_storage_error(error, target, doing, source.busy_seconds) from error
    finally:
        reader.close()


def copy_for_rehearsal(source: DatabaseLocation, target: Path, namespace: str, run_id: RunId | None) -> None:
    """Copy a run, or the whole database without its large values, as it stands at one moment.

    If the row of the run cannot be read, all is copied: what is left of the run may lie anywhere.
    """
    if run_id is None or not _copy_run(source, target, namespace, run_id):
        target.unlink(missing_ok=True)
        _copy_database(source, target)


def _copy_database(source: DatabaseLocation, target: Path) -> None:
    reader = DatabaseConnection(source, reads_only=True)
    try:
        with closing(sqlite3.connect(target)) as copy, reader.gate:
            reader.open().backup(copy)
    except HoldfastError:
        raise
    except Exception as error:
        doing = f"copying {str(source.path)!r} to"
        raise make_storage_error(error, target, doing, source.busy_seconds) from error
    finally:
        reader.close()


def _copy_run(source: DatabaseLocation, target: Path, namespace: str, run_id: RunId) -> bool:
    """Copy the rows of one run, but no blobs, for a rehearsal; return False if the row of the run cannot be read.

    So it does if pages or indexes are damaged, for a repair would find that, too. A row that the run lacks by its
    seals, and that lies with another run, is copied with it.
    """
    try:
        with closing(sqlite3.connect(target, timeout=source.busy_seconds, isolation_level=None)) as copy:
            create(copy)
            copy.execute("ATTACH ? AS source", (str(source.path),))
            copy.execute("BEGIN")  # one state of the run, whatever others write meanwhile
            row = copy.execute(_ROW_OF_RUN, (namespace, run_id)).fetchone()
            is_whole = copy.execute("PRAGMA source.integrity_check(1)").fetchone() == ("ok",)
            if row is None or not isinstance(row[1], int) or not is_whole:
                return False
            number, content = row
            for table, condition in _ROWS_OF_RUN:
                if copy.execute(_HAS_SOURCE_TABLE, (table,)).fetchone() is not None:
                    copy.execute(
                        f"INSERT OR REPLACE INTO main.{table} SELECT * FROM source.{table} {condition}",
                        {"run": number},
                    )
            _copy_lacking_row(copy, number, content)
            copy.execute("COMMIT")
            return True
    except sqlite3.Error:  # a copy of all pages needs to understand none of them
        return False


def _copy_lacking_row(copy: sqlite3.Connection, number: int, content: int) -> None:
    tables = [table for table in ("checkpoints", "notes", "letters") if has_table(copy, table)]
    seals = [
        read_number(seal)
        for table in tables
        for (seal,) in copy.execute(f"SELECT seal FROM main.{table} WHERE run = ?", (number,))
    ]
    lacking = (content - sum(seals)) % MODULUS
    for table in tables if lacking else ():
        copy.execute(
            f"INSERT INTO main.{table} SELECT * FROM source.{table} WHERE seal = ? AND run <> ?",
            (lacking, number),
        )


def _check_free(target: Path) -> None:
    for path in (target, *(target.with_name(target.name + end) for end in _ENDINGS)):
        if os.path.lexists(path):
            raise StorageError(
                f"there is something at {str(path)!r} already, which is not written over; remove it, or choose another "
                f"path for the backup"
            )


def _get_blob_folder(database: Path) -> Path:
    return database.with_name(database.name + "-blobs")


class _Backup:
    """One backup. Its temporary files lie in the folder for large values, where a later backup sweeps them up."""

    def __init__(
        self, reader: DatabaseConnection, source: DatabaseLocation, target: Path, report: Report
    ) -> None:
        self._reader = reader
        self._source = source
        self._target = target
        self._folder = _get_blob_folder(target)
        self._disk = Disk(self._folder / ".temp")
        self._report = report
        self._done = self._total = 0

    def make(self) -> None:
        """Make the backup; if it fails, nothing new stays."""
        reject_link(self._folder)
        reject_link(self._disk.temp)
        began_here = not self._folder.exists()
        self._disk.make_folder(self._folder)
        locks = Locks(self._folder)
        with locks.try_turn(_LOCK) as got_turn:
            if not got_turn:
                raise StorageError(
                    f"another backup to {str(self._target)!r} is under way; wait for it, or choose another path"
                )
            try:
                self._disk.make_folder(self._disk.temp)
                self._disk.sweep()
                self._publish(self._make_whole_copy())
            except BaseException:
                # A copy that has its name and cannot be removed keeps its large values.
                if began_here and not os.path.lexists(self._target):
                    shutil.rmtree(self._folder, ignore_errors=True)
                raise
            finally:
                locks.remove(_LOCK)
        _remove_if_empty(self._disk.temp)
        _remove_if_empty(self._folder)
        self._report(self._total, self._total)

    def _make_whole_copy(self) -> Path:
        """Copy all large values to their place; return a durable copy of the database under a temporary name."""
        for _ in range(_MOST_TRIES):
            temp = self._disk.new_file()
            try:
                with self._reader.gate:
                    large = self._copy_database(temp)
                self._copy_large_values(large)
                self._disk.sync_file(temp)
            except _ValueRemoved:
                self._remove(temp)
            except BaseException:
                self._remove(temp)
                raise
            else:
                return temp
        raise StorageError(
            f"{str(self._source.path)!r} was pruned {_MOST_TRIES} times while it was copied to {str(self._target)!r}; "
            f"back it up again when nobody prunes it"
        )

    def _publish(self, temp: Path) -> None:
        try:
            self._disk.publish(temp, self._target)
        except FileExistsError:
            _check_free(self._target)
            raise
        finally:
            self._remove(temp)
        try:
            self._disk.sync_folder(self._target.parent)
        except BaseException:
            self._target.unlink(missing_ok=True)
            raise

    def _remove(self, temp: Path) -> None:
        """Remove a temporary database if possible; a later backup sweeps up what stays."""
        for end in _ENDINGS:
            with suppress(OSError):
                temp.with_name(temp.name + end).unlink(missing_ok=True)
        self._disk.remove(temp)

    # The database.

    def _copy_database(self, temp: Path) -> list[LargeValue]:
        """Copy the database as it stands at one moment, and return the large values that it names."""
        source = self._reader.open()
        copy = sqlite3.connect(temp, isolation_level=None)
        try:
            # Without this transaction, which reads one state of the database while others write, the copy would begin
            # anew with each of their commits.
            source.execute("BEGIN")
            try:
                large = [
                    LargeValue(*row)
                    for row in retry_while_busy(
                        lambda: source.execute(_LARGE_VALUES).fetchall(), self._source.busy_seconds
                    )
                ]
                (page,) = source.execute("PRAGMA page_size").fetchone()
                (pages,) = source.execute("PRAGMA page_count").fetchone()
                self._done, self._total = 0, page * pages + sum(value.size for value in large)

                def report_pages(_: int, remaining: int, pages: int) -> None:
                    self._report_progress(page * (pages - remaining))

                source.backup(copy, pages=_STEP, progress=report_pages)
            finally:
                source.execute("ROLLBACK")
            self._done = page * pages
            _detach_copy(copy)
        finally:
            copy.close()
        return large

    def _report_progress(self, done: int) -> None:
        if done < self._total:  # the end is reported when the copy is published
            self._report(done, self._total)

    # The large values.

    def _copy_large_values(self, large: list[LargeValue]) -> None:
        folders = set()
        for value in large:
            place = value.find_path(self._target)
            if place.parent not in folders:
                reject_link(place.parent.parent)
                reject_link(place.parent)
                self._disk.make_folder(place.parent)
                folders.add(place.parent)
            self._copy_one(value, place)
        for folder in folders:
            self._disk.sync_folder(folder)

    def _copy_one(self, value: LargeValue, place: Path) -> None:
        if is_regular(place) and place.stat().st_size == value.size:  # from a backup that was interrupted
            self._done += value.size
            return
        temp = self._disk.write_pieces(self._read_file(value))
        try:
            if temp.stat().st_size != value.size:
                raise self._make_corrupt(value, f"has {temp.stat().st_size} bytes, not {value.size}")
            self._disk.replace(temp, place)
        finally:
            self._disk.remove(temp)

    def _read_file(self, value: LargeValue) -> Iterator[bytes]:
        try:
            with open(open_regular(value.find_path(self._source.path)), "rb") as file:
                while data := file.read(_CHUNK):
                    yield data
                    self._done += len(data)
                    self._report_progress(self._done)
        except IrregularFile as error:
            raise self._make_corrupt(value, f"is not what was stored: {error.strerror}") from error
        except FileNotFoundError:
            self._check_removed(value)
            raise _ValueRemoved from None

    def _check_removed(self, value: LargeValue) -> None:
        """Raise ``CheckpointCorrupt`` if the database still names the value."""
        with self._reader.gate:
            query = self._reader.open().execute(_IS_LARGE, (value.namespace, value.family, value.digest))
            if query.fetchone() is not None:
                raise self._make_corrupt(value, "is missing")

    def _make_corrupt(self, value: LargeValue, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"the file {str(value.find_path(self._source.path))!r} of a large value {what}, so "
            f"{str(self._source.path)!r} cannot be backed up: 'await storage.verify()' lists what is affected"
        )


def _detach_copy(copy: sqlite3.Connection) -> None:
    """Make one file of the copy, in which no process owns a run: those that are RUNNING can be resumed there."""
    copy.execute("PRAGMA synchronous = FULL")
    copy.execute("BEGIN")
    for number, namespace, run_id in copy.execute(_OWNED_RUNS).fetchall():
        try:
            head = read_head(copy, namespace, run_id)
        except CheckpointCorrupt:  # a damaged row stays as it is
            continue
        assert head is not None
        copy.execute("UPDATE runs SET owner = '' WHERE id = ?", (number,))
        change_content(copy, namespace, number, head._replace(owner=""), 0)
    copy.execute("COMMIT")
    copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass
