"""A file that is encrypted chunk by chunk: written once from its begin to its end, then read at any place.

It begins with a mark of 16 bytes, a length (4 bytes, little-endian) and MessagePack ``[1, key id, wrapped key]``. Then
come chunks of 64 KiB, each with a tag of 16 bytes; the last one is marked as that, so that a cut file is noticed.
"""

from __future__ import annotations

import secrets
from io import SEEK_CUR, SEEK_END, SEEK_SET
from typing import BinaryIO

import ormsgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.checkpoint.keys.keyring import KEY_BYTES, NONCE_BYTES, Keyring
from holdfast.errors import CheckpointUntrusted

_CHUNK = 1 << 16
_TAG_BYTES = 16
_STORED = _CHUNK + _TAG_BYTES
_LENGTH = 4
_LARGEST_BEGIN = 1 << 16
_VERSION = 1
_PLACE = b"holdfast exported run"


class SealedFile:
    """Reads and writes the plain bytes of an encrypted file, as much as exports need of a file."""

    def __init__(self, file: BinaryIO, name: str, key: bytes, begin: int) -> None:
        self._file, self._name, self._begin = file, name, begin
        self._cipher = AESGCM(key)
        self._unwritten = bytearray()
        self._written = 0
        self._size: int | None = None
        self._place = 0
        self._known: tuple[int, bytes] = (-1, b"")
        """The chunk that was read last, by its number."""

    @classmethod
    def create(cls, file: BinaryIO, name: str, keys: Keyring, mark: bytes) -> SealedFile:
        """Begin an empty file with a key of its own, which the first key of a keyring wraps."""
        key = secrets.token_bytes(KEY_BYTES)
        key_id, wrapped = keys.wrap(key, _PLACE)
        packed = ormsgpack.packb([_VERSION, key_id, wrapped])
        file.write(mark + len(packed).to_bytes(_LENGTH, "little") + packed)
        return cls(file, name, key, len(mark) + _LENGTH + len(packed))

    @classmethod
    def open(cls, file: BinaryIO, name: str, keys: Keyring, mark: bytes) -> SealedFile:
        """Open a file that ``create`` began; raise ``CheckpointUntrusted`` if the keyring does not open it."""
        file.seek(len(mark))
        size = int.from_bytes(file.read(_LENGTH), "little")
        try:
            version, *content = ormsgpack.unpackb(file.read(min(size, _LARGEST_BEGIN)))
            if type(version) is int and version > _VERSION:
                raise CheckpointUntrusted(
                    f"{name} has format {version}, but this version of Holdfast reads format {_VERSION}; nothing was "
                    f"changed. Use a newer version of Holdfast"
                )
            key_id, wrapped = content
            if version != _VERSION or not isinstance(key_id, str) or not isinstance(wrapped, bytes):
                raise ValueError("it names no key")
        except (ValueError, TypeError) as error:
            raise CheckpointUntrusted(f"{name} does not begin as an encrypted file does: {error}") from error
        key = keys.unwrap({key_id: wrapped}, _PLACE, name)
        opened = cls(file, name, key, len(mark) + _LENGTH + size)
        opened._measure(file.seek(0, SEEK_END))
        return opened

    # Writing.

    def write(self, data: bytes) -> int:
        """Add bytes at the end of the file."""
        self._unwritten += data
        while len(self._unwritten) > _CHUNK:  # the last one is written by ``finish``
            self._write_chunk(bytes(self._unwritten[:_CHUNK]), is_last=False)
            del self._unwritten[:_CHUNK]
        return len(data)

    def finish(self) -> None:
        """Write the last chunk; from now on the file is read."""
        self._write_chunk(bytes(self._unwritten), is_last=True)
        self._unwritten.clear()
        self._file.flush()
        self._measure(self._file.seek(0, SEEK_END))

    def _write_chunk(self, data: bytes, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce_of(self._written), data, _place_of(is_last)))
        self._written += 1

    # Reading.

    def _measure(self, end: int) -> None:
        chunks, rest = divmod(end - self._begin, _STORED)
        self._written = chunks + (1 if rest else 0)
        self._size = max(end - self._begin - self._written * _TAG_BYTES, 0)

    def tell(self) -> int:
        """Return the place from which is read next."""
        return self._place

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Go to a place in the plain bytes."""
        assert self._size is not None
        base = {SEEK_SET: 0, SEEK_CUR: self._place, SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return plain bytes, fewer only at the end; raise ``CheckpointUntrusted`` if they were not written so."""
        assert self._size is not None
        end = self._size if size < 0 else min(self._place + size, self._size)
        pieces = []
        while self._place < end:
            number, first = divmod(self._place, _CHUNK)
            piece = self._read_chunk(number)[first : first + end - self._place]
            pieces.append(piece)
            self._place += len(piece)
        return b"".join(pieces)

    def _read_chunk(self, number: int) -> bytes:
        if self._known[0] == number:
            return self._known[1]
        self._file.seek(self._begin + number * _STORED)
        stored = self._file.read(_STORED)
        try:
            data = self._cipher.decrypt(_nonce_of(number), stored, _place_of(number == self._written - 1))
        except (InvalidTag, ValueError) as error:
            raise CheckpointUntrusted(
                f"{self._name} was cut, damaged, or changed by somebody without its key, near byte "
                f"{self._begin + number * _STORED}; export the run again"
            ) from error
        self._known = (number, data)
        return data


def _nonce_of(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def _place_of(is_last: bool) -> bytes:
    return b"last" if is_last else b"chunk"
