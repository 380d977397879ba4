"""What a process used, by what Linux counts for it; 0 where a system does not tell."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_IO = Path("/proc/self/io")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

NO_FILE = 999_999
"""A descriptor that no process has open; a tracer shows it."""


def passed_to_write() -> int:
    """How many bytes all threads of this process have passed to write(), pwrite() and the like so far."""
    with suppress(OSError):
        for line in _IO.read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    return 0


def forget_peak() -> None:
    """Let the peak of memory begin anew with what is held now."""
    with suppress(OSError):
        _CLEAR.write_text("5")


def peak_memory() -> int:
    """The most memory this process has held since `forget_peak`, in bytes."""
    with suppress(OSError, IndexError):
        return int(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stored(folder: Path) -> int:
    """The bytes of all files in a folder; a file with several names counts once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def mark_for_tracer() -> None:
    """A sync that fails at once: a tracer sees where what counts begins and ends."""
    with suppress(OSError):
        os.fsync(NO_FILE)
