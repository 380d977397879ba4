"""Decides when a run that is driven removes the checkpoints that it does not keep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store import Head, Record

# Fewer bytes are not worth a prune.
_LEAST = 256 * 1024
# About what a record takes in a store besides its bytes.
_PER_RECORD = 1024

Prune = Callable[[Head], Awaitable[int]]
"""Prunes a run; returns how many records it had to look at, as the next prune will have to."""


class PruneSchedule:
    """Counts what a run wrote since the last prune, and prunes it when that is as much as the run holds.

    So checkpoints that are not kept take no more room than those that are, or than 256 KB; and a prune, which looks at
    all records of a run and of its forks, is paid for by as many records that were written meanwhile.
    """

    def __init__(self, prune: Prune, due: bool = False) -> None:
        self._prune = prune
        self._due = due
        """True if a process that died may have left checkpoints that are not kept."""
        self._bytes = self._records = 0
        self._held = 0
        self._looked_at = 0

    def due(self, head: Head, more: int) -> bool:
        """Return True if the next record, with so many bytes, should have a keyframe behind which a run is pruned."""
        if not head.retention:
            return False
        enough = self._bytes + more >= max(_LEAST, self._held) and self._records >= self._looked_at
        return self._due or enough

    async def count(self, head: Head, records: Sequence[Record], manifest: Manifest) -> None:
        """Count records that were committed; prune the run if that is due and the newest of them has a keyframe."""
        if not head.retention:
            return
        self._bytes += sum(record.new_bytes + _PER_RECORD for record in records)
        self._records += len(records)
        if records[-1].keyframe is None or not self.due(head, 0):
            return
        self._held = sum(ref.size for keys in manifest.state.values() for ref in keys.values())
        self._due, self._bytes, self._records = False, 0, 0
        try:
            self._looked_at = await self._prune(head)
        except Exception:
            self._looked_at = 0  # the next prune removes what this one left; the run goes on
