"""What a storage did so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a storage did since it was opened: for tests and for the curious.

    >>> Counters().commits
    0
    """

    commits: int = 0
    checkpoints: int = 0
    new_bytes: int = 0
    encoded: int = 0
    """Values that were encoded."""
    decoded: int = 0
    """Values that were decoded."""
    blobs_written: int = 0
    blobs_read: int = 0
