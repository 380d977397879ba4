"""Counters of the work of a storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Numbers of what a storage did since it was made, for tests and measurements.

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
