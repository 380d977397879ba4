"""Headers of checkpoints, and the info that users hold of one without reading any value."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack

from holdfast.checkpoint.store import FORMAT_MAJOR
from holdfast.engine.status import RunStatus, WaitingFor, waiting_for
from holdfast.ids import CheckpointId, RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.views import CheckpointSummary

# The last microsecond of the year 9999.
_LATEST = 253_402_300_799_999_999
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Phase(StrEnum):
    """The side of a superstep on which a checkpoint stands.

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
    MESSAGE = "message"
    """A further input came."""
    SUPERSTEP = "superstep"
    RESPONSE = "response"
    REQUEST = "request"
    """A request was asked again: the answer that came for it could not be used."""
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


# An id with the lowest bit set is that of a derived start: no record has it.
_END_DIGITS = dict(zip("0123456789abcdef", "0022446688aaccee", strict=True))
_START_DIGITS = dict(zip("0123456789abcdef", "1133557799bbddff", strict=True))
_OF_STARTS = frozenset("13579bdf")


def end_id(checkpoint_id: str) -> CheckpointId:
    """Return the id of the end from which a start with this id is derived; that of a record is its own.

    >>> end_id("a1"), end_id(start_id(CheckpointId("a0")))
    ('a0', 'a0')
    """
    return CheckpointId(checkpoint_id[:-1] + _END_DIGITS[checkpoint_id[-1]])


def start_id(checkpoint_id: CheckpointId) -> CheckpointId:
    """Return the id of the start that follows an end at once.

    >>> start_id(CheckpointId("a0"))
    'a1'
    """
    return CheckpointId(checkpoint_id[:-1] + _START_DIGITS[checkpoint_id[-1]])


def is_start_id(checkpoint_id: str) -> bool:
    """Return True if an id is that of a derived start.

    >>> is_start_id("a1"), is_start_id("a0"), is_start_id("")
    (True, False, False)
    """
    return checkpoint_id[-1:] in _OF_STARTS


class Header(NamedTuple):
    """The fields of a header, in the order in which they are stored; ``_KEYS`` has the keys.

    Whoever adds a field adds its key. One that people should see is also a property of ``CheckpointInfo``, a name in
    ``_SHOWN``, read back by ``info_from_dict``, a field of ``CheckpointForm`` in ``server/forms.py``, and a name in
    docs/reference/json-forms.md. The template in ``write/_fast.py`` packs the same fields for plain supersteps. Tests
    fail where one of these is forgotten.
    """

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
    """The seq of the record from which replay begins."""
    salt: bytes
    by: str | None = None
    """The person or program that sent the message, forked or restored, as ``by=`` said; None if nobody did."""
    has_start: bool = False
    """The start of the next superstep follows at once, and is derived. The last field: the last byte tells."""


_KEYS = (
    "run", "workflow", "seq", "superstep", "phase", "cause", "parent", "time", "status", "messages",
    "requests", "from", "salt", "by", "start",
)  # fmt: skip
_STORED_KEYS = ("format", *_KEYS)
_fields_of = itemgetter(*_KEYS)
_PHASE, _CAUSE, _PARENT, _STATUS = (
    Header._fields.index(name) for name in ("phase", "cause", "parent_id", "status")
)
_numbers_of = itemgetter(
    *map(Header._fields.index, ("seq", "superstep", "time", "message_count", "request_count", "replay_from"))
)
_NUMBER = {int}
# Looked up, for a thousand headers are read at once, and an enum takes its time to find its member.
_PHASES = {str(phase): phase for phase in Phase}
_CAUSES = {str(cause): cause for cause in Cause}
_STATUSES = {str(status): status for status in RunStatus}


def pack_header(header: Header) -> bytes:
    """Return the bytes of a header."""
    return ormsgpack.packb(dict(zip(_STORED_KEYS, (FORMAT_MAJOR, *header_values(header)), strict=True)))


def header_values(header: Header) -> list[Any]:
    """Return the fields of a header as values that can be packed."""
    fields: list[Any] = list(header)
    parent = fields[_PARENT]
    fields[_PARENT] = None if parent is None else bytes.fromhex(parent)
    for place in (
        _PHASE,
        _CAUSE,
        _STATUS,
    ):  # or what packs them would ask enumerations for their values in Python
        fields[place] = fields[place]._value_
    return fields


def unpack_header(data: bytes) -> Header:
    """Return the header in these bytes; raise whatever broken data raises."""
    stored: dict[str, Any] = ormsgpack.unpackb(data)
    if stored["format"] != FORMAT_MAJOR:
        raise ValueError(f"it has format {stored['format']}, this version reads {FORMAT_MAJOR}")
    return header_of_values(list(_fields_of(stored)))


def header_of_values(fields: list[Any]) -> Header:
    """Return the header with fields as ``header_values`` gives them; raise whatever broken data raises."""
    # They are compared before the id over all of it is checked.
    if set(map(type, _numbers_of(fields))) != _NUMBER:
        raise ValueError(f"of its numbers {_numbers_of(fields)!r} one is none")
    phase, cause, parent, status = fields[_PHASE], fields[_CAUSE], fields[_PARENT], fields[_STATUS]
    fields[_PHASE] = _PHASES.get(phase) or Phase(phase)
    fields[_CAUSE] = _CAUSES.get(cause) or Cause(cause)
    fields[_PARENT] = None if parent is None else parent.hex()
    fields[_STATUS] = _STATUSES.get(status) or RunStatus(status)
    return Header(*fields)


