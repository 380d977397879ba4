"""CheckpointStorage: what users hold of a store."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import merge
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.checkpoint.checkpoint import Checkpoint, Material, with_values
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.driving import cancel, is_driven, leave_answers
from holdfast.checkpoint.info import CheckpointInfo, moment
from holdfast.checkpoint.listing import Listing
from holdfast.checkpoint.loading import Blobs, Loaded, changes_of, load, whole
from holdfast.checkpoint.log import Outside, RunLog
from holdfast.checkpoint.looking import steadily
from holdfast.checkpoint.manifest import Manifest, Renames
from holdfast.checkpoint.pruning import PruneReport, pruned, remove_records, sweep, tidied
from holdfast.checkpoint.record import corrupt, info_of, read_header
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.run_info import RunInfo, run_info
from holdfast.checkpoint.steps import Progress
from holdfast.checkpoint.store import Depth, Expected, Head, Record, RunQuery, Store
from holdfast.checkpoint.tidying import Tidying
from holdfast.checkpoint.transfer import export_run, import_run
from holdfast.checkpoint.tree import drawn
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.verify import VerifyReport, verify_store
from holdfast.engine.status import RunStatus
from holdfast.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    HeadMoved,
    InvalidArgument,
    RunNotFound,
    RunTaken,
    WrongType,
)
from holdfast.ids import CheckpointId, Digest, RunId, complaint_about_id

if TYPE_CHECKING:
    from holdfast.checkpoint.comparing.checkpoints import Side
    from holdfast.checkpoint.difference import CheckpointDiff
    from holdfast.checkpoint.repair import RepairReport
    from holdfast.checkpoint.statistics import StorageStatistics

T = TypeVar("T")

_ANY_SIZE = 1 << 62


class CheckpointStorage:
    """What users hold of a store: checkpoints can be listed, loaded, checked and resumed.

    Made as ``InMemoryCheckpointStorage``, ``FileCheckpointStorage``, ``SqliteCheckpointStorage``, by ``open_storage``,
    or for a store of your own as ``CheckpointStorage(store)``.

    >>> import asyncio
    >>> from holdfast import open_storage
    >>> async def main():
    ...     async with open_storage("memory:") as storage:
    ...         return await storage.list_checkpoints()
    >>> asyncio.run(main())
    []
    """

    def __init__(self, store: Store, retention: Retention | None = None) -> None:
        self._store = store
        self.retention = _checked_retention(retention)
        """Which checkpoints of the runs are kept that are driven with this storage; None leaves that to each run."""
        self._codecs: dict[str, Codec] = {}
        self._anything = Codec()
        self.counters = Counters()
        """What was done so far, in numbers."""

    @property
    def store(self) -> Store:
        """The store beneath."""
        return self._store

    # What workflows ask of it.

    def learn(self, workflow_name: str, codec: Codec) -> None:
        """Take the types that a workflow declares, to read its checkpoints."""
        self._codecs[workflow_name] = codec

    def codec_for(self, workflow_name: str) -> Codec:
        """What reads the checkpoints of a workflow: with its types if it was built here."""
        return self._codecs.get(workflow_name, self._anything)

    def encoder(self, codec: Codec, limit: int = _ANY_SIZE) -> Encoder:
        """What captures the values of a run."""
        return Encoder(codec, limit, self.counters)

    def new_log(
        self,
        run_id: RunId,
        workflow_name: str,
        encoder: Encoder,
        outside: Outside,
        retention: Retention | None = None,
    ) -> RunLog:
        """The log of a run that is not in the storage yet."""
        now = outside.now()
        head = Head(run_id, workflow_name, run_id, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now)
        head = self._with_retention(head, retention)
        return RunLog(self._store, encoder, outside, head, tidying=self._tidying(outside))

    def _with_retention(self, head: Head, retention: Retention | None) -> Head:
        chosen = retention or self.retention
        return head if chosen is None else head._replace(retention=chosen.text())

    def _tidying(self, outside: Outside, due: bool = False) -> Tidying:
        async def tidy(head: Head) -> int:
            return await tidied(self._store, self.blobs(head.family), head, moment(outside.now()))

        return Tidying(tidy, due)

    async def load_log(
        self, head: Head, encoder: Encoder, outside: Outside, seq: int, retention: Retention | None = None
    ) -> tuple[RunLog, Loaded, Blobs]:
        """The log of a run that stands on a head, and one of its checkpoints to go on from."""
        blobs = self.blobs(head.family)
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        time = max(head.updated, loaded.header.time)
        head = self._with_retention(head, retention)
        tidying = self._tidying(outside, due=True)
        log = RunLog(self._store, encoder, outside, head, loaded.manifest, loaded.replay, time, tidying)
        return log, loaded, blobs

    def forked_log(
        self,
        run_id: RunId,
        origin: Head,
        loaded: Loaded,
        encoder: Encoder,
        outside: Outside,
        retention: Retention | None = None,
    ) -> RunLog:
        """The log of a run that is not in the storage yet and begins at a checkpoint of another."""
        now = outside.now()
        head = Head(
            run_id, origin.workflow_name, origin.family, CheckpointId(""), 0, 0, RunStatus.RUNNING, now, now
        )
        head = self._with_retention(head._replace(retention=origin.retention), retention)
        log = RunLog(
            self._store,
            encoder,
            outside,
            head,
            loaded.manifest,
            last_time=loaded.header.time,
            tidying=self._tidying(outside),
        )
        log.stand_on(loaded.checkpoint_id)
        return log

    def blobs(self, family: RunId) -> Blobs:
        """The blobs of a family of runs."""
        return Blobs(self._store, family, self.counters)

    async def head(self, run_id: str) -> Head:
        """Where a run stands; raises ``RunNotFound``."""
        head = await self._store.head(_run_id(run_id))
        if head is None:
            raise RunNotFound(
                f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
            )
        return head

    async def head_or_none(self, run_id: str) -> Head | None:
        """Where a run stands; None if there is no such run."""
        return await self._store.head(_run_id(run_id))

    async def find(self, checkpoint_id: str) -> tuple[Head, int]:
        """The run of a checkpoint, and its seq there; raises ``CheckpointNotFound``."""
        found = await self._store.find(_checkpoint_id(checkpoint_id))
        head = None if found is None else await self._store.head(found[0])
        if found is None or head is None or not await self._keeps(head, found[1]):
            raise _not_found(checkpoint_id)
        return head, found[1]

    async def _keeps(self, head: Head, seq: int) -> bool:
        """Whether a checkpoint is kept; one that is not may still be there for a while."""
        if not head.retention or seq == head.seq:
            return True
        try:
            records = await self._store.records(head.run_id, 1, head.seq, Depth.HEADERS)
            return seq in _kept(head, records)
        except CheckpointCorrupt:  # of others: whoever asks for one that can be read gets it
            return True

    async def info(self, head: Head, seq: int) -> CheckpointInfo:
        """What is known of a checkpoint of a run without reading any value."""
        return info_of(await self._record(head, seq))

    async def renames(self, head: Head, seq: int) -> Renames | None:
        """The executors that a checkpoint renamed, if it did."""
        records = await self._store.records(head.run_id, seq, seq, Depth.CHANGES)
        if not records:
            raise _no_record(head, seq)
        return changes_of(await whole(records[0], self.blobs(head.family)), Depth.CHANGES).renames

    async def _record(self, head: Head, seq: int) -> Record:
        records = await self._store.records(head.run_id, seq, seq, Depth.HEADERS)
        if not records:
            raise _no_record(head, seq)
        if seq == head.seq and records[0].checkpoint_id != head.checkpoint_id:
            raise corrupt(head.checkpoint_id, f"the run stands on it, but its record {seq} is another")
        return records[0]

    # What people ask of it.

    async def open(self) -> None:
        """Make sure that the store is there and can be used; anything else does so by itself."""
        await self._store.open()

    async def list_runs(
        self,
        workflow_name: str | None = None,
        status: RunStatus | str | None = None,
        interrupted: bool | None = None,
        limit: int | None = 100,
        after: str | None = None,
    ) -> list[RunInfo]:
        """The runs, oldest first; ``after`` is the run id of the last one of the page before."""
        _check_limit(limit)
        statuses = None if status is None else frozenset([_status(status)])
        found: list[RunInfo] = []
        cursor = None if after is None else (await self.head(after)).run_id
        while True:
            wanted = None if limit is None else limit - len(found)
            page = await self._store.runs(RunQuery(workflow_name, statuses, wanted, cursor))
            for head in page:
                run = await run_info(self._store, head)
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
    ) -> list[Checkpoint]:
        """Checkpoints without values, oldest first; ``after`` is the id of the last one of the page before.

        ``workflow_id`` is a synonym of ``workflow_name``.
        """
        _check_limit(limit)
        if workflow_id is not None and workflow_name not in (None, workflow_id):
            raise InvalidArgument(
                f"workflow_name={workflow_name!r} and workflow_id={workflow_id!r} mean the same; give one of them"
            )
        workflow_name = workflow_name or workflow_id
        if run_id is not None:
            heads = [await self.head(run_id)]
        else:
            heads = list(await self._store.runs(RunQuery(workflow_name)))
        heads = [head for head in heads if workflow_name in (None, head.workflow_name)]
        lists = [await self._listed_now(head) for head in heads]
        found = list(merge(*lists, key=lambda checkpoint: (checkpoint.timestamp, checkpoint.seq)))
        if after is not None:
            cursor = id_of_checkpoint(after)
            place = [index for index, checkpoint in enumerate(found) if checkpoint.checkpoint_id == cursor]
            if not place:
                raise CheckpointNotFound(
                    f"after={cursor!r}: there is no such checkpoint among those that are listed"
                )
            found = found[place[0] + 1 :]
        return found[:limit]

    async def _listed_now(self, head: Head) -> list[Checkpoint]:
        """The checkpoints of a run, where it stands now; none if it was removed."""
        known: Head | None = head

        async def look() -> list[Checkpoint]:
            nonlocal known
            now, known = known or await self._store.head(head.run_id), None
            while now is not None:
                found = await self._listed(now)
                latest = now if _stands(now, found) else await self._store.head(head.run_id)
                if latest is not None and latest.checkpoint_id == now.checkpoint_id:
                    return found
                now = latest
            return []

        return await steadily(look)

    async def _listed(self, head: Head) -> list[Checkpoint]:
        blobs = self.blobs(head.family)
        stored = await self._store.records(head.run_id, 1, head.seq, Depth.CHANGES)
        records = [await whole(record, blobs) for record in stored]
        kept = _kept(head, records)
        listing = Listing(records)
        encoder = self.encoder(self.codec_for(head.workflow_name))
        return [
            _checkpoint(
                info_of(record),
                Material(
                    lambda record=record: listing.manifest(record.checkpoint_id),  # type: ignore[misc]
                    lambda record=record: self._full(head, record),  # type: ignore[misc]
                    encoder,
                    _BlobsOf(self, record.checkpoint_id, blobs),
                    False,
                ),
            )
            for record in records
            if record.seq in kept
        ]

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
                head = await self._store.head(_run_id(run_id))
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
            listing = Listing([await whole(record, blobs) for record in records])
            material = Material(
                lambda: listing.manifest(record.checkpoint_id),
                lambda: self._full(head, record),
                self.encoder(self.codec_for(head.workflow_name)),
                _BlobsOf(self, record.checkpoint_id, blobs),
                False,
            )
            return _checkpoint(info_of(record), material)
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        await with_values(loaded.manifest, blobs)

        async def full() -> Manifest:
            return loaded.manifest

        material = Material(
            lambda: loaded.manifest, full, self.encoder(self.codec_for(head.workflow_name)), blobs, True
        )
        return _checkpoint(loaded.info, material)

    async def verify(self, run_id: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Check that everything stored is what was stored: a report, never an error about what it finds.

        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        return await verify_store(
            self._store, self.blobs, None if run_id is None else _run_id(run_id), progress
        )

    async def repair(
        self, run_id: str | None = None, *, progress: Progress | None = None, dry_run: bool = False
    ) -> RepairReport:
        """Repair what can be repaired, and say what cannot; with ``dry_run`` only say it.

        Make a copy of the storage before. Each run is repaired at once or not at all, so this may be interrupted
        anywhere; one that is driven now is left alone. ``progress`` is told how many runs of how many are done.
        """
        from holdfast.checkpoint.repair import repaired

        return await repaired(
            self._store, self.blobs, None if run_id is None else _run_id(run_id), progress, dry_run
        )

    async def draw_tree(self, run_id: str, ascii: bool = False) -> str:
        """The checkpoints of a run as a tree of text, with the run that it was forked from and all forks of these.

        Where nothing but supersteps happened, many checkpoints are one line. ``ascii`` draws without box characters.
        """
        asked = await self.head(run_id)
        runs = await self._store.runs(RunQuery(asked.workflow_name))
        heads = [head for head in runs if head.family == asked.family]
        checkpoints = [made for head in heads for made in await self._listed_now(head)]
        return drawn(checkpoints, {head.checkpoint_id: head.status for head in heads}, ascii)

    async def diff(
        self, checkpoint_a: str | CheckpointInfo, checkpoint_b: str | CheckpointInfo
    ) -> CheckpointDiff:
        """What is different between two checkpoints, of any runs and branches.

        Values that both have are not read, however big they are. The result is data, and text by ``str``.
        """
        from holdfast.checkpoint.comparing.checkpoints import difference_of

        async def look() -> CheckpointDiff:
            return await difference_of(await self._side(checkpoint_a), await self._side(checkpoint_b))

        return await steadily(look)

    async def statistics(
        self, progress: Progress | None = None, *, measure_blobs: bool = False
    ) -> StorageStatistics:
        """What takes the room: by workflow, by run, and by scope of what runs hold where they stand.

        Reads records, page by page, and no blobs. ``measure_blobs`` reads those too, to say what they take as stored.
        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        from holdfast.checkpoint.counting import counted

        return await counted(self._store, self.blobs, progress, measure_blobs)

    async def _side(self, checkpoint: str | CheckpointInfo) -> Side:
        from holdfast.checkpoint.comparing.checkpoints import Side

        head, seq = await self.find(id_of_checkpoint(checkpoint))
        blobs = self.blobs(head.family)
        loaded = await load(self._store, blobs, head, seq, Depth.ALL)
        return Side(loaded.info, loaded.manifest, self.codec_for(head.workflow_name), head.family, blobs)

    # Upkeep.

    async def tag(self, checkpoint_id: str | CheckpointInfo, *tags: str) -> None:
        """Give a checkpoint tags, beside those that it has; one with a tag is kept, whatever the retention says."""
        await self._tag(checkpoint_id, lambda known: dict.fromkeys([*known, *map(_tag, tags)]))

    async def untag(self, checkpoint_id: str | CheckpointInfo, *tags: str) -> None:
        """Take tags from a checkpoint, all of them if none is named."""
        await self._tag(checkpoint_id, lambda known: [tag for tag in known if tags and tag not in tags])

    async def _tag(
        self, checkpoint_id: str | CheckpointInfo, change: Callable[[Sequence[str]], Iterable[str]]
    ) -> None:
        wanted = id_of_checkpoint(checkpoint_id)

        async def look() -> bool:
            head, seq = await self.find(wanted)
            record = await self._record(head, seq)
            return await self._store.tag(head.run_id, seq, tuple(change(record.tags)))

        if not await steadily(look):
            raise _not_found(wanted)

    async def prune(
        self,
        retention: Retention | None = None,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> PruneReport:
        """Remove the checkpoints that are not kept, and the values that nobody needs any more.

        Without ``retention`` each run has its own. With ``dry_run`` nothing is removed, and the report says what would
        be. May be interrupted anywhere. ``progress`` is told how many runs of how many are done.
        """
        _checked_retention(retention)
        if not isinstance(dry_run, bool):
            raise WrongType(f"dry_run={dry_run!r}: must be True or False")
        heads = [await self.head(run_id)] if run_id is not None else list(await self._store.runs(RunQuery()))
        return await pruned(self._store, heads, self.blobs, retention, dry_run, progress)

    async def delete(self, checkpoint_id: str | CheckpointInfo) -> None:
        """Remove one checkpoint; those that follow it stay. The one on which its run stands cannot be removed."""
        wanted = id_of_checkpoint(checkpoint_id)
        while True:
            head, seq = await self.find(wanted)
            if seq == head.seq:
                raise InvalidArgument(
                    f"run {head.run_id} stands on checkpoint {head.checkpoint_id}, so it cannot be deleted; delete the "
                    f"run with 'storage.delete_run', or go back to another checkpoint first"
                )
            blobs = self.blobs(head.family)
            records = await self._store.records(head.run_id, seq, seq, Depth.HEADERS)
            if records and records[0].tags:
                await self._store.tag(head.run_id, seq, ())
            try:
                await remove_records(self._store, blobs, head, {seq})
                break
            except (
                HeadMoved
            ):  # the run was taken back meanwhile, perhaps to this checkpoint; or someone tagged it
                continue
        await sweep(self._store, head.family, blobs)

    async def delete_run(self, run_id: str) -> None:
        """Remove a run with all its checkpoints; forks of it stay. One that is driven raises ``RunTaken``."""
        head = await self.head(run_id)
        if await is_driven(self._store, head):
            raise RunTaken(f"run {run_id} is driven; cancel it first, with 'storage.cancel'")
        await self._store.remove_run(head.run_id, Expected(head.checkpoint_id, head.token))
        await sweep(self._store, head.family, self.blobs(head.family))

    # What those who do not drive a run ask of it.

    async def respond(self, run_id: str, responses: Mapping[str, Any]) -> RunInfo:
        """Answer pending requests of a run, all or none, from any process; they are durable when this returns.

        Whoever drives the run takes the answers at its next checkpoint. If nobody does, they wait until the run is
        resumed: what this returns says how it stands. Raises ``RequestAlreadyAnswered`` if someone was faster.
        """
        if not isinstance(responses, Mapping):
            raise WrongType(
                f"responses are a dict of request ids and answers, not a {type(responses).__name__}"
            )
        if not responses:
            raise InvalidArgument(f"no response was given to run {run_id}; pass {{request_id: answer}}")

        async def leave() -> Head:
            head = await self.head(run_id)
            encoder = self.encoder(self.codec_for(head.workflow_name))
            return await leave_answers(self._store, head, self.blobs(head.family), encoder, responses)

        return await run_info(self._store, await steadily(leave))

    async def cancel(self, run_id: str) -> RunInfo:
        """Cancel a run from any process: at once if nobody drives it, else whoever does ends it soon.

        A run that is over stays as it is.
        """
        return await run_info(self._store, await cancel(self._store, await self.head(run_id)))

    # Runs on their way to other storages.

    async def export_run(
        self, run_id: str, path: str | os.PathLike[str], progress: Progress | None = None
    ) -> RunInfo:
        """Write a run to one new file, with its whole history, its journal and the letters that wait for it.

        The run may move meanwhile: the file has it as it stood at one moment, which is what this returns. The file
        gets its name when it is complete. ``progress`` is called with how much is done, and of how much.
        """
        return await run_info(self._store, await export_run(self._store, _run_id(run_id), path, progress))

    async def import_run(
        self, path: str | os.PathLike[str], run_id: str | None = None, progress: Progress | None = None
    ) -> RunInfo:
        """Bring in a run from a file that ``export_run`` made: all of it, or nothing where anything is wrong with it.

        It has the same ids here, and is not driven: one that was RUNNING is STOPPED. ``run_id`` makes sure that the
        file holds that run; a run cannot get another id. Raises ``RunExists``, unless all that the file holds is here.
        """
        wanted = None if run_id is None else _run_id(run_id)
        return await run_info(self._store, await import_run(self._store, path, wanted, progress))

    async def close(self) -> None:
        """Let go of files and threads; what was committed stays."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class _BlobsOf:
    """The blobs of a checkpoint that was listed: they are read later, when it may have been removed."""

    def __init__(self, storage: CheckpointStorage, checkpoint_id: CheckpointId, blobs: Blobs) -> None:
        self._storage, self._checkpoint_id, self._blobs = storage, checkpoint_id, blobs

    async def read(self, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return await self._storage.still_there(self._checkpoint_id, lambda: self._blobs.read(digests))


def _checkpoint(info: CheckpointInfo, material: Material) -> Checkpoint:
    return Checkpoint(**vars(info), material=material)


def _stands(head: Head, checkpoints: Iterable[CheckpointInfo]) -> bool:
    """Whether the one on which the run stands is among its checkpoints."""
    return any(one.checkpoint_id == head.checkpoint_id for one in checkpoints)


def _not_found(checkpoint_id: str) -> CheckpointNotFound:
    return CheckpointNotFound(
        f"there is no checkpoint {checkpoint_id!r} in this storage; 'await storage.list_checkpoints()' lists "
        f"those that are there"
    )


def _no_record(head: Head, seq: int) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"run {head.run_id!r} has no checkpoint number {seq}, though it is said to be there; "
        f"'await storage.verify()' lists what is affected"
    )


def _kept(head: Head, records: Sequence[Record]) -> frozenset[int]:
    """The seqs of the records of a run that are kept."""
    if not head.retention:
        return frozenset(record.seq for record in records)
    now = datetime.now(UTC)
    return Retention.of_text(head.retention).kept(map(info_of, records), head.checkpoint_id, now)


def _tag(text: Any) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_TAG:
        raise InvalidArgument(f"tag {text!r}: must be a text of 1 to {_LONGEST_TAG} characters")
    return text


_LONGEST_TAG = 200


def id_of_checkpoint(checkpoint: str | CheckpointInfo) -> CheckpointId:
    """The id of a checkpoint that may be given by its id, or as one."""
    return checkpoint.checkpoint_id if isinstance(checkpoint, CheckpointInfo) else _checkpoint_id(checkpoint)


def _checkpoint_id(text: Any) -> CheckpointId:
    if not isinstance(text, str):
        raise WrongType(f"a checkpoint is given by its id, a str, or as a CheckpointInfo, not as {text!r}")
    return CheckpointId(text)


def _run_id(text: Any) -> RunId:
    if complaint := complaint_about_id(text):
        raise InvalidArgument(f"run id {text!r} {complaint}")
    return RunId(text)


def _check_limit(limit: int | None) -> None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidArgument(f"limit={limit!r}: must be a whole number of at least 1, or None for all")


def _status(status: RunStatus | str) -> RunStatus:
    try:
        return RunStatus(status)
    except ValueError:
        known = ", ".join(known.value for known in RunStatus)
        raise InvalidArgument(f"status={status!r}: there is no such status; there are: {known}") from None


def _checked_retention(retention: Retention | None) -> Retention | None:
    if retention is not None and not isinstance(retention, Retention):
        raise WrongType(
            f"retention={retention!r}: give a Retention, like Retention.latest_only() or Retention.keep_last(10)"
        )
    return retention
