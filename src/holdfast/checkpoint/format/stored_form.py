"""The stored form of bodies: a byte that says how to read the rest, then the body as it is, compressed, or elsewhere.

Parts of records, blobs, notes and letters all pass through here on their way to a store and back. Compression lives
here; the form ``0x03`` is that of ``checkpoint/keys/cipher.py``, which seals what a store under keys is given. The
first byte is also looked at by ``blob_stream``, ``read.loader``, ``write.bundles`` and the lines of the file store.
"""

from __future__ import annotations

import zstandard

from holdfast.checkpoint.format.record import digest_of
from holdfast.checkpoint.store import Blob
from holdfast.errors import LimitExceeded
from holdfast.ids import Digest

# The first byte of whatever is stored says how to read the rest.
RAW, COMPRESSED, ELSEWHERE = b"\x00", b"\x01", b"\x02"
LARGEST_PART = 256 * 1024
"""A part of a record that is bigger than this becomes a blob, so that every backend can take the commit."""

WORTH_COMPRESSING = 1024
"""Parts that are smaller than this are stored as they are."""
_LEVEL = 1
# No part of a record, and no value, is bigger than this when unpacked; a small frame must not claim gigabytes.
LARGEST = 1 << 31


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
