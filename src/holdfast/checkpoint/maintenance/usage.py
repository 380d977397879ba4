"""Counting what a store holds: by its records, and by what these say of blobs, which are not read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

import ormsgpack

from holdfast.checkpoint.format.changes import Ref
from holdfast.checkpoint.format.document import refs_of
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import corrupt, elsewhere, plain_form, read_header, unsealed
from holdfast.checkpoint.info import Cause
from holdfast.checkpoint.maintenance.statistics import StorageStatistics, StorageUsage
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.read.loading import Blobs, load
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.store import Depth, Head, Record, RunQuery, Store
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, Digest, RunId

# How many runs, how many records and how many bytes of blobs are read at a time.
_RUNS = 500
_RECORDS = 500
_BLOBS = 16 << 20
# The number of a nested workflow, which may have been started many times.
_NUMBER = re.compile(r"#\d+/")


async def count_usage(
    store: Store, blobs_of: Callable[[RunId], Blobs], progress: Progress | None, measure_blobs: bool
) -> StorageStatistics:
    """Count everything; ``progress`` is told of checkpoints."""
    heads = await _heads(store)
    tally = _Tally(sum(head.seq for head in heads), progress)
    families: dict[RunId, list[Head]] = {}
    for head in heads:
        families.setdefault(head.family, []).append(head)
    for family, members in families.items():
        found = [await _run(store, blobs_of(family), head, tally) for head in members]
        runs = [run for run in found if run is not None]
        named = _Named()
        for run in runs:
            named.add(run.named)
        stored, damaged = await _measured(store, family, named.sizes) if measure_blobs else (None, set())
        for run in runs:
            tally.take(run, stored)
            if not damaged.isdisjoint(run.named.sizes) and run.head.run_id not in tally.unreadable:
                tally.unreadable.append(run.head.run_id)
        tally.take_blobs(members[0].workflow_name, named.usage(stored))
    tally.unreadable += [damage.run_id or damage.what for damage in await store.damaged()]
    return tally.statistics()


async def _heads(store: Store) -> list[Head]:
    heads: dict[RunId, Head] = {}
    after: RunId | None = None
    while page := await store.runs(RunQuery(limit=_RUNS, after=after)):
        known = len(heads)
        heads.update({head.run_id: head for head in page})
        if len(heads) == known:  # it began anew, because the run where it stood is gone
            break
        after = page[-1].run_id
    return list(heads.values())


async def _measured(
    store: Store, family: RunId, sizes: Mapping[Digest, int]
) -> tuple[dict[Digest, int], set[Digest]]:
    """Tell what blobs take as stored, and which cannot be read. Stores cannot say sizes alone, so all are read."""
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
class _Named:
    """The blobs that records name, each with its plain size, and how often they do."""

    sizes: dict[Digest, int] = field(default_factory=dict)
    references: int = 0
    referenced_bytes: int = 0

    def name(self, refs: Iterable[Ref]) -> None:
        """Records name these as what changed."""
        for ref in refs:
            if ref.digest is not None:
                self.sizes[ref.digest] = ref.size
                self.references += 1
                self.referenced_bytes += ref.size

    def frame(self, refs: Iterable[Ref]) -> None:
        """A keyframe names these: no more than the run has, but where it put pieces together they are new."""
        self.name([ref for ref in refs if ref.digest not in self.sizes])

    def add(self, other: _Named) -> None:
        """Take in what another run of the family names."""
        self.sizes.update(other.sizes)
        self.references += other.references
        self.referenced_bytes += other.referenced_bytes

    def usage(self, stored: Mapping[Digest, int] | None) -> StorageUsage:
        """The same as usage."""
        return StorageUsage(
            blobs=len(self.sizes),
            blob_bytes=sum(self.sizes.values()),
            stored_blob_bytes=None if stored is None else sum(stored.get(digest, 0) for digest in self.sizes),
            references=self.references,
            referenced_bytes=self.referenced_bytes,
        )


@dataclass
class _Run:
    """What was counted of one run."""

    head: Head
    usage: StorageUsage
    named: _Named = field(default_factory=_Named)
    sections: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)
    executors: Counter[str] = field(default_factory=Counter)


async def _run(store: Store, blobs: Blobs, head: Head, tally: _Tally) -> _Run | None:
    """Count a run; None if it is gone meanwhile."""
    run: _Run | None = None
    told, most = 0, head.seq

    async def look() -> None:
        nonlocal run, told
        now = await store.head(head.run_id)
        run = None if now is None else _Run(now, StorageUsage(runs=1))
        if now is None or run is None:
            return
        for first in range(1, now.seq + 1, _RECORDS):
            last = min(first + _RECORDS - 1, now.seq)
            for record in await store.records(now.run_id, first, last, Depth.ALL):
                await _record(store, run, record)
            if told < min(last, most):
                tally.went_on(min(last, most) - told)
                told = min(last, most)
        _hold(run, (await load(store, blobs, now, now.seq, Depth.CHANGES)).manifest)

    try:
        await steadily(look)
    except CheckpointCorrupt:
        tally.unreadable.append(head.run_id)
    return run


async def _record(store: Store, run: _Run, record: Record) -> None:
    keyframe = record.keyframe
    parts = [record.changes, record.values]
    if keyframe is not None:
        parts += [keyframe.changes, keyframe.values]
    away = [digest for part in parts if (digest := elsewhere(part)) is not None]
    # What lies elsewhere because it is big belongs to the record all the same.
    fetched = await store.blobs(run.head.family, away) if away else {}
    changes, values, *framed = (_here(part, fetched) for part in parts)
    usage = run.usage
    run.usage = replace(
        usage,
        checkpoints=usage.checkpoints + 1,
        header_bytes=usage.header_bytes + len(record.header),
        changes_bytes=usage.changes_bytes + len(changes),
        values_bytes=usage.values_bytes + len(values),
        keyframe_bytes=usage.keyframe_bytes + sum(map(len, framed)),
        new_bytes=usage.new_bytes + record.new_bytes,
    )
    run.named.name(_refs(record.checkpoint_id, changes, sealed=False))
    if framed:
        refs = _refs(record.checkpoint_id, framed[0], sealed=True)
        (run.named.name if read_header(record).cause is Cause.FORK else run.named.frame)(refs)


def _here(part: bytes, fetched: Mapping[Digest, bytes]) -> bytes:
    digest = elsewhere(part)
    return part if digest is None else fetched.get(digest, part)


def _refs(checkpoint_id: CheckpointId, stored: bytes, sealed: bool) -> list[Ref]:
    """The values that a document names."""
    try:
        plain = plain_form(stored)
        if sealed:
            plain = unsealed(checkpoint_id, plain, None)
        return refs_of(ormsgpack.unpackb(plain).get("values", ()), None) if plain else []
    except Exception as error:  # whatever broken data raises
        raise corrupt(checkpoint_id, f"it cannot be read: {error!r}") from error


def _hold(run: _Run, manifest: Manifest) -> None:
    """Count what a run holds where it stands."""
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
    """An address without the numbers of nested workflows: all that were started of one count as one."""
    return _NUMBER.sub("/", address)


# -- all of them -----------------------------------------------------------------------------------


class _Tally:
    """What was counted so far."""

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

    def went_on(self, checkpoints: int) -> None:
        """Tell that so many checkpoints more are done."""
        self._done += checkpoints
        if self._progress is not None:
            self._progress(self._done, self._expected)

    def take(self, run: _Run, stored: Mapping[Digest, int] | None) -> None:
        """Take in a run."""
        name = run.head.workflow_name
        self._runs[run.head.run_id] = run.head.created, _sum(run.usage, run.named.usage(stored))
        self._workflows[name] = _sum(self._workflows.get(name, StorageUsage()), run.usage)
        self._sections += run.sections
        self._scopes += run.scopes
        self._executors += run.executors

    def take_blobs(self, workflow_name: str, blobs: StorageUsage) -> None:
        """Take in the blobs of a family, which its runs share."""
        if workflow_name in self._workflows:
            self._workflows[workflow_name] = _sum(self._workflows[workflow_name], blobs)

    def statistics(self) -> StorageStatistics:
        """What was counted."""
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
    """Both together; blobs were measured if either's were."""
    added: dict[str, int | None] = {}
    for each in fields(StorageUsage):
        numbers = [getattr(usage, each.name) for usage in (one, other)]
        known = [number for number in numbers if number is not None]
        added[each.name] = sum(known) if known else None
    return StorageUsage(**added)  # type: ignore[arg-type]
