"""Reads again where a run moved on, or its checkpoints were removed, during a read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import CheckpointCorrupt

T = TypeVar("T")

# An error that is raised so many times in a row is damage.
_LOOKS = 3


async def steadily(look: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``look``, which begins with the head of a run, or with the id of a checkpoint.

    A checkpoint can be removed between two things that are read of it. Then something seems to be missing, but not if
    everything is read anew: ``look`` sees another head, or that there is no such checkpoint. What is said again and
    again is damage.
    """
    said, times = "", 0
    while True:
        try:
            return await look()
        except CheckpointCorrupt as error:
            said, times = str(error), times + 1 if str(error) == said else 1
            if times == _LOOKS:
                raise
