"""Seals bytes for one store: with a key for each run, and for each family of blobs, that derives from that of an epoch.

A sealed piece is the form ``0x03``, the epoch (2 bytes), a nonce (12 bytes), and the ciphertext with its tag. The key
says the store, the namespace and the run; what else a piece belongs to is authenticated with it, as its *place*.
"""

from __future__ import annotations

import os
from base64 import b64decode, urlsafe_b64encode
from typing import TypeVar, cast

import ormsgpack
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.checkpoint.keys.key_box import StoreKeys
from holdfast.checkpoint.keys.keyring import NONCE_BYTES

SEALED = b"\x03"
_TAG_BYTES = 16
_PREFIX_BYTES = 3 + NONCE_BYTES
SEAL_BYTES = _PREFIX_BYTES + _TAG_BYTES
"""The bytes that sealing adds to a piece."""
SEGMENT = 1 << 20
"""Blobs are sealed in segments of this size: the interpreter is held while one is sealed."""
_NAME_BYTES = 18
_REMEMBERED = 2_000
_T = TypeVar("_T")


class NotSealed(ValueError):
    """Raised for a piece that nobody with the keys of the store sealed for its place."""


class UnknownEpoch(NotSealed):
    """Raised for a piece that names an epoch whose key is not known."""


def encode_any(text: str) -> bytes:
    """Encode any text, also one with half a character."""
    return text.encode("utf-8", "surrogatepass")


def decode_any(data: bytes) -> str:
    """Decode what ``encode_any`` gave."""
    return data.decode("utf-8", "surrogatepass")


class StoreCipher:
    """Gives the ciphers of the runs and families of a store in one namespace."""

    def __init__(self, keys: StoreKeys, store_id: str, namespace: str, is_latest: bool = False) -> None:
        self.keys = keys
        self.store_id = store_id
        self.namespace = namespace
        self.is_latest = is_latest
        """True if the keys were read just now: then a piece of an unknown epoch is not sealed."""
        self._runs: dict[str, RunCipher] = {}
        self._families: dict[str, FamilyCipher] = {}

    def run(self, run_id: str) -> RunCipher:
        """Return the cipher of a run."""
        return self._runs.get(run_id) or _remember(self._runs, run_id, RunCipher(self, run_id))

    def family(self, family: str) -> FamilyCipher:
        """Return the cipher of the blobs of a family."""
        return self._families.get(family) or _remember(self._families, family, FamilyCipher(self, family))

    def derive(self, secret: bytes, kind: str, owner: str) -> bytes:
        """Return the key for something of a run or family."""
        place = ormsgpack.packb([kind, self.store_id, encode_any(self.namespace), encode_any(owner)])
        return blake3(place, key=secret).digest()

    def derive_name(self, kind: str, owner: str) -> bytes:
        """Return the key for names of something of a run or family, which stays when the store is rekeyed."""
        return self.derive(self.keys.names, kind, owner)


def _remember(known: dict[str, _T], name: str, made: _T) -> _T:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[name] = made
    return made


class _EpochCiphers:
    """The ciphers of one run or family, by epoch."""

    def __init__(self, store: StoreCipher, kind: str, owner: str) -> None:
        self._store, self._kind, self._owner = store, kind, owner
        self._by_prefix: dict[bytes, AESGCM] = {}
        self.prefix = SEALED + store.keys.epoch.to_bytes(2, "big")
        self.current = self.find(self.prefix)

    def find(self, prefix: bytes) -> AESGCM:
        """Return the cipher for a piece that begins so; raise ``NotSealed`` if there is none."""
        cipher = self._by_prefix.get(prefix)
        if cipher is None:
            if prefix[:1] != SEALED or len(prefix) != 3:
                raise NotSealed("it is not sealed")
            secret = self._store.keys.epochs.get(int.from_bytes(prefix[1:], "big"))
            if secret is None:
                kind = NotSealed if self._store.is_latest else UnknownEpoch
                raise kind("its key is not one that the storage has now")
            cipher = AESGCM(self._store.derive(secret, self._kind, self._owner))
            self._by_prefix[prefix] = cipher
        return cipher


