"""One connection to the database: opened on demand, safe to drop at any time, closed before a fork.

SQLite keeps the locks of a process in that process's memory, so that a child which inherits them believes that it
holds locks it does not hold, and destroys the database. So connections are closed before ``os.fork``, between two
transactions, and opened again on demand: in the parent, and in the child if it uses the store. A signal handler that
forks amid a transaction of its own thread undoes it; that thread finds its connection closed, and begins anew.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING

from holdfast.checkpoint.store import StoreInfo
from holdfast.errors import StorageError
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database_file import (
    DatabaseLocation,
    make_file,
    secure_log,
    set_log_size,
    switch_to_wal,
    sync_log,
    sync_log_name,
)
from holdfast.stores.sqlite.sqlite_errors import make_storage_error, retry_while_busy

if TYPE_CHECKING:
    from holdfast.stores.sqlite.read_only import ReadOnlyConnection

CONNECTION_CLASS = sqlite3.Connection

# By the rules of POSIX, closing any descriptor of a file drops all locks that the process holds on it. So the file
# is opened here only to make it, and no other thread may believe that it exists before it is closed again.
_making_file = threading.Lock()


class DatabaseConnection:
    """A connection for one thread; ``gate`` is held while it is used.

    The gate can be taken again by the thread that holds it: a signal handler may fork amid what its thread does.
    """

    def __init__(self, location: DatabaseLocation, *, reads_only: bool) -> None:
        self.gate = threading.RLock()
        self._location = location
        self._reads_only = reads_only
        self._epoch = 0
        self._connection: sqlite3.Connection | None = None
        self._read_only: ReadOnlyConnection | None = None
        self._info: StoreInfo | None = None
        with _forking:
            _connections.add(self)

    def read_info(self) -> StoreInfo:
        """Return the id and format of the store, as it was when the connection was opened."""
        self.open()
        assert self._info is not None
        return self._info

    @property
    def is_open(self) -> bool:
        """True if ``open`` would return at once."""
        return self._connection is not None and self._epoch == self._location.epoch

    def open(self) -> sqlite3.Connection:
        """Return the connection, opened if it is not; raise ``StorageError`` if that fails."""
        location = self._location
        location.check_identity()
        if location.read_only:
            return self._open_read_only()
        if self._connection is not None and self.is_open:
            return self._connection
        self.drop()
        try:
            with _making_file:
                empty = make_file(location.path)
                location.was_empty = empty if location.was_empty is None else location.was_empty
            self._epoch = location.epoch
            connection = _connect(location)
            try:
                self._info = self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        except StorageError:
            raise
        # SQLite may quote a damaged schema in words that are no text: then the error is none of SQLite's own.
        except Exception as error:
            raise make_storage_error(error, location.path, "opening", location.busy_seconds) from error
        self._connection = connection
        location.remember_identity()
        return connection

    def is_current(self) -> bool:
        """Return True if what was read is what the database held; False if it was read without locks and changed."""
        return self._read_only is None or self._read_only.is_current()

    def _open_read_only(self) -> sqlite3.Connection:
        """Return a connection that writes nothing."""
        from holdfast.stores.sqlite.read_only import ReadOnlyConnection  # which few processes need

        location = self._location
        if self._read_only is not None and self._read_only.is_current():
            return self._read_only.connection
        self.drop()
        try:
            self._read_only = ReadOnlyConnection(location.path, location.busy_seconds)
            self._info = schema.read_info(self._read_only.connection, location.path, location.keyed)
        except StorageError:
            self.drop()
            raise
        except Exception as error:
            self.drop()
            raise make_storage_error(error, location.path, "reading", location.busy_seconds) from error
        location.remember_identity()
        return self._read_only.connection

    def _prepare(self, connection: sqlite3.Connection) -> StoreInfo:
        location = self._location
        if retry_while_busy(lambda: schema.is_empty(connection), location.busy_seconds):
            retry_while_busy(lambda: schema.create(connection, location.keyed), location.busy_seconds)
        info = retry_while_busy(
            lambda: schema.read_info(connection, location.path, location.keyed), location.busy_seconds
        )
        switch_to_wal(connection, location)
        if not self._reads_only:
            sync_log_name(connection, location)
        if location.secured != self._epoch or location.mark.exists():
            secure_log(connection, location)
            location.secured = self._epoch
        else:
            sync_log(location)
        if self._reads_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            self._add_missing_tables(connection)
            # Each transaction says how long it waits: in the thread of an event loop it waits for nothing.
            connection.execute("PRAGMA busy_timeout = 0")
        return info

    def _add_missing_tables(self, connection: sqlite3.Connection) -> None:
        try:
            retry_while_busy(lambda: schema.add_missing(connection), self._location.busy_seconds)
        except sqlite3.Error:
            self._location.distrust()
            raise

    def close(self) -> None:
        """Close the connection when nobody uses it."""
        with self.gate:
            self.drop()

    def drop(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        connection, self._connection = self._connection, None
        read_only, self._read_only = self._read_only, None
        if read_only is not None:
            read_only.close()
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # what could still fail is the copying of the log, which the next connection does again


def _connect(location: DatabaseLocation) -> sqlite3.Connection:
    connection = sqlite3.connect(
        location.path,
        timeout=location.busy_seconds,
        isolation_level=None,
        # The gate sees to it that one thread uses it at a time.
        check_same_thread=False,
        factory=CONNECTION_CLASS,
    )
    connection.execute("PRAGMA synchronous = FULL")
    # On macOS a plain sync leaves the data in the cache of the drive; elsewhere this means nothing.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    set_log_size(connection, small=False)
    return connection


_forking = threading.RLock()
_connections: weakref.WeakSet[DatabaseConnection] = weakref.WeakSet()
_held: list[DatabaseConnection] = []
"""The connections whose gates are held during a fork."""
forks = 0
"""Counts the forks between this process and the one that began: reading it is faster than asking for the process id."""


def _close_all_before_fork() -> None:
    _forking.acquire()
    connections = list(_connections)
    # First those that no other thread uses: others may wait for the end of a transaction of this thread.
    in_use = [connection for connection in connections if not _try_drop(connection, waits=False)]
    for connection in in_use:
        _try_drop(connection, waits=True)


def _try_drop(connection: DatabaseConnection, waits: bool) -> bool:
    """Hold the gate of a connection and close it; return False if the gate is held and this does not wait for it."""
    if not connection.gate.acquire(waits):
        return False
    _held.append(connection)
    connection.drop()
    return True


def _release_all_after_fork() -> None:
    for connection in _held:
        connection.gate.release()
    _held.clear()
    _forking.release()


def _release_all_in_child() -> None:
    global forks
    forks += 1
    _release_all_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_close_all_before_fork,
        after_in_parent=_release_all_after_fork,
        after_in_child=_release_all_in_child,
    )
