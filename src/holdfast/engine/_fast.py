"""Makes named tuples without the Python function that is their constructor.

A run makes about ten of them in each superstep; through their constructors W1, the chain without storage, takes a tenth
more instructions. ``tests/unit/test_fast.py`` shows that both ways give the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, TypeVarTuple, cast

T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


class TupleMaker(Protocol):
    """The type of ``make_tuple``, so that the fields are checked as the constructor's arguments are."""

    def __call__(self, kind: Callable[[*Ts], T_co], fields: tuple[*Ts], /) -> T_co:
        """Return ``kind(*fields)``; all fields must be given, also those that have defaults."""
        ...


make_tuple: Final = cast(TupleMaker, tuple.__new__)
