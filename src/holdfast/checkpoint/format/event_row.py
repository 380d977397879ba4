"""The events of one commit as bytes: the checkpoints that it made, and how the status of the run changed.

A row says what the record and the head say as well, because it outlives the record: checkpoints are removed by the
retention of a run, events by one of their own. No id covers it. ``events/event_reader`` makes events of it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import ormsgpack

from holdfast.checkpoint.checkpoint_info import Header, header_of_values, header_values
from holdfast.checkpoint.format.changes import Asked, Delivered, Happened, Part, Ref
from holdfast.checkpoint.format.stored_form import plain_form, stored_form
from holdfast.engine.message import Expiry
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, ExecutorId, RequestId, RunId

LARGEST_ROW = 64 * 1024
"""A row that would be longer leaves out the content of values; it stands in the checkpoint."""
_SMALL = 64

PackedStep: TypeAlias = Sequence[Any]
"""A ``StepEvents`` that is ready to be packed."""


class StepEvents(NamedTuple):
    """A checkpoint that became durable, and what happened since the one before."""

    checkpoint_id: CheckpointId
    header: Header
    new_bytes: int
    ended: Sequence[tuple[ExecutorId, int]] = ()
    """The turns that are over, each with the number of its own events.

    One without an executor stands for the turns of earlier supersteps, of which there are no checkpoints.
    """
    happened: Sequence[Happened] = ()
    """Events of the turns in their order, then warnings and intermediate outputs."""
    outputs: Sequence[tuple[ExecutorId, Ref]] = ()
    asked: Sequence[tuple[Asked, str | None]] = ()
    """Requests, each with the JSON Schema of its answer where the type names classes."""
    is_state_written: bool = False
    is_buffered: bool = False
    """True if fan-ins hold messages."""
    invoked: Sequence[tuple[ExecutorId, int]] = ()
    """The executors that have their turn next, each with the number of its messages."""


class RestEvents(NamedTuple):
    """The status with which a run came to rest."""

    status: RunStatus
    waiting_for: str = ""
    by: str = ""
    output: Ref | None = None
    """The last output of a run that is complete."""
    error: str = ""
    """The class and message of the error of a run that failed."""
    executor_id: str = ""
    """The executor that failed."""
    cause: str = ""
    """The class and message of the error that it raised."""


class CommitEvents(NamedTuple):
    """The events of one commit."""

    time: int
    superstep: int
    """The last superstep before the commit."""
    is_moving: bool
    """True if the run is RUNNING from now on, and was not before."""
    steps: Sequence[StepEvents] = ()
    rest: RestEvents | None = None
    begun: StepEvents | None = None
    """The input of a run that was submitted earlier and moves now for the first time."""
    team_size: tuple[int, ...] = ()
    """The numbers of agents and layers, where the run of a team of agents moves."""


def count_messages(deliveries: Sequence[Delivered]) -> list[tuple[ExecutorId, int]]:
    """Return the executors that messages are on their way to, each with their number."""
    if len(deliveries) == 1:
        return [(deliveries[0].target, 1)]
    return list(Counter(delivery.target for delivery in deliveries).items())


def pack_step(step: StepEvents) -> PackedStep:
    """Return a step in the form in which it is packed; ``pack_plain_step`` gives the same for most."""
    return (
        bytes.fromhex(step.checkpoint_id),
        step.new_bytes,
        header_values(step.header)[2:],
        step.ended,
        [(of, None if event is None else _pack_ref(event), warning) for of, event, warning in step.happened],
        [(executor_id, _pack_ref(ref)) for executor_id, ref in step.outputs],
        [_pack_asked(asked, schema) for asked, schema in step.asked],
        step.is_state_written,
        step.is_buffered,
        step.invoked,
    )


def pack_events(
    time: int,
    superstep: int,
    is_moving: bool,
    steps: Sequence[PackedStep],
    rest: RestEvents | None,
    begun: PackedStep | None = None,
    team_size: tuple[int, ...] = (),
) -> bytes:
    """Return the events of a commit as a store keeps them."""
    last = None
    if rest is not None:
        output = None if rest.output is None else _pack_ref(rest.output)
        last = [rest.status._value_, rest.waiting_for, _encode(rest.by), output]
        last += map(_encode, (rest.error, rest.executor_id, rest.cause))
    row = [time, superstep, is_moving, steps, last]
    if begun is not None or team_size:
        row.append(begun)
    if team_size:
        row.append(team_size)
    packed = ormsgpack.packb(row)
    if len(packed) > LARGEST_ROW:
        packed = ormsgpack.packb(_without_content(ormsgpack.unpackb(packed)))
    return stored_form(packed)


def unpack_events(run_id: RunId, workflow_name: str, stored: bytes) -> CommitEvents:
    """Return the events of a commit; raise whatever broken data raises."""
    time, superstep, is_moving, steps, rest, *more = ormsgpack.unpackb(plain_form(stored))
    begun = more[0] if more else None
    team_size = more[1] if len(more) > 1 else ()
    return CommitEvents(
        int(time),
        int(superstep),
        bool(is_moving),
        [_unpack_step(run_id, workflow_name, *step) for step in steps],
        None if rest is None else _unpack_rest(*rest),
        None if begun is None else _unpack_step(run_id, workflow_name, *begun),
        tuple(team_size),
    )


def _unpack_step(
    run_id: RunId,
    workflow_name: str,
    name: bytes,
    new_bytes: int,
    values: list[Any],
    ended: list[Any],
    happened: list[Any],
    outputs: list[Any],
    asked: list[Any],
    *more: Any,
) -> StepEvents:
    return StepEvents(
        CheckpointId(name.hex()),
        header_of_values([run_id, workflow_name, *values]),
        new_bytes,
        [(executor_id, count) for executor_id, count in ended],
        [
            Happened(of, None if event is None else _unpack_ref(event), None if told is None else tuple(told))
            for of, event, told in happened
        ],
        [(executor_id, _unpack_ref(ref)) for executor_id, ref in outputs],
        [_unpack_asked(*one) for one in asked],
        *more,
    )


def _unpack_rest(
    status: str, waiting_for: str, by: bytes, output: Any, error: bytes, executor_id: bytes, cause: bytes
) -> RestEvents:
    last = None if output is None else _unpack_ref(output)
    texts = map(_decode, (error, executor_id, cause))
    return RestEvents(RunStatus(status), waiting_for, _decode(by), last, *texts)


# Any text, also one with half a character.


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


# Values.


def _pack_ref(ref: Ref) -> list[Any]:
    parts = None if ref.parts is None else [(is_item, _pack_ref(part)) for is_item, part in ref.parts]
    return [ref.label, ref.size, ref.digest, ref.data, parts]


def _unpack_ref(packed: list[Any]) -> Ref:
    label, size, digest, data, parts = packed
    if [type(label), type(size)] != [str, int] or not {type(digest), type(data)} <= {bytes, type(None)}:
        raise ValueError("a value is not what was written")
    held = None if parts is None else [Part(is_item, _unpack_ref(part)) for is_item, part in parts]
    return Ref(label, size, None if digest is None else Digest(digest), data, held)


def _pack_asked(asked: Asked, schema: str | None) -> list[Any]:
    expiry = None if asked.expiry is None else asked.expiry.at
    return [asked.request_id, asked.executor_id, _pack_ref(asked.data), asked.form, asked.seq, expiry, schema]


def _unpack_asked(
    request_id: str,
    executor_id: str,
    data: Any,
    form: bytes,
    seq: int,
    expires: int | None,
    schema: str | None,
) -> tuple[Asked, str | None]:
    expiry = None if expires is None else Expiry(expires)
    asked = Asked(RequestId(request_id), ExecutorId(executor_id), _unpack_ref(data), form, seq, expiry)
    return asked, schema


def _without_content(packed: Any) -> Any:
    """Return a row in which long contents of values are left out."""
    if not isinstance(packed, list):
        return packed
    if len(packed) == 5 and isinstance(packed[3], bytes) and len(packed[3]) > _SMALL:
        return [*packed[:3], None, packed[4]]
    return [_without_content(part) for part in packed]
