"""Readers of stored blobs that unpack piece by piece: a large blob never stands in memory twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, cast

import zstandard
from blake3 import blake3

from holdfast.checkpoint.format.stored_form import COMPRESSED, RAW, claimed_size
from holdfast.ids import Digest

CHUNK = 1 << 20
# The header of a Zstandard frame, which says how much the frame holds, is not longer.
_FRAME_HEADER = 18


class FileSlice:
    """The next ``size`` bytes of a file; ``seen`` is called with everything that is read of them."""

    def __init__(self, file: BinaryIO, size: int, seen: Callable[[bytes], object] | None = None) -> None:
        self._file = file
        self.left = size
        self._seen = seen

    def read(self, size: int = -1) -> bytes:
        """Return ``size`` bytes, fewer only at the end; raise ``EOFError`` if the file ends before the slice does."""
        wanted = self.left if size < 0 else min(size, self.left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise EOFError(f"it ends {wanted - len(data)} bytes too early")
        self.left -= wanted
        if self._seen is not None:
            self._seen(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next bytes without moving forward."""
        place = self._file.tell()
        data = self._file.read(min(size, self.left))
        self._file.seek(place)
        return data


class PlainStream:
    """Reads the plain data of a stored form from a slice; raises ``ValueError`` if the form is not known."""

    def __init__(self, stored: FileSlice) -> None:
        self._stored = stored
        form = stored.read(1)
        self.size = stored.left
        self._read: Callable[[int], bytes] = stored.read
        if form == COMPRESSED:
            self._unpack()
        elif form not in (RAW, b""):
            raise ValueError(f"byte 0 is {form.hex()}, which is no form that can be read")

    def _unpack(self) -> None:
        self.size = claimed_size(self._stored.peek(_FRAME_HEADER), self._stored.left)
        file = cast(BinaryIO, self._stored)  # only its ``read`` is called
        source = zstandard.ZstdDecompressor().stream_reader(file, read_size=CHUNK, closefd=False)
        self._read = source.read

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes of the plain data, fewer only at its end."""
        try:
            return self._read(size)
        except zstandard.ZstdError as error:
            raise ValueError(f"a compressed frame is broken: {error}") from error

    def read_all(self, size: int | None = None) -> bytes:
        """Return all plain data; raise ``ValueError`` if its size is not the expected one."""
        if size is not None and size != self.size:
            raise ValueError(f"it has {self.size} bytes, though it should have {size}")
        data = self.read(self.size)
        if len(data) != self.size or self.read(1):
            raise ValueError("a compressed frame holds another number of bytes than it claims")
        return data

    def compute_digest(self) -> Digest:
        """Return the digest of all plain data; reads the slice to its end."""
        name = blake3()
        rest = self.size
        while rest and (data := self.read(min(CHUNK, rest))):
            name.update(data)
            rest -= len(data)
        if rest or self.read(1):
            raise ValueError("a compressed frame holds another number of bytes than it claims")
        while self._stored.left:
            self._stored.read(CHUNK)
        return Digest(name.digest())
