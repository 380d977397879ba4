"""Renders the difference between two checkpoints as text for a terminal; imported when a text is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.diff.difference import CheckpointDiff, Difference
from holdfast.checkpoint.diff.node_text import in_line
from holdfast.checkpoint.views import size_text
from holdfast.engine.status import RunStatus

_MARKS = {"added": "+", "appended": "+", "removed": "-", "cut": "-", "changed": "~", "reordered": "~"}
# At most so many entries of a section are shown, and so many lines of each.
_ENTRIES = 50
_LINES = 40


def render_diff(diff: CheckpointDiff) -> str:
    """Return the difference of two checkpoints as text."""
    return "\n".join(_lines(diff))


def _lines(diff: CheckpointDiff) -> Iterator[str]:
    one, other = diff.checkpoint_a, diff.checkpoint_b
    yield f"--- {_render_checkpoint(one)}"
    yield f"+++ {_render_checkpoint(other)}"
    if one.workflow_name != other.workflow_name:
        yield f"(of different workflows: {in_line(one.workflow_name)} and {in_line(other.workflow_name)})"
    elif one.run_id != other.run_id:
        yield f"(of different runs of workflow {in_line(one.workflow_name)})"
    if not diff:
        yield "nothing differs in what they hold"
    for name, section in diff.sections.items():
        if section:
            yield name.replace("_", " ").replace("fan ins", "fan-ins")
        for entry in section[:_ENTRIES]:
            yield from (f"  {line}" for line in render_difference(entry))
        if len(section) > _ENTRIES:
            yield f"  ... and {len(section) - _ENTRIES:,} more"
    if diff.graph:
        yield "graph"
        yield from (f"  {in_line(line)}" for line in diff.graph)


def _render_checkpoint(info: CheckpointInfo) -> str:
    status = "" if info.status is RunStatus.RUNNING else f", {info.status}"
    return f"run {in_line(info.run_id)}, checkpoint {info.seq}, {info.phase} {info.superstep}{status}"


def render_difference(entry: Difference) -> list[str]:
    """Return one difference as a limited number of lines."""
    lines = [_head(entry), *(f"  {line}" for line in _detail(entry))]
    if len(lines) <= _LINES + 1:
        return lines
    return [*lines[:_LINES], f"  ... and {len(lines) - _LINES:,} more lines"]


def _head(entry: Difference) -> str:
    mark, before, after = _MARKS[entry.kind], entry.before, entry.after
    if before is None or after is None:
        side = after or before
        assert side is not None
        cut = f" ({side.type}, {size_text(side.size)})" if side.text.rstrip("'\"").endswith("…") else ""
        return f"{mark} {entry.where}: {side.text}{cut}"
    if entry.kind == "reordered":
        return f"{mark} {entry.where or 'keys'}: in another order, {before.text} -> {after.text}"
    if not entry.parts and not entry.lines:
        same_text = " (not the same)" if before.text == after.text else ""
        return f"{mark} {entry.where}: {before.text} -> {after.text}{same_text}"
    if before.type != after.type:
        return f"{mark} {entry.where}: {before.type}, {size_text(before.size)} -> {after.type}, {size_text(after.size)}"
    return f"{mark} {entry.where}: {before.type}, {size_text(before.size)} -> {size_text(after.size)}"


def _detail(entry: Difference) -> Iterator[str]:
    for line in entry.lines:
        yield line[0] + _printable(line[1:]) if line else line
    for part in entry.parts:
        if not (entry.lines and part.kind in ("cut", "appended")):
            yield from render_difference(part)
    if not entry.complete:
        yield "... and more" if entry.lines or entry.parts else "too big to be compared part by part"


def _printable(line: str) -> str:
    """Return a line of a stored text without control characters, which could command the terminal."""
    if line.isprintable():
        return line
    return "".join(sign if sign.isprintable() or sign == "\t" else repr(sign)[1:-1] for sign in line)
