"""The checkpoints of a run page by page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from holdfast.checkpoint.derived_starts import expand, read_records
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.progress import Steps
from holdfast.checkpoint.store import Depth, Head, Record, Store
from holdfast.errors import HoldfastError
from holdfast.ids import RunId

# How many records are read at a time.
_PAGE = 500


class UnreadableRecord(NamedTuple):
    """A record that is there, or should be, and cannot be read."""

    seq: int
    error: HoldfastError


async def each_record(
    store: Store, run_id: RunId, first: int, last: int, steps: Steps | None = None
) -> AsyncIterator[Record | UnreadableRecord]:
    """Yield the checkpoints of a run in order of seq, page by page; one that cannot be read does not hide others."""
    for page in range(first, last + 1, _PAGE):
        end = min(page + _PAGE - 1, last)
        for found in await _readable(store, run_id, page, end):
            if isinstance(found, UnreadableRecord):
                yield found
            else:
                for checkpoint in expand([found]):
                    yield checkpoint
        if steps is not None:
            steps.done(end - page + 1)


async def _readable(store: Store, run_id: RunId, first: int, last: int) -> list[Record | UnreadableRecord]:
    try:
        return list(await store.records(run_id, first, last, Depth.ALL))
    except HoldfastError as error:
        if first == last:
            return [UnreadableRecord(first, error)]
        middle = (first + last) // 2
        lower = await _readable(store, run_id, first, middle)
        return lower + await _readable(store, run_id, middle + 1, last)


class Page(NamedTuple):
    """Records of a run; those before ``begins`` are there because others follow from them."""

    records: Sequence[Record]
    begins: int


async def page_of(
    store: Store, head: Head, first: int, limit: int | None, depth: Depth = Depth.CHANGES
) -> Page:
    """At most ``limit`` records of a run from the seq ``first`` on, with all that is needed to fold them.

    They are read at once: of what is read in parts, one may be removed after another that follows from it was read.
    """
    needed = first
    last = head.seq if limit is None else min(first + limit - 1, head.seq)
    while True:
        records = await read_records(store, head.run_id, needed, last, depth)
        begins = bisect_left(records, first, key=lambda record: record.seq)
        shown = records[begins:][:limit]
        # Before the first there is nothing: then no header has to be read for this.
        begin = needed if needed == 1 else min(map(_replayed_from, shown), default=needed)
        if begin < needed:
            needed = begin
        elif len(shown) == limit or last == head.seq:
            return Page(records[: begins + len(shown)], begins)
        else:  # some were removed: look at so many more that a few looks are enough, however many those are
            last = min(last + (last - first + 1), head.seq)


def _replayed_from(record: Record) -> int:
    return record.seq if record.keyframe is not None else read_header(record).replay_from
