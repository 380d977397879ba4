"""Which process a run belongs to, and whether it still lives."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


def this_process() -> str:
    """The name of this process, which no other has: host, process id and when it began."""
    return _named(os.getpid())


@lru_cache(maxsize=4)  # a forked child has an id of its own
def _named(pid: int) -> str:
    return f"{_host()}:{pid}:{_began(pid)}"


def is_gone(owner: str) -> bool:
    """Whether the process certainly lives no longer; of one on another host that cannot be told."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    began = owner.rpartition(":")[2]
    return bool(owner) and host == _host() and (not rest.isdigit() or _began(int(rest)) != began)


@lru_cache(maxsize=1)
def _host() -> str:
    try:  # unlike the name of a host, it differs between containers, and after a restart
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + "/" + socket.gethostname()
    except OSError:
        return socket.gethostname()


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
