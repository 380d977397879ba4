"""Seals: small digests by which a store notices that something was changed that no id covers.

The id of a checkpoint covers what it holds, and a keyframe has seals of its own. What is left is where a run stands,
tags, sizes, notes and letters. A seal guards against bad disks and mistakes, not against people: anyone can compute it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ormsgpack

from holdfast.checkpoint.format.record import hashed
from holdfast.checkpoint.store import Head, Record

# 48 bits: JSON and SQLite have them as a number, and their sums do not overflow.
_BYTES = 6
MODULUS = 1 << 8 * _BYTES
"""Sums of seals are taken modulo this."""


_from_bytes = int.from_bytes  # asking int for it each time takes as long as using it


# Where every commit needs a seal it is written out: a call costs as much as packing one field or two.
def _seal(packed: bytes) -> int:
    return _from_bytes(hashed(packed, _BYTES), "big")


def _text(text: str) -> bytes:
    """Any text, also with half a character, as bytes."""
    return text.encode("utf-8", "surrogatepass")


def seal_record(record: Record) -> int:
    """Over what the id of a record does not cover: its size, its tags, and whether it has a keyframe."""
    keyframe = record.keyframe
    cut = None if keyframe is None else keyframe.cut
    return seal_record_parts(record.checkpoint_id, record.seq, record.new_bytes, record.tags, cut)


def seal_record_parts(
    checkpoint_id: str, seq: int, new_bytes: int, tags: Sequence[str], cut: bool | None
) -> int:
    """The same from its parts; ``cut`` is None without a keyframe."""
    name = checkpoint_id.encode("utf-8", "surrogatepass")
    packed = ormsgpack.packb((name, seq, new_bytes, [_text(tag) for tag in tags] if tags else (), cut))
    return _from_bytes(hashed(packed, _BYTES), "big")


def seal_entry(run_id: str, kind: str, key: str, data: bytes | None, order: int = 0) -> int:
    """Over a note or a letter of a run; one that was taken has no data. ``order`` is what they are ordered by."""
    return _seal(ormsgpack.packb([_text(run_id), kind, _text(key), data, order]))


def seal_head(namespace: str, head: Head, content: int) -> int:
    """Over where a run stands, and over the sum of the seals of all that belongs to it."""
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
                content,
            )
        )
    except (
        AttributeError,
        UnicodeEncodeError,
    ):  # what is no text where one should be, or has half a character
        fields = [_text(part) if isinstance(part, str) else part for part in head]
        packed = ormsgpack.packb([_text(namespace), *fields, content])
    return _from_bytes(hashed(packed, _BYTES), "big")


def seal_document(document: dict[str, Any]) -> int:
    """Over a JSON document; what it holds and has seals of its own is covered by those."""
    whole = {
        name: [item.get("seal") for item in part] if name in _SEALED else part
        for name, part in document.items()
        if name != "seal"
    }
    return _seal(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


_SEALED = frozenset(["records", "notes", "letters"])
