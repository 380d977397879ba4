"""Seals: small digests that show a store changes of data which no id covers.

The id of a checkpoint covers its content, and a keyframe has seals of its own. Seals cover the rest: heads, tags,
sizes, notes and letters. A seal guards against bad disks and mistakes, not against people: anyone can compute it.
"""

from __future__ import annotations

from collections.abc import Sequence

import ormsgpack

from holdfast.checkpoint.format.record import hash_bytes
from holdfast.checkpoint.store import Head, Record

# 48 bits: JSON and SQLite have them as a number, and their sums do not overflow.
_BYTES = 6
MODULUS = 1 << 8 * _BYTES
"""Sums of seals are taken modulo this."""


_from_bytes = int.from_bytes  # looking it up each time takes as long as calling it


# Written out where every commit needs a seal: a call costs as much as packing one field or two.
def _seal(packed: bytes) -> int:
    return _from_bytes(hash_bytes(packed, _BYTES), "big")


def _encode(text: str) -> bytes:
    """Encode any text, also one with half a character."""
    return text.encode("utf-8", "surrogatepass")


def seal_record(record: Record) -> int:
    """Seal the fields of a record that its id does not cover: its size, its tags, and the kind of its keyframe."""
    keyframe = record.keyframe
    cut = None if keyframe is None else keyframe.cut
    return seal_record_parts(record.checkpoint_id, record.seq, record.new_bytes, seal_tags(record), cut)


def seal_tags(record: Record) -> Sequence[bytes | list[bytes]]:
    """Return the tags of a record as its seal covers them, each with who gave it if that was said."""
    givers = record.tagged_by
    return [
        [_encode(tag), _encode(givers[tag])] if tag in givers else _encode(tag) for tag in record.tags or ()
    ]


def seal_record_parts(
    checkpoint_id: str, seq: int, new_bytes: int, tags: Sequence[bytes | list[bytes]], cut: bool | None
) -> int:
    """Seal a record that is given by its fields.

    ``tags`` come from ``seal_tags``, ``cut`` is None without a keyframe.
    """
    name = checkpoint_id.encode("utf-8", "surrogatepass")
    packed = ormsgpack.packb((name, seq, new_bytes, tags, cut))
    return _from_bytes(hash_bytes(packed, _BYTES), "big")


def seal_entry(run_id: str, kind: str, key: str, data: bytes | None, order: int = 0) -> int:
    """Seal a note or letter of a run; a taken letter has no data. ``order`` is the number by which they are sorted."""
    return _seal(ormsgpack.packb([_encode(run_id), kind, _encode(key), data, order]))


def seal_head(namespace: str, head: Head, content: int) -> int:
    """Seal a head together with ``content``, the sum of the seals of all that belongs to the run."""
    (
        run,
        workflow,
        family,
        place,
        seq,
        token,
        status,
        created,
        updated,
        owner,
        wake,
        takeovers,
        reason,
        kept,
        waits,
        letters,
        fingerprint,
        by,
        traceback,
        origin,
        restored,
    ) = head
    try:
        packed = ormsgpack.packb(
            (
                namespace.encode(),
                run.encode(),
                workflow.encode(),
                family.encode(),
                place.encode(),
                seq,
                token,
                status.encode(),
                created,
                updated,
                owner.encode(),
                wake,
                takeovers,
                reason.encode(),
                kept.encode(),
                waits.encode(),
                letters,
                fingerprint.encode(),
                by.encode(),
                traceback.encode(),
                origin.encode(),
                restored,
                content,
            )
        )
    except (
        AttributeError,
        UnicodeEncodeError,
    ):  # a field is no text though it should be, or has half a character
        fields = [_encode(part) if isinstance(part, str) else part for part in head]
        packed = ormsgpack.packb([_encode(namespace), *fields, content])
    return _from_bytes(hash_bytes(packed, _BYTES), "big")
