"""Statistics of a storage: how many bytes its runs take, counted from records without reading blobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import ormsgpack

from holdfast.checkpoint.checkpoint_info import Cause
from holdfast.checkpoint.derived_starts import expand
from holdfast.checkpoint.format.changes import Ref
from holdfast.checkpoint.format.document import refs_of
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import corrupt, read_header, unseal_keyframe
from holdfast.checkpoint.format.stored_form import elsewhere, plain_form
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.read.loader import BlobReader, load
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import Depth, Head, Record, RunQuery, Store
from holdfast.checkpoint.views import size_text
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, Digest, RunId

# So many lines of each table are shown.
_ROWS = 20


@dataclass(frozen=True)
class StorageUsage:
    """The room that some runs take in a storage. Sizes are in bytes.

    >>> usage = StorageUsage(blobs=2, blob_bytes=300, references=5, referenced_bytes=900)
    >>> usage.saved_bytes
    600
    """

    runs: int = 0
    checkpoints: int = 0
    header_bytes: int = 0
    """The headers of records, as stored; so are the next three."""
    changes_bytes: int = 0
    """The changes in records, without the content of values."""
    values_bytes: int = 0
    """The content of small values."""
    keyframe_bytes: int = 0
    blobs: int = 0
    """The number of larger values. Runs and their forks share them; each run counts those that it names."""
    blob_bytes: int = 0
    """The size of blobs before they are compressed."""
    stored_blob_bytes: int | None = None
    """The size of blobs as stored; None unless they were measured."""
    references: int = 0
    """The number of times that checkpoints name a blob, as a changed value or at the beginning of a fork."""
    referenced_bytes: int = 0
    """The size of these references if each was stored anew."""
    new_bytes: int = 0
    """The sum of ``new_bytes`` of the checkpoints."""
    held_bytes: int = 0
    """The size of the values that the runs hold now, however they are stored."""

    @property
    def record_bytes(self) -> int:
        """The size of all records, without blobs."""
        return self.header_bytes + self.changes_bytes + self.values_bytes + self.keyframe_bytes

    @property
    def saved_bytes(self) -> int:
        """The size of values that were not stored again because they were there already."""
        return self.referenced_bytes - self.blob_bytes


@dataclass(frozen=True)
class StorageStatistics:
    """The room that runs take in a storage; made by ``storage.statistics``. ``str`` gives it as text.

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
    """The bytes that each shared scope holds now, in all runs; nested ones under their path."""
    by_executor: Mapping[str, int] = field(default_factory=dict)
    """The bytes that each executor keeps for itself now."""
    by_section: Mapping[str, int] = field(default_factory=dict)
    """The bytes that runs hold now, by the sections of ``CheckpointDiff``: ``state``, ``messages``, ``outputs``, ...

    ``input`` is the input of the runs, which they keep also when it was delivered.
    """
    unreadable: tuple[str, ...] = ()
    """Runs that are counted in part or not at all because something cannot be read; ``verify`` says more."""

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as data for JSON."""
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


# How many runs, how many records and how many bytes of blobs are read at a time.
_RUNS = 500
_RECORDS = 500
_BLOBS = 16 << 20
# The number of a nested workflow, which may have been started many times.
_NUMBER = re.compile(r"#\d+/")


async def count_usage(
    store: Store, blobs_of: Callable[[RunId], BlobReader], progress: Progress | None, measure_blobs: bool
) -> StorageStatistics:
    """Count the usage of all runs; ``progress`` is called with numbers of checkpoints."""
    heads = await _heads(store)
    tally = _Tally(sum(head.seq for head in heads), progress)
    families: dict[RunId, list[Head]] = {}
    for head in heads:
        families.setdefault(head.family, []).append(head)
    for family, members in families.items():
        found = [await _count_run(store, blobs_of(family), head, tally) for head in members]
        runs = [run for run in found if run is not None]
        named = _BlobUse()
        for run in runs:
            named.add(run.named)
        stored, damaged = await _measure_blobs(store, family, named.sizes) if measure_blobs else (None, set())
        for run in runs:
            tally.take(run, stored)
            if not damaged.isdisjoint(run.named.sizes) and run.head.run_id not in tally.unreadable:
                tally.unreadable.append(run.head.run_id)
        tally.take_blobs(members[0].workflow_name, named.usage(stored))
    tally.unreadable += [damage.run_id or damage.what for damage in await store.damaged()]
    return tally.statistics()


async def _heads(store: Store) -> list[Head]:
    heads: dict[RunId, Head] = {}  # a run that is removed and begun again meanwhile is in two pages
    query = RunQuery(limit=_RUNS)
    while page := await store.runs(query):
        heads.update({head.run_id: head for head in page})
        query = query._replace(after=query.position_of(page[-1]))
    return list(heads.values())


async def _measure_blobs(
    store: Store, family: RunId, sizes: Mapping[Digest, int]
) -> tuple[dict[Digest, int], set[Digest]]:
    """Return the stored sizes of blobs, and the unreadable blobs; reads all, since stores give no sizes alone."""
    stored: dict[Digest, int] = {}
    damaged: set[Digest] = set()
    batch: list[Digest] = []
    room = _BLOBS

    async def measure(digests: list[Digest]) -> None:
        stored.update({name: len(data) for name, data in (await store.blobs(family, digests)).items()})

    for number, (digest, size) in enumerate(sizes.items(), 1):
        batch.append(digest)
        room -= size
        if room <= 0 or number == len(sizes):
            try:
                await measure(batch)
            except CheckpointCorrupt:
                for single in batch:
                    try:
                        await measure([single])
                    except CheckpointCorrupt:
                        damaged.add(single)
            batch, room = [], _BLOBS
    return stored, damaged


# -- one run ---------------------------------------------------------------------------------------


@dataclass
class _BlobUse:
    """The blobs that records name, with their plain sizes, and the number of references."""

    sizes: dict[Digest, int] = field(default_factory=dict)
    references: int = 0
    referenced_bytes: int = 0

    def add_changed(self, refs: Iterable[Ref]) -> None:
        """Count values that a record names as changed."""
        for ref in refs:
            if ref.digest is not None:
                self.sizes[ref.digest] = ref.size
                self.references += 1
                self.referenced_bytes += ref.size

    def add_framed(self, refs: Iterable[Ref]) -> None:
        """Count values that a keyframe names; only those that no record named, which were put together from pieces."""
        self.add_changed([ref for ref in refs if ref.digest not in self.sizes])

    def add(self, other: _BlobUse) -> None:
        """Add the use of another run of the family."""
        self.sizes.update(other.sizes)
        self.references += other.references
        self.referenced_bytes += other.referenced_bytes

    def usage(self, stored: Mapping[Digest, int] | None) -> StorageUsage:
        """Return these numbers as ``StorageUsage``."""
        return StorageUsage(
            blobs=len(self.sizes),
            blob_bytes=sum(self.sizes.values()),
            stored_blob_bytes=None if stored is None else sum(stored.get(digest, 0) for digest in self.sizes),
            references=self.references,
            referenced_bytes=self.referenced_bytes,
        )


@dataclass
class _RunUsage:
    """The numbers of one run."""

    head: Head
    usage: StorageUsage
    named: _BlobUse = field(default_factory=_BlobUse)
    sections: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)
    executors: Counter[str] = field(default_factory=Counter)


async def _count_run(store: Store, blobs: BlobReader, head: Head, tally: _Tally) -> _RunUsage | None:
    """Count a run; return None if it was removed meanwhile."""
    run: _RunUsage | None = None
    counted, most = 0, head.seq

    async def look() -> None:
        nonlocal run, counted
        now = await store.head(head.run_id)
        run = None if now is None else _RunUsage(now, StorageUsage(runs=1))
        if now is None or run is None:
            return
        for first in range(1, now.seq + 1, _RECORDS):
            last = min(first + _RECORDS - 1, now.seq)
            for record in await store.records(now.run_id, first, last, Depth.ALL):
                await _count_record(store, run, record)
            if counted < min(last, most):
                tally.report(min(last, most) - counted)
                counted = min(last, most)
        _count_held(run, (await load(store, blobs, now, now.seq, Depth.CHANGES)).manifest)

    try:
        await steadily(look)
    except CheckpointCorrupt:
        tally.unreadable.append(head.run_id)
    return run


async def _count_record(store: Store, run: _RunUsage, record: Record) -> None:
    keyframe = record.keyframe
    parts = [record.changes, record.values]
    if keyframe is not None:
        parts += [keyframe.changes, keyframe.values]
    away = [digest for part in parts if (digest := elsewhere(part)) is not None]
    # Big parts of a record lie in blobs, but count as parts of the record.
    fetched = await store.blobs(run.head.family, away) if away else {}
    changes, values, *framed = (_here(part, fetched) for part in parts)
    usage = run.usage
    run.usage = replace(
        usage,
        checkpoints=usage.checkpoints + len(expand([record])),
        header_bytes=usage.header_bytes + len(record.header),
        changes_bytes=usage.changes_bytes + len(changes),
        values_bytes=usage.values_bytes + len(values),
        keyframe_bytes=usage.keyframe_bytes + sum(map(len, framed)),
        new_bytes=usage.new_bytes + record.new_bytes,
    )
    run.named.add_changed(_refs(record.checkpoint_id, changes, sealed=False))
    if framed:
        refs = _refs(record.checkpoint_id, framed[0], sealed=True)
        (run.named.add_changed if read_header(record).cause is Cause.FORK else run.named.add_framed)(refs)


def _here(part: bytes, fetched: Mapping[Digest, bytes]) -> bytes:
    digest = elsewhere(part)
    return part if digest is None else fetched.get(digest, part)


def _refs(checkpoint_id: CheckpointId, stored: bytes, sealed: bool) -> list[Ref]:
    """Return the values that a document names."""
    try:
        plain = plain_form(stored)
        if sealed:
            plain = unseal_keyframe(checkpoint_id, plain, None)
        return refs_of(ormsgpack.unpackb(plain).get("values", ()), None) if plain else []
    except Exception as error:  # whatever broken data raises
        raise corrupt(checkpoint_id, f"it cannot be read: {error!r}") from error


def _count_held(run: _RunUsage, manifest: Manifest) -> None:
    """Count the values that a run holds now."""
    for scope, keys in manifest.state.items():
        size = sum(ref.size for ref in keys.values())
        if scope.owner is None:
            run.scopes[_unnumbered(scope.path + scope.name)] += size
            run.sections["state"] += size
        else:
            run.executors[_unnumbered(scope.owner)] += size
            run.sections["executor_states"] += size
    others = {
        "messages": [delivered.value for delivered in manifest.deliveries],
        "fan_ins": [ref for buffer in manifest.buffers.values() for refs in buffer.values() for ref in refs],
        "pending_requests": [asked.data for asked in manifest.requests.values()],
        "outputs": [ref for _, ref in manifest.outputs],
    }
    given = manifest.input  # it is kept, also when it was delivered long ago
    if given is not None and all(ref is not given for ref in others["messages"]):
        others["input"] = [given]
    for section, refs in others.items():
        run.sections[section] += sum(ref.size for ref in refs)
    run.usage = replace(run.usage, held_bytes=run.sections.total())


def _unnumbered(address: str) -> str:
    """Return an address without the numbers of nested workflows, so that all instances of one count as one."""
    return _NUMBER.sub("/", address)


# -- all of them -----------------------------------------------------------------------------------


class _Tally:
    """Sums up the numbers of runs."""

    def __init__(self, expected: int, progress: Progress | None) -> None:
        self._expected = expected
        self._done = 0
        self._progress = progress
        self._runs: dict[RunId, tuple[int, StorageUsage]] = {}
        self._workflows: dict[str, StorageUsage] = {}
        self._sections: Counter[str] = Counter()
        self._scopes: Counter[str] = Counter()
        self._executors: Counter[str] = Counter()
        self.unreadable: list[str] = []

    def report(self, checkpoints: int) -> None:
        """Report that so many more checkpoints are counted."""
        self._done += checkpoints
        if self._progress is not None:
            self._progress(self._done, self._expected)

    def take(self, run: _RunUsage, stored: Mapping[Digest, int] | None) -> None:
        """Add a run."""
        name = run.head.workflow_name
        self._runs[run.head.run_id] = run.head.created, _sum(run.usage, run.named.usage(stored))
        self._workflows[name] = _sum(self._workflows.get(name, StorageUsage()), run.usage)
        self._sections += run.sections
        self._scopes += run.scopes
        self._executors += run.executors

    def take_blobs(self, workflow_name: str, blobs: StorageUsage) -> None:
        """Add the blobs of a family, which its runs share."""
        if workflow_name in self._workflows:
            self._workflows[workflow_name] = _sum(self._workflows[workflow_name], blobs)

    def statistics(self) -> StorageStatistics:
        """Return the statistics."""
        total = StorageUsage()
        for usage in self._workflows.values():
            total = _sum(total, usage)
        oldest_first = sorted(self._runs.items(), key=lambda run: (run[1][0], run[0]))
        return StorageStatistics(
            total,
            self._workflows,
            {run_id: usage for run_id, (_, usage) in oldest_first},
            dict(self._scopes),
            dict(self._executors),
            dict(self._sections),
            tuple(self.unreadable),
        )


def _sum(one: StorageUsage, other: StorageUsage) -> StorageUsage:
    """Return the sum of two usages; blobs count as measured if those of either were."""
    added: dict[str, int | None] = {}
    for each in fields(StorageUsage):
        numbers = [getattr(usage, each.name) for usage in (one, other)]
        known = [number for number in numbers if number is not None]
        added[each.name] = sum(known) if known else None
    return StorageUsage(**added)  # type: ignore[arg-type]
