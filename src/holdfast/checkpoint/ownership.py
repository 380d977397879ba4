"""Ownership of runs: a run is driven by one claim of one process; ``runtime/durable/run_owner.py`` refuses others."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from holdfast.checkpoint.store import Head, Store
from holdfast.engine.status import RunStatus


class Claim:
    """Held by an object of this process as long as it drives a run; its name is the owner in the head of the run.

    >>> claim = Claim()
    >>> is_held(claim.name)
    True
    >>> claim.release()
    >>> is_held(claim.name)
    False
    """

    def __init__(self) -> None:
        self.name = f"{this_process()}#{next(_numbers)}"
        self._holder: Callable[[], object] = _nobody
        self._kept: object = None
        self.take()

    @property
    def holder(self) -> object:
        """The object that holds the claim, for callers that look it up by the name of the claim.

        The claim keeps it alive while it is held, because nothing else may refer to an object that drives a run.
        A released claim refers to it weakly: the holder refers to the claim, and a cycle would keep everything that
        the run holds in memory until the garbage collector runs.
        """
        return self._holder()

    @holder.setter
    def holder(self, holder: object) -> None:
        self._holder = _nobody if holder is None else weakref.ref(holder)
        self._kept = holder if self.held else None

    def take(self) -> None:
        """Hold the claim, again if it was released."""
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        _held[self.name] = self
        self.held = True
        self._kept = self._holder()
        self.leaving = False
        """True while the holder is about to release it."""

    def release(self) -> None:
        """Stop holding the claim."""
        self.held = False
        self._kept = None
        _held.pop(self.name, None)

    @property
    def abandoned(self) -> bool:
        """True if the event loop of the holder is closed, so that the holder can never go on."""
        return self._loop is not None and self._loop.is_closed()


def _nobody() -> None:
    """Return no holder: the default of a new claim."""


_numbers = itertools.count(1)
_held: weakref.WeakValueDictionary[str, Claim] = weakref.WeakValueDictionary()


def holder_of(owner: str) -> object:
    """Return the holder of a claim in this event loop; None if there is none, or if it is about to release it."""
    claim = _held.get(owner)
    if claim is None or claim.leaving or claim._loop is not asyncio.get_running_loop():
        return None
    return claim.holder


def is_held(owner: str) -> bool:
    """Return True if a claim of this process with that name is held."""
    claim = _held.get(owner)
    return claim is not None and not claim.abandoned


async def wait_for_release(owner: str) -> bool:
    """Wait for a claim of this process that is about to be released; return True if it is not held any more."""
    for _ in range(_CHANCES):  # a run object that was just dropped has yet to notice it
        if not is_held(owner):
            return True
        await asyncio.sleep(0)
    for _ in range(_PATIENCE):
        claim = _held.get(owner)
        if claim is None or not claim.leaving or claim.abandoned:
            break
        await asyncio.sleep(0.001)  # it may be in another event loop
    return not is_held(owner)


_CHANCES = 5
# In milliseconds: somewhat longer than handlers have to clean up.
_PATIENCE = 6_000


async def is_driven(store: Store, head: Head) -> bool:
    """Return True if a run is RUNNING and its owner lives."""
    known: dict[str, bool] = {}
    await ask_for_owners(store, [head], known)
    return is_driven_by(head, known)


async def ask_for_owners(store: Store, heads: Iterable[Head], known: dict[str, bool]) -> None:
    """Ask a store at once which of the processes that drive these runs live, and add the answer to ``known``."""
    driven = {process_of(head.owner) for head in heads if head.status is RunStatus.RUNNING}
    unknown = driven - known.keys() - {this_process()}
    if unknown:
        living = await store.living(unknown)
        known.update({process: process in living for process in unknown})


def is_driven_by(head: Head, known: Mapping[str, bool]) -> bool:
    """Return True if a run is RUNNING and its owner lives, by what ``ask_for_owners`` found."""
    if head.status is not RunStatus.RUNNING:
        return False
    process = process_of(head.owner)
    return is_held(head.owner) if process == this_process() else known[process]


def process_of(owner: str) -> str:
    """Return the name of the process in the name of an owner."""
    return owner.partition("#")[0]


def this_process() -> str:
    """Return the unique name of this process: host, process id and start time."""
    return _named(os.getpid())


@lru_cache(maxsize=4)  # a forked child has an id of its own
def _named(pid: int) -> str:
    return f"{_host()}:{pid}:{_began(pid)}"


def this_machine() -> str:
    """Return the name of this machine since it started; its processes and containers share one monotonic clock."""
    return _host().partition("/")[0]


def is_gone(owner: str) -> bool:
    """Return True if a process certainly lives no longer; False for one on another host, which cannot be seen."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    began = owner.rpartition(":")[2]
    return bool(owner) and host == _host() and (not rest.isdigit() or _began(int(rest)) != began)


@lru_cache(maxsize=1)
def _host() -> str:
    """Return the name of the space of process ids: boot, container and host."""
    parts = [socket.gethostname()]
    try:
        parts.append(os.readlink("/proc/self/ns/pid").strip("pid:[]"))
    except (OSError, AttributeError):  # no Linux, or no links
        pass
    try:  # unlike the host name, it differs after a restart
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    except OSError:
        pass
    return "/".join(reversed(parts))


def _began(pid: int) -> str:
    """Return the start time of a process as the system gives it; empty if there is no such process."""
    try:
        # The name of the program stands in parentheses and may contain anything.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return rest[18] if state not in "ZX" else ""  # a dead process may still be listed
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"
