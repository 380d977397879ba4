"""What people see of the runs in a storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.checkpoint.arguments import check_limit, id_of_checkpoint, run_id_of, status_of
from holdfast.checkpoint.checkpoint import Checkpoint, WithValues, blobs_of
from holdfast.checkpoint.format.changes import Changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import corrupt, info_of, read_header
from holdfast.checkpoint.info import CheckpointInfo, microseconds, moment
from holdfast.checkpoint.keeping import RunKeeping, kept_of
from holdfast.checkpoint.read.listing import Listing, Reading
from holdfast.checkpoint.read.loading import Blobs, changes_of, is_whole, keyframe_of, load, whole
from holdfast.checkpoint.read.paging import page_of
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.run_info import RunInfo, run_info
from holdfast.checkpoint.store import Depth, Head, Record, RunQuery
from holdfast.checkpoint.tree import drawn
from holdfast.checkpoint.values import Wanted
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound, InvalidArgument
from holdfast.ids import CheckpointId, Digest

if TYPE_CHECKING:
    from holdfast.checkpoint.diff.checkpoints import Side
    from holdfast.checkpoint.diff.difference import CheckpointDiff

T = TypeVar("T")

_MOST_HEADS = 1_000
"""How many runs are asked for at a time."""


class Browsing(RunKeeping):
    """What people see of the runs in a storage: lists, checkpoints with their values, trees and differences."""

    async def list_runs(
        self,
        workflow_name: str | None = None,
        status: RunStatus | str | None = None,
        interrupted: bool | None = None,
        limit: int | None = 100,
        after: str | None = None,
    ) -> list[RunInfo]:
        """The runs, oldest first; ``after`` is the run id of the last one of the page before."""
        check_limit(limit)
        statuses = None if status is None else frozenset([status_of(status)])
        if interrupted:  # so are only those that say that they are running: no other has to be looked at
            statuses = (statuses or frozenset(RunStatus)) & {RunStatus.RUNNING}
        found: list[RunInfo] = []
        known: dict[str, bool] = {}
        cursor = None if after is None else (await self.head(after)).run_id
        while True:
            wanted = None if limit is None else limit - len(found)
            page = await self._store.runs(RunQuery(workflow_name, statuses, wanted, cursor))
            for head in page:
                run = await run_info(self._store, head, known)
                if interrupted is None or run.interrupted is interrupted:
                    found.append(run)
            if wanted is None or len(page) < wanted or len(found) >= (limit or 0):
                return found
            cursor = page[-1].run_id

    async def list_checkpoints(
        self,
        workflow_name: str | None = None,
        run_id: str | None = None,
        limit: int | None = None,
        after: str | CheckpointInfo | None = None,
        *,
        workflow_id: str | None = None,
        values: bool = False,
    ) -> list[Checkpoint]:
        """Checkpoints, oldest first; ``after`` is the last one of the page before, or its id.

        ``workflow_id`` is a synonym of ``workflow_name``. A page of one run reads what it shows, not the whole run,
        unless the run has retention. With ``values`` they can be read at once, as of one that ``load`` gives: all
        records and blobs of the page are read for it, each once.
        """
        check_limit(limit)
        if workflow_id is not None and workflow_name not in (None, workflow_id):
            raise InvalidArgument(
                f"workflow_name={workflow_name!r} and workflow_id={workflow_id!r} mean the same; give one of them"
            )
        workflow_name = workflow_name or workflow_id
        cursor = None if after is None else id_of_checkpoint(after)
        if run_id is None:
            return await self._listed_of_runs(workflow_name, cursor, limit, values)
        head = await self.head(run_id)
        if workflow_name not in (None, head.workflow_name):
            return _behind([], cursor)
        return await self._listed_now(head, cursor, limit, values)

    async def _listed_of_runs(
        self, workflow_name: str | None, after: CheckpointId | None, limit: int | None, values: bool
    ) -> list[Checkpoint]:
        """The checkpoints of several runs, oldest first; runs that began later than a whole page are not read."""
        begin = None if after is None else await self._place_of(workflow_name, after)
        found: list[Sequence[Checkpoint]] = []
        async for head in self._heads(workflow_name, begin, limit):
            is_full = bool(found) and len(found[0]) == limit
            if is_full and found[0][-1].timestamp < moment(head.created):
                break
            found.append(await self._listed_behind(head, begin, limit, values))
            if limit is not None:
                found = [_merged(found)[:limit]]
        return _merged(found)

    async def _heads(
        self, workflow_name: str | None, begin: _SortKey | None, limit: int | None
    ) -> AsyncIterator[Head]:
        """The runs, oldest first, that may have checkpoints behind a place; as many at a time as may be needed."""
        since = None if begin is None else microseconds(begin.timestamp)
        query = RunQuery(workflow_name, limit=None if limit is None else limit + 1, since=since)
        seen: set[str] = set()  # where the last of a page is removed, the next begins anew
        while page := await self._store.runs(query):
            for head in page:
                if head.run_id not in seen:
                    yield head
            if query.limit is None or len(page) < query.limit:
                return
            seen.update(head.run_id for head in page)
            query = query._replace(after=page[-1].run_id, limit=min(2 * query.limit, _MOST_HEADS))

    async def _place_of(self, workflow_name: str | None, checkpoint_id: CheckpointId) -> _SortKey:
        """Where a checkpoint stands among those of all runs."""
        found = await self._store.find(checkpoint_id)
        head = None if found is None else await self._store.head(found[0])
        if found is None or head is None or workflow_name not in (None, head.workflow_name):
            raise _not_listed(checkpoint_id)
        if not await self._keeps(head, found[1]):
            raise _not_listed(checkpoint_id)
        return _SortKey.of(await self.info(head, found[1]), head)

    async def _listed_behind(
        self, head: Head, begin: _SortKey | None, limit: int | None, values: bool
    ) -> Sequence[Checkpoint]:
        """The checkpoints of a run behind a place among those of all runs."""
        if begin is None or moment(head.created) > begin.timestamp:
            return await self._listed_now(head, None, limit, values)
        if not head.retention:
            try:
                last = await self._last_before(head, begin)
                after = None if last is None else last.checkpoint_id
                return await self._listed_now(head, after, limit, values)
            except CheckpointNotFound:  # it was removed since, or its run
                pass
        found = await self._listed_now(head, values=values)
        return [made for made in found if _SortKey.of(made, head) > begin][:limit]

    async def _last_before(self, head: Head, begin: _SortKey) -> CheckpointInfo | None:
        """The last checkpoint of a run that is not behind a place; reads as many as halving takes."""
        last: CheckpointInfo | None = None
        low, high = 1, head.seq
        while low <= high:
            middle = (low + high) // 2
            records = await self._store.records(head.run_id, middle, middle, Depth.HEADERS)
            if not records:  # one was removed, and perhaps many: all that are left are read
                rest = map(info_of, await self._store.records(head.run_id, low, high, Depth.HEADERS))
                return max(
                    (one for one in rest if _SortKey.of(one, head) <= begin), key=_seq_of, default=last
                )
            made = info_of(records[0])
            if _SortKey.of(made, head) > begin:
                high = middle - 1
            else:
                last, low = made, middle + 1
        return last

    async def _listed_now(
        self,
        head: Head,
        after: CheckpointId | None = None,
        limit: int | None = None,
        values: bool = False,
    ) -> list[Checkpoint]:
        """The checkpoints of a run, where it stands now, behind one of them; none if it was removed."""
        known: Head | None = head

        async def look() -> list[Checkpoint]:
            nonlocal known
            now, known = known or await self._store.head(head.run_id), None
            while now is not None:
                # Which are kept depends on all of them, and on where the run stands: those are cut when all is right.
                part = (None, None) if now.retention else (after, limit)
                found = await self._listed(now, *part, values)
                latest = now if _stands(now, found) else await self._store.head(head.run_id)
                if latest is not None and _still_true(found, now, latest, part[1]):
                    return _behind(found, after)[:limit] if now.retention else found
                now = latest
            return _behind([], after)

        return await steadily(look)

    async def _listed(
        self, head: Head, after: CheckpointId | None, limit: int | None, values: bool
    ) -> list[Checkpoint]:
        blobs = self.blobs(head.family)
        first = 1 if after is None else await self._seq_of(head, after) + 1
        depth = Depth.ALL if values else Depth.CHANGES
        page = await page_of(self._store, head, first, limit, depth)
        records = [record if is_whole(record) else await whole(record, blobs) for record in page.records]
        shown = records[page.begins :]
        if head.retention:
            kept = kept_of(head, records)
            shown = [record for record in shown if record.seq in kept]
        reading = self._reading(head, blobs)
        if values:
            reading = reading._replace(values=await blobs_of(_changes_in(records), blobs))
        return Listing(records, reading).checkpoints(shown)

    async def _seq_of(self, head: Head, checkpoint_id: CheckpointId) -> int:
        found = await self._store.find(checkpoint_id)
        if found is None or found[0] != head.run_id:
            raise _not_listed(checkpoint_id)
        return found[1]

    def _reading(self, head: Head, blobs: Blobs) -> Reading:
        return Reading(
            self.encoder(self.codec_for(head.workflow_name)),
            lambda checkpoint_id: _BlobsOf(self, checkpoint_id, blobs),
            lambda record: self._full(head, record),
        )

    async def _full(self, head: Head, record: Record) -> Manifest:
        blobs = self.blobs(head.family)

        async def read() -> Manifest:
            return (await load(self._store, blobs, head, record.seq, Depth.ALL)).manifest

        return await self.still_there(record.checkpoint_id, read)

    async def still_there(self, checkpoint_id: CheckpointId, read: Callable[[], Awaitable[T]]) -> T:
        """What is read of a checkpoint that someone holds; raises ``CheckpointNotFound`` if it was removed since."""
        try:
            return await read()
        except CheckpointCorrupt:
            await self.find(checkpoint_id)
            return await steadily(read)

    async def get_latest(
        self, workflow_name: str | None = None, run_id: str | None = None
    ) -> Checkpoint | None:
        """The checkpoint that a run stands on: that run, or the one of this workflow that moved last."""

        async def look() -> Checkpoint | None:
            if run_id is not None:
                head = await self._store.head(run_id_of(run_id))
            else:
                newest = await self._store.runs(RunQuery(workflow_name, limit=1, newest=True))
                head = newest[0] if newest else None
            return None if head is None else await self._load(head, head.seq, values=False)

        return await steadily(look)

    async def load(self, checkpoint_id: str | CheckpointInfo, values: bool = True) -> Checkpoint:
        """A checkpoint with its values; without them they can be read one by one with ``read_state``."""
        wanted = id_of_checkpoint(checkpoint_id)

        async def look() -> Checkpoint:
            return await self._load(*await self.find(wanted), values)

        return await steadily(look)

    async def _load(self, head: Head, seq: int, values: bool) -> Checkpoint:
        blobs = self.blobs(head.family)
        if not values:
            record = await self._record(head, seq)
            first = read_header(record).replay_from
            records = await self._store.records(head.run_id, first, seq, Depth.CHANGES)
            if all(one.checkpoint_id != record.checkpoint_id for one in records):
                raise corrupt(record.checkpoint_id, "it was removed while it was looked at")
            listing = Listing([await whole(record, blobs) for record in records], self._reading(head, blobs))
            return listing.checkpoints([record])[0]
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        read = await blobs_of([loaded.manifest.as_changes()], blobs)
        encoder = self.encoder(self.codec_for(head.workflow_name))
        info, values_of = loaded.info, WithValues(loaded.manifest, encoder, read)
        return Checkpoint(info.checkpoint_id, loaded.header, info.new_bytes, info.tags, values_of)

    async def draw_tree(self, run_id: str, ascii: bool = False) -> str:
        """The checkpoints of a run as a tree of text, with the run that it was forked from and all forks of these.

        Where nothing but supersteps happened, many checkpoints are one line. ``ascii`` draws without box characters.
        """
        asked = await self.head(run_id)
        heads = await self._store.runs(RunQuery(asked.workflow_name, family=asked.family))
        checkpoints = [made for head in heads for made in await self._listed_now(head)]
        return drawn(checkpoints, {head.checkpoint_id: head.status for head in heads}, ascii)

    async def diff(
        self, checkpoint_a: str | CheckpointInfo, checkpoint_b: str | CheckpointInfo
    ) -> CheckpointDiff:
        """What is different between two checkpoints, of any runs and branches.

        Values that both have are not read, however big they are. The result is data, and text by ``str``.
        """
        from holdfast.checkpoint.diff.checkpoints import difference_of

        async def look() -> CheckpointDiff:
            return await difference_of(await self._side(checkpoint_a), await self._side(checkpoint_b))

        return await steadily(look)

    async def _side(self, checkpoint: str | CheckpointInfo) -> Side:
        from holdfast.checkpoint.diff.checkpoints import Side

        head, seq = await self.find(id_of_checkpoint(checkpoint))
        blobs = self.blobs(head.family)
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        return Side(loaded.info, loaded.manifest, self.codec_for(head.workflow_name), head.family, blobs)


class _BlobsOf:
    """The blobs of a checkpoint that was listed: they are read later, when it may have been removed."""

    def __init__(self, storage: Browsing, checkpoint_id: CheckpointId, blobs: Blobs) -> None:
        self._storage, self._checkpoint_id, self._blobs = storage, checkpoint_id, blobs

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        return await self._storage.still_there(self._checkpoint_id, lambda: self._blobs.read(wanted))


def _changes_in(records: Iterable[Record]) -> Iterator[Changes]:
    """All that records and their keyframes say."""
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
    """The checkpoints of several runs, oldest first; of equals, those of the run that comes first."""
    if len(lists) == 1:
        return list(lists[0])
    return list(merge(*lists, key=lambda checkpoint: (checkpoint.timestamp, checkpoint.seq)))


def _behind(listed: list[Checkpoint], after: CheckpointId | None) -> list[Checkpoint]:
    """What comes after a checkpoint in a list; all without one."""
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
    """Whether checkpoints that were read after one head, and before another, are those of the run.

    It may have moved on, and what it stood on may be gone: then those behind are missing, unless there are as many as
    were wanted. Or it was removed, and another has its id.
    """
    if len(found) == limit:
        return (now.created, now.family) == (before.created, before.family)
    return now.checkpoint_id == before.checkpoint_id


def _stands(head: Head, checkpoints: Sequence[CheckpointInfo]) -> bool:
    """Whether the one on which the run stands is among its checkpoints; most often it is the last."""
    return any(one.checkpoint_id == head.checkpoint_id for one in reversed(checkpoints))