def header_at(checkpoint_id: CheckpointId, data: bytes) -> Header:
    """Unpack the header of a checkpoint; that of a derived start comes from the bytes of its end."""
    header = unpack_header(data)
    return derive_start(header, end_id(checkpoint_id)) if is_start_id(checkpoint_id) else header


def derive_start(end: Header, checkpoint_id: CheckpointId) -> Header:
    """Return the header of the start that follows an end with this id at once."""
    if not end.has_start:
        raise ValueError("no start follows it at once")
    return end._replace(
        seq=end.seq + 1,
        superstep=end.superstep + 1,
        phase=Phase.START,
        cause=Cause.SUPERSTEP,
        parent_id=checkpoint_id,
        time=end.time + 1,
        by=None,
        has_start=False,
    )


def applied_supersteps(header: Header) -> int:
    """Return the number of the last superstep that was applied where a run stands."""
    return header.superstep if header.phase is Phase.END else header.superstep - 1


def waiting_at(header: Header) -> tuple[WaitingFor, ...]:
    """Name what a run waits for at a checkpoint; never time, for a run sleeps within a superstep."""
    if header.status is not RunStatus.WAITING:
        return ()
    return waiting_for(header.request_count, None, True)


class Marks(NamedTuple):
    """The things that a checkpoint gets later, which its id does not cover."""

    tags: tuple[str, ...] = ()
    tagged_by: Mapping[str, str] = {}
    superseded_by: CheckpointId | None = None


NO_MARKS = Marks()


class CheckpointInfo:
    """A checkpoint as far as its header tells: no value was read.

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

    # Two are made in each superstep and kept as long as the run, and few are looked at: they unpack their header then.
    __slots__ = ("_checkpoint_id", "_header", "_marks", "_new_bytes")

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        header: Header | bytes,
        new_bytes: int,
        marks: Marks = NO_MARKS,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._header = header
        self._new_bytes = new_bytes
        self._marks = marks

    @property
    def _said(self) -> Header:
        header = self._header
        if isinstance(header, bytes):
            header = self._header = header_at(self._checkpoint_id, header)
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
        """The side of that superstep on which it stands."""
        return self._said.phase

    @property
    def cause(self) -> Cause:
        """Why it was made."""
        return self._said.cause

    @property
    def by(self) -> str | None:
        """The person or program that sent the message, answered, forked or restored, as ``by=`` said; else None."""
        return self._said.by

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
        """The status of the run there."""
        return self._said.status

    @property
    def new_bytes(self) -> int:
        """The bytes that it added to the store, as stored."""
        return self._new_bytes

    @property
    def message_count(self) -> int:
        """The number of messages on their way to their next turns."""
        return self._said.message_count

    @property
    def request_count(self) -> int:
        """The number of requests that wait for an answer."""
        return self._said.request_count

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """For a run that is WAITING there: ``("answers",)``, or ``("messages",)`` that a fan-in needs; else empty."""
        return waiting_at(self._said)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return self._marks.tags

    @property
    def tagged_by(self) -> dict[str, str]:
        """By tag, the person or program that gave it, as ``by=`` said; other tags are missing."""
        return dict(self._marks.tagged_by)

    @property
    def superseded_by(self) -> CheckpointId | None:
        """The checkpoint by which the run went back and left this one behind, when it was listed or loaded; else None.

        A run that goes back to a checkpoint that it had left behind stands on it again.
        """
        return self._marks.superseded_by

    @property
    def iteration_count(self) -> int:
        """Another name of ``superstep``."""
        return self.superstep

    @property
    def step_number(self) -> int:
        """Another name of ``superstep``."""
        return self.superstep

    @property
    def parent(self) -> ParentId | None:
        """Another name of ``parent_id``, for code that looks for ``parent.checkpoint_id``."""
        return None if self.parent_id is None else ParentId(self.parent_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the info as plain JSON; docs/reference/json-forms.md describes it."""
        return {name: json_field(getattr(self, name)) for name in _SHOWN}

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


_SHOWN = (
    *(
        "checkpoint_id",
        "run_id",
        "workflow_name",
        "seq",
        "superstep",
        "phase",
        "cause",
        "by",
        "parent_id",
        "timestamp",
    ),
    *(
        "status",
        "waiting_for",
        "new_bytes",
        "message_count",
        "request_count",
        "tags",
        "tagged_by",
        "superseded_by",
    ),
)


def json_field(value: Any) -> Any:
    """Return a field of an info as JSON has it: times in ISO 8601, members of enumerations as their values.

    >>> json_field(moment(0)), json_field(Phase.END), json_field(("a",)), json_field(None)
    ('1970-01-01T00:00:00+00:00', 'end', ['a'], None)
    """
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [json_field(part) for part in value]
    return str(value) if isinstance(value, str) else value


def info_from_dict(data: Mapping[str, Any]) -> CheckpointInfo:
    """Return the info that ``CheckpointInfo.to_dict`` wrote; it cannot be stored again."""
    header = Header(
        RunId(data["run_id"]),
        data["workflow_name"],
        data["seq"],
        data["superstep"],
        Phase(data["phase"]),
        Cause(data["cause"]),
        None if data["parent_id"] is None else CheckpointId(data["parent_id"]),
        microseconds(datetime.datetime.fromisoformat(data["timestamp"])),
        RunStatus(data["status"]),
        data["message_count"],
        data["request_count"],
        replay_from=data["seq"],
        salt=b"",
        by=data.get("by"),
    )
    marks = Marks(tuple(data["tags"]), data["tagged_by"], data["superseded_by"])
    return CheckpointInfo(CheckpointId(data["checkpoint_id"]), header, data["new_bytes"], marks)


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
