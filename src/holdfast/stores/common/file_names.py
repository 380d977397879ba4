"""File names for ids of users."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

_PLAIN = re.compile(r"[a-z0-9_-](?:[a-z0-9._-]{0,98}[a-z0-9_-])?")
_UNSAFE = re.compile(r"[^a-z0-9_-]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_READABLE_CHARACTERS = 60


@lru_cache(4096)
def make_file_name(text: str) -> str:
    """Return a file name for ``text``: valid on every file system, unique for each text, never a way out of a folder.

    Lowercase names stay as they are. All others get a digest, because file systems may ignore case, normalize
    letters, or refuse lengths and names.

    >>> make_file_name("triage-eu.2024")
    'triage-eu.2024'
    >>> make_file_name("Order 17")
    'order_17~bab548482b176ab83b84f378383f12c3'
    >>> make_file_name("..")
    '__~c577bd8f25028e3bfd5dcb065343514b'
    """
    if _PLAIN.fullmatch(text) and not _DEVICE.fullmatch(text):
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{_UNSAFE.sub('_', text.lower())[:_READABLE_CHARACTERS]}~{digest}"
