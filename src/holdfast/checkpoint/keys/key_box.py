"""The key box of a store: its own keys, wrapped by the keys of a keyring.

A store has a secret for names, which stays the same in its life, and for each epoch a key for data. Rekeying begins an
epoch: new data is sealed with its key, and what was sealed in earlier ones can still be opened.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import NamedTuple

import ormsgpack
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.checkpoint.keys.keyring import KEY_BYTES, NONCE_BYTES, Keyring
from holdfast.errors import CheckpointUntrusted

_VERSION = 1
LAST_EPOCH = 0xFFFF
_FINGERPRINT = 16


class StoreKeys(NamedTuple):
    """The secrets of a store."""

    names: bytes
    """Names blobs, notes, letters and tags; never replaced."""
    epochs: Mapping[int, bytes]
    """The keys for data, by the number of their epoch; new data is sealed with that of the greatest."""

    @property
    def epoch(self) -> int:
        """The epoch in which new data is sealed."""
        return max(self.epochs)

    @property
    def fingerprints(self) -> dict[int, str]:
        """A name for each key for data, by which it is known again; tells nothing of the key."""
        context = "holdfast fingerprint of an epoch"
        return {
            epoch: blake3(key, derive_key_context=context).hexdigest()[:_FINGERPRINT]
            for epoch, key in self.epochs.items()
        }

    def begin_epoch(self) -> StoreKeys:
        """Return the secrets with one more epoch."""
        if self.epoch == LAST_EPOCH:
            raise CheckpointUntrusted(
                f"the store was rekeyed {LAST_EPOCH:,} times; copy it to a new one instead"
            )
        return self._replace(epochs={**self.epochs, self.epoch + 1: secrets.token_bytes(KEY_BYTES)})


def new_store_keys() -> StoreKeys:
    """Draw the secrets of a new store."""
    return StoreKeys(secrets.token_bytes(KEY_BYTES), {1: secrets.token_bytes(KEY_BYTES)})


def close_box(keys: StoreKeys, ring: Keyring, store_id: str) -> str:
    """Return the secrets of a store as text that the first key of a keyring opens."""
    place = store_id.encode()
    key, nonce = secrets.token_bytes(KEY_BYTES), os.urandom(NONCE_BYTES)
    content = ormsgpack.packb([keys.names, sorted(keys.epochs.items())])
    sealed = nonce + AESGCM(key).encrypt(nonce, content, place)
    key_id, wrapped = ring.wrap(key, place)
    return b64encode(ormsgpack.packb([_VERSION, {key_id: wrapped}, sealed])).decode()


def open_box(box: str, ring: Keyring, store_id: str, name: str) -> StoreKeys:
    """Return the secrets of a store; raise ``CheckpointUntrusted`` if the keyring does not open them."""
    wrapped, sealed = _read_box(box, name)
    place = store_id.encode()
    key = ring.unwrap(wrapped, place, name)
    try:
        content = AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
        names, epochs = ormsgpack.unpackb(content)
        return StoreKeys(names, dict(epochs))
    except (InvalidTag, ValueError, TypeError) as error:
        raise _broken(name) from error


def _read_box(box: str, name: str) -> tuple[dict[str, bytes], bytes]:
    try:
        version, *content = ormsgpack.unpackb(b64decode(box, validate=True))
        if type(version) is int and version > _VERSION:
            raise CheckpointUntrusted(
                f"the keys that lie in {name} have format {version}, but this version of Holdfast reads format "
                f"{_VERSION}; nothing was changed. Use a newer version of Holdfast"
            )
        wrapped, sealed = content
        if version != _VERSION or not isinstance(sealed, bytes):
            raise ValueError("it is no key box")
        if not all(isinstance(key_id, str) and isinstance(key, bytes) for key_id, key in wrapped.items()):
            raise ValueError("it has no wrapped keys")
        return wrapped, sealed
    except (ValueError, TypeError, AttributeError) as error:
        raise _broken(name) from error


def _broken(name: str) -> CheckpointUntrusted:
    return CheckpointUntrusted(
        f"the keys that lie in {name} are not what was stored, so nothing in it can be trusted; "
        f"restore it from a backup"
    )
