"""Lists and maps whose changed copies share what did not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

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
        """Return a chain of ``items``."""
        return cls(None, tuple(items))

    def extend(self, items: Sequence[T]) -> Chain[T]:
        """Return this chain with ``items`` behind it."""
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


K = TypeVar("K")
V = TypeVar("V")

# Below this size copying the changed layer is cheaper than thinking about it.
_SMALL = 32
# The changed layer is folded into the base when it reaches this fraction of it.
_FRACTION = 16


class _Gone:
    """Marks a key of the base as removed."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = _Gone()
_MISSING: Final = object()


class Layered(Mapping[K, V]):
    """An immutable mapping: a base that versions share, under a small layer of changes.

    Its order is that in which keys were last set.

    >>> one = Layered({"a": 1, "b": 2})
    >>> two = one.change({"b": 3, "a": GONE})
    >>> dict(one), dict(two)
    ({'a': 1, 'b': 2}, {'b': 3})
    """

    __slots__ = ("_base", "_layer", "size")

    def __init__(self, base: dict[K, V] | None = None) -> None:
        self._base: dict[K, V] = base if base is not None else {}
        self._layer: dict[K, Any] = {}
        self.size = len(self._base)
        """The number of keys: ``len`` without the cost of a call."""

    def change(self, changes: Mapping[K, V | _Gone]) -> Layered[K, V]:
        """Return this mapping with ``changes`` made; a value of ``GONE`` removes its key."""
        layer = self._layer.copy()
        base, size = self._base, self.size
        for key, value in changes.items():
            # Taken out first, so that the order is that of the last change, whenever layers are folded.
            before = layer.pop(key, _MISSING)
            size += (value is not GONE) - (key in base if before is _MISSING else before is not GONE)
            layer[key] = value
        if len(layer) > _SMALL and len(layer) * _FRACTION > len(base):
            base = {key: value for key, value in base.items() if key not in layer}
            base.update({key: value for key, value in layer.items() if value is not GONE})
            layer = {}
        copy: Layered[K, V] = object.__new__(Layered)
        copy._base, copy._layer, copy.size = base, layer, size
        return copy

    def __getitem__(self, key: K) -> V:
        value = self._layer.get(key, _MISSING)
        if value is _MISSING:
            return self._base[key]
        if value is GONE:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; ``Mapping.get`` would raise and catch for each that is not there."""
        value = self._layer.get(key, _MISSING)
        if value is _MISSING:
            return self._base.get(key, default)
        return default if value is GONE else value

    def __contains__(self, key: object) -> bool:
        value = self._layer.get(key, _MISSING)  # type: ignore[arg-type]
        return key in self._base if value is _MISSING else value is not GONE

    def __iter__(self) -> Iterator[K]:
        for key in self._base:
            if key not in self._layer:
                yield key
        for key, value in self._layer.items():
            if value is not GONE:
                yield key

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Layered({dict(self)!r})"
