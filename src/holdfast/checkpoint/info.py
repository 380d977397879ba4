"""What is known of a checkpoint without reading any value."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import StrEnum

from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId

# The last microsecond of the year 9999.
_LATEST = 253_402_300_799_999_999
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Phase(StrEnum):
    """Whether a checkpoint stands before its superstep or after it.

    >>> Phase("start") is Phase.START
    True
    """

    START = "start"
    END = "end"


class Cause(StrEnum):
    """Why a checkpoint was made.

    >>> Cause.RESPONSE == "response"
    True
    """

    INPUT = "input"
    SUPERSTEP = "superstep"
    RESPONSE = "response"
    RESTORE = "restore"
    FORK = "fork"
    EDIT = "edit"


class ParentId(str):
    """The id of a parent, which also answers to ``parent.checkpoint_id``."""

    __slots__ = ()

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id itself."""
        return CheckpointId(str(self))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CheckpointInfo:
    """What is known of a checkpoint without reading any value.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> storage = InMemoryCheckpointStorage()
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(storage).build()
    >>> async def main():
    ...     result = await workflow.run(21)
    ...     latest = await storage.get_latest(run_id=result.run_id)
    ...     return latest.superstep, latest.phase, latest.status
    >>> asyncio.run(main())
    (1, <Phase.END: 'end'>, <RunStatus.COMPLETED: 'completed'>)
    """

    checkpoint_id: CheckpointId
    run_id: RunId
    workflow_name: str
    seq: int
    """The checkpoint's place in its run: later ones have greater numbers, on every branch."""
    superstep: int
    phase: Phase
    cause: Cause
    parent_id: CheckpointId | None
    timestamp: datetime.datetime
    """UTC; strictly increasing within a run."""
    status: RunStatus
    new_bytes: int
    """What it added to the store, in bytes as stored."""
    message_count: int
    request_count: int
    tags: tuple[str, ...] = ()

    @property
    def iteration_count(self) -> int:
        """The same as ``superstep``."""
        return self.superstep

    @property
    def step_number(self) -> int:
        """The same as ``superstep``."""
        return self.superstep

    @property
    def parent(self) -> ParentId | None:
        """The same as ``parent_id``, for code that looks for ``parent.checkpoint_id``."""
        return None if self.parent_id is None else ParentId(self.parent_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckpointInfo) and self.checkpoint_id == other.checkpoint_id

    def __hash__(self) -> int:
        return hash(self.checkpoint_id)

    def __repr__(self) -> str:
        name, short = type(self).__name__, self.checkpoint_id[:8]
        return f"<{name} {short}: {self.phase} of superstep {self.superstep}, {self.status}>"


def moment(microseconds: int) -> datetime.datetime:
    """The time that a record holds as microseconds since 1970; one that has no name is the last that has."""
    if microseconds > _LATEST:
        return datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return _EPOCH + datetime.timedelta(microseconds=microseconds)


def microseconds(time: datetime.datetime) -> int:
    """A time as records hold it.

    >>> moment(microseconds(moment(1_700_000_000_123_456))).microsecond
    123456
    """
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)
