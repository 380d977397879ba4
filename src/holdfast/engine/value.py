"""Values as a run holds them: captured when sent or queued, loaded anew for every reader.

Deeply immutable values are held by reference. Of others a copy is held that nobody else can reach, and each
reader is given a copy of that: a change in place never leaks, and a reader sees what a resumed run would see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from holdfast.engine.copies import Maker, deep_copy, differs, is_immutable, is_larger, maker_of, nesting_error
from holdfast.engine.persistent import Chain
from holdfast.errors import LimitExceeded
from holdfast.graph.typing.types import TypeForm


class Value(Protocol):
    """A value that a run holds. Where it is not at hand, ``peek`` and ``load`` raise ``NotAtHand``."""

    @property
    def type(self) -> type:
        """The class of the value, known without loading it."""
        ...

    @property
    def mutable(self) -> bool:
        """True if the captured object can have changed since."""
        ...

    def missing(self) -> Sequence[Fetchable]:
        """Return the values that must be fetched before it can be read."""
        ...

    def peek(self) -> Any:
        """Return the value for reading only: the caller must change nothing and keep no reference."""
        ...

    def load(self) -> Any:
        """Return the value as a copy that belongs to the caller."""
        ...


class Captor(Protocol):
    """Captures values for a run: by copying them, or by encoding them for its storage."""

    def __call__(self, value: object, place: str) -> Value:
        """Capture ``value`` as it is now; ``place`` names it in errors, as in ``message.rows[3]``.

        Raises ``NotCheckpointable`` for what cannot be kept and ``LimitExceeded`` for what is too big.
        """
        ...

    def allow(self, form: TypeForm, where: str) -> None:
        """Allow the classes in a type to be captured: those of a typed state key that is used."""
        ...

    def changed(self, value: object, captured: Value) -> bool:
        """Return True if ``value`` was changed after it was captured."""
        ...

    def differs(self, value: object, held: Value) -> bool:
        """Return True if ``value`` may differ from ``held``; values that cannot be compared count as different."""
        ...


class NotAtHand(Exception):
    """Values are needed that are not in memory; the runtime fetches them, and then repeats what needed them."""

    def __init__(self, values: Sequence[Fetchable]) -> None:
        self.values = values
        super().__init__(f"{len(values)} values are not in memory")

    async def fetch(self) -> None:
        """Bring the values into memory."""
        await self.values[0].fetch(self.values)


class Fetchable(Protocol):
    """A value that lies elsewhere."""

    async def fetch(self, values: Sequence[Any]) -> None:
        """Bring ``values``, which lie in the same place as this one, into memory."""
        ...


class ImmutableValue:
    """A deeply immutable value, held by reference."""

    __slots__ = ("_value",)

    mutable = False

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def type(self) -> type:
        return type(self._value)

    def missing(self) -> Sequence[Fetchable]:
        return ()

    def peek(self) -> Any:
        return self._value

    load = peek

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shared({self._value!r})"


class CopiedValue:
    """A value that can be changed, held as a copy that nobody else can reach."""

    __slots__ = ("_make", "_pristine", "_reads")

    mutable = True

    def __init__(self, pristine: object) -> None:
        self._pristine = pristine
        self._reads = 0
        self._make: Maker | None = None

    @property
    def type(self) -> type:
        return type(self._pristine)

    def missing(self) -> Sequence[Fetchable]:
        return ()

    def peek(self) -> Any:
        return self._pristine

    def load(self) -> Any:
        if self._make is not None:
            return self._make()
        self._reads += 1
        if self._reads == 2:  # what is read again is worth a maker
            self._make = maker_of(self._pristine)
        return deep_copy(self._pristine, "value")

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Copied({self._pristine!r})"


class JoinedValue:
    """A list, str or bytes that grew by appending; its parts are joined when someone reads it."""

    __slots__ = ("_base", "_tail")

    mutable = False

    def __init__(self, base: Value | None, tail: Chain[Value]) -> None:
        self._base = base
        self._tail = tail

    @property
    def type(self) -> type:
        return list if self._base is None else self._base.type

    def missing(self) -> Sequence[Fetchable]:
        return missing_of(self._tail if self._base is None else (self._base, *self._tail))

    def append(self, items: Chain[Value]) -> JoinedValue:
        """Return this value with ``items`` behind it; costs what the items cost."""
        return JoinedValue(self._base, self._tail.extend(tuple(items)))

    def peek(self) -> Any:
        return self._assemble(lambda value: value.peek())

    def load(self) -> Any:
        return self._assemble(lambda value: value.load())

    def parts(self) -> tuple[Value | None, Chain[Value]]:
        """Return the value that it began with, and the items behind that."""
        return self._base, self._tail

    def _assemble(self, read: Callable[[Value], Any]) -> Any:
        kind = self.type
        base = [self._base] if self._base is not None else []
        parts = read_all([*base, *self._tail], read)
        if kind is list:
            return [*parts[0], *parts[1:]] if base else parts
        return kind().join(parts)

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Joined({self.peek()!r})"


def read_all(values: Sequence[Value], read: Callable[[Value], Any]) -> list[Any]:
    """Read each value with ``read``; raise ``NotAtHand`` for all that are missing, not only for the first."""
    try:
        return [read(value) for value in values]
    except NotAtHand:
        pass
    raise NotAtHand(missing_of(values))


def missing_of(values: Iterable[Value]) -> list[Fetchable]:
    """Return the values that must be fetched before all these can be read."""
    return [missing for value in values for missing in value.missing()]


def _equal(one: Value, other: object) -> bool:
    theirs: Any = other
    return hasattr(theirs, "peek") and one.type is theirs.type and not differs(one.peek(), theirs.peek())


def append_to(value: Value | None, items: Chain[Value]) -> JoinedValue:
    """Return ``value`` with ``items`` behind it; None gives a list."""
    if isinstance(value, JoinedValue):
        return value.append(items)
    return JoinedValue(value, items)


def items_of(value: Value, capture: Captor) -> Sequence[Value]:
    """Return the items of a list, each as a value."""
    if isinstance(value, JoinedValue) and value._base is None:
        return tuple(value._tail)
    return [capture(item, f"item [{index}]") for index, item in enumerate(value.peek())]


_ATOMS = frozenset({int, float, bool, type(None), complex})


def capture(value: object, place: str, limit: int) -> Value:
    """Capture ``value`` as it is now; ``place`` names it in errors, as in ``message.rows[3]``.

    Raises ``NotCheckpointable`` for what cannot be kept and ``LimitExceeded`` for texts of more than ``limit`` bytes
    in all, in UTF-8.
    """
    kind = type(value)
    # A character has four bytes at most.
    if kind in _ATOMS or ((kind is str or kind is bytes) and len(value) <= limit // 4):  # type: ignore[arg-type]
        return ImmutableValue(value)
    try:
        captured = ImmutableValue(value) if is_immutable(value) else CopiedValue(deep_copy(value, place))
    except RecursionError:
        raise nesting_error(value, place) from None
    if is_larger(captured.peek(), limit):
        raise LimitExceeded(
            "max_value_size",
            limit,
            f"{place}: a {kind.__name__} of more than {limit:,} bytes; keep it outside and "
            f"pass a reference, or allow more with Limits(max_value_size=...)",
        )
    return captured


class Copier:
    """Captures values by copying them."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def __call__(self, value: object, place: str) -> Value:
        if type(value) in _ATOMS:  # here, too, because most messages are
            return ImmutableValue(value)
        return capture(value, place, self._limit)

    def allow(self, form: TypeForm, where: str) -> None:
        """Do nothing: all values that can be copied are allowed."""

    def changed(self, value: object, captured: Value) -> bool:
        return isinstance(captured, CopiedValue) and differs(value, captured.peek())

    def differs(self, value: object, held: Value) -> bool:
        return differs(held.peek(), value, unsure=True)
