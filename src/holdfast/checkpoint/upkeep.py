"""What is asked of a storage by whoever looks after it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.checkpoint.arguments import (
    check_flag,
    check_progress,
    checked_retention,
    checked_tag,
    id_of_checkpoint,
    run_id_of,
)
from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.keeping import RunKeeping, not_found
from holdfast.checkpoint.maintenance.problems import VerifyReport
from holdfast.checkpoint.maintenance.prune import PruneReport, pruned, remove_records, sweep
from holdfast.checkpoint.maintenance.verify import verify_store
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.run_info import RunInfo, run_info
from holdfast.checkpoint.store import Depth, Expected, Head, RunQuery
from holdfast.checkpoint.transfer.run_transfer import export_run, import_run
from holdfast.errors import HeadMoved, InvalidArgument, RunTaken

if TYPE_CHECKING:
    from holdfast.checkpoint.maintenance.repair import RepairReport
    from holdfast.checkpoint.maintenance.statistics import StorageStatistics


class Upkeep(RunKeeping):
    """What is asked of a storage by whoever looks after it: checks, repairs, removal, copies in files."""

    async def verify(self, run_id: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Check that everything stored is what was stored: a report, never an error about what it finds.

        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        check_progress(progress)
        wanted = None if run_id is None else run_id_of(run_id)
        return await verify_store(self._store, self.blobs, wanted, progress)

    async def repair(
        self, run_id: str | None = None, *, progress: Progress | None = None, dry_run: bool = False
    ) -> RepairReport:
        """Repair what can be repaired, and say what cannot; with ``dry_run`` only say it.

        Make a copy of the storage before. Each run is repaired at once or not at all, so this may be interrupted
        anywhere; one that is driven now is left alone. ``progress`` is told how many runs of how many are done.
        """
        from holdfast.checkpoint.maintenance.repair import repaired

        check_progress(progress)
        check_flag("dry_run", dry_run)
        wanted = None if run_id is None else run_id_of(run_id)
        return await repaired(self._store, self.counters, wanted, progress, dry_run)

    async def statistics(
        self, *, progress: Progress | None = None, measure_blobs: bool = False
    ) -> StorageStatistics:
        """What takes the room: by workflow, by run, and by scope of what runs hold where they stand.

        Reads records, page by page, and no blobs. ``measure_blobs`` reads those too, to say what they take as stored.
        ``progress`` is called with how many checkpoints are done, and of how many.
        """
        from holdfast.checkpoint.maintenance.usage import counted

        check_progress(progress)
        return await counted(self._store, self.blobs, progress, measure_blobs)

    async def tag(self, checkpoint_id: str | CheckpointInfo, *tags: str) -> None:
        """Give a checkpoint tags, beside those that it has; one with a tag is kept, whatever the retention says."""
        await self._tag(checkpoint_id, tuple(map(checked_tag, tags)), ())

    async def untag(self, checkpoint_id: str | CheckpointInfo, *tags: str) -> None:
        """Take tags from a checkpoint, all of them if none is named."""
        await self._tag(checkpoint_id, (), tags or None)

    async def _tag(
        self, checkpoint_id: str | CheckpointInfo, tags: Sequence[str], drop: Sequence[str] | None
    ) -> None:
        wanted = id_of_checkpoint(checkpoint_id)

        async def look() -> bool:
            head, seq = await self.find(wanted)
            return await self._store.tag(head.run_id, seq, tags, drop)

        if not await steadily(look):
            raise not_found(wanted)

    async def prune(
        self,
        retention: Retention | None = None,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Remove the checkpoints that are not kept, and the values that nobody needs any more.

        Without ``retention`` each run has its own. With ``dry_run`` nothing is removed, and the report says what would
        be. May be interrupted anywhere. ``progress`` is told how many runs of how many are done.
        """
        checked_retention(retention)
        check_flag("dry_run", dry_run)
        check_progress(progress)
        heads = [await self.head(run_id)] if run_id is not None else list(await self._store.runs(RunQuery()))
        return await pruned(self._store, heads, self.blobs, retention, dry_run, progress)

    async def delete(self, checkpoint_id: str | CheckpointInfo) -> None:
        """Remove one checkpoint; those that follow it stay. The one on which its run stands cannot be removed."""
        wanted = id_of_checkpoint(checkpoint_id)

        async def look() -> Head:
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
            await remove_records(self._store, blobs, head, {seq})
            return head

        while True:
            try:
                head = await steadily(look)
                break
            except HeadMoved:  # it was taken back meanwhile, perhaps to this checkpoint; or someone tagged it
                continue
        await sweep(self._store, head.family, self.blobs(head.family))

    async def delete_run(self, run_id: str) -> None:
        """Remove a run with all its checkpoints; forks of it stay. One that is driven raises ``RunTaken``."""
        head = await self.head(run_id)
        if await is_driven(self._store, head):
            raise RunTaken(f"run {run_id} is driven; cancel it first, with 'storage.cancel'")
        await self._store.remove_run(head.run_id, Expected(head.checkpoint_id, head.token))
        await sweep(self._store, head.family, self.blobs(head.family))

    # Runs on their way to other storages.

    async def export_run(
        self, run_id: str, path: str | os.PathLike[str], progress: Progress | None = None
    ) -> RunInfo:
        """Write a run to one new file, with its whole history, its journal and the letters that wait for it.

        The run may move meanwhile: the file has it as it stood at one moment, which is what this returns. The file
        gets its name when it is complete. ``progress`` is called with how much is done, and of how much.
        """
        check_progress(progress)
        return await run_info(self._store, await export_run(self._store, run_id_of(run_id), path, progress))

    async def import_run(
        self, path: str | os.PathLike[str], run_id: str | None = None, progress: Progress | None = None
    ) -> RunInfo:
        """Bring in a run from a file that ``export_run`` made: all of it, or nothing where anything is wrong with it.

        It has the same ids here, and is not driven: one that was RUNNING is STOPPED. ``run_id`` makes sure that the
        file holds that run; a run cannot get another id. Raises ``RunExists``, unless all that the file holds is here.
        """
        check_progress(progress)
        wanted = None if run_id is None else run_id_of(run_id)
        return await run_info(self._store, await import_run(self._store, path, wanted, progress))