class RunCipher:
    """Seals what belongs to one run."""

    def __init__(self, store: StoreCipher, run_id: str) -> None:
        self._ciphers = _EpochCiphers(store, "run", run_id)
        self._encrypt = self._ciphers.current.encrypt
        self._prefix = self._ciphers.prefix
        self._find = self._ciphers.find
        self._names: bytes = store.derive_name("names", run_id)
        self._tags = AESGCM(store.derive_name("tags", run_id))

    def seal(self, place: bytes, data: bytes) -> bytes:
        """Return data sealed for a place."""
        nonce = os.urandom(NONCE_BYTES)
        return self._prefix + nonce + self._encrypt(nonce, data, place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """Return the data of a piece; raise ``NotSealed`` if it was not sealed for this place."""
        cipher = self._find(sealed[:3])
        try:
            return cipher.decrypt(sealed[3:_PREFIX_BYTES], sealed[_PREFIX_BYTES:], place)
        except (InvalidTag, ValueError) as error:
            raise NotSealed("it is not what was sealed here") from error

    def seal_text_of(self, place: bytes, data: bytes) -> str:
        """Return data sealed for a place, as text."""
        return urlsafe_b64encode(self.seal(place, data)).decode()

    def blind(self, kind: bytes, key: str) -> str:
        """Return the name under which a note or letter is stored: the same for the same key, and nothing of it."""
        digest = blake3(kind + encode_any(key), key=self._names).digest(_NAME_BYTES)
        return urlsafe_b64encode(digest).decode()

    def seal_tag(self, place: bytes, tag: str) -> str:
        """Return a tag sealed so that the same tag for the same place is always the same text."""
        plain = encode_any(tag)
        nonce = blake3(b"tag" + place + plain, key=self._names).digest(NONCE_BYTES)
        return urlsafe_b64encode(nonce + self._tags.encrypt(nonce, plain, place)).decode()

    def open_tag(self, place: bytes, sealed: str) -> str:
        """Return a tag; raise ``NotSealed`` if it was not sealed for this place."""
        piece = decode_piece(sealed)
        try:
            return decode_any(self._tags.decrypt(piece[:NONCE_BYTES], piece[NONCE_BYTES:], place))
        except (InvalidTag, ValueError) as error:
            raise NotSealed("it is not what was sealed here") from error


class FamilyCipher:
    """Names and seals the blobs of one family.

    A name is a permutation of the digest by four rounds with a keyed hash, so that it can be turned back: whoever
    removes blobs is given names by the store, and knows digests.
    """

    def __init__(self, store: StoreCipher, family: str) -> None:
        self._ciphers = _EpochCiphers(store, "family", family)
        names = store.derive_name("blobs", family)
        self._rounds = [blake3(bytes([number]), key=names).digest() for number in range(4)]

    def name(self, digest: bytes) -> bytes:
        """Return the name under which the blob with a digest is stored."""
        half = len(digest) // 2
        left, right = digest[:half], digest[half:]
        for key in self._rounds:
            left, right = right, _mix(left, right, key)
        return left + right

    def digest(self, name: bytes) -> bytes:
        """Return the digest of the blob that is stored under a name."""
        half = len(name) // 2
        left, right = name[:half], name[half:]
        for key in reversed(self._rounds):
            left, right = _mix(right, left, key), left
        return left + right

    def seal(self, name: bytes, data: bytes) -> bytes:
        """Return the data of a blob sealed for its name, segment by segment."""
        nonce, count = os.urandom(NONCE_BYTES), _count_segments(len(data), SEGMENT)
        sealed = bytearray(_PREFIX_BYTES + len(data) + count * _TAG_BYTES)
        sealed[:_PREFIX_BYTES] = self._ciphers.prefix + nonce
        encrypt_into, plain, room = self._ciphers.current.encrypt_into, memoryview(data), memoryview(sealed)
        room = room[_PREFIX_BYTES:]
        for number in range(count):
            segment, plain = plain[:SEGMENT], plain[SEGMENT:]
            size = len(segment) + _TAG_BYTES
            place = _segment_place(name, number, count)
            encrypt_into(_nonce_of(nonce, number), segment, place, room[:size])
            room = room[size:]
        # Stores write whatever has the bytes; another copy of a large value takes as long as sealing it.
        return bytes(sealed) if count == 1 else cast(bytes, sealed)

    def open(self, name: bytes, sealed: bytes) -> bytes:
        """Return the data of a blob; raise ``NotSealed`` if it was not sealed for this name."""
        cipher = self._ciphers.find(bytes(sealed[:3]))
        nonce, view = sealed[3:_PREFIX_BYTES], memoryview(sealed)[_PREFIX_BYTES:]
        length = SEGMENT + _TAG_BYTES
        count = _count_segments(len(view), length)
        try:
            return b"".join(
                cipher.decrypt(
                    _nonce_of(nonce, number),
                    view[number * length : (number + 1) * length],
                    _segment_place(name, number, count),
                )
                for number in range(count)
            )
        except (InvalidTag, ValueError) as error:
            raise NotSealed("it is not what was sealed here") from error


def _mix(left: bytes, right: bytes, key: bytes) -> bytes:
    mask = blake3(right, key=key).digest(len(left))
    return (int.from_bytes(left, "big") ^ int.from_bytes(mask, "big")).to_bytes(len(left), "big")


def _count_segments(size: int, segment: int) -> int:
    return max(1, -(-size // segment))


def _nonce_of(nonce: bytes, number: int) -> bytes:
    if not number:
        return nonce
    return (int.from_bytes(nonce, "big") ^ number).to_bytes(NONCE_BYTES, "big")


def _segment_place(name: bytes, number: int, count: int) -> bytes:
    return name + number.to_bytes(4, "big") + count.to_bytes(4, "big")


def decode_piece(text: str) -> bytes:
    """Return the bytes of a piece that was stored as text; raise ``NotSealed`` if it is none."""
    try:
        return b64decode(text.encode("ascii"), b"-_", validate=True)
    except ValueError as error:
        raise NotSealed("it is not sealed") from error
