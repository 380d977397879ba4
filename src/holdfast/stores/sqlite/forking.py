"""No connection lives through ``os.fork``.

SQLite keeps the locks of a process in that process's memory, so that a child which inherits them believes that it
holds locks it does not hold, and destroys the database. So connections are closed before a fork, between two
transactions, and opened again on demand: in the parent, and in the child if it uses the store. A signal handler that
forks amid a transaction of its own thread undoes it; whoever made it finds its connection closed, and begins anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Gate(Protocol):
    """A lock that its owner may take once more: a signal handler may fork amid what its thread does."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


class Closable(Protocol):
    """A connection that is used while its gate is held."""

    @property
    def gate(self) -> Gate:
        """Held by whoever uses the connection."""
        ...

    def drop(self) -> None:
        """Close it."""
        ...


_lock = threading.RLock()
_watched: weakref.WeakSet[Closable] = weakref.WeakSet()
_held: list[Closable] = []
forks = 0
"""How many forks lie between this process and the one that began: to look here takes less than to ask the system."""


def watch(handle: Closable) -> None:
    """Close the connection of this handle before each fork."""
    with _lock:
        _watched.add(handle)


def _before() -> None:
    _lock.acquire()
    handles = list(_watched)
    # First those that nobody uses but perhaps this thread: others may wait for the end of its transaction.
    used = [handle for handle in handles if not _dropped(handle, waits=False)]
    for handle in used:
        _dropped(handle, waits=True)


def _dropped(handle: Closable, waits: bool) -> bool:
    if not handle.gate.acquire(waits):
        return False
    _held.append(handle)
    handle.drop()
    return True


def _after() -> None:
    for handle in _held:
        handle.gate.release()
    _held.clear()
    _lock.release()


def _after_in_child() -> None:
    global forks
    forks += 1
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
