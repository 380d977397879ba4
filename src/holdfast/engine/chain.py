"""A sequence that grows without copying what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Chain(Generic[T]):
    """An immutable sequence; ``extend`` shares the old part, in amortised O(log n) per item.

    >>> one = Chain.of(["a"])
    >>> two = one.extend(["b", "c"])
    >>> list(one), list(two), len(two)
    (['a'], ['a', 'b', 'c'], 3)
    """

    __slots__ = ("_items", "_length", "_previous")

    _previous: Chain[T] | None
    _items: tuple[T, ...]
    _length: int

    def __init__(self, previous: Chain[T] | None, items: tuple[T, ...]) -> None:
        # Blocks at least double from the end to the front, so that a chain is never deep.
        while previous is not None and len(previous._items) <= len(items):
            items = previous._items + items
            previous = previous._previous
        self._previous = previous
        self._items = items
        self._length = len(items) + (previous._length if previous is not None else 0)

    @classmethod
    def of(cls, items: Sequence[T] = ()) -> Chain[T]:
        """A chain of ``items``."""
        return cls(None, tuple(items))

    def extend(self, items: Sequence[T]) -> Chain[T]:
        """This chain and ``items`` behind it."""
        return Chain(self, tuple(items)) if items else self

    @property
    def last(self) -> T:
        """The last item; the chain must not be empty."""
        return self._items[-1]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        blocks = []
        block: Chain[T] | None = self
        while block is not None:
            blocks.append(block._items)
            block = block._previous
        for items in reversed(blocks):
            yield from items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Chain({list(self)!r})"
