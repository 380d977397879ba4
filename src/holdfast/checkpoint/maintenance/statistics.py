"""What takes the room in a storage, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.checkpoint.views import size_text

# So many lines of each table are shown.
_ROWS = 20


@dataclass(frozen=True)
class StorageUsage:
    """What some runs take in a storage. Sizes are in bytes.

    >>> usage = StorageUsage(blobs=2, blob_bytes=300, references=5, referenced_bytes=900)
    >>> usage.saved_bytes
    600
    """

    runs: int = 0
    checkpoints: int = 0
    header_bytes: int = 0
    """Of the headers of records, as stored; so are the next three."""
    changes_bytes: int = 0
    """What changed, without the content of values."""
    values_bytes: int = 0
    """The content of small values."""
    keyframe_bytes: int = 0
    blobs: int = 0
    """The larger values: how many there are. Runs and their forks share them; each run counts those that it names."""
    blob_bytes: int = 0
    """How big they are before they are compressed."""
    stored_blob_bytes: int | None = None
    """How big they are as stored; None unless they were measured."""
    references: int = 0
    """How often checkpoints name blobs as what changed, or what a fork begins with."""
    referenced_bytes: int = 0
    """What these would take if each was stored anew."""
    new_bytes: int = 0
    """What checkpoints added when they were made, as they say themselves."""
    held_bytes: int = 0
    """The values that the runs hold where they stand, however they are stored."""

    @property
    def record_bytes(self) -> int:
        """What the records take: all that is no blob."""
        return self.header_bytes + self.changes_bytes + self.values_bytes + self.keyframe_bytes

    @property
    def saved_bytes(self) -> int:
        """What was not stored because it was there already."""
        return self.referenced_bytes - self.blob_bytes


@dataclass(frozen=True)
class StorageStatistics:
    """What takes the room in a storage; made by ``storage.statistics``. ``str`` gives it as text.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def fetch(service: str, ctx: WorkflowContext) -> None:
    ...     await ctx.queue_state_update("log", "error " * 10_000, scope_name="Logs")
    >>> storage = InMemoryCheckpointStorage()
    >>> workflow = WorkflowBuilder(name="Fetch").set_start_executor(fetch).with_checkpointing(storage).build()
    >>> async def main():
    ...     await workflow.run("checkout", run_id="r1")
    ...     return await storage.statistics()
    >>> found = asyncio.run(main())
    >>> found.total.checkpoints, found.total.blobs, found.by_scope, found.by_run["r1"].held_bytes
    (2, 1, {'Logs': 60003}, 60012)
    """

    total: StorageUsage = field(default_factory=StorageUsage)
    by_workflow: Mapping[str, StorageUsage] = field(default_factory=dict)
    by_run: Mapping[str, StorageUsage] = field(default_factory=dict)
    """By run id, oldest first."""
    by_scope: Mapping[str, int] = field(default_factory=dict)
    """What the shared scopes of all runs hold where these stand, in bytes; nested ones under their path."""
    by_executor: Mapping[str, int] = field(default_factory=dict)
    """What executors keep for themselves there."""
    by_section: Mapping[str, int] = field(default_factory=dict)
    """What is held there, by the sections that ``CheckpointDiff`` has: ``state``, ``messages``, ``outputs``, ...

    ``input`` is that of the runs, which they keep also when it was delivered.
    """
    unreadable: tuple[str, ...] = ()
    """Runs of which something cannot be read, so that they are counted in part or not at all; ``verify`` says more."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(found: StorageStatistics) -> Iterator[str]:
    total = found.total
    yield (
        f"{_many(total.runs, 'run')} of {_many(len(found.by_workflow), 'workflow')}, "
        f"{_many(total.checkpoints, 'checkpoint')}"
    )
    yield (
        f"records: {size_text(total.record_bytes)} (headers {size_text(total.header_bytes)}, "
        f"changes {size_text(total.changes_bytes)}, small values {size_text(total.values_bytes)}, "
        f"keyframes {size_text(total.keyframe_bytes)})"
    )
    stored = total.stored_blob_bytes
    as_stored = "" if stored is None else f", {size_text(stored)} as stored"
    yield (
        f"blobs: {_many(total.blobs, 'blob')} of {size_text(total.blob_bytes)} uncompressed{as_stored}; "
        f"named {_many(total.references, 'time')}, which saved {size_text(total.saved_bytes)}"
    )
    yield from _usages("by workflow", found.by_workflow)
    yield from _usages("by run", found.by_run)
    yield from _sizes("held by scope", found.by_scope)
    yield from _sizes("held by executor", found.by_executor)
    yield from _sizes("held in all", found.by_section)
    if found.unreadable:
        yield "not all could be read of " + ", ".join(found.unreadable)


def _usages(title: str, usages: Mapping[str, StorageUsage]) -> Iterator[str]:
    biggest = sorted(usages.items(), key=lambda usage: -usage[1].record_bytes - usage[1].blob_bytes)
    yield from _table(title, [(name, _usage(usage)) for name, usage in biggest])


def _usage(usage: StorageUsage) -> str:
    return (
        f"{_many(usage.checkpoints, 'checkpoint')}, records {size_text(usage.record_bytes)}, "
        f"blobs {size_text(usage.blob_bytes)}, holds {size_text(usage.held_bytes)}"
    )


def _sizes(title: str, sizes: Mapping[str, int]) -> Iterator[str]:
    biggest = sorted(sizes.items(), key=lambda size: -size[1])
    yield from _table(title, [(name, size_text(size)) for name, size in biggest])


def _table(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield title
    shown = [(name if name.isprintable() else repr(name), text) for name, text in rows[:_ROWS]]
    width = max(len(name) for name, _ in shown)
    yield from (f"  {name:<{width}}  {text}" for name, text in shown)
    if len(rows) > _ROWS:
        yield f"  ... and {len(rows) - _ROWS:,} more"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
