"""Bugs on purpose in what keeps a store under keys: tampering must show each of them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from holdfast.checkpoint.keys.anchor import AnchorCheck
from tests.support.modules import line, sealed_heads, sealed_items, sealed_store, sealing_cipher


class CarelessCipher:
    """Decrypts whatever it is given, and looks at no tag."""

    def __init__(self, key: bytes) -> None:
        self._key, genuine = key, AESGCM(key)
        self.encrypt, self.encrypt_into = genuine.encrypt, genuine.encrypt_into

    def decrypt(self, nonce: bytes, sealed: Any, place: bytes | None) -> bytes:
        cipher = Cipher(AES(self._key), CTR(bytes(nonce) + b"\x00\x00\x00\x02")).decryptor()
        return cipher.update(bytes(sealed)[:-16]) + cipher.finalize()


_genuine_pack = sealed_items._pack
PLANTED: dict[str, list[tuple[Any, str, Any]]] = {
    "no tag is checked": [(sealing_cipher, "AESGCM", CarelessCipher)],
    "no run is bound": [
        (sealing_cipher.StoreCipher, "derive", lambda self, secret, kind, owner: secret),
        (sealed_store, "new_incarnation", lambda: bytes(12)),
    ],
    "no blob name is bound": [(sealing_cipher, "_segment_place", lambda name, number, count: b"")],
    "no column of a head is bound": [(sealed_items, "_head_place", lambda head: b"head")],
    "no place is bound": [
        (sealed_items, "_pack", lambda value: b"" if isinstance(value, tuple) else _genuine_pack(value))
    ],
    "no note is covered": [
        (module, "digest_journal", lambda codes: b"") for module in (sealed_heads, sealed_store)
    ],
    "no incarnation is bound": [(sealed_store, "new_incarnation", lambda: bytes(12))],
    "no anchor is asked": [(AnchorCheck, "accepts", lambda *_: True)],
    "no deletion is remembered": [(AnchorCheck, "gone", lambda *_: None)],
    "no line is summed": [(line, "_sum_of", lambda file_id, summed: b"0" * 16)],
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug, or none."""
    with ExitStack() as stack:
        for place, name, bad in PLANTED[bug] if bug else ():
            stack.enter_context(patch.object(place, name, bad))
        yield
