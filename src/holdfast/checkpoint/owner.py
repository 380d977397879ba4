"""Who drives a run: a process, and in it one of its claims."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path


class Claim:
    """What drives a run holds one as long as it does; its name is the owner in the head of the run.

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
        """What holds it, for those who look for it by the name of its claim.

        While the claim is held, it is kept: it drives the run, though nobody else may know it. Afterwards it is not,
        for it knows the claim, and would stay with all that the run holds until the garbage collector comes.
        """
        return self._holder()

    @holder.setter
    def holder(self, holder: object) -> None:
        self._holder = _nobody if holder is None else weakref.ref(holder)
        self._kept = holder if self.held else None

    def take(self) -> None:
        """Hold it, again if it was released."""
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        _held[self.name] = self
        self.held = True
        self._kept = self._holder()
        self.leaving = False
        """Whether what holds it is about to release it."""

    def release(self) -> None:
        """Hold it no longer."""
        self.held = False
        self._kept = None
        _held.pop(self.name, None)

    @property
    def abandoned(self) -> bool:
        """Whether its event loop is closed: what held it can never go on."""
        return self._loop is not None and self._loop.is_closed()


def _nobody() -> None:
    """What holds a claim that nothing was said of."""


_numbers = itertools.count(1)
_held: weakref.WeakValueDictionary[str, Claim] = weakref.WeakValueDictionary()


def holder_of(owner: str) -> object:
    """What holds the claim with that name in this event loop, and will go on to; None if nothing does."""
    claim = _held.get(owner)
    if claim is None or claim.leaving or claim._loop is not asyncio.get_running_loop():
        return None
    return claim.holder


def is_held(owner: str) -> bool:
    """Whether a claim of this process with that name is held."""
    claim = _held.get(owner)
    return claim is not None and not claim.abandoned


async def let_go(owner: str) -> bool:
    """Whether a claim of this process is not held any more; one that is about to be released is waited for."""
    for _ in range(_CHANCES):  # what was just dropped has yet to be told that it is to end
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


def process_of(owner: str) -> str:
    """The process in the name of an owner."""
    return owner.partition("#")[0]


def this_process() -> str:
    """The name of this process, which no other has: host, process id and when it began."""
    return _named(os.getpid())


@lru_cache(maxsize=4)  # a forked child has an id of its own
def _named(pid: int) -> str:
    return f"{_host()}:{pid}:{_began(pid)}"


def this_machine() -> str:
    """The name of this machine since it started: all of its processes and containers have one monotonic clock."""
    return _host().partition("/")[0]


def is_gone(owner: str) -> bool:
    """Whether the process certainly lives no longer; of one on another host that cannot be told."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    began = owner.rpartition(":")[2]
    return bool(owner) and host == _host() and (not rest.isdigit() or _began(int(rest)) != began)


@lru_cache(maxsize=1)
def _host() -> str:
    """Where the ids of processes mean the same: a host since it started, and there a container."""
    parts = [socket.gethostname()]
    try:
        parts.append(os.readlink("/proc/self/ns/pid").strip("pid:[]"))
    except (OSError, AttributeError):  # no Linux, or no links
        pass
    try:  # unlike the name of a host, it differs after a restart
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    except OSError:
        pass
    return "/".join(reversed(parts))


def _began(pid: int) -> str:
    """When a process began, in the system's own words; empty if there is none."""
    try:
        # The name of the program stands in parentheses and may contain anything.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return rest[18] if state not in "ZX" else ""  # one that is dead may still be listed
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"
