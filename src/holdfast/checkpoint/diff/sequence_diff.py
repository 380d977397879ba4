"""Differences of two sequences, found in bounded time and the same from either side, and of two texts by lines."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, NamedTuple

# Up to so many pairs of elements all matches are looked for, and up to so many those of elements that are not frequent.
_EVERY_PAIR = 200 * 200
_RARE_PAIRS = 1000 * 1000


class Gap(NamedTuple):
    """A stretch in which two sequences differ: these elements of the one, and those of the other."""

    start: int
    stop: int
    other_start: int
    other_stop: int

    def swapped(self) -> Gap:
        """Return the gap as seen from the other sequence."""
        return Gap(self.other_start, self.other_stop, self.start, self.stop)


def gaps(one: Sequence[Any], other: Sequence[Any]) -> list[Gap]:
    """Return the gaps between two sequences, whose elements can be hashed and ordered; none if they are equal.

    >>> gaps("abcde", "axce")
    [Gap(start=1, stop=2, other_start=1, other_stop=2), Gap(start=3, stop=4, other_start=3, other_stop=3)]
    """
    # The result may depend on which sequence comes first, so the order is fixed, whichever way the caller gives them.
    if (len(other), list(other)) < (len(one), list(one)):
        return [gap.swapped() for gap in gaps(other, one)]
    found: list[Gap] = []
    waiting = [Gap(0, len(one), 0, len(other))]
    while waiting:
        gap = _trim(one, other, waiting.pop())
        if gap.start == gap.stop or gap.other_start == gap.other_stop:
            inner = None
        else:
            inner = _split(one, other, gap)
        if inner is not None:
            waiting += reversed(inner)
        elif gap.start != gap.stop or gap.other_start != gap.other_stop:
            found.append(gap)
    return found


def _trim(one: Sequence[Any], other: Sequence[Any], gap: Gap) -> Gap:
    """Return the gap without equal elements at its ends."""
    start, stop, other_start, other_stop = gap
    while start < stop and other_start < other_stop and one[start] == other[other_start]:
        start, other_start = start + 1, other_start + 1
    while start < stop and other_start < other_stop and one[stop - 1] == other[other_stop - 1]:
        stop, other_stop = stop - 1, other_stop - 1
    return Gap(start, stop, other_start, other_stop)


def _split(one: Sequence[Any], other: Sequence[Any], gap: Gap) -> list[Gap] | None:
    """Return the smaller gaps in a gap; None if no common elements are found in it."""
    left, right = one[gap.start : gap.stop], other[gap.other_start : gap.other_stop]
    pairs = len(left) * len(right)
    if pairs <= _EVERY_PAIR:
        stretches = _match(left, right, autojunk=False)
    else:
        stretches = list(_stretches(_anchors(left, right)))
        if not stretches and pairs <= _RARE_PAIRS:
            stretches = _match(left, right, autojunk=True)
    return list(_between(stretches, gap)) if stretches else None


def _match(left: Sequence[Any], right: Sequence[Any], autojunk: bool) -> list[tuple[int, int, int]]:
    matcher: SequenceMatcher[Any] = SequenceMatcher(None, left, right, autojunk)
    return [(at, there, size) for at, there, size in matcher.get_matching_blocks() if size]


def _stretches(anchors: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Join anchors that follow each other in both sequences."""
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
    """Return the longest ordered run of elements that occur once in each sequence (patience diff)."""
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


LONGEST = 200
"""At most so many lines of a unified diff are given."""
WIDEST = 500
"""At most so many characters of each line are given."""
_CONTEXT = 3
_NO_NEWLINE = "\\ no newline at the end"


class Lines(NamedTuple):
    """The lines of a unified diff; ``complete`` is False if there are more."""

    lines: tuple[str, ...]
    complete: bool = True


def unified(old: str, new: str, at_the_end: bool = False) -> Lines:
    r"""Return the difference of two texts as a unified diff, without the names of files; bounded.

    ``at_the_end`` is for the ends of two texts with a common beginning, whose lines were not counted.

    >>> print(*unified("a\nb\nc\n", "a\nx\nc\n").lines, sep="\n")
    @@ -1,3 +1,3 @@
     a
    -b
    +x
     c
    """
    lines = _diff(_lines(old), _lines(new), at_the_end)
    given = list(islice(lines, LONGEST + 1))
    return Lines(tuple(_bounded(line) for line in given[:LONGEST]), len(given) <= LONGEST)


def _lines(text: str) -> list[str]:
    """Split a text into lines with their ends; ``splitlines`` would split at other characters, too."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _bounded(line: str) -> str:
    return line if len(line) <= WIDEST else f"{line[:WIDEST]}… ({len(line) - 1:,} characters)"


def _diff(old: Sequence[str], new: Sequence[str], at_the_end: bool) -> Iterator[str]:
    for hunk in _hunks(gaps(old, new)):
        before = min(_CONTEXT, hunk[0].start)
        after = min(_CONTEXT, len(old) - hunk[-1].stop)
        start, other_start = hunk[0].start - before, hunk[0].other_start - before
        stop, other_stop = hunk[-1].stop + after, hunk[-1].other_stop + after
        if at_the_end:
            yield "@@ at the end @@"
        else:
            yield f"@@ -{_range(start, stop)} +{_range(other_start, other_stop)} @@"
        for gap in hunk:
            yield from _marked(" ", old[start : gap.start])
            yield from _marked("-", old[gap.start : gap.stop])
            yield from _marked("+", new[gap.other_start : gap.other_stop])
            start = gap.stop
        yield from _marked(" ", old[start:stop])


def _hunks(found: Sequence[Gap]) -> Iterator[list[Gap]]:
    """Group gaps that are near enough to share their context."""
    hunk: list[Gap] = []
    for gap in found:
        if hunk and gap.start - hunk[-1].stop > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(gap)
    if hunk:
        yield hunk


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if line.endswith("\n"):
            yield mark + line[:-1]
        else:
            yield mark + line
            yield _NO_NEWLINE


def _range(start: int, stop: int) -> str:
    if stop - start == 1:
        return str(start + 1)
    return f"{start + (stop > start)},{stop - start}"
