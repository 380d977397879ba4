"""The records of a run page by page, where some cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from holdfast.checkpoint.steps import Steps
from holdfast.checkpoint.store import Depth, Record, Store
from holdfast.errors import HoldfastError
from holdfast.ids import RunId

# How many records are read at a time.
_PAGE = 500


class Unreadable(NamedTuple):
    """A record that is there, or should be, and cannot be read."""

    seq: int
    error: HoldfastError


async def each_record(
    store: Store, run_id: RunId, first: int, last: int, steps: Steps | None = None
) -> AsyncIterator[Record | Unreadable]:
    """The records of a run in order of seq, page by page; one that cannot be read does not hide others."""
    for page in range(first, last + 1, _PAGE):
        end = min(page + _PAGE - 1, last)
        for found in await _readable(store, run_id, page, end):
            yield found
        if steps is not None:
            steps.done(end - page + 1)


async def _readable(store: Store, run_id: RunId, first: int, last: int) -> list[Record | Unreadable]:
    try:
        return list(await store.records(run_id, first, last, Depth.ALL))
    except HoldfastError as error:
        if first == last:
            return [Unreadable(first, error)]
        middle = (first + last) // 2
        lower = await _readable(store, run_id, first, middle)
        return lower + await _readable(store, run_id, middle + 1, last)
