"""What two sequences have in common, found in bounded time and the same from either side."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

# Up to so many pairs of elements every match is looked for, and up to so many those of elements that are not frequent.
_EVERY_PAIR = 200 * 200
_RARE_PAIRS = 1000 * 1000


class Gap(NamedTuple):
    """What stands between two common stretches: these elements of the one, and those of the other."""

    start: int
    stop: int
    other_start: int
    other_stop: int

    def swapped(self) -> Gap:
        """The same, seen from the other side."""
        return Gap(self.other_start, self.other_stop, self.start, self.stop)


def gaps(one: Sequence[Any], other: Sequence[Any]) -> list[Gap]:
    """Where two sequences of hashable elements that can be ordered are different; none if they are equal.

    >>> gaps("abcde", "axce")
    [Gap(start=1, stop=2, other_start=1, other_stop=2), Gap(start=3, stop=4, other_start=3, other_stop=3)]
    """
    # What is found may depend on which comes first, so that does not depend on who asks.
    if (len(other), list(other)) < (len(one), list(one)):
        return [gap.swapped() for gap in gaps(other, one)]
    found: list[Gap] = []
    waiting = [Gap(0, len(one), 0, len(other))]
    while waiting:
        gap = _trimmed(one, other, waiting.pop())
        if gap.start == gap.stop or gap.other_start == gap.other_stop:
            inner = None
        else:
            inner = _parted(one, other, gap)
        if inner is not None:
            waiting += reversed(inner)
        elif gap.start != gap.stop or gap.other_start != gap.other_stop:
            found.append(gap)
    return found


def _trimmed(one: Sequence[Any], other: Sequence[Any], gap: Gap) -> Gap:
    """The gap without what its ends have in common."""
    start, stop, other_start, other_stop = gap
    while start < stop and other_start < other_stop and one[start] == other[other_start]:
        start, other_start = start + 1, other_start + 1
    while start < stop and other_start < other_stop and one[stop - 1] == other[other_stop - 1]:
        stop, other_stop = stop - 1, other_stop - 1
    return Gap(start, stop, other_start, other_stop)


def _parted(one: Sequence[Any], other: Sequence[Any], gap: Gap) -> list[Gap] | None:
    """The smaller gaps in a gap; None if nothing in it is known to be common."""
    left, right = one[gap.start : gap.stop], other[gap.other_start : gap.other_stop]
    pairs = len(left) * len(right)
    if pairs <= _EVERY_PAIR:
        stretches = _matched(left, right, autojunk=False)
    else:
        stretches = list(_stretches(_anchors(left, right)))
        if not stretches and pairs <= _RARE_PAIRS:
            stretches = _matched(left, right, autojunk=True)
    return list(_between(stretches, gap)) if stretches else None


def _matched(left: Sequence[Any], right: Sequence[Any], autojunk: bool) -> list[tuple[int, int, int]]:
    matcher: SequenceMatcher[Any] = SequenceMatcher(None, left, right, autojunk)
    return [(at, there, size) for at, there, size in matcher.get_matching_blocks() if size]


def _stretches(anchors: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Anchors that follow each other in both, as one."""
    at = there = size = 0
    for place, other_place in anchors:
        if (place, other_place) == (at + size, there + size):
            size += 1
            continue
        if size:
            yield at, there, size
        at, there, size = place, other_place, 1
    if size:
        yield at, there, size


def _between(stretches: Sequence[tuple[int, int, int]], gap: Gap) -> Iterator[Gap]:
    start, other_start = gap.start, gap.other_start
    for at, there, size in stretches:
        yield Gap(start, gap.start + at, other_start, gap.other_start + there)
        start, other_start = gap.start + at + size, gap.other_start + there + size
    yield Gap(start, gap.stop, other_start, gap.other_stop)


def _anchors(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[int, int]]:
    """The longest run in order of elements that stand once in each: patience diff."""
    once, once_there = Counter(left), Counter(right)
    where = {element: place for place, element in enumerate(right) if once_there[element] == 1}
    pairs = [
        (place, where[element])
        for place, element in enumerate(left)
        if once[element] == 1 and element in where
    ]
    lowest: list[int] = []  # the last place in ``right`` of the best run of each length
    ends: list[int] = []
    before: list[int] = []
    for number, (_, there) in enumerate(pairs):
        length = bisect_left(lowest, there)
        lowest[length : length + 1] = [there]
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [number]
    run: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]
