"""The checkpoints that a run made, and its work that no checkpoint holds yet."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, Phase
from holdfast.checkpoint.events.events import CheckpointSavedEvent, WorkflowEvent
from holdfast.checkpoint.journal import Told
from holdfast.checkpoint.retention import Retention
from holdfast.engine.snapshot import Snapshot
from holdfast.ids import ExecutorId

# Fewer checkpoints than this are remembered whether the run keeps them or not.
_SEEN_AT_LEAST = 64


class Beginning(NamedTuple):
    """The point where a superstep began, and the names that executors had there if they were renamed since."""

    name: str
    """The id of a checkpoint; followed by the number of the superstep if it began later, where nothing was durable."""
    names: Mapping[str, str]


class UncommittedWork(NamedTuple):
    """Supersteps that were not committed: the snapshots before and after them, and their events."""

    before: Snapshot
    after: Snapshot
    happened: list[Told]


class CheckpointTrail:
    """Remembers the checkpoints of one run, and what the run did since the last one.

    ``head`` is the checkpoint that a resumed run stands on. ``began`` is where its next superstep began, if that was
    another checkpoint.
    """

    def __init__(self, retention: str, head: CheckpointInfo | None, began: Beginning | None) -> None:
        self._seen: list[CheckpointInfo] = [head] if head is not None else []
        self._retention = Retention.of_text(retention)
        self._most: float = math.inf if self._retention.keeps_all else _SEEN_AT_LEAST
        """More than so many are not remembered before those go that the run does not keep."""
        self.started: CheckpointInfo | None = head if head is not None and head.phase is Phase.START else None
        """The checkpoint at the start of the superstep that comes next or is under way."""
        self._news: list[CheckpointInfo] = []
        self.began = began
        """The point at which the superstep to come began, if not at ``started``."""
        self._origin = "" if self.started is None else str(self.started.checkpoint_id)
        """The checkpoint after which supersteps are named that begin where nothing is durable."""
        self.uncommitted: UncommittedWork | None = None
        """The work that no checkpoint holds."""

    @property
    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints seen so far, oldest first, as far as the run keeps them."""
        self._drop_unkept()
        return list(self._seen)

    @property
    def latest(self) -> CheckpointInfo | None:
        """The newest checkpoint."""
        return self._seen[-1] if self._seen else None

    @property
    def size(self) -> int:
        """The number of checkpoints that are remembered, kept by the run or not."""
        return len(self._seen)

    def follow(self, before: CheckpointTrail) -> None:
        """Take over the checkpoints of the trail that was followed until now."""
        own, self._seen, self._most = self._seen, before._seen, before._most
        for info in own:
            place = bisect_left(self._seen, info.seq, key=lambda seen: seen.seq)
            if self._seen[place : place + 1] != [info]:
                self._seen.insert(place, info)

    def add(self, made: Sequence[CheckpointInfo]) -> None:
        """Remember checkpoints that became durable."""
        self._seen += made
        if len(self._seen) > self._most:
            self._drop_unkept()

    def _drop_unkept(self) -> None:
        """Forget the checkpoints that the run does not keep: nobody can go back to them."""
        if self._most < math.inf and self._seen:
            newest = self._seen[-1]
            kept = self._retention.kept(self._seen, newest.checkpoint_id, newest.timestamp)
            self._seen[:] = [info for info in self._seen if info.seq in kept]
            self._most = max(_SEEN_AT_LEAST, 2 * len(self._seen))

    def announce(self, made: Sequence[CheckpointInfo]) -> None:
        """Have checkpoints told of by the next ``news``."""
        self._news += made

    def news(self, most: int | None = None) -> list[WorkflowEvent]:
        """Return the events for checkpoints that were announced since the last call, the first ``most`` of them."""
        news = self._news
        if not news:
            return []
        told, self._news = (news, []) if most is None else (news[:most], news[most:])
        return [CheckpointSavedEvent(info) for info in told]

    # The superstep to come.

    def stand_on(self, made: Sequence[CheckpointInfo]) -> None:
        """Let the next superstep begin at the last of these checkpoints, if that is the start of one."""
        last = made[-1]
        if last.phase is Phase.START:
            self.started = last
            self._origin = str(last.checkpoint_id)
        else:
            self.started = None

    def go_on(self, end: CheckpointInfo, start: CheckpointInfo) -> None:
        """Remember and announce the end of a superstep and the start of the next, committed together."""
        self._seen += (end, start)
        if len(self._seen) > self._most:
            self._drop_unkept()
        self._news += (end, start)
        self.started = start  # known to be one: reading its phase would unpack its header
        self._origin = start.checkpoint_id

    def begin_at(self, beginning: str) -> None:
        """Let the next superstep have begun at a point that the journal names."""
        self.began = Beginning(beginning, {} if self.began is None else self.began.names)
        self._origin = beginning.rpartition("/")[0]

    def beginning_of(self, address: ExecutorId) -> tuple[str, str]:
        """Return the point where the superstep under way began, and the name that an executor had there."""
        if self.began is not None:
            return self.began.name, self.began.names.get(address, address)
        if self.uncommitted is not None:
            return self.name_beginning(self.uncommitted.after), address
        return "" if self.started is None else self.started.checkpoint_id, address

    def name_beginning(self, before: Snapshot) -> str:
        """Return the name of a superstep that began where nothing was durable; the same when it is done again."""
        return f"{self._origin}/{before.superstep + 1}"

    # Work that is put off.

    def put_off(self, before: Snapshot, after: Snapshot, happened: Sequence[Told]) -> None:
        """Let a superstep be committed with those that follow: only the last of their snapshots is kept."""
        self.began = None
        if self.uncommitted is None:
            self.uncommitted = UncommittedWork(before, after, list(happened))
        else:
            self.uncommitted.happened.extend(happened)
            self.uncommitted = self.uncommitted._replace(after=after)
        self.started = None

    def catch_up(self, work: UncommittedWork, told: int, beginning: str, start: CheckpointInfo) -> None:
        """Take note that uncommitted work became durable, with the first ``told`` of its events.

        ``beginning`` names the superstep under way, and ``start`` is the checkpoint at its start.
        """
        del work.happened[:told]
        assert self.uncommitted is not None
        if self.uncommitted.after is work.after:
            self.uncommitted = None
            self.began = Beginning(beginning, {})
            self.started = start
        else:  # another superstep ended meanwhile
            self.uncommitted = self.uncommitted._replace(before=work.after)
