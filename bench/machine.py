"""The machine that the numbers were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench.environments import folder

LOAD = "load at start"


def cpu_model() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def file_system() -> str:
    """Return the kind of file system on which stores lie."""
    found, best = "unknown", -1
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            if folder().resolve().is_relative_to(point) and len(point) > best:
                found, best = kind, len(point)
    return found


def sync_microseconds() -> float:
    """Return how long the disk takes for one small sync: everything durable is a multiple of it."""
    sync = getattr(os, "fdatasync", os.fsync)
    seconds = []
    with tempfile.TemporaryFile(dir=folder(), buffering=0) as file:
        for _ in range(50):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            sync(file.fileno())
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e6


def describe() -> dict[str, str]:
    """Return what is known of the machine, by name."""
    facts = {
        "CPU": cpu_model(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite of it": sqlite3.sqlite_version,
        "file system": file_system(),
        "one fdatasync after 4 KB": f"{sync_microseconds():,.0f} us (median of 50)",
        "strace": "there, so that syncs are counted"
        if shutil.which("strace")
        else "missing: syncs are not counted",
    }
    if hasattr(os, "getloadavg"):
        facts[LOAD] = f"{os.getloadavg()[0]:.2f}"
    return facts


def is_busy(facts: Mapping[str, str]) -> bool:
    """Return True if others used the machine when the run began."""
    return float(facts.get(LOAD, "0")) > 1
