"""The content of the frames of an export: heads, records, notes, letters and events as MessagePack, and back.

Nothing in a file is trusted: anything unexpected raises ``TypeError`` or ``ValueError``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from holdfast.checkpoint.store import EventRow, Head, Keyframe, Letter, Note, Record
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId, complaint_about_id

DIGEST = 32
# The greatest number that every store can hold.
_GREATEST = 2**63 - 1
# No run has so many checkpoints; a file must not make a reader count to 2^63.
_MOST_CHECKPOINTS = 10**9


class FrameKind(IntEnum):
    """The kinds of frames, in the order in which they come; the end is the last of all."""

    END = 0
    RUN = 1
    RECORD = 2
    NOTE = 3
    LETTER = 4
    EVENTS = 5
    BLOB = 6


class FrameCounts(NamedTuple):
    """The number of frames of each kind."""

    records: int = 0
    notes: int = 0
    letters: int = 0
    events: int = 0
    blobs: int = 0


def pack_record(record: Record) -> list[Any]:
    """Return the content of a frame that holds a record."""
    keyframe = record.keyframe
    return [
        bytes.fromhex(record.checkpoint_id),
        record.seq,
        record.new_bytes,
        record.header,
        record.changes,
        record.values,
        None if keyframe is None else [keyframe.cut, keyframe.changes, keyframe.values],
        [_pack_text(tag) for tag in record.tags],
        [[_pack_text(tag), _pack_text(by)] for tag, by in record.tagged_by.items()],
    ]


def read_record(fields: Any, head: Head, before: int) -> Record:
    """Read a record of the run with this head; its seq must be greater than ``before``."""
    checkpoint, seq, new_bytes, header, changes, values, keyframe, tags, givers, *_ = fields
    if not before < _whole_number(seq) <= head.seq:
        raise ValueError(f"number {seq} of a checkpoint stands behind {before}")
    framed = None
    if keyframe is not None:
        cut, key_changes, key_values, *_ = keyframe
        framed = Keyframe(_bytes(key_changes), _bytes(key_values), bool(cut))
    return Record(
        CheckpointId(_bytes(checkpoint, DIGEST).hex()),
        head.run_id,
        seq,
        _bytes(header),
        _bytes(changes),
        _bytes(values),
        _whole_number(new_bytes),
        framed,
        tuple(map(_read_text, tags)),
        tagged_by={_read_text(tag): _read_text(by) for tag, by in givers},
    )


def pack_mail(mail: Note | Letter) -> list[Any]:
    """Return the content of a frame that holds a note or letter."""
    return [_pack_text(mail.key), mail.data]


def read_mail(fields: Any) -> tuple[str, bytes]:
    """Read the key and the data of a note or letter."""
    key, data, *_ = fields
    return _read_text(key), _bytes(data)


def pack_event_row(row: EventRow) -> list[Any]:
    """Return the content of a frame that holds a row of events."""
    return [row.seq, row.data]


def read_event_row(fields: Any, head: Head, before: int) -> EventRow:
    """Read a row of events of the run with this head; its seq must not be less than ``before``."""
    seq, data, *_ = fields
    if not before <= _whole_number(seq) <= head.seq:
        raise ValueError(f"events of checkpoint {seq} stand behind those of {before}")
    return EventRow(seq, _bytes(data))


def pack_head(head: Head) -> dict[str, Any]:
    """Return the content of a frame that holds a head."""
    return {
        "run": head.run_id,
        "workflow": head.workflow_name,
        "family": head.family,
        "checkpoint": bytes.fromhex(head.checkpoint_id),
        "seq": head.seq,
        "token": head.token,
        "status": head.status.value,
        "created": head.created,
        "updated": head.updated,
        "wake_at": head.wake_at,
        "takeovers": head.takeovers,
        "reason": _pack_text(head.reason),
        "retention": head.retention,
        "waiting_for": head.waiting_for,
        "letters_known": head.letters_known,
        "fingerprint": head.fingerprint,
        "by": _pack_text(head.by),
        "traceback": _pack_text(head.traceback),
        "origin": head.origin,
        "restored": head.restored,
    }


def read_head(fields: Any) -> Head:
    """Read a head."""
    for name in ("run", "family"):
        if complaint := complaint_about_id(fields[name]):
            raise ValueError(f"its {name} {fields[name]!r} {complaint}")
    if not isinstance(fields["workflow"], str):
        raise TypeError(f"its workflow is {fields['workflow']!r}")
    for name in ("seq", "token", "created", "updated", "takeovers"):
        _whole_number(fields[name])
    if fields["seq"] > _MOST_CHECKPOINTS:
        raise ValueError(f"it claims {fields['seq']} checkpoints")
    return Head(
        RunId(fields["run"]),
        fields["workflow"],
        RunId(fields["family"]),
        CheckpointId(_bytes(fields["checkpoint"], DIGEST).hex()),
        fields["seq"],
        fields["token"],
        RunStatus(fields["status"]),
        fields["created"],
        fields["updated"],
        wake_at=None if fields["wake_at"] is None else _whole_number(fields["wake_at"]),
        takeovers=fields["takeovers"],
        reason=_read_text(fields["reason"]),
        retention=_text(fields.get("retention", "")),
        waiting_for=_text(fields.get("waiting_for", "")),
        letters_known=_whole_number(fields["letters_known"]),
        fingerprint=_text(fields["fingerprint"]),
        by=_read_text(fields["by"]),
        traceback=_read_text(fields["traceback"]),
        origin=_text(fields["origin"]),
        restored=_whole_number(fields["restored"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"where a text is to be there is {value!r:.50}")
    return value


def _pack_text(text: str) -> bytes:
    """Encode a text that may hold lone surrogates, which MessagePack does not take as text."""
    return text.encode("utf-8", "surrogatepass")


def _read_text(packed: Any) -> str:
    return _bytes(packed).decode("utf-8", "surrogatepass")


def _bytes(value: Any, size: int | None = None) -> bytes:
    if not isinstance(value, bytes) or (size is not None and len(value) != size):
        raise TypeError(f"where bytes are to be there is {value!r:.50}")
    return value


def _whole_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _GREATEST:
        raise ValueError(f"where a number is to be there is {value!r:.50}")
    return value
