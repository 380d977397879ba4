"""Two texts, compared line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from holdfast.checkpoint.diff.alignment import Gap, gaps

LONGEST = 200
"""At most so many lines are given."""
WIDEST = 500
"""At most so many characters of each."""
_CONTEXT = 3
_NO_NEWLINE = "\\ no newline at the end"


class Lines(NamedTuple):
    """The lines of a unified diff, and whether they are all."""

    lines: tuple[str, ...]
    complete: bool = True


def unified(old: str, new: str, at_the_end: bool = False) -> Lines:
    r"""The difference of two texts as a unified diff, without the names of files; bounded.

    ``at_the_end`` is for the ends of two texts that begin with the same: nobody counted the lines of that.

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
    """The lines of a text with their ends: ``splitlines`` would take other characters for ends, too."""
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
    """Gaps that are near enough to share their context."""
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
