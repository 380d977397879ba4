"""A copy of a database that is in use, with its large values: complete, or not there. Everything here blocks.

The database is copied first, as it stands at one moment, then the files of the large values that this copy names: so
no record of the copy misses one. Large values never change. Whoever removes one removes its row before its file, so a
file that is missing though the copy names it was removed since; then all begins anew.
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
from holdfast.stores.sqlite.failures import patiently, storage_error
from holdfast.stores.sqlite.handle import Handle, Place
from holdfast.stores.sqlite.reading import read_head
from holdfast.stores.sqlite.writing import change_content

Report: TypeAlias = Callable[[int, int], None]
"""Is told how many bytes are copied, of how many; what it raises ends the work."""

# In pages: 2 MB. Between two steps whoever waits hears of it, and can put an end to it.
_STEP = 1024
_CHUNK = 1 << 20
_MOST_TRIES = 5
_OWNED = "SELECT id, namespace, run FROM runs WHERE owner <> ''"
_BESIDE = ("-wal", "-shm", "-journal")
_LOCK = ".backup"
"""Held by the one that makes the copy: another to the same path would remove what they have in common if it failed."""

_BIG = (
    "SELECT namespace, families.family, digest, size FROM blobs JOIN families ON families.id = blobs.family "
    "WHERE data IS NULL"
)
_IS_BIG = _BIG + " AND namespace = ? AND families.family = ? AND digest = ?"


class Big(NamedTuple):
    """A large value: a file beside the database."""

    namespace: str
    family: RunId
    digest: Digest
    size: int

    def path(self, database: Path) -> Path:
        """Where it lies."""
        return BlobFiles(_blobs_of(database), self.namespace).path(self.family, self.digest)


class _Removed(Exception):
    """A large value is no longer there."""


def back_up(source: Place, target: Path, report: Report) -> None:
    """Copy a database to a path where nothing is; it gets its name when all of the copy is durable."""
    handle = Handle(source, reads_only=True)
    try:
        _check_free(target)
        _Copy(handle, source, target, report).make()
    except (HoldfastError, Stopped):
        raise
    except Exception as error:
        doing = f"backing up {str(source.path)!r} to"
        raise storage_error(error, target, doing, source.busy_seconds) from error
    finally:
        handle.close()


def copy_database(source: Place, target: Path) -> None:
    """Copy a database alone, as it stands at one moment, to try something on it."""
    handle = Handle(source, reads_only=True)
    try:
        with closing(sqlite3.connect(target)) as copy, handle.gate:
            handle.connection().backup(copy)
    except HoldfastError:
        raise
    except Exception as error:
        doing = f"copying {str(source.path)!r} to"
        raise storage_error(error, target, doing, source.busy_seconds) from error
    finally:
        handle.close()


def _check_free(target: Path) -> None:
    for path in (target, *(target.with_name(target.name + end) for end in _BESIDE)):
        if os.path.lexists(path):
            raise StorageError(
                f"there is something at {str(path)!r} already, which is not written over; remove it, or choose another "
                f"path for the backup"
            )


def _blobs_of(database: Path) -> Path:
    return database.with_name(database.name + "-blobs")


class _Copy:
    """One backup. What is on its way lies in the folder for large values, where a later one sweeps it up."""

    def __init__(self, handle: Handle, source: Place, target: Path, report: Report) -> None:
        self._handle = handle
        self._source = source
        self._target = target
        self._folder = _blobs_of(target)
        self._disk = Disk(self._folder / ".temp")
        self._report = report
        self._done = self._total = 0

    def make(self) -> None:
        """Make it; where it fails, nothing new stays."""
        reject_link(self._folder)
        reject_link(self._disk.temp)
        began_here = not self._folder.exists()
        self._disk.make_folder(self._folder)
        locks = Locks(self._folder)
        with locks.try_turn(_LOCK) as alone:
            if not alone:
                raise StorageError(
                    f"another backup to {str(self._target)!r} is under way; wait for it, or choose another path"
                )
            try:
                self._disk.make_folder(self._disk.temp)
                self._disk.sweep()
                self._publish(self._whole())
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

    def _whole(self) -> Path:
        """A durable database under a name that nobody reads, when the files of all large values are in their place."""
        for _ in range(_MOST_TRIES):
            temp = self._disk.new_file()
            try:
                with self._handle.gate:
                    big = self._copy_database(temp)
                self._copy_big(big)
                self._disk.sync_file(temp)
            except _Removed:
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
        """Remove what is no longer needed if that is possible; what stays is swept up later."""
        for end in _BESIDE:
            with suppress(OSError):
                temp.with_name(temp.name + end).unlink(missing_ok=True)
        self._disk.remove(temp)

    # The database.

    def _copy_database(self, temp: Path) -> list[Big]:
        """Copy the database as it stands at one moment; says which large values it names then."""
        source = self._handle.connection()
        copy = sqlite3.connect(temp, isolation_level=None)
        try:
            # What this transaction reads is what there was when it began, though others write: without it the copy
            # would begin anew with each of their commits.
            source.execute("BEGIN")
            try:
                big = [
                    Big(*row)
                    for row in patiently(lambda: source.execute(_BIG).fetchall(), self._source.busy_seconds)
                ]
                (page,) = source.execute("PRAGMA page_size").fetchone()
                (pages,) = source.execute("PRAGMA page_count").fetchone()
                self._done, self._total = 0, page * pages + sum(one.size for one in big)

                def tell(_: int, remaining: int, pages: int) -> None:
                    self._tell(page * (pages - remaining))

                source.backup(copy, pages=_STEP, progress=tell)
            finally:
                source.execute("ROLLBACK")
            self._done = page * pages
            _settle(copy)
        finally:
            copy.close()
        return big

    def _tell(self, done: int) -> None:
        if done < self._total:  # that all is done is said when it is
            self._report(done, self._total)

    # The large values.

    def _copy_big(self, big: list[Big]) -> None:
        folders = set()
        for one in big:
            place = one.path(self._target)
            if place.parent not in folders:
                reject_link(place.parent.parent)
                reject_link(place.parent)
                self._disk.make_folder(place.parent)
                folders.add(place.parent)
            self._copy_one(one, place)
        for folder in folders:
            self._disk.sync_folder(folder)

    def _copy_one(self, one: Big, place: Path) -> None:
        if is_regular(place) and place.stat().st_size == one.size:  # from a backup that was interrupted
            self._done += one.size
            return
        temp = self._disk.write_pieces(self._content(one))
        try:
            if temp.stat().st_size != one.size:
                raise self._damaged(one, f"has {temp.stat().st_size} bytes, not {one.size}")
            self._disk.replace(temp, place)
        finally:
            self._disk.remove(temp)

    def _content(self, one: Big) -> Iterator[bytes]:
        try:
            with open(open_regular(one.path(self._source.path)), "rb") as file:
                while data := file.read(_CHUNK):
                    yield data
                    self._done += len(data)
                    self._tell(self._done)
        except IrregularFile as error:
            raise self._damaged(one, f"is not what was stored: {error.strerror}") from error
        except FileNotFoundError:
            self._check_removed(one)
            raise _Removed from None

    def _check_removed(self, one: Big) -> None:
        """Raise unless the database no longer names the value."""
        with self._handle.gate:
            query = self._handle.connection().execute(_IS_BIG, (one.namespace, one.family, one.digest))
            if query.fetchone() is not None:
                raise self._damaged(one, "is missing")

    def _damaged(self, one: Big, what: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(
            f"the file {str(one.path(self._source.path))!r} of a large value {what}, so {str(self._source.path)!r} "
            f"cannot be backed up: 'await storage.verify()' lists what is affected"
        )


def _settle(copy: sqlite3.Connection) -> None:
    """Make one file of the copy. Nobody drives its runs: those that are RUNNING are interrupted there."""
    copy.execute("PRAGMA synchronous = FULL")
    copy.execute("BEGIN")
    for number, namespace, run_id in copy.execute(_OWNED).fetchall():
        try:
            head = read_head(copy, namespace, run_id)
        except CheckpointCorrupt:  # a damaged row stays as it is, to be seen
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
