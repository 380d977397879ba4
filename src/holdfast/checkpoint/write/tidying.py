"""When a run makes room: behind a keyframe, as soon as enough came that is not kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store import Head, Record

# Less than this is not worth the trouble.
_LEAST = 256 * 1024
# What a record takes in a store besides its bytes, about.
_PER_RECORD = 1024

Tidy = Callable[[Head], Awaitable[int]]
"""Removes what is not kept; gives how many records had to be looked at, as the next time will have to."""


class Tidying:
    """Counts what a run wrote since room was made, and makes room when that is as much as the run holds.

    So what is not kept takes no more room than what is kept, or than 256 KB; and looking at many records, which a run
    keeps or which its forks have, happens seldom enough to be paid for by those that were written meanwhile.
    """

    def __init__(self, tidy: Tidy, due: bool = False) -> None:
        self._tidy = tidy
        self._due = due
        """Whether a process that died may have left something."""
        self._bytes = self._records = 0
        self._held = 0
        self._looked_at = 0

    def due(self, head: Head, more: int) -> bool:
        """Whether the record that comes next, with so many bytes, should have a keyframe, so that room can be made."""
        if not head.retention:
            return False
        enough = self._bytes + more >= max(_LEAST, self._held) and self._records >= self._looked_at
        return self._due or enough

    async def after(self, head: Head, records: Sequence[Record], manifest: Manifest) -> None:
        """Count what was committed, and make room if that is due and the newest record has a keyframe."""
        if not head.retention:
            return
        self._bytes += sum(record.new_bytes + _PER_RECORD for record in records)
        self._records += len(records)
        if records[-1].keyframe is None or not self.due(head, 0):
            return
        self._held = sum(ref.size for keys in manifest.state.values() for ref in keys.values())
        self._due, self._bytes, self._records = False, 0, 0
        try:
            self._looked_at = await self._tidy(head)
        except Exception:
            # Nothing is lost by it, and the run has better things to do: what should go goes the next time.
            self._looked_at = 0
