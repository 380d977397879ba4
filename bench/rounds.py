"""W5's sums: what a hub makes of the answers, the same on every side."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scripts import Params


def number_of(answers: Sequence[int], width: int) -> int:
    """The number of the round that these are the answers of: each of `width` workers added its index to it."""
    number, rest = divmod(sum(answers) - width * (width - 1) // 2, width)
    if rest or len(answers) != width:
        raise ValueError(f"a wrong round: {answers}")
    return number


def last_sum(params: Params) -> int:
    """The sum that the hub holds after the last round."""
    width, last = params["width"], params["rounds"] - 1
    return width * last + width * (width - 1) // 2
