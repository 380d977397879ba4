"""Typed ids: a run id cannot be passed where an executor id is meant."""

from __future__ import annotations

from typing import NewType

ExecutorId = NewType("ExecutorId", str)
RunId = NewType("RunId", str)
RequestId = NewType("RequestId", str)
CheckpointId = NewType("CheckpointId", str)
"""64 hexadecimal digits."""
Digest = NewType("Digest", bytes)
"""The 32 bytes of a BLAKE3 digest."""

# Kept for the paths of nested workflows ("sub#2/inner").
RESERVED_IN_IDS = "/#"
LONGEST_ID = 200


def complaint_about_id(text: object) -> str | None:
    """Return the reason why ``text`` cannot be an id, or None if it can.

    >>> complaint_about_id("triage-eu")
    >>> complaint_about_id("a/b")
    "contains '/', which is kept for the paths of nested workflows"
    """
    if not isinstance(text, str):
        return f"is a {type(text).__name__}, not a str"
    if not text:
        return "is empty"
    if len(text) > LONGEST_ID:
        return f"has {len(text)} characters, more than {LONGEST_ID}"
    for character in text:
        if character in RESERVED_IN_IDS:
            return f"contains {character!r}, which is kept for the paths of nested workflows"
        if not character.isprintable():
            return f"contains the unprintable character {character!r}"
    return None
