"""How bytes stand in a JSON document: shown as JSON if that gives back the same bytes, in base64 otherwise."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

import zstandard

from holdfast.checkpoint.format.record import COMPRESSED, ELSEWHERE, RAW, plain_form
from holdfast.stores.file.readable import Unreadable, packed_from, shown

_DIGEST_BYTES = 32
# Larger compressed parts are not also shown.
_LARGEST_SHOWN = 256 * 1024


def put_packed(document: dict[str, Any], name: str, packed: bytes) -> None:
    """Add MessagePack."""
    try:
        document[name] = shown(packed)
    except Unreadable:
        document[f"{name}_base64"] = b64encode(packed).decode()


def packed_in(document: dict[str, Any], name: str) -> bytes:
    """The MessagePack that was added so."""
    encoded = document.get(f"{name}_base64")
    return packed_from(document[name]) if encoded is None else b64decode(encoded, validate=True)


def put_part(document: dict[str, Any], name: str, part: bytes) -> None:
    """Add a part in its stored form; an empty one is left out."""
    if part[:1] == RAW:
        try:
            document[name] = shown(part[1:])
            return
        except Unreadable:
            pass
    if part[:1] == ELSEWHERE and len(part) == 1 + _DIGEST_BYTES:
        document[f"{name}_blob"] = part[1:].hex()
    elif part:
        document[f"{name}_base64"] = b64encode(part).decode()
        _put_comment(document, name, part)


def _put_comment(document: dict[str, Any], name: str, part: bytes) -> None:
    """Show what is compressed; it is not read back, for another compressor would make other bytes of it."""
    if part[:1] != COMPRESSED:
        return
    try:
        if zstandard.frame_content_size(part[1:]) <= _LARGEST_SHOWN:
            document[f"#{name}"] = shown(plain_form(part))
    except (ValueError, zstandard.ZstdError):
        pass


def part_in(document: dict[str, Any], name: str) -> bytes:
    """The stored form of a part that was added so."""
    if name in document:
        return RAW + packed_from(document[name])
    blob = document.get(f"{name}_blob")
    if blob is not None:
        return ELSEWHERE + bytes.fromhex(blob)
    return b64decode(document.get(f"{name}_base64", ""), validate=True)


def text_document(text: str) -> str | dict[str, str]:
    """A text as it stands in a file."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # JSON would make one character of two halves that came apart
        return {"base64": b64encode(text.encode("utf-8", "surrogatepass")).decode()}


def text_from(document: Any) -> str:
    """The text that stands so in a file."""
    if isinstance(document, str):
        return document
    return b64decode(document["base64"], validate=True).decode("utf-8", "surrogatepass")


def quoted(text: str) -> bytes:
    """How a text stands in a commit file; for one that cannot stand there, something that does not either."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def list_in(document: Any, name: str) -> list[Any]:
    """The items of a list, none where there is no list; raises ``ValueError``."""
    items = document.get(name, [])
    if not isinstance(items, list):
        raise ValueError(f"{name} is no list")
    return items
