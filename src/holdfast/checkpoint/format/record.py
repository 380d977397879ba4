"""Records as bytes: header, id, and the seals of keyframes; ``stored_form`` has their bodies."""

from __future__ import annotations

import ormsgpack
from blake3 import blake3

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, Header, Marks, end_id, header_at
from holdfast.checkpoint.store import Record
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, Digest

_spare: list[blake3] = []
"""Hashers that are not in use: making one takes longer than hashing a record."""


def hash_bytes(data: bytes, length: int = 32) -> bytes:
    """Return the digest of ``data``, or the first bytes of it.

    Safe in any thread, and in a finalizer that interrupts it: a hasher in use is nowhere else.

    >>> hash_bytes(b"") == blake3(b"").digest()
    True
    """
    try:
        hasher = _spare.pop()
    except IndexError:
        hasher = blake3()
    hasher.update(data)
    digest = hasher.digest(length)
    hasher.reset()
    _spare.append(hasher)
    return digest


def digest_of(data: bytes) -> Digest:
    """Return the digest that names a blob with this content."""
    return Digest(hash_bytes(data))


def read_header(record: Record) -> Header:
    """Return the header of a record; raise ``CheckpointCorrupt`` if it cannot be read."""
    try:
        return header_at(record.checkpoint_id, record.header)
    except Exception as error:
        raise corrupt(record.checkpoint_id, f"its header cannot be read: {error}") from error


def corrupt(checkpoint_id: CheckpointId, problem: str) -> CheckpointCorrupt:
    """Return the error for a checkpoint that is not what was stored."""
    return CheckpointCorrupt(
        f"checkpoint {checkpoint_id}: {problem}; the storage was damaged or changed by something else: "
        f"'await storage.verify()' lists what is affected, earlier checkpoints can still be resumed"
    )


def id_of(header: bytes, changes: bytes, values: bytes) -> CheckpointId:
    """Return the id of a record: over its header and the digest of its plain body, with the lowest bit cleared."""
    if changes or values:
        body = hash_bytes(len(changes).to_bytes(8, "little") + changes + values)
    else:
        body = _EMPTY_BODY
    return end_id(hash_bytes(header + body).hex())


def has_start(record: Record) -> bool:
    """Return True if a start is derived from a record: its header ends with what says so."""
    return record.header[-1:] == _TRUE


_TRUE = ormsgpack.packb(True)
# That of a start which is a record.
_EMPTY_BODY = hash_bytes(bytes(8))


def seal_keyframe(checkpoint_id: CheckpointId, changes: bytes, values: bytes) -> bytes:
    """Return the changes of a keyframe with digests of them and of its values."""
    return ormsgpack.packb([_seal(checkpoint_id, changes), _seal(checkpoint_id, values), changes])


def unseal_keyframe(checkpoint_id: CheckpointId, stored: bytes, values: bytes | None) -> bytes:
    """Return the changes of a keyframe; raise ``ValueError`` if they or the values are not those of this checkpoint."""
    for_changes, for_values, changes = ormsgpack.unpackb(stored)
    if for_changes != _seal(checkpoint_id, changes):
        raise ValueError("its content is not what it was")
    if values is not None and for_values != _seal(checkpoint_id, values):
        raise ValueError("its values are not what they were")
    return bytes(changes)


def _seal(checkpoint_id: CheckpointId, part: bytes) -> bytes:
    # A derived start has the keyframe of its end, if that was removed.
    return hash_bytes(bytes.fromhex(end_id(checkpoint_id)) + part)


def info_of(record: Record) -> CheckpointInfo:
    """Return the info of a record: its header, its size and its tags."""
    marks = Marks(record.tags, record.tagged_by)
    return CheckpointInfo(record.checkpoint_id, read_header(record), record.new_bytes, marks)
