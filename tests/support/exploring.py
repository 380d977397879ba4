"""That random examples show what properties are claimed for: else they would hold because nothing happens."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

# What is drawn depends on the modules that are loaded, even for a given seed; what is rare needs many then.
_MANY = 3000


class _AllShown(Exception):
    """Nothing is left to look for."""


def shows_all(
    claimed: set[str], shown: Callable[..., Iterable[str]], *strategies: st.SearchStrategy[Any]
) -> None:
    """Try examples until together they have shown everything.

    >>> shows_all({"even", "odd"}, lambda number: ["odd" if number % 2 else "even"], st.integers())
    """
    seen: set[str] = set()

    @settings(max_examples=_MANY, database=None, phases=[Phase.generate])
    @given(st.tuples(*strategies))
    def search(drawn: tuple[Any, ...]) -> None:
        seen.update(shown(*drawn))
        if seen >= claimed:
            raise _AllShown

    with contextlib.suppress(_AllShown):
        search()
    assert claimed <= seen, f"never shown: {sorted(claimed - seen)}"
