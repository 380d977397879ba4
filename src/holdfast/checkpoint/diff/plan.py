"""Which values must be read to tell what is different: as few as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.checkpoint.diff.contents import Verdict, pieces, pieces_of, sizes_of
from holdfast.checkpoint.diff.pairs import Pair
from holdfast.checkpoint.diff.parts import WHOLE
from holdfast.checkpoint.format.changes import Part
from holdfast.ids import Digest

# Two values that are bigger than this together are not read to tell what is different in them.
LARGEST = 512 << 20
# About so much is in memory at a time, unless one pair is bigger.
_BATCH = 32 << 20


class Job(NamedTuple):
    """A pair that may be different, and what is compared to tell."""

    pair: Pair
    old: Sequence[Part] = ()
    new: Sequence[Part] = ()
    from_start: bool = True
    """Whether these are whole values; else what follows that with which both begin."""
    readable: bool = True
    """Whether they are small enough to be read."""

    @property
    def size(self) -> int:
        """What is to be read and compared, in bytes."""
        return sum(part.ref.size for part in [*self.old, *self.new]) if self.readable else 0

    @property
    def old_sizes(self) -> dict[Digest, int]:
        """The blobs to read of the first checkpoint, with their sizes."""
        return sizes_of(self.old) if self.readable else {}

    @property
    def new_sizes(self) -> dict[Digest, int]:
        """The blobs to read of the second checkpoint, with their sizes."""
        return sizes_of(self.new) if self.readable else {}


def planned(pair: Pair) -> Job | None:
    """What is to be done for a pair; None if its values are known to be the same."""
    old, new = pair.old, pair.new
    if old is None or new is None:
        job = Job(pair, () if old is None else pieces_of(old), () if new is None else pieces_of(new))
        return job._replace(readable=job.size <= WHOLE)
    between = pieces(old, new)
    if between.verdict is Verdict.SAME and pair.forms is None:
        return None
    if between.shared_size > WHOLE:
        job = Job(pair, between.old, between.new, from_start=False)
    else:
        job = Job(pair, pieces_of(old), pieces_of(new))
    return job._replace(readable=job.size <= LARGEST)


def batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The jobs in portions that fit into memory."""
    batch: list[Job] = []
    size = 0
    for job in jobs:
        if batch and size + job.size > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += job.size
    if batch:
        yield batch
