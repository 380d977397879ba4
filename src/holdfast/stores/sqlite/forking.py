"""No connection lives through ``os.fork``.

SQLite keeps the locks of a process in that process's memory, so that a child which inherits them believes that it
holds locks it does not hold, and destroys the database. So connections are closed before a fork, between two
transactions, and opened again on demand: in the parent, and in the child if it uses the store.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    """A connection that is used while its gate is held."""

    gate: threading.Lock

    def drop(self) -> None:
        """Close it."""
        ...


_lock = threading.Lock()
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
    for handle in list(_watched):
        handle.gate.acquire()
        _held.append(handle)
        handle.drop()


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
