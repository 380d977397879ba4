"""Copies runs from one storage to another of any kind, and brings copies up to date.

Nothing here decodes a value. A run arrives in one commit, so whoever is interrupted begins again where it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.derived_starts import carrier_of
from holdfast.checkpoint.format.blob_stream import FileSlice, PlainStream
from holdfast.checkpoint.format.record import corrupt, info_of
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.progress import Progress, run_in_thread
from holdfast.checkpoint.read.loader import BlobReader, changes_of, whole
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    EventRow,
    Expected,
    Head,
    Letter,
    Note,
    Record,
    RunQuery,
    Store,
)
from holdfast.checkpoint.transfer.export_check import find_blobs_of_notes, find_blobs_of_record
from holdfast.checkpoint.transfer.run_transfer import as_imported, capture_run, read_event_rows, read_pages
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, HeadMoved, RunNotFound, StorageError
from holdfast.ids import CheckpointId, Digest, RunId

_PAGE = 500
_LIGHT = 1 << 20
# The blobs of so many families are remembered: forks share them.
_FAMILIES = 100
_MOST_TRIES = 1000
# A report names so many runs that were not copied.
_MOST_TOLD = 1000


@dataclass(frozen=True)
class UncopiedRun:
    """A run that ``storage.copy_to`` did not copy.

    >>> print(UncopiedRun("r1", "it is driven there"))
    run 'r1' was not copied: it is driven there
    """

    run_id: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id!r} was not copied: {self.reason}"


@dataclass(frozen=True)
class CopyReport:
    """The result of ``storage.copy_to``.

    >>> print(CopyReport(copied=2, updated=1, skipped=7, checkpoints=40, blobs=3, bytes=9000))
    2 runs copied, 1 brought up to date, 7 were there, 0 not copied; 40 checkpoints and 3 blobs, 9,000 bytes
    """

    copied: int = 0
    """The number of runs that were not there before."""
    updated: int = 0
    """The number of runs that were there, and had moved on, or got letters or tags, since."""
    skipped: int = 0
    """The number of runs that were there as they are."""
    checkpoints: int = 0
    blobs: int = 0
    bytes: int = 0
    """Stored bytes of the records and blobs that were written."""
    uncopied: tuple[UncopiedRun, ...] = ()
    """The runs that were not copied, each with the reason; the first 1,000 of them."""

    @property
    def ok(self) -> bool:
        """True if all runs are in the other storage now."""
        return not self.uncopied

    def __str__(self) -> str:
        runs = (
            f"{self.copied:,} runs copied, {self.updated:,} brought up to date, {self.skipped:,} were there"
        )
        content = f"{self.checkpoints:,} checkpoints and {self.blobs:,} blobs, {self.bytes:,} bytes"
        return f"{runs}, {len(self.uncopied):,} not copied; {content}"


class _WholeRun(NamedTuple):
    """A run of the source as it stood at one moment, with the names of its blobs."""

    head: Head
    records: Sequence[Record]
    notes: Sequence[Note]
    letters: Sequence[Letter]
    digests: Sequence[Digest]
    events: Sequence[EventRow]


class _Refused(Exception):
    """Raised for a run that is not copied; the text is the reason."""


async def copy_runs(
    source: Store, target: Store, run_id: RunId | None, progress: Progress | None
) -> CopyReport:
    """Copy all runs, or one, to another store; raise ``RunNotFound`` if that one is not there."""
    await target.open()
    run_ids = [run_id] if run_id is not None else await _list_runs(source)
    copier = _Copier(source, target)
    for number, each in enumerate(run_ids, 1):
        try:
            await steadily(lambda each=each: copier.copy(each))  # type: ignore[misc]
        except RunNotFound:
            if run_id is not None:  # else it was removed since it was listed
                raise
        except _Refused as refused:
            copier.tell(each, str(refused))
        except CheckpointCorrupt as error:
            copier.tell(each, f"it is damaged in this storage: {error}")
        if progress is not None:
            progress(number, len(run_ids))
    for damage in await source.damaged() if run_id is None else ():
        copier.tell(damage.run_id or "", f"it is damaged in this storage: {damage.what}")
    return copier.report()


async def _list_runs(source: Store) -> list[RunId]:
    query = RunQuery(limit=_PAGE)
    found: list[RunId] = []
    while True:
        page = await source.runs(query)
        found += [head.run_id for head in page]
        if len(page) < _PAGE:
            return found
        query = query._replace(after=query.position_of(page[-1]))


class _Copier:
    """Copies run after run, and counts."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source = source
        self._target = target
        self._there: dict[RunId, set[Digest]] = {}
        self._runs = {"copied": 0, "updated": 0, "skipped": 0}
        self._checkpoints = self._blobs = self._bytes = 0
        self._uncopied: list[UncopiedRun] = []

    def report(self) -> CopyReport:
        """Return what was done so far."""
        return CopyReport(
            **self._runs,
            checkpoints=self._checkpoints,
            blobs=self._blobs,
            bytes=self._bytes,
            uncopied=tuple(self._uncopied),
        )

    def tell(self, run_id: str, reason: str) -> None:
        """Note that a run is not copied."""
        if len(self._uncopied) < _MOST_TOLD:
            self._uncopied.append(UncopiedRun(run_id, reason))

    async def copy(self, run_id: RunId) -> None:
        """Copy a run, or bring the copy that is there up to date."""
        there = await self._target.head(run_id)
        run = await self._read(run_id)
        if there is None:
            commit = Commit(
                run.head,
                None,
                tuple(run.records),
                notes=tuple(run.notes),
                letters=tuple(run.letters),
                needs=tuple(run.digests),
                events=tuple(run.events),
            )
            await self._commit(commit)
            self._runs["copied"] += 1
            return
        changed = await self._bring_up_to_date(run, there)
        self._runs["updated" if changed else "skipped"] += 1

    async def _read(self, run_id: RunId) -> _WholeRun:
        """Read a run, and check that each record is what was stored."""
        moment = await capture_run(self._source, run_id)
        head = moment.head
        blobs = BlobReader(self._source, head.family, Counters())
        records: list[Record] = []
        named: dict[Digest, None] = {}
        async for page, _ in read_pages(self._source, head):
            for record in page:
                named.update(dict.fromkeys(await find_blobs_of_record(record, blobs)))
                changes_of(await whole(record, blobs), Depth.ALL)
                if not record.sound:
                    raise corrupt(record.checkpoint_id, "its size, its tags or its keyframe are damaged")
            records += page
        if not records or (records[-1].checkpoint_id, records[-1].seq) != _carrier(head):
            raise corrupt(head.checkpoint_id, "it is missing, though its run stands on it")
        named.update(dict.fromkeys(await find_blobs_of_notes(moment.notes, blobs)))
        mail = moment.notes, moment.letters
        return _WholeRun(as_imported(head), records, *mail, list(named), moment.events)

    async def _bring_up_to_date(self, run: _WholeRun, there: Head) -> bool:
        """Add what is new since a run was copied; return False if nothing is, raise ``_Refused`` if it parted ways."""
        target, run_id = self._target, run.head.run_id
        if await is_driven(target, there):
            raise _Refused("it is driven in the other storage")
        self._check_lineage(run, there)
        notes, letters = await target.notes(run_id), await target.inbox(run_id)
        strange = [letter.key for letter in letters if letter not in run.letters]
        used = await self._source.taken(run_id, strange) if strange else ()
        if left := len(strange) - len(used):
            raise _Refused(
                f"{left} letters wait for it in the other storage that were not left here; leave them here as well, "
                f"or remove the run there with 'delete_run', and copy it again"
            )
        changed = False
        if as_imported(there) != run.head or not set(run.notes) <= set(notes) or used:
            new = [record for record in run.records if record.seq > _carrier(there)[1]]
            commit = Commit(
                run.head,
                Expected(there.checkpoint_id, there.token),
                tuple(new),
                notes=tuple(run.notes),
                taken=tuple(used),
                needs=tuple(run.digests) if new or run.notes else (),
                events=_new_events(run.events, await read_event_rows(target, run_id)),
            )
            await self._commit(commit)
            changed = True
        for letter in run.letters:
            if letter not in letters:
                changed |= not (await target.leave(run_id, 0, [letter])).refused
        return await self._add_tags(run, there) or changed

    def _check_lineage(self, run: _WholeRun, there: Head) -> None:
        """Raise ``_Refused`` unless the source went on from where the copy stands."""
        checkpoint_id, seq = _carrier(there)
        here = {record.seq: record.checkpoint_id for record in run.records}
        if (
            there.seq > run.head.seq
            or there.token > run.head.token
            or there.updated > run.head.updated
            or here.get(seq, checkpoint_id) != checkpoint_id
        ):
            raise _Refused(
                f"it moved on in the other storage, where it stands on checkpoint {there.checkpoint_id[:12]} (number "
                f"{there.seq}), {there.status}; remove it there with 'delete_run' if it is to be as it is here"
            )

    async def _add_tags(self, run: _WholeRun, there: Head) -> bool:
        """Give records of the copy the tags that they have in the source; those that it has stay."""
        if not any(record.tags for record in run.records):
            return False
        changed = False
        headers = await self._target.records(there.run_id, 1, run.head.seq, Depth.HEADERS)
        known = {record.seq: set(record.tags) for record in headers}
        for record in run.records:
            missing = [tag for tag in record.tags if tag not in known.get(record.seq, record.tags)]
            for tag in missing:
                by = record.tagged_by.get(tag, "")
                changed |= await self._target.tag(run.head.run_id, record.seq, [tag], (), by)
        return changed

    async def _commit(self, commit: Commit) -> None:
        """Bring the blobs that a commit needs, then make it; both again if a sweep removes some meanwhile."""
        parents = {record.checkpoint_id for record in commit.records}
        await self._check_parents(commit, parents)
        for left in reversed(range(_MOST_TRIES)):
            await self._add_blobs(commit.head.family, commit.needs)
            try:
                await self._target.commit(commit)
            except CheckpointNotFound:
                self._there.pop(commit.head.family, None)
                if not left:
                    raise
                continue
            except HeadMoved:
                raise _Refused("it moved in the other storage while it was copied; copy it again") from None
            except StorageError:
                if await self._target.head(commit.head.run_id) != commit.head:
                    raise
            break
        self._checkpoints += len(commit.records)
        self._bytes += sum(len(record.header) + sum(map(len, record.parts)) for record in commit.records)

    async def _check_parents(self, commit: Commit, new: set[CheckpointId]) -> None:
        """Raise ``_Refused`` if a new record of a copy follows one that was removed from the copy."""
        if commit.expected is None:
            return
        for record in commit.records:
            parent = info_of(record).parent_id
            is_cut = record.keyframe is not None and record.keyframe.cut
            if parent is None or is_cut or _carrier_id(parent) in new:
                continue
            if await self._target.find(_carrier_id(parent)) is None:
                raise _Refused(
                    "checkpoints were removed from it in the other storage that are needed now; remove it there with "
                    "'delete_run' and copy it again"
                )

    async def _add_blobs(self, family: RunId, digests: Iterable[Digest]) -> None:
        digests = list(digests)
        if not digests:
            return
        if family not in self._there:
            if len(self._there) >= _FAMILIES:
                self._there.clear()
            self._there[family] = set((await self._target.mark(family)).sizes)
        there = self._there[family]
        batch: list[Blob] = []
        for digest in digests:
            if digest not in there:
                batch.append(Blob(digest, await self._stored(family, digest)))
                if sum(len(blob.data) for blob in batch) >= _LIGHT:
                    await self._add(family, batch)
        await self._add(family, batch)

    async def _add(self, family: RunId, batch: list[Blob]) -> None:
        if not batch:
            return
        await self._target.add_blobs(family, batch)
        self._blobs += len(batch)
        self._bytes += sum(len(blob.data) for blob in batch)
        self._there[family].update(blob.digest for blob in batch)
        batch.clear()
        await asyncio.sleep(0)  # lets the threads of the store drop them, too, before the next ones come

    async def _stored(self, family: RunId, digest: Digest) -> bytes:
        """Return a blob in its stored form; raise ``CheckpointCorrupt`` if it is missing or damaged."""
        data = (await self._source.blobs(family, [digest])).get(digest)
        if data is None or await run_in_thread(lambda: _digest_of(data)) != digest:
            raise CheckpointCorrupt(
                f"blob {digest.hex()} of run {family!r} is {'missing' if data is None else 'damaged'}; "
                f"'await storage.verify()' lists what is affected"
            )
        return data


def _digest_of(stored: bytes) -> Digest | None:
    try:
        return PlainStream(FileSlice(BytesIO(stored), len(stored))).compute_digest()
    except ValueError:
        return None


def _new_events(rows: Sequence[EventRow], there: Sequence[EventRow]) -> tuple[EventRow, ...]:
    """Return the rows of events that a copy does not have yet: the last ones, for rows are added at the end."""
    last = there[-1].seq if there else 0
    of_last = sum(row.seq == last for row in there)
    return (*[row for row in rows if row.seq == last][of_last:], *(row for row in rows if row.seq > last))


def _carrier(head: Head) -> tuple[CheckpointId, int]:
    return carrier_of(head.checkpoint_id, head.seq)


def _carrier_id(checkpoint_id: CheckpointId) -> CheckpointId:
    return carrier_of(checkpoint_id, 0)[0]
