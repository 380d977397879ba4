"""Plots of one run, drawn in an environment of their own: `python -m bench.plots <numbers> <folder>`."""

# matplotlib is only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.environments import ROOT, folder, interpreter
from bench.measure import Table
from bench.workloads.model import UNITS

PLOTS = (
    ("time.png", "Time per superstep (W5: per round), by side and workload"),
    ("bytes.png", "Bytes passed to write() for each superstep"),
    ("stored.png", "Bytes stored after close"),
    ("history.png", "W4: each superstep of a growing history"),
)


def numbers(tables: Sequence[Table]) -> dict[str, Any]:
    """What plots are drawn from."""
    return {
        table.workload.id: {
            row.side: {
                "seconds": row.median / UNITS[table.workload.unit],
                "written": row.counted.written_each if row.counted else None,
                "stored": row.stored or None,
                "marks": list(row.samples[-1].marks),
            }
            for row in table.rows
        }
        for table in tables
    }


def draw(tables: Sequence[Table], place: Path, say: Callable[[str], None]) -> list[tuple[str, str]]:
    """Draw what there is, and say the title and the path of each plot."""
    data = folder() / "numbers.json"
    data.write_text(json.dumps(numbers(tables)))
    python = interpreter("plots", say)
    place.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "bench.plots", str(data), str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"no plots: {done.stderr.strip().splitlines()[-1]}")
        return []
    drawn = done.stdout.split()
    return [(title, f"{place.name}/{name}") for name, title in PLOTS if name in drawn]


def color(side: str) -> str:
    """Ours stand out; limits are grey."""
    if side.startswith("holdfast"):
        return "#1f77b4" if side in ("holdfast", "holdfast-sqlite") else "#7fb2d9"
    families = {
        "agent": "#d62728",
        "lang": "#2ca02c",
        "dbos": "#9467bd",
        "burr": "#8c564b",
        "limit": "#999999",
    }
    return next((found for name, found in families.items() if side.startswith(name)), "#e7a33e")


def _bars(found: dict[str, Any], key: str, unit: str, scale: float, path: Path, title: str) -> bool:
    import matplotlib.pyplot as plt

    wanted = [
        (workload, rows)
        for workload in ("W1", "W2", "W3", "W4", "W5", "W7", "W8", "W9", "W10")
        if (rows := {side: row[key] for side, row in found.get(workload, {}).items() if row[key]})
    ]
    if not wanted:
        return False
    columns = 3
    lines = -(-len(wanted) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(15, 3.6 * lines), squeeze=False)
    for axis in axes.flat[len(wanted) :]:
        axis.axis("off")
    for axis, (workload, rows) in zip(axes.flat, wanted, strict=False):
        sides = sorted(rows, key=lambda side: -rows[side])
        axis.barh(sides, [rows[side] * scale for side in sides], color=[color(side) for side in sides])
        axis.set_xscale("log")
        axis.set_title(f"{workload} ({unit})", fontsize=10)
        axis.tick_params(labelsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return True


def _history(found: dict[str, Any], path: Path, title: str) -> bool:
    import matplotlib.pyplot as plt

    rows = {side: row["marks"] for side, row in found.get("W4", {}).items() if len(row["marks"]) > 20}
    if not rows:
        return False
    figure, axis = plt.subplots(figsize=(9, 5))
    for side, marks in rows.items():
        width = max(len(marks) // 25, 1)
        middles = range(0, len(marks) - width, width)
        each = [(marks[start + width] - marks[start]) / width * 1e3 for start in middles]
        axis.plot([*middles], each, label=side, color=color(side), linewidth=2 if "holdfast" in side else 1)
    axis.set_yscale("log")
    axis.set_xlabel("superstep")
    axis.set_ylabel("ms per superstep")
    axis.set_title(title)
    axis.legend(fontsize=7, ncol=2)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return True


def main(data: str, place: str) -> None:
    """Draw all plots for which there are numbers, and print their names."""
    import matplotlib

    matplotlib.use("Agg")
    found = json.loads(Path(data).read_text())
    titles = dict(PLOTS)
    for name, key, unit, scale in (
        ("time.png", "seconds", "ms", 1e3),
        ("bytes.png", "written", "kB", 1e-3),
        ("stored.png", "stored", "kB", 1e-3),
    ):
        if _bars(found, key, unit, scale, Path(place) / name, titles[name]):
            print(name)
    if _history(found, Path(place) / "history.png", titles["history.png"]):
        print("history.png")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
