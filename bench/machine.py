"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path


def cpu_model() -> str:
    """The processor's own name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    """The machine by name and value."""
    facts = {
        "CPU": cpu_model(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    if hasattr(os, "getloadavg"):
        facts["load at start"] = f"{os.getloadavg()[0]:.2f}"
    return facts
