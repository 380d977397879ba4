"""Records as bytes: header, id, and the stored form of their parts."""

from __future__ import annotations

import ormsgpack
import zstandard
from blake3 import blake3

from holdfast.checkpoint.info import CheckpointInfo, Header, end_id, header_at
from holdfast.checkpoint.store import Blob, Record
from holdfast.errors import CheckpointCorrupt, LimitExceeded
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


# The first byte of whatever is stored says how to read the rest.
RAW, COMPRESSED, ELSEWHERE = b"\x00", b"\x01", b"\x02"
LARGEST_PART = 256 * 1024
"""A part of a record that is bigger than this becomes a blob, so that every backend can take the commit."""

WORTH_COMPRESSING = 1024
"""Parts that are smaller than this are stored as they are."""
_LEVEL = 1
# No part of a record, and no value, is bigger than this when unpacked; a small frame must not claim gigabytes.
LARGEST = 1 << 31


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
    return CheckpointInfo(record.checkpoint_id, read_header(record), record.new_bytes, record.tags)


def blob_of(plain: bytes) -> tuple[bytes, Blob]:
    """Return the stored form of a part that lies elsewhere, and the blob that holds it."""
    digest = digest_of(plain)
    return ELSEWHERE + digest, Blob(digest, stored_form(plain))


def stored_form(data: bytes) -> bytes:
    """Return ``data`` as it is stored: compressed where that saves a tenth; nothing stays nothing.

    Raise ``LimitExceeded`` for more than can be read again.
    """
    if len(data) >= WORTH_COMPRESSING:
        if len(data) > LARGEST:
            raise LimitExceeded(
                "max_value_size",
                LARGEST,
                f"a checkpoint has {len(data):,} bytes in one piece, more than the {LARGEST:,} that can be read "
                f"again; keep large values outside and pass references, or send fewer small ones at once",
            )
        smaller = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
        if len(smaller) * 10 <= len(data) * 9:
            return COMPRESSED + smaller
    return RAW + data if data else b""


def plain_form(stored: bytes, size: int | None = None) -> bytes:
    """Return the data of a stored form; raise ``ValueError`` if it is none. A part elsewhere must be fetched first.

    ``size`` is the size that a ref names: any other is refused before it is unpacked.
    """
    if not stored:
        return b""
    form, rest = stored[:1], stored[1:]
    if form == RAW:
        if size is not None and len(rest) != size:
            raise ValueError(f"it has {len(rest)} bytes, though it should have {size}")
        return rest
    if form != COMPRESSED:
        raise ValueError(f"byte 0 is {form.hex()}, which is no form that can be read")
    claimed = claimed_size(rest, len(rest))
    if size is not None and claimed != size:
        raise ValueError(f"a compressed frame claims {claimed} bytes, though it should have {size}")
    try:
        return zstandard.ZstdDecompressor().decompress(rest, max_output_size=claimed)
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed frame is broken: {error}") from error


def claimed_size(begin: bytes, length: int) -> int:
    """Read from the begin of a compressed frame how much it holds; raise ``ValueError`` if that cannot be true.

    ``length`` is that of the whole frame. Nothing is unpacked, and no memory taken, for what a frame merely claims.
    """
    try:
        claimed = int(zstandard.frame_content_size(begin))
    except zstandard.ZstdError as error:
        raise ValueError(f"a compressed frame is broken: {error}") from error
    # Each block takes four bytes at least, and holds no more than 128 KiB.
    if not 0 <= claimed <= min(LARGEST, (length // 4 + 1) << 17):
        raise ValueError(f"a compressed frame of {length} bytes claims {claimed}")
    return claimed


def plain_size(stored: bytes) -> int:
    """Return the size of the data of a stored form that can be read."""
    if stored[:1] == COMPRESSED:
        return int(zstandard.frame_content_size(stored[1:]))
    return max(len(stored) - 1, 0)


def elsewhere(stored: bytes) -> Digest | None:
    """Return the digest of the blob that holds the data; None if it stands here."""
    return Digest(stored[1:]) if stored[:1] == ELSEWHERE else None
