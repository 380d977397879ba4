"""Values are packed at once, unless one is big or not at hand: then in a thread, after it was fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.format.changes import Changes
from holdfast.checkpoint.threads import packing_threads
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.packer import Packer
from holdfast.engine.value import NotAtHand, Value

T = TypeVar("T")

Packed: TypeAlias = tuple[Packer, Sequence[Changes]]
"""What checkpoints change, and what named their values."""

# Values of more than this are encoded, hashed and compressed in a thread.
_HEAVY = 64 * 1024


async def packed(entries: Sequence[Entry], packer: Callable[[], Packer]) -> Packed:
    """What checkpoints change, by a packer that is new each time it is tried."""
    at_once = _at_once(entries, packer())
    if at_once is not None:
        return at_once
    values = [value for entry in entries for value in entry.values()]
    return await in_time(lambda: _by(packer(), entries), values)


def _by(packer: Packer, entries: Sequence[Entry]) -> Packed:
    return packer, [packer.changes(entry) for entry in entries]


def _at_once(entries: Sequence[Entry], packer: Packer) -> Packed | None:
    """None if that takes a while, or something is not at hand."""
    for entry in entries:
        for value in entry.values():
            if _is_heavy(value) and not packer.grew_by_little(entry, value, _HEAVY):
                return None
    try:
        return _by(packer, entries)
    except NotAtHand:
        return None


async def in_time(pack: Callable[[], T], values: Iterable[Value]) -> T:
    """What ``pack`` gives: in a thread if any of the values is big, and again where one had to be fetched."""
    heavy = any(map(_is_heavy, values))
    while True:
        try:
            return await packing_threads.call(pack) if heavy else pack()
        except NotAtHand as absent:
            await absent.fetch()


def _is_heavy(value: Value) -> bool:
    return getattr(value, "size_hint", 0) > _HEAVY
