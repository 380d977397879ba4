"""What is known of a checkpoint without reading any value."""

from __future__ import annotations

import datetime
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack

from holdfast.checkpoint.store import FORMAT_MAJOR
from holdfast.engine._fast import make_tuple
from holdfast.engine.status import RunStatus, WaitingFor, waiting_for
from holdfast.ids import CheckpointId, RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.views import CheckpointSummary

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


class Header(NamedTuple):
    """What a record says of itself; ``replay_from`` is the seq of the record from which replay begins."""

    run_id: RunId
    workflow_name: str
    seq: int
    superstep: int
    phase: Phase
    cause: Cause
    parent_id: CheckpointId | None
    time: int
    status: RunStatus
    message_count: int
    request_count: int
    replay_from: int
    salt: bytes


# Looked up, for a thousand headers are read at once, and an enum takes its time to find its member.
_PHASES = {str(phase): phase for phase in Phase}
_CAUSES = {str(cause): cause for cause in Cause}
_STATUSES = {str(status): status for status in RunStatus}


_fields_of = itemgetter(
    "run", "workflow", "seq", "superstep", "phase", "cause", "parent", "time", "status", "messages",
    "requests", "from", "salt",
)  # fmt: skip


def unpacked_header(data: bytes) -> Header:
    """The header in these bytes; raises whatever broken data raises."""
    fields: dict[str, Any] = ormsgpack.unpackb(data)
    if fields["format"] != FORMAT_MAJOR:
        raise ValueError(f"it has format {fields['format']}, this version reads {FORMAT_MAJOR}")
    (
        run_id,
        workflow_name,
        seq,
        superstep,
        phase,
        cause,
        parent,
        time,
        status,
        message_count,
        request_count,
        replay_from,
        salt,
    ) = _fields_of(fields)
    if type(replay_from) is not int:  # the one part by which others are found before they are checked
        raise ValueError(f"replay begins from {replay_from!r}, which is no number")
    return make_tuple(
        Header,
        (
            run_id,
            workflow_name,
            seq,
            superstep,
            _PHASES.get(phase) or Phase(phase),
            _CAUSES.get(cause) or Cause(cause),
            None if parent is None else parent.hex(),
            time,
            _STATUSES.get(status) or RunStatus(status),
            message_count,
            request_count,
            replay_from,
            salt,
        ),
    )


def waiting_at(header: Header) -> tuple[WaitingFor, ...]:
    """Name what a run waits for at a checkpoint; never time, for a run sleeps within a superstep."""
    if header.status is not RunStatus.WAITING:
        return ()
    return waiting_for(header.request_count, None, True)


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

    # Two are made in each superstep, kept as long as the run, and looked at by few: so they only point at the header,
    # which those that are just made have as bytes.
    __slots__ = ("_checkpoint_id", "_header", "_new_bytes", "_tags")

    def __init__(
        self, checkpoint_id: CheckpointId, header: Header | bytes, new_bytes: int, tags: tuple[str, ...] = ()
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._header = header
        self._new_bytes = new_bytes
        self._tags = tags

    @property
    def _said(self) -> Header:
        header = self._header
        if isinstance(header, bytes):
            header = self._header = unpacked_header(header)
        return header

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The digest of its header and content."""
        return self._checkpoint_id

    @property
    def run_id(self) -> RunId:
        """The run that it belongs to."""
        return self._said.run_id

    @property
    def workflow_name(self) -> str:
        """The workflow of that run."""
        return self._said.workflow_name

    @property
    def seq(self) -> int:
        """The checkpoint's place in its run: later ones have greater numbers, on every branch."""
        return self._said.seq

    @property
    def superstep(self) -> int:
        """The number of the superstep that it stands before or after."""
        return self._said.superstep

    @property
    def phase(self) -> Phase:
        """Whether it stands before or after that superstep."""
        return self._said.phase

    @property
    def cause(self) -> Cause:
        """Why it was made."""
        return self._said.cause

    @property
    def parent_id(self) -> CheckpointId | None:
        """The checkpoint that it follows; None for the first of a run."""
        return self._said.parent_id

    @property
    def timestamp(self) -> datetime.datetime:
        """UTC; strictly increasing within a run."""
        return moment(self._said.time)

    @property
    def status(self) -> RunStatus:
        """How the run stood there."""
        return self._said.status

    @property
    def new_bytes(self) -> int:
        """What it added to the store, in bytes as stored."""
        return self._new_bytes

    @property
    def message_count(self) -> int:
        """How many messages are on their way to their next turns."""
        return self._said.message_count

    @property
    def request_count(self) -> int:
        """How many requests wait for an answer."""
        return self._said.request_count

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """For a run that is WAITING there: ``("answers",)``, or ``("messages",)`` that a fan-in needs; else empty."""
        return waiting_at(self._said)

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is called besides."""
        return self._tags

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

    def summary(self) -> CheckpointSummary:
        """The checkpoint in a few words, as far as they are known without reading it."""
        from holdfast.checkpoint.views import CheckpointSummary  # it needs what is in here

        return CheckpointSummary.of_info(self)

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
    # By hand: dividing by a timedelta of one microsecond takes six times as long.
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
