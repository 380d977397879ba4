"""The catalog of a store: finds runs and checkpoints, and the codecs that read their values."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import NamedTuple, TypeVar

from holdfast.checkpoint.arguments import checkpoint_id_of, run_id_of, run_not_found
from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.derived_starts import find_checkpoint, read_records, tag_checkpoint
from holdfast.checkpoint.format.changes import Renames
from holdfast.checkpoint.format.record import corrupt, info_of
from holdfast.checkpoint.read.loader import BlobReader, changes_of, whole
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.receipts import Receipt, use_up, was_called
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import Depth, Head, Record, Store
from holdfast.checkpoint.values import Encoder
from holdfast.engine.limits import Limits
from holdfast.errors import CheckpointCorrupt, CheckpointNotFound
from holdfast.ids import CheckpointId, RunId
from holdfast.log_fields import extra_fields

T = TypeVar("T")

_ANY_SIZE = 1 << 62
# So long what is known of lost runs counts where nobody asks for upkeep.
_KNOWN_SECONDS = 60.0
# So many runs that were left out are remembered.
_MOST = 1_000
_logger = logging.getLogger("holdfast.storage")


class LeftOutRuns:
    """Logs each run that is left out, once for each checkpoint on which it stands: lists may be asked for often."""

    def __init__(self) -> None:
        self._told: set[tuple[RunId, CheckpointId]] = set()

    @property
    def runs(self) -> frozenset[RunId]:
        """The runs that were left out lately."""
        return frozenset(run_id for run_id, _ in self._told)

    def tell(self, head: Head, error: CheckpointCorrupt) -> None:
        """Log that a run is left out because of an error, unless that was logged."""
        place = head.run_id, head.checkpoint_id
        if place in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told.add(place)
        problem = str(error)
        if "storage.verify(" not in problem:
            problem += "; 'await storage.verify()' lists what is affected"
        _logger.warning(
            "run %r is left out, because what is stored of it is damaged: %s",
            str(head.run_id),
            problem,
            extra=extra_fields(head.run_id, head.workflow_name),
        )


class LostRuns(NamedTuple):
    """The runs whose head cannot be read, as they were found last."""

    names: tuple[str, ...] | None = None
    """None if nobody has looked yet."""
    since: float = 0.0
    is_sought: bool = False


class RunCatalog:
    """Finds runs and checkpoints in a store, and knows the codecs of the workflows that made them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.counters = Counters()
        self.left_out = LeftOutRuns()
        """Logs the damaged runs that calls for all runs leave out."""
        self._lost_runs = LostRuns()
        self._codecs: dict[tuple[str, str], Codec] = {}
        """By the name of a workflow and the fingerprint of its graph; that of the newest build has none."""
        self._largest: dict[str, int] = {}
        self._anything = Codec()

    # Damaged runs.

    async def find_lost_runs(self) -> tuple[str, ...]:
        """Return the runs whose head cannot be read; nobody knows of which family they are, so no blob may go."""
        self._lost_runs = self._lost_runs._replace(is_sought=True)
        try:
            lost = tuple(str(damage.run_id or damage.what) for damage in await self.store.damaged())
            self._lost_runs = LostRuns(lost, monotonic())
        finally:
            self._lost_runs = self._lost_runs._replace(is_sought=False)
        return lost

    async def recent_lost_runs(self) -> tuple[str, ...]:
        """Return them as they were found in the last minute: to look means to read all heads."""
        known = self._lost_runs
        is_recent = known.names is not None and monotonic() - known.since <= _KNOWN_SECONDS
        return known.names or () if is_recent else await self.find_lost_runs()

    async def may_have_lost_runs(self) -> bool:
        """Return True if there may be some; does not look while somebody else does."""
        if self._lost_runs.is_sought:
            return self._lost_runs.names != ()
        return bool(await self.recent_lost_runs())

    # Codecs.

    def learn(
        self,
        workflow_name: str,
        fingerprint: str,
        codec: Codec,
        max_value_size: int,
    ) -> None:
        """Remember the codec of a build of a workflow, which reads its checkpoints, and the size limit of its values.

        Builds of one name may have different types: each run is read with those of its own build.
        """
        self._codecs[workflow_name, fingerprint] = self._codecs[workflow_name, ""] = codec
        self._largest[workflow_name] = max_value_size

    def codec_for(self, workflow_name: str, fingerprint: str = "") -> Codec:
        """Return the codec of a workflow; it knows the types of the workflow only if that was built here.

        If the build with this fingerprint is not known here, it is that of the build that was made last.
        """
        codec = self._codecs.get((workflow_name, fingerprint))
        return codec or self._codecs.get((workflow_name, ""), self._anything)

    def encoder_for(self, head: Head) -> Encoder:
        """Return an encoder for values that are sent to a run from outside."""
        limit = self._largest.get(head.workflow_name, Limits().max_value_size)
        return self.encoder(self.codec_for(head.workflow_name, head.fingerprint), limit)

    def encoder(self, codec: Codec, limit: int = _ANY_SIZE) -> Encoder:
        """Return an encoder that counts what it does in the counters of the storage."""
        return Encoder(codec, limit, self.counters)

    # Runs and checkpoints.

    def blobs(self, family: RunId) -> BlobReader:
        """Return the reader of the blobs of a family of runs."""
        return BlobReader(self.store, family, self.counters)

    async def head(self, run_id: str) -> Head:
        """Return the head of a run; raise ``RunNotFound`` if there is no such run."""
        head = await self.store.head(run_id_of(run_id))
        if head is None:
            raise run_not_found(run_id)
        return head

    async def head_or_none(self, run_id: str) -> Head | None:
        """Return the head of a run; None if there is no such run."""
        return await self.store.head(run_id_of(run_id))

    async def find(self, checkpoint_id: str) -> tuple[Head, int]:
        """Return the head of the run of a checkpoint, and its seq; raise ``CheckpointNotFound`` if it is not kept."""
        found = await find_checkpoint(self.store, checkpoint_id_of(checkpoint_id))
        head = None if found is None else await self.store.head(found[0])
        if found is None or head is None or not await self.keeps(head, found[1]):
            raise checkpoint_not_found(checkpoint_id)
        return head, found[1]

    async def keeps(self, head: Head, seq: int) -> bool:
        """Return True if retention keeps a checkpoint; one that it does not keep may stay in the store for a while."""
        if not head.retention or seq == head.seq:
            return True
        try:
            records = await read_records(self.store, head.run_id, 1, head.seq, Depth.HEADERS)
            return seq in kept_seqs(head, records)
        except CheckpointCorrupt:  # other checkpoints are damaged: this one is given if it can be read
            return True

    async def record(self, head: Head, seq: int) -> Record:
        """Return the record of a checkpoint without its changes and values."""
        records = await read_records(self.store, head.run_id, seq, seq, Depth.HEADERS)
        if not records:
            raise _no_record(head, seq)
        if seq == head.seq and records[0].checkpoint_id != head.checkpoint_id:
            raise corrupt(head.checkpoint_id, f"the run stands on it, but its record {seq} is another")
        return records[0]

    async def info(self, head: Head, seq: int) -> CheckpointInfo:
        """Return the info of a checkpoint; reads no values."""
        return info_of(await self.record(head, seq))

    async def renames(self, head: Head, seq: int) -> Renames | None:
        """Return the renamed executors of a checkpoint; None if it renamed none."""
        records = await read_records(self.store, head.run_id, seq, seq, Depth.CHANGES)
        if not records:
            raise _no_record(head, seq)
        return changes_of(await whole(records[0], self.blobs(head.family)), Depth.CHANGES).renames

    async def read_existing(self, checkpoint_id: CheckpointId, read: Callable[[], Awaitable[T]]) -> T:
        """Read something of a checkpoint that was found earlier; raise ``CheckpointNotFound`` if it was removed."""
        try:
            return await read()
        except CheckpointCorrupt:
            await self.find(checkpoint_id)
            return await steadily(read)

    async def tag(
        self,
        checkpoint_id: CheckpointId,
        tags: Sequence[str],
        drop: Sequence[str] | None,
        by: str | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Give a checkpoint tags and take others from it, all that it has if ``drop`` is None; once with a receipt.

        The receipt is kept last: a call that was interrupted before is made again.
        """

        async def look() -> bool:
            head, seq = await self.find(checkpoint_id)
            if receipt is not None and await was_called(self.store, head.run_id, receipt):
                return True
            is_there = await tag_checkpoint(self.store, head.run_id, seq, tags, drop, by or "")
            if is_there and receipt is not None:
                await use_up(self.store, head.run_id, receipt)
            return is_there

        if not await steadily(look):
            raise checkpoint_not_found(checkpoint_id)


def kept_seqs(head: Head, records: Sequence[Record]) -> frozenset[int]:
    """Return the seqs of the records of a run that its retention keeps."""
    if not head.retention:
        return frozenset(record.seq for record in records)
    now = datetime.now(UTC)
    return Retention.of_text(head.retention).kept(map(info_of, records), head.checkpoint_id, now)


def checkpoint_not_found(checkpoint_id: str) -> CheckpointNotFound:
    """Make the error for a checkpoint that is not there, or not kept."""
    return CheckpointNotFound(
        f"there is no checkpoint {checkpoint_id!r} in this storage, or its run does not keep it; "
        f"'await storage.list_checkpoints()' lists those that are there, and tags keep what retention would not"
    )


def _no_record(head: Head, seq: int) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"run {head.run_id!r} has no checkpoint number {seq}, though it is said to be there; "
        f"'await storage.verify()' lists what is affected"
    )
