"""Removes checkpoints, runs and blobs: what stays can be loaded without what goes, and named blobs are kept."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.checkpoint.derived_starts import (
    RemovalPlan,
    expand,
    read_records,
    seq_of_carrier,
    tag_checkpoint,
)
from holdfast.checkpoint.format.changes import Changes, digests_of
from holdfast.checkpoint.format.document import pack_changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import info_of, seal_keyframe
from holdfast.checkpoint.format.refs import refs_in
from holdfast.checkpoint.format.stored_form import LARGEST_PART, blob_of, elsewhere, stored_form
from holdfast.checkpoint.journal import sizes_in_note
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import BlobReader, changes_of, keyframe_of, load, whole
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import (
    Blob,
    Depth,
    Expected,
    Head,
    Keyframe,
    Record,
    Removal,
    RunQuery,
    Store,
)
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.errors import CheckpointCorrupt, HeadMoved, InvalidArgument, RunTaken
from holdfast.ids import CheckpointId, Digest, RunId

# Records are read so many at a time: memory stays bounded, however long a run is.
_PAGE = 256
# Blobs are discarded so many at a time, so that nobody else waits long for the store.
_BATCH = 200

WouldGo = Mapping[RunId, Collection[int] | None]
"""The seqs of records that would go; None where the whole run would."""


class Freed(NamedTuple):
    """Numbers of what was removed, or would be."""

    checkpoints: int = 0
    blobs: int = 0
    bytes: int = 0
    """Stored bytes of records and blobs that were removed, minus those of new keyframes."""

    def __add__(self, other: object) -> Freed:
        if not isinstance(other, Freed):
            return NotImplemented
        return Freed(self.checkpoints + other.checkpoints, self.blobs + other.blobs, self.bytes + other.bytes)


async def remove_records(
    store: Store, blobs: BlobReader, head: Head, gone: Container[int], dry_run: bool = False
) -> Freed:
    """Remove the checkpoints with these seqs; checkpoints that lose their parent get a cut keyframe."""
    stored = await store.records(head.run_id, 1, head.seq, Depth.HEADERS)
    headers = expand(stored)
    going = [record for record in headers if record.seq in gone and record.seq != head.seq]
    if not going:
        return Freed()
    names = {record.checkpoint_id for record in going}
    plan = RemovalPlan.of(stored, names)
    freed = await bytes_of(store, head.run_id, plan.seqs)
    keyframes: list[tuple[int, Keyframe]] = []
    new: list[Blob] = []
    for record in headers:
        if record.checkpoint_id not in names and info_of(record).parent_id in names:
            keyframe, parts, more = await _cut_keyframe(store, blobs, head, record)
            keyframes.append((seq_of_carrier(record), keyframe))
            new += parts
            freed -= more
    if not dry_run:
        if any(record.tags for record in going):
            raise _tagged(head)
        expected = Expected(head.checkpoint_id, head.token)
        given = tuple(keyframes), tuple(new), plan.tags
        await _remove_moving(store, Removal(head.run_id, expected, plan.seqs, *given), head)
    return Freed(len(going), 0, freed)


async def _remove_moving(store: Store, removal: Removal, head: Head) -> None:
    """Remove records of a run that may go on meanwhile, as long as its new records do not follow from those.

    Raises ``HeadMoved`` if the caller has to decide anew which records go.
    """
    while True:
        try:
            done = await store.remove(removal)
        except HeadMoved:
            latest = await store.head(head.run_id)
            if latest is None or not await _went_on(store, head, latest):
                raise
            head = latest
            removal = removal._replace(expected=Expected(head.checkpoint_id, head.token))
            continue
        if not done:
            raise _tagged(head)
        return


def _tagged(head: Head) -> HeadMoved:
    return HeadMoved(f"run {head.run_id!r}: a checkpoint that was to go was given a tag meanwhile")


async def _went_on(store: Store, head: Head, latest: Head) -> bool:
    """Return True if a run only made more checkpoints, each after the one before, and was not taken back."""
    before: str | None = head.checkpoint_id
    for record in await read_records(store, head.run_id, head.seq + 1, latest.seq, Depth.HEADERS):
        if info_of(record).parent_id != before:
            return False
        before = record.checkpoint_id
    return before == latest.checkpoint_id


async def bytes_of(store: Store, run_id: RunId, seqs: Sequence[int]) -> int:
    """Return the stored bytes of records."""
    wanted = set(seqs)
    total = 0
    if not wanted:
        return total
    for first in range(min(seqs), max(seqs) + 1, _PAGE):
        for record in await store.records(run_id, first, first + _PAGE - 1, Depth.ALL):
            if record.seq in wanted:
                total += sum(map(len, record.parts)) + len(record.header)
    return total


async def _cut_keyframe(
    store: Store, blobs: BlobReader, head: Head, record: Record
) -> tuple[Keyframe, list[Blob], int]:
    """Return a cut keyframe for a checkpoint, the blobs that it needs, and the number of bytes that it adds."""
    carrier = seq_of_carrier(record)
    stored = await store.records(head.run_id, carrier, carrier, Depth.ALL)
    if stored and stored[0].keyframe is not None:
        return stored[0].keyframe._replace(cut=True), [], 0
    try:
        loaded = await load(store, blobs, head, record.seq, Depth.ALL)
    except CheckpointCorrupt:
        if await store.records(head.run_id, carrier, carrier, Depth.HEADERS):
            raise
        raise HeadMoved(f"run {head.run_id!r} is pruned by someone else at the same time") from None
    keyframe, parts = make_keyframe(record.checkpoint_id, loaded.manifest)
    known = await store.blobs(head.family, [blob.digest for blob in parts]) if parts else {}
    new = sum(len(blob.data) for blob in parts if blob.digest not in known)
    return keyframe, parts, new + len(keyframe.changes) + len(keyframe.values)


def make_keyframe(checkpoint_id: CheckpointId, manifest: Manifest) -> tuple[Keyframe, list[Blob]]:
    """Make a cut keyframe of a manifest; return it with the blobs that hold its big parts."""
    changes, values = pack_changes(manifest.as_changes())
    brought: list[Blob] = []

    def part(plain: bytes) -> bytes:
        stored = stored_form(plain)
        if len(stored) <= LARGEST_PART:
            return stored
        name, blob = blob_of(plain)
        brought.append(blob)
        return name

    return Keyframe(part(seal_keyframe(checkpoint_id, changes, values)), part(values), True), brought


async def find_superfluous(store: Store, head: Head, retention: Retention, now: datetime) -> frozenset[int]:
    """Return the seqs of the checkpoints of a run that are not kept."""
    if retention.keeps_all:
        return frozenset()
    known = list(map(info_of, await read_records(store, head.run_id, 1, head.seq, Depth.HEADERS)))
    return frozenset(info.seq for info in known) - retention.kept(known, head.checkpoint_id, now)


async def prune_run(catalog: RunCatalog, head: Head, now: datetime) -> int:
    """Prune a run by its own retention and sweep its family; return the number of records that were read."""
    store, blobs = catalog.store, catalog.blobs(head.family)
    gone = await find_superfluous(store, head, Retention.of_text(head.retention), now)
    if not (await remove_records(store, blobs, head, gone)).checkpoints:
        return len(await store.records(head.run_id, 1, head.seq, Depth.HEADERS))
    mark, sizes = await store.mark(head.family)
    named = await _find_named(catalog, head.family, {})
    if head.run_id in named.unreadable:
        raise named.unreadable[head.run_id]
    unused = [digest for digest in sizes if digest not in named.digests]
    if unused and not named.unreadable and not await catalog.may_have_lost_runs():
        await _discard(store, head.family, mark, unused)
    return named.records


class Swept(NamedTuple):
    """The result of a sweep of one family."""

    freed: Freed
    unreadable: Mapping[RunId, CheckpointCorrupt] = {}
    """The runs that are damaged: nobody knows which blobs they name, so all blobs of the family stay."""
    lost: tuple[str, ...] = ()
    """The runs whose head cannot be read: nobody knows of which family they are, so all blobs stay."""


async def sweep(
    catalog: RunCatalog, family: RunId, would_go: WouldGo | None = None, lost: tuple[str, ...] | None = None
) -> Swept:
    """Remove the blobs of a family that no run of it names any more; may run beside writers, and be interrupted.

    With ``would_go``, the seqs of records by run that a dry run takes as removed, or None for a whole run, blobs are
    counted and not removed. ``lost`` are the runs whose head cannot be read, if they were looked for already.
    """
    if lost:
        return Swept(Freed(), lost=lost)
    mark, sizes = await catalog.store.mark(family)
    if not sizes:
        return Swept(Freed())
    named = await _find_named(catalog, family, would_go or {})
    if named.unreadable:
        return Swept(Freed(), named.unreadable)
    unused = [digest for digest in sizes if digest not in named.digests]
    if unused and lost is None and (lost := await catalog.recent_lost_runs()):
        return Swept(Freed(), lost=lost)
    if would_go is not None:
        return Swept(Freed(0, len(unused), sum(sizes[digest] for digest in unused)))
    return Swept(await _discard(catalog.store, family, mark, unused))


async def _discard(store: Store, family: RunId, mark: int, unused: Sequence[Digest]) -> Freed:
    freed = Freed()
    for first in range(0, len(unused), _BATCH):
        batch = unused[first : first + _BATCH]
        size = await store.discard(family, mark, batch)
        freed += Freed(0, len(batch) if size else 0, size)
    return freed


class _NamedBlobs(NamedTuple):
    digests: set[Digest]
    records: int
    """The number of records that were read for it."""
    unreadable: Mapping[RunId, CheckpointCorrupt] = {}
    """The runs of which not all could be read."""


async def _find_named(catalog: RunCatalog, family: RunId, would_go: WouldGo) -> _NamedBlobs:
    """Return the blobs that the runs of a family name; runs that begin meanwhile bring their blobs with them."""
    store, blobs = catalog.store, catalog.blobs(family)
    digests, records = set[Digest](), 0
    unreadable: dict[RunId, CheckpointCorrupt] = {}
    for head in await store.runs(RunQuery(family=family)):
        gone = would_go.get(head.run_id, ())
        if gone is None:
            continue
        try:
            named = await _find_named_by_run(store, head, blobs, gone)
        except CheckpointCorrupt as error:
            catalog.left_out.tell(head, error)
            unreadable[head.run_id] = error
        else:
            digests |= named.digests
            records += named.records
    return _NamedBlobs(digests, records, unreadable)


async def _find_named_by_run(
    store: Store, head: Head, blobs: BlobReader, but: Collection[int]
) -> _NamedBlobs:
    """Return the blobs that the records and the journal of a run name.

    Reads on until the run has not moved since before its journal was read. Otherwise a name could be missed that went
    from a note into a record, or from one record into the keyframe of a later one, between two reads.
    """
    named: set[Digest] = set()
    read = records = 0
    while True:
        for first in range(read + 1, head.seq + 1, _PAGE):
            last = min(first + _PAGE - 1, head.seq)
            for record in await store.records(head.run_id, first, last, Depth.ALL):
                records += 1
                if any(checkpoint.seq not in but for checkpoint in expand([record])):
                    named |= await _digests_in(store, record, blobs)
        read = head.seq
        unreadable: CheckpointCorrupt | None = None
        try:
            named |= await _find_named_by_journal(store, head.run_id, blobs)
        except CheckpointCorrupt as error:
            unreadable = error  # or the run went on, and the blob with the notes is gone
        latest = await store.head(head.run_id)
        if latest is None or latest.checkpoint_id == head.checkpoint_id:
            if unreadable is not None and latest is not None:
                raise unreadable
            break
        head = latest
    if but:  # records that stay would get keyframes, which name blobs of those that go
        named |= await _find_named_by_keyframes(store, head, blobs, but)
    return _NamedBlobs(named, records)


async def _find_named_by_journal(store: Store, run_id: RunId, blobs: BlobReader) -> set[Digest]:
    notes, named = await unbundled(await store.notes(run_id), blobs)
    for note in notes:
        named |= sizes_in_note(note).keys()
    return named


async def _find_named_by_keyframes(
    store: Store, head: Head, blobs: BlobReader, but: Container[int]
) -> set[Digest]:
    named: set[Digest] = set()
    headers = await read_records(store, head.run_id, 1, head.seq, Depth.HEADERS)
    gone = {record.checkpoint_id for record in headers if record.seq in but}
    for record in headers:
        if record.checkpoint_id not in gone and info_of(record).parent_id in gone:
            manifest = (await load(store, blobs, head, record.seq, Depth.ALL)).manifest
            named |= set(_digests([manifest.as_changes()]))
    return named


async def _digests_in(store: Store, record: Record, blobs: BlobReader) -> set[Digest]:
    away = {digest for part in record.parts if (digest := elsewhere(part)) is not None}
    try:
        full = await whole(record, blobs)
    except CheckpointCorrupt:
        if await store.records(record.run_id, record.seq, record.seq, Depth.HEADERS):
            raise
        return set()  # someone else removed it meanwhile, with its blobs
    documents = [changes_of(full, Depth.ALL)]
    if full.keyframe is not None:
        documents.append(keyframe_of(full, Depth.ALL))
    return away | set(_digests(documents))


def _digests(documents: Sequence[Changes]) -> Iterator[Digest]:
    for changes in documents:
        for ref in refs_in(changes):
            yield from digests_of(ref)


@dataclass(frozen=True)
class PruneReport:
    """The result of ``storage.prune``: what it removed, or with ``dry_run`` would remove.

    >>> str(PruneReport(3, 12, 2, 4096))
    '3 runs: 12 checkpoints and 2 blobs, 4,096 bytes, were removed'
    """

    runs: int
    """The number of runs that were looked at."""
    checkpoints: int
    blobs: int
    bytes: int
    """Stored bytes of records and blobs that were freed, minus those of the keyframes that other records needed."""
    dry_run: bool = False
    unreadable: tuple[str, ...] = ()
    """The ids of runs that are damaged, so that no blob goes that may be theirs; ``verify`` says what is wrong."""

    def __str__(self) -> str:
        done = "would go" if self.dry_run else "were removed"
        what = f"{self.checkpoints:,} checkpoints and {self.blobs:,} blobs, {self.bytes:,} bytes, {done}"
        return f"{self.runs} runs: {what}{explain_unreadable(self.unreadable)}"


def explain_unreadable(runs: Sequence[str]) -> str:
    """Return the end of a report that names the damaged runs; empty without any."""
    return f"; not all could be read of {', '.join(runs)}" if runs else ""


async def prune_all(
    catalog: RunCatalog, retention: Retention | None, dry_run: bool, progress: Progress | None
) -> PruneReport:
    """Prune all runs but those that are damaged, then sweep the blobs of their families."""
    lost = await catalog.find_lost_runs()
    heads = await catalog.store.runs(RunQuery())
    now = datetime.now(UTC)
    freed, unreadable = Freed(), dict.fromkeys(lost)
    gone: dict[RunId, frozenset[int]] = {}
    for number, head in enumerate(heads, 1):
        try:
            gone[head.run_id], more = await _prune_moving(catalog, head, retention, now, dry_run)
            freed += more
        except CheckpointCorrupt as error:
            catalog.left_out.tell(head, error)
            unreadable[head.run_id] = None
        if progress is not None:
            progress(number, len(heads))
    for family in dict.fromkeys(head.family for head in heads):
        swept = await sweep(catalog, family, gone if dry_run else None, lost)
        freed += swept.freed
        unreadable.update(dict.fromkeys(swept.unreadable))
    return PruneReport(len(heads), *freed, dry_run=dry_run, unreadable=tuple(map(str, unreadable)))


async def prune_one(
    catalog: RunCatalog, head: Head, retention: Retention | None, dry_run: bool, progress: Progress | None
) -> PruneReport:
    """Prune one run, then sweep the blobs of its family; raise if the run is damaged."""
    gone, freed = await _prune_moving(catalog, head, retention, datetime.now(UTC), dry_run)
    if progress is not None:
        progress(1, 1)
    swept = await sweep(catalog, head.family, {head.run_id: gone} if dry_run else None)
    if head.run_id in swept.unreadable:
        raise swept.unreadable[head.run_id]
    unreadable = (*map(str, swept.unreadable), *swept.lost)
    return PruneReport(1, *(freed + swept.freed), dry_run=dry_run, unreadable=unreadable)


async def _prune_moving(
    catalog: RunCatalog, head: Head, retention: Retention | None, now: datetime, dry_run: bool
) -> tuple[frozenset[int], Freed]:
    """Prune a run that may move meanwhile, or be removed; return the removed seqs and what was freed.

    Without ``retention`` by its own.
    """
    store, blobs = catalog.store, catalog.blobs(head.family)
    policy = Retention.of_text(head.retention) if retention is None else retention
    newest: Head | None = head

    async def look() -> tuple[frozenset[int], Freed]:
        nonlocal newest
        known, newest = newest or await store.head(head.run_id), None
        if known is None:
            return frozenset(), Freed()
        gone = await find_superfluous(store, known, policy, now)
        return gone, await remove_records(store, blobs, known, gone, dry_run)

    while True:
        try:
            return await steadily(look)
        except HeadMoved:
            continue


async def delete_checkpoint(catalog: RunCatalog, checkpoint_id: CheckpointId) -> None:
    """Remove one checkpoint, tagged or not; raise ``InvalidArgument`` if its run stands on it."""
    store = catalog.store

    async def look() -> Head:
        head, seq = await catalog.find(checkpoint_id)
        if seq == head.seq:
            raise InvalidArgument(
                f"run {head.run_id} stands on checkpoint {head.checkpoint_id}, so it cannot be deleted; delete the "
                f"run with 'storage.delete_run', or go back to another checkpoint first"
            )
        await tag_checkpoint(store, head.run_id, seq, ())
        await remove_records(store, catalog.blobs(head.family), head, {seq})
        return head

    while True:
        try:
            head = await steadily(look)
            break
        except (
            HeadMoved
        ):  # the run was taken back meanwhile, perhaps to this checkpoint; or someone tagged it
            continue
    await sweep(catalog, head.family)


async def delete_run(catalog: RunCatalog, head: Head) -> None:
    """Remove a run with all its checkpoints, and the blobs that only it named; raise ``RunTaken`` if it is driven."""
    if await is_driven(catalog.store, head):
        raise RunTaken(f"run {head.run_id} is driven; cancel it first, with 'storage.cancel'")
    await catalog.store.remove_run(head.run_id, Expected(head.checkpoint_id, head.token))
    await sweep(catalog, head.family)
