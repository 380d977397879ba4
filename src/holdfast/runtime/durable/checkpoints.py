"""The checkpoints that a run made, and what it did that is not in one yet."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.checkpoint.info import Cause, CheckpointInfo, Phase
from holdfast.checkpoint.journal import Told, result_draft
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.log import Draft, RunLog
from holdfast.engine.snapshot import Delta, Snapshot, distance
from holdfast.engine.status import RunStatus
from holdfast.ids import ExecutorId
from holdfast.runtime.durable.inbox_client import Correspondence
from holdfast.runtime.events.events import WorkflowEvent
from holdfast.runtime.events.usual import checkpoint_saved

# Fewer checkpoints than this are held, whether they are kept or not.
_SEEN_AT_LEAST = 64
# Under which name the journal has where the superstep began, if that is not the checkpoint it belongs to. No executor
# has an empty id.
BEGAN: Final = (ExecutorId(""), "began")


class Beginning(NamedTuple):
    """Where a superstep began, and what executors that were renamed since were called there."""

    name: str
    """The id of a checkpoint; with the number of the superstep if it began later, where nothing was durable."""
    names: Mapping[str, str]


class Uncommitted(NamedTuple):
    """What a run did that was not committed: where it was then, where it is, and what happened on the way."""

    before: Snapshot
    after: Snapshot
    happened: list[Told]


class Checkpoints(Correspondence):
    """Commits the checkpoints of one run, and keeps what they do not have yet.

    ``head`` is the one that a resumed run stands on, ``began`` where the superstep to come began, if it was not there.
    """

    def __init__(self, log: RunLog, head: CheckpointInfo | None, began: Beginning | None) -> None:
        super().__init__(log)
        self._seen: list[CheckpointInfo] = [head] if head is not None else []
        self._retention = Retention.of_text(log.head.retention)
        self._most: float = math.inf if self._retention.keeps_all else _SEEN_AT_LEAST
        """More than so many are not held before those go that are not kept."""
        self.started: CheckpointInfo | None = head if head is not None and head.phase is Phase.START else None
        """The checkpoint at the start of the superstep that comes next or is under way."""
        self.tell: Callable[[Sequence[WorkflowEvent]], None] = lambda events: None
        """Told of checkpoints that are made between the ends of supersteps."""
        self._news: list[CheckpointInfo] = []
        self._began = began
        self._origin = "" if self.started is None else str(self.started.checkpoint_id)
        """The checkpoint by which supersteps are named that begin where nothing is durable."""
        self._uncommitted: Uncommitted | None = None
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints that this object has seen, oldest first, as far as the run keeps them."""
        self._drop_unkept()
        return list(self._seen)

    @property
    def latest(self) -> CheckpointInfo | None:
        """The newest of them."""
        return self._seen[-1] if self._seen else None

    def follow(self, before: Checkpoints) -> None:
        """Go on with what the object has seen that drove the run until now."""
        own, self._seen, self._most = self._seen, before._seen, before._most
        for info in own:
            place = bisect_left(self._seen, info.seq, key=lambda seen: seen.seq)
            if self._seen[place : place + 1] != [info]:
                self._seen.insert(place, info)

    def _see(self, made: Sequence[CheckpointInfo]) -> None:
        self._seen += made
        if len(self._seen) > self._most:
            self._drop_unkept()

    def _drop_unkept(self) -> None:
        """Let go of those that the run does not keep: nobody can go back to them."""
        if self._most < math.inf and self._seen:
            newest = self._seen[-1]
            kept = self._retention.kept(self._seen, newest.checkpoint_id, newest.timestamp)
            self._seen[:] = [info for info in self._seen if info.seq in kept]
            self._most = max(_SEEN_AT_LEAST, 2 * len(self._seen))

    def news(self, most: int | None = None) -> list[WorkflowEvent]:
        """The events for checkpoints that were made and not told yet."""
        news = self._news
        if not news:
            return []
        told, self._news = (news, []) if most is None else (news[:most], news[most:])
        return [checkpoint_saved(info) for info in told]

    def begun(self, address: ExecutorId) -> tuple[str, str]:
        """The id of the checkpoint at which the superstep under way began, and what an executor was called there."""
        if self._began is not None:
            return self._began.name, self._began.names.get(address, address)
        if self._uncommitted is not None:
            return self._beginning_of(self._uncommitted.after), address
        return "" if self.started is None else self.started.checkpoint_id, address

    def _beginning_of(self, before: Snapshot) -> str:
        """Names a superstep that began where nothing was durable, as it is named when it is done again."""
        return f"{self._origin}/{before.superstep + 1}"

    # What is committed at once.

    async def _append(
        self, entries: Sequence[Entry], drafts: Sequence[Draft] = (), taken: Sequence[str] = ()
    ) -> Sequence[CheckpointInfo]:
        if self._uncommitted is not None:
            return await self._shielded(self._append_all(entries, drafts, taken))
        if self._under_way:
            await self._idle()
        made = await self._shielded(self.log.append(entries, taken, drafts))
        self._see(made)
        self._news += made
        self._made(made)
        return made

    async def _append_all(
        self, entries: Sequence[Entry], drafts: Sequence[Draft], taken: Sequence[str]
    ) -> Sequence[CheckpointInfo]:
        """The same with what was put off, which nobody else may commit then."""
        made = await self._appended(entries, taken, drafts)
        self._made(made)
        self._uncommitted = None
        return made

    async def _appended(
        self, entries: Sequence[Entry], taken: Sequence[str], drafts: Sequence[Draft]
    ) -> Sequence[CheckpointInfo]:
        try:
            made = await self.log.append(entries, taken, drafts)
        except BaseException as error:
            self._failure = self._meaning(error)
            raise
        self._see(made)
        self._news += made
        return made

    def _went_on(self, made: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """A superstep was committed with the start of the next."""
        self._seen += made
        if len(self._seen) > self._most:
            self._drop_unkept()
        self._news += made
        self.started = made[1]
        self._origin = self.log.head.checkpoint_id
        return made

    def _made(self, made: Sequence[CheckpointInfo]) -> None:
        last = made[-1]
        self.started = last if last.phase is Phase.START else None
        if self.started is not None:
            self._origin = str(last.checkpoint_id)

    def _end(
        self,
        status: RunStatus,
        before: Snapshot,
        after: Snapshot,
        delta: Delta,
        happened: Sequence[Told],
        goes_on: bool,
    ) -> Entry:
        since_input = after.since_input if after.since_input != self.log.since_input + 1 else None
        end = Phase.END, after.superstep, Cause.SUPERSTEP, status
        return Entry(*end, before, delta, since_input, happened, goes_on)

    # What is put off.

    def _put_off(self, before: Snapshot, after: Snapshot, happened: Sequence[Told]) -> None:
        """Let a superstep be committed with those that follow: of all of them only the last snapshot is kept."""
        if self._uncommitted is None:
            self._uncommitted = Uncommitted(before, after, list(happened))
        else:
            self._uncommitted.happened.extend(happened)
            self._uncommitted = self._uncommitted._replace(after=after)
        self.started = None

    @property
    def durable(self) -> Snapshot | None:
        """The snapshot on which the run stands in the store, if it is an earlier one than the run is at."""
        return None if self._uncommitted is None else self._uncommitted.before

    async def caught_up(self) -> None:
        """Wait until all that the run stands on is durable; raises if it cannot be.

        Whoever waits can be cancelled, which is no business of the commit.
        """
        if self._uncommitted is None and not self.behind and self._failure is None:
            return
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.ensure_future(self._catch_up())
            self._catching_up.add_done_callback(_taken_note_of)
        await asyncio.shield(self._catching_up)

    async def _catch_up(self) -> None:
        await self._sound()
        while self._uncommitted is not None:
            await self._shielded(self._commit_late())
            await self._sound()

    async def _commit_late(self) -> None:
        """Commit what was put off, while its superstep is under way."""
        if self._uncommitted is None:
            return
        before, after, happened = self._uncommitted
        told = list(happened)
        end = self._end(RunStatus.RUNNING, before, after, distance(before, after), told, True)
        began = self._beginning_of(after)
        note = result_draft(*BEGAN, self.log.encoder(began, "beginning"))
        made = await self._appended([end], (), [note])
        del happened[: len(told)]
        if self._uncommitted.after is after:
            self._uncommitted = None
            self._began = Beginning(began, {})
            self.started = made[-1]
        else:  # another superstep ended meanwhile
            self._uncommitted = self._uncommitted._replace(before=after)
        self.tell(self.news())


def _taken_note_of(task: asyncio.Task[None]) -> None:
    """Whoever waits is told, if anyone still does."""
    if not task.cancelled():
        task.exception()
