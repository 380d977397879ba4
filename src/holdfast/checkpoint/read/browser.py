"""Lists and loads checkpoints for people to look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import NamedTuple

from holdfast.checkpoint.checkpoint import Checkpoint, LoadedContent, ReadBlobs, read_shown_blobs
from holdfast.checkpoint.checkpoint_info import NO_MARKS, CheckpointInfo, Marks, microseconds, moment
from holdfast.checkpoint.derived_starts import find_checkpoint, read_records
from holdfast.checkpoint.format.changes import Changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import corrupt, info_of, read_header
from holdfast.checkpoint.read.catalog import RunCatalog, kept_seqs
from holdfast.checkpoint.read.loader import (
    BlobReader,
    changes_of,
    fold_one,
    folded,
    is_whole,
    keyframe_of,
    lineage,
    load,
    whole,
)
from holdfast.checkpoint.read.pages import page_of
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import Depth, Head, Record, RunQuery
from holdfast.checkpoint.tree import draw_checkpoints, find_superseded
from holdfast.checkpoint.values import BlobSource, Encoder, Wanted
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound
from holdfast.ids import CheckpointId, Digest, RunId

# At most so many heads are read at a time.
_MOST_HEADS = 1_000


class CheckpointBrowser:
    """Lists checkpoints page by page, loads them, and draws them as trees."""

    def __init__(self, catalog: RunCatalog) -> None:
        self._catalog = catalog

    async def list_of_run(
        self,
        head: Head,
        workflow_name: str | None,
        after: CheckpointId | None,
        limit: int | None,
        values: bool,
    ) -> list[Checkpoint]:
        """Return the checkpoints of a run, oldest first; none if it belongs to another workflow."""
        if workflow_name not in (None, head.workflow_name):
            return _behind([], after)
        return await self._list_now(head, after, limit, values)

    async def list_of_runs(
        self, workflow_name: str | None, after: CheckpointId | None, limit: int | None, values: bool
    ) -> list[Checkpoint]:
        """Return the checkpoints of all runs, oldest first, but for runs that are damaged.

        Does not read runs that began later than a full page.
        """
        begin = None if after is None else await self._sort_key_of(workflow_name, after)
        found: list[Sequence[Checkpoint]] = []
        async for head in self._heads(workflow_name, begin, limit):
            is_full = bool(found) and len(found[0]) == limit
            if is_full and found[0][-1].timestamp < moment(head.created):
                break
            try:
                found.append(await self._list_behind(head, begin, limit, values))
            except CheckpointCorrupt as error:
                self._catalog.left_out.tell(head, error)
                continue
            if limit is not None:
                found = [_merged(found)[:limit]]
        return _merged(found)

    async def _heads(
        self, workflow_name: str | None, begin: _SortKey | None, limit: int | None
    ) -> AsyncIterator[Head]:
        """Give the runs, oldest first, that may have checkpoints behind a sort key; as few at a time as may do."""
        since = None if begin is None else microseconds(begin.timestamp)
        query = RunQuery(workflow_name, limit=None if limit is None else limit + 1, updated_after=since)
        while page := await self._catalog.store.runs(query):
            for head in page:
                yield head
            if query.limit is None or len(page) < query.limit:
                return
            after = query.position_of(page[-1])
            query = query._replace(after=after, limit=min(2 * query.limit, _MOST_HEADS))

    async def _sort_key_of(self, workflow_name: str | None, checkpoint_id: CheckpointId) -> _SortKey:
        """Return the sort key of a checkpoint among those of all runs."""
        found = await find_checkpoint(self._catalog.store, checkpoint_id)
        head = None if found is None else await self._catalog.store.head(found[0])
        if found is None or head is None or workflow_name not in (None, head.workflow_name):
            raise _not_listed(checkpoint_id)
        if not await self._catalog.keeps(head, found[1]):
            raise _not_listed(checkpoint_id)
        return _SortKey.of(await self._catalog.info(head, found[1]), head)

    async def _list_behind(
        self, head: Head, begin: _SortKey | None, limit: int | None, values: bool
    ) -> Sequence[Checkpoint]:
        """Return the checkpoints of a run behind a sort key."""
        if begin is None or moment(head.created) > begin.timestamp:
            return await self._list_now(head, None, limit, values)
        if not head.retention:
            try:
                last = await self._last_before(head, begin)
                after = None if last is None else last.checkpoint_id
                return await self._list_now(head, after, limit, values)
            except CheckpointNotFound:  # the checkpoint was removed meanwhile, or its run
                pass
        found = await self._list_now(head, values=values)
        return [made for made in found if _SortKey.of(made, head) > begin][:limit]

    async def _last_before(self, head: Head, begin: _SortKey) -> CheckpointInfo | None:
        """Return the last checkpoint of a run that is not behind a sort key, by binary search."""
        last: CheckpointInfo | None = None
        low, high = 1, head.seq
        while low <= high:
            middle = (low + high) // 2
            records = await read_records(self._catalog.store, head.run_id, middle, middle, Depth.HEADERS)
            if not records:  # it was removed, and perhaps many others: read all that are left
                rest = map(
                    info_of, await read_records(self._catalog.store, head.run_id, low, high, Depth.HEADERS)
                )
                return max(
                    (one for one in rest if _SortKey.of(one, head) <= begin), key=_seq_of, default=last
                )
            made = info_of(records[0])
            if _SortKey.of(made, head) > begin:
                high = middle - 1
            else:
                last, low = made, middle + 1
        return last

    async def _list_now(
        self,
        head: Head,
        after: CheckpointId | None = None,
        limit: int | None = None,
        values: bool = False,
    ) -> list[Checkpoint]:
        """Return the checkpoints of a run behind one of them, as the run stands now; none if it was removed."""
        known: Head | None = head

        async def look() -> list[Checkpoint]:
            nonlocal known
            now, known = known or await self._catalog.store.head(head.run_id), None
            while now is not None:
                # Retention needs all checkpoints and the head to decide which are kept: such a list is cut afterwards.
                part = (None, None) if now.retention else (after, limit)
                found = await self._read_page(now, *part, values)
                latest = now if _stands(now, found) else await self._catalog.store.head(head.run_id)
                if latest is not None and _still_true(found, now, latest, part[1]):
                    return _behind(found, after)[:limit] if now.retention else found
                now = latest
            return _behind([], after)

        return await steadily(look)

    async def _read_page(
        self, head: Head, after: CheckpointId | None, limit: int | None, values: bool
    ) -> list[Checkpoint]:
        blobs = self._catalog.blobs(head.family)
        first = 1 if after is None else await self._seq_of(head, after) + 1
        depth = Depth.ALL if values else Depth.CHANGES
        page = await page_of(self._catalog.store, head, first, limit, depth)
        records = [record if is_whole(record) else await whole(record, blobs) for record in page.records]
        shown = records[page.begins :]
        if head.retention:
            kept = kept_seqs(head, records)
            shown = [record for record in shown if record.seq in kept]
        readers = self._content_readers(head, blobs)
        if values:
            readers = readers._replace(values=await read_shown_blobs(_changes_in(records), blobs))
        left = await self._find_superseded(head, shown[0].seq) if shown else {}
        return ListedContent(records, readers).checkpoints(shown, left)

    async def _seq_of(self, head: Head, checkpoint_id: CheckpointId) -> int:
        found = await find_checkpoint(self._catalog.store, checkpoint_id)
        if found is None or found[0] != head.run_id:
            raise _not_listed(checkpoint_id)
        return found[1]

    def _content_readers(self, head: Head, blobs: BlobReader) -> ContentReaders:
        return ContentReaders(
            self._catalog.encoder(self._catalog.codec_for(head.workflow_name, head.fingerprint)),
            lambda checkpoint_id: _ListedBlobs(self._catalog, checkpoint_id, blobs),
            lambda record: self._load_manifest(head, record),
        )

    async def _load_manifest(self, head: Head, record: Record) -> Manifest:
        blobs = self._catalog.blobs(head.family)

        async def read() -> Manifest:
            return (await load(self._catalog.store, blobs, head, record.seq, Depth.ALL)).manifest

        return await self._catalog.read_existing(record.checkpoint_id, read)

    async def latest(self, workflow_name: str | None, run_id: RunId | None) -> Checkpoint | None:
        """Return the checkpoint that a run stands on: that run, or the run of this workflow that moved last."""
        store = self._catalog.store

        async def look() -> Checkpoint | None:
            if run_id is not None:
                head = await store.head(run_id)
            else:
                newest = await store.runs(RunQuery(workflow_name, limit=1, newest=True))
                head = newest[0] if newest else None
            return None if head is None else await self._load(head, head.seq, values=False)

        return await steadily(look)

    async def load(self, checkpoint_id: CheckpointId, values: bool, plain: bool = False) -> Checkpoint:
        """Return a checkpoint, with its values or without; ``plain`` shows them as plain JSON."""

        async def look() -> Checkpoint:
            return await self._load(*await self._catalog.find(checkpoint_id), values, plain)

        return await steadily(look)

    async def _load(self, head: Head, seq: int, values: bool, plain: bool = False) -> Checkpoint:
        store, blobs = self._catalog.store, self._catalog.blobs(head.family)
        if not values:
            record = await self._catalog.record(head, seq)
            first = read_header(record).replay_from
            records = await read_records(store, head.run_id, first, seq, Depth.CHANGES)
            if all(one.checkpoint_id != record.checkpoint_id for one in records):
                raise corrupt(record.checkpoint_id, "it was removed while it was looked at")
            complete = [await whole(record, blobs) for record in records]
            listed = ListedContent(complete, self._content_readers(head, blobs)._replace(plain=plain))
            return listed.checkpoints([record], await self._find_superseded(head, seq))[0]
        loaded = await load(store, blobs, head, seq, Depth.ALL)
        read = await read_shown_blobs([loaded.manifest.as_changes()], blobs)
        encoder = self._catalog.encoder(self._catalog.codec_for(head.workflow_name, head.fingerprint))
        info, values_of = loaded.info, LoadedContent(loaded.manifest, encoder, read, plain)
        left = await self._find_superseded(head, seq)
        marks = Marks(info.tags, info.tagged_by, left.get(info.checkpoint_id))
        return Checkpoint(info.checkpoint_id, loaded.header, info.new_bytes, marks, values_of)

    async def _find_superseded(self, head: Head, first: int) -> Mapping[CheckpointId, CheckpointId]:
        """Return the checkpoints from ``first`` on that the run left behind, with those by which it went back."""
        if head.restored <= first:  # as nearly all runs, which never went back
            return {}
        try:
            records = await read_records(self._catalog.store, head.run_id, 1, head.seq, Depth.HEADERS)
            return find_superseded(map(info_of, records), head.checkpoint_id)
        except CheckpointCorrupt:  # others are damaged: that is no reason not to show these
            return {}

    async def draw_tree(self, head: Head, ascii: bool, sizes: bool) -> str:
        """Draw the checkpoints of a run and of all runs of its family as a tree of text."""
        heads = await self._catalog.store.runs(RunQuery(head.workflow_name, family=head.family))
        checkpoints = [made for one in heads for made in await self._list_now(one)]
        statuses = {one.checkpoint_id: one.status for one in heads}
        return draw_checkpoints(checkpoints, statuses, ascii, sizes)


class ContentReaders(NamedTuple):
    """Reads more of a listed checkpoint: its encoder, its blobs and its whole manifest.

    ``values`` has the blobs of all checkpoints if they were listed with their values.
    """

    encoder: Encoder
    source: Callable[[CheckpointId], BlobSource]
    full: Callable[[Record], Awaitable[Manifest]]
    values: ReadBlobs | None = None
    plain: bool = False


class ListedContent:
    """The content of checkpoints of one run that were listed: their manifests are made when someone looks.

    Going through the checkpoints in order folds each record once.
    """

    def __init__(self, records: Sequence[Record], readers: ContentReaders) -> None:
        self._readers = readers
        self._depth = Depth.CHANGES if readers.values is None else Depth.ALL
        self._records = {record.checkpoint_id: record for record in records}
        self._last: tuple[CheckpointId, Manifest] | None = None

    def checkpoints(
        self, records: Iterable[Record], superseded: Mapping[CheckpointId, CheckpointId]
    ) -> list[Checkpoint]:
        """Return the checkpoints of these records; most are never asked for more than their header."""
        return [
            Checkpoint(name, read_header(record), record.new_bytes, marks, self)
            for record in records
            for name in (record.checkpoint_id,)
            for marks in (
                Marks(record.tags, record.tagged_by, superseded.get(name))
                if record.tags or superseded
                else NO_MARKS,
            )
        ]

    @property
    def values(self) -> ReadBlobs | None:
        """The blobs that were read, if values were."""
        return self._readers.values

    @property
    def encoder(self) -> Encoder:
        """The encoder that decodes values."""
        return self._readers.encoder

    @property
    def plain(self) -> bool:
        """True if values are shown as plain JSON."""
        return self._readers.plain

    def source(self, checkpoint_id: CheckpointId) -> BlobSource:
        """Return the source of the blobs of a checkpoint."""
        return self._readers.values or self._readers.source(checkpoint_id)

    async def full(self, checkpoint_id: CheckpointId) -> Manifest:
        """The manifest of a checkpoint with the content of small values."""
        return await self._readers.full(self._records[checkpoint_id])

    def manifest(self, checkpoint_id: CheckpointId) -> Manifest:
        """The manifest of a checkpoint; it is good until another is asked for."""
        if self._last is not None and self._last[0] == checkpoint_id:
            return self._last[1]
        record = self._records[checkpoint_id]
        if (
            self._last is not None
            and read_header(record).parent_id == self._last[0]
            and record.keyframe is None
        ):
            manifest, self._last = self._last[1], None  # half folded if it fails
            fold_one(manifest, record, self._depth)
        else:
            manifest = folded(lineage(self._records, checkpoint_id), self._depth)
        self._last = (checkpoint_id, manifest)
        return manifest


class _ListedBlobs:
    """Reads the blobs of a checkpoint that was listed, and that may have been removed since."""

    def __init__(self, catalog: RunCatalog, checkpoint_id: CheckpointId, blobs: BlobReader) -> None:
        self._catalog, self._checkpoint_id, self._blobs = catalog, checkpoint_id, blobs

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        return await self._catalog.read_existing(self._checkpoint_id, lambda: self._blobs.read(wanted))


def _changes_in(records: Iterable[Record]) -> Iterator[Changes]:
    """Give the changes of records and of their keyframes."""
    for record in records:
        yield changes_of(record, Depth.CHANGES)
        if record.keyframe is not None:
            yield keyframe_of(record, Depth.CHANGES)


class _SortKey(NamedTuple):
    """Orders the checkpoints of all runs in one list."""

    timestamp: datetime
    seq: int
    created: int
    run_id: str

    @classmethod
    def of(cls, made: CheckpointInfo, head: Head) -> _SortKey:
        return cls(made.timestamp, made.seq, head.created, head.run_id)


def _seq_of(made: CheckpointInfo) -> int:
    return made.seq


def _merged(lists: Sequence[Sequence[Checkpoint]]) -> list[Checkpoint]:
    """Merge the checkpoints of several runs, oldest first; of equals, those of the earlier run come first."""
    if len(lists) == 1:
        return list(lists[0])
    return list(merge(*lists, key=lambda checkpoint: (checkpoint.timestamp, checkpoint.seq)))


def _behind(listed: list[Checkpoint], after: CheckpointId | None) -> list[Checkpoint]:
    """Return the part of a list behind a checkpoint; all of it without one."""
    if after is None:
        return listed
    for place, one in enumerate(listed):
        if one.checkpoint_id == after:
            return listed[place + 1 :]
    raise _not_listed(after)


def _not_listed(checkpoint_id: CheckpointId) -> CheckpointNotFound:
    return CheckpointNotFound(
        f"after={checkpoint_id!r}: there is no such checkpoint among those that are listed"
    )


def _still_true(found: Sequence[Checkpoint], before: Head, now: Head, limit: int | None) -> bool:
    """Return True if checkpoints that were read between two reads of the head are those of the run.

    The run may have moved on, and the checkpoint that it stood on may be gone: then the newer ones are missing, unless
    the page is full. Or the run was removed, and another one has its id.
    """
    if len(found) == limit:
        return (now.created, now.family) == (before.created, before.family)
    return now.checkpoint_id == before.checkpoint_id


def _stands(head: Head, checkpoints: Sequence[CheckpointInfo]) -> bool:
    """Return True if the checkpoint on which the run stands is in the list; most often it is the last."""
    return any(one.checkpoint_id == head.checkpoint_id for one in reversed(checkpoints))
