"""Records the system calls with which a process changes files, and lets one of them fail or be its last.

A campaign calls ``preload`` first: it compiles ``interposer.c`` and starts itself anew with that in front of the C
library. Its children then ``arm`` a plan for themselves. Linux only, and a C compiler is needed.
"""

import ctypes
import enum
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.durable import ROOT

_SOURCE = Path(__file__).with_name("interposer.c")
_BUILT = ROOT / "build"
_ENTRY = struct.Struct("<IiQqIIQ")
_STRUCK = -(2**31)


class CallKind(enum.IntEnum):
    """What a call does; the numbers are those of ``interposer.c``."""

    CREATE = 0
    WRITE = 1
    SYNC = 2
    RESIZE = 3
    RENAME = 4
    LINK = 5
    SYMLINK = 6
    UNLINK = 7
    MKDIR = 8
    RMDIR = 9
    MARK = 10


CHANGES = frozenset(CallKind) - {CallKind.MARK}


class Action(enum.IntEnum):
    """What happens to a call that is struck; one that is torn has done a part of it when the process dies."""

    PASS = 0
    FAIL = 1
    KILL = 2
    TEAR = 3


@dataclass(frozen=True)
class FaultPlan:
    """Which calls are struck, counted from 1 among those of these kinds, and how."""

    action: Action = Action.PASS
    kinds: frozenset[CallKind] = CHANGES
    first: int = 1
    times: int = 1
    error: int = 0


NO_FAULT = FaultPlan()


class SystemCall(NamedTuple):
    """A call that was made, or a mark that the program set between two of them."""

    kind: CallKind
    result: int
    inode: int
    offset: int
    path: str
    other: str
    data: bytes

    @property
    def failed(self) -> bool:
        """Whether it gave an error."""
        return self.result < 0

    @property
    def struck(self) -> bool:
        """Whether the process died here."""
        return self.result == _STRUCK

    def told(self, root: Path) -> str:
        """The call in words, with paths beneath a folder."""
        to = f" -> {_beneath(self.other, root)}" if self.other else ""
        return f"{self.kind.name.lower()} {_beneath(self.path, root)}{to}"


def _beneath(path: str, root: Path) -> str:
    return path.removeprefix(f"{root}/")


# -- the library -----------------------------------------------------------------------------------


def preload() -> None:
    """Start this program anew with the interposer in front of the C library, unless it was."""
    if hasattr(_library(), "interposer_arm"):
        return
    environment = {**os.environ, "LD_PRELOAD": str(_built())}
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, environment)


def arm(root: Path, log: Path, plan: FaultPlan = NO_FAULT, with_data: bool = True) -> None:
    """Watch what this process does beneath a folder from now on."""
    kinds = sum(1 << kind for kind in plan.kinds)
    failed = _library().interposer_arm(
        os.fsencode(root),
        os.fsencode(log),
        with_data,
        plan.action,
        ctypes.c_uint(kinds),
        ctypes.c_long(plan.first),
        ctypes.c_long(plan.times),
        plan.error,
    )
    if failed:
        raise OSError(failed, os.strerror(failed), str(log))


def disarm() -> None:
    """Let everything through again."""
    _library().interposer_arm(b"", b"", 0, Action.PASS, 0, ctypes.c_long(0), ctypes.c_long(0), 0)


def mark(text: str) -> None:
    """Write a line to the log; once this returns it is there, also if the process is killed."""
    _library().interposer_mark(text.encode())


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _built() -> Path:
    """The compiled library, which is made anew when its source changed."""
    digest = hashlib.blake2b(_SOURCE.read_bytes(), digest_size=8).hexdigest()
    library = _BUILT / f"interposer-{digest}.so"
    if not library.exists():
        _BUILT.mkdir(exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", str(made), str(_SOURCE), "-lpthread"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise SystemExit(
                "faults in system calls need a C compiler: install gcc or clang as 'cc'"
            ) from None
        made.replace(library)
    return library


# -- the log ---------------------------------------------------------------------------------------


def read_calls(log: Path) -> list[SystemCall]:
    """The calls and marks of a log, in the order in which they happened."""
    return list(_calls_in(log.read_bytes())) if log.exists() else []


def marks_of(calls: list[SystemCall]) -> list[str]:
    """The marks among them."""
    return [call.path for call in calls if call.kind is CallKind.MARK]


def _calls_in(content: bytes) -> Iterator[SystemCall]:
    place = 0
    while place < len(content):
        kind, result, inode, offset, *sizes = _ENTRY.unpack_from(content, place)
        place += _ENTRY.size
        parts = []
        for size in sizes:
            parts.append(content[place : place + size])
            place += size
        yield SystemCall(
            CallKind(kind), result, inode, offset, os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2]
        )
