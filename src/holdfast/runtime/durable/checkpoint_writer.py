"""Writes the checkpoints of a run: at once, in the background, or late, with all that was put off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.events.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.checkpoint.journal import Told, result_draft
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import NoteDraft, RunLog
from holdfast.engine.snapshot import Delta, Snapshot, compute_delta
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError
from holdfast.ids import ExecutorId
from holdfast.runtime.durable.checkpoint_trail import CheckpointTrail
from holdfast.runtime.durable.commit_queue import CommitQueue

# The name under which the journal keeps where the superstep began, if that is not the checkpoint it belongs to. No
# executor has an empty id.
BEGAN: Final = (ExecutorId(""), "began")


class CheckpointWriter:
    """Writes checkpoints to the log of one run, one commit after the other, and remembers them in its trail.

    A commit takes along the work that was put off. ``caught_up`` writes that work while its superstep is under way.
    """

    def __init__(self, log: RunLog, commits: CommitQueue, trail: CheckpointTrail) -> None:
        self._log = log
        self._commits = commits
        self._trail = trail
        self.tell: Callable[[Sequence[WorkflowEvent]], None] = lambda events: None
        """Called with the events of checkpoints that are made between the ends of supersteps."""
        self._catching_up: asyncio.Task[None] | None = None

    def storable(self, event: WorkflowEvent) -> Told:
        """Return an event as a checkpoint keeps it."""
        if isinstance(event, WorkflowWarningEvent):
            # It may repeat a value, and that may contain half a character, which a checkpoint cannot keep.
            text = str(event.warning).encode(errors="backslashreplace").decode()
            return event.executor_id, (type(event.warning).__name__, text)
        return None, self._log.encoder(event, "event")

    def draft_end(
        self,
        status: RunStatus,
        before: Snapshot,
        after: Snapshot,
        delta: Delta,
        happened: Sequence[Told],
        goes_on: bool,
    ) -> CheckpointDraft:
        """Return the checkpoint at the end of a superstep; ``goes_on`` if the next begins at once."""
        since_input = after.since_input if after.since_input != self._log.since_input + 1 else None
        end = Phase.END, after.superstep, Cause.SUPERSTEP, status
        return CheckpointDraft(*end, before, delta, since_input, happened, goes_on)

    async def write(
        self, entries: Sequence[CheckpointDraft], drafts: Sequence[NoteDraft] = (), taken: Sequence[str] = ()
    ) -> Sequence[CheckpointInfo]:
        """Commit checkpoints, and what was put off with them."""
        if self._trail.uncommitted is not None:
            return await self._commits.run(self._write_with_uncommitted(entries, drafts, taken))
        if self._commits.busy:
            await self._commits.idle()
        made = await self._commits.run(self._log.append(entries, taken, drafts))
        self._trail.add(made)
        self._trail.announce(made)
        self._trail.stand_on(made)
        return made

    async def write_behind(
        self, entries: Sequence[CheckpointDraft], taken: Sequence[str]
    ) -> Sequence[CheckpointInfo]:
        """Give checkpoints their ids, and commit them in the background."""
        made = await self._commits.run_in_background(entries, taken, self._trail.add)
        self._trail.announce(made)
        self._trail.stand_on(made)
        return made

    async def _write_with_uncommitted(
        self, entries: Sequence[CheckpointDraft], drafts: Sequence[NoteDraft], taken: Sequence[str]
    ) -> Sequence[CheckpointInfo]:
        made = await self._write_or_fail(entries, drafts, taken)
        self._trail.stand_on(made)
        self._trail.uncommitted = None
        return made

    async def _write_or_fail(
        self, entries: Sequence[CheckpointDraft], drafts: Sequence[NoteDraft], taken: Sequence[str] = ()
    ) -> Sequence[CheckpointInfo]:
        """Append to the log, in a commit that is under way; no other commit can follow if it fails."""
        try:
            made = await self._log.append(entries, taken, drafts)
        except BaseException as error:
            self._commits.failure = self._commits.explain(error)
            raise
        self._trail.add(made)
        self._trail.announce(made)
        return made

    # Work that was put off.

    async def caught_up(self) -> None:
        """Wait until all that the run stands on is durable; raise if it cannot be.

        The caller can be cancelled, the commit goes on then.
        """
        if self._trail.uncommitted is None and not self._commits.behind and self._commits.failure is None:
            return
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.ensure_future(self._catch_up())
            self._catching_up.add_done_callback(_retrieve_exception)
        await asyncio.shield(self._catching_up)

    async def _catch_up(self) -> None:
        await self._commits.settle()
        while self._trail.uncommitted is not None:
            await self._commits.run(self._commit_late())
            await self._commits.settle()

    async def _commit_late(self) -> None:
        """Commit what was put off, while its superstep is under way."""
        work = self._trail.uncommitted
        if work is None:
            return
        before, after, happened = work
        told = list(happened)
        end = self.draft_end(RunStatus.RUNNING, before, after, compute_delta(before, after), told, True)
        beginning = self._trail.name_beginning(after)
        note = result_draft(*BEGAN, self._log.encoder(beginning, "beginning"))
        made = await self._write_or_fail([end], [note])
        self._trail.catch_up(work, len(told), beginning, made[-1])
        self.tell(self._trail.news())

    async def catch_up_at_last(self, error: BaseException | None) -> None:
        """Commit what was put off before the run ends; ``error`` ends it, and is told if that fails."""
        if self._trail.uncommitted is None or self._commits.failure is not None:
            return
        try:
            await self._catch_up()
        except HoldfastError as problem:
            if error is not None:
                error.add_note(f"what it did since its last checkpoint could not be stored: {problem}")


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging an error that those who waited have got."""
    if not task.cancelled():
        task.exception()
