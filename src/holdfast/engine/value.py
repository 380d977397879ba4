"""Values as a run holds them: captured when sent or queued, loaded anew for every reader.

Deeply immutable values are held by reference. Of others a copy is held that nobody else can reach, and each
reader is given a copy of that: a change in place never leaks, and a reader sees what a resumed run would see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.engine.chain import Chain
from holdfast.engine.copying import copied, differs, endless, is_immutable, size_of_text
from holdfast.errors import LimitExceeded


class Value(Protocol):
    """A value that a run holds."""

    @property
    def type(self) -> type:
        """The class of the value, known without loading it."""
        ...

    def peek(self) -> Any:
        """The value for reading only: whoever peeks promises to change nothing and to keep no reference."""
        ...

    def load(self) -> Any:
        """The value, the reader's own."""
        ...


class Shared:
    """A deeply immutable value, held by reference."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def type(self) -> type:
        return type(self._value)

    def peek(self) -> Any:
        return self._value

    load = peek

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shared({self._value!r})"


class Copied:
    """A value that can be changed: the copy that nobody else can reach."""

    __slots__ = ("_pristine",)

    def __init__(self, pristine: object) -> None:
        self._pristine = pristine

    @property
    def type(self) -> type:
        return type(self._pristine)

    def peek(self) -> Any:
        return self._pristine

    def load(self) -> Any:
        return copied(self._pristine, "value")

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Copied({self._pristine!r})"


class Joined:
    """A list, str or bytes that grew by appending; the parts are put together when someone reads."""

    __slots__ = ("_base", "_tail")

    def __init__(self, base: Value | None, tail: Chain[Value]) -> None:
        self._base = base
        self._tail = tail

    @property
    def type(self) -> type:
        return list if self._base is None else self._base.type

    def append(self, items: Chain[Value]) -> Joined:
        """This value with ``items`` behind it; costs what the items cost."""
        return Joined(self._base, self._tail.extend(tuple(items)))

    def peek(self) -> Any:
        return self._assembled(lambda value: value.peek())

    def load(self) -> Any:
        return self._assembled(lambda value: value.load())

    def _assembled(self, read: Callable[[Value], Any]) -> Any:
        kind = self.type
        parts = [read(item) for item in self._tail]
        if kind is list:
            return [*(read(self._base) if self._base is not None else ()), *parts]
        assert self._base is not None
        return kind().join([read(self._base), *parts])

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Joined({self.peek()!r})"


def _equal(one: Value, other: object) -> bool:
    if not isinstance(other, Shared | Copied | Joined):
        return False
    return one.type is other.type and not differs(one.peek(), other.peek())


def append_to(value: Value | None, items: Chain[Value]) -> Joined:
    """``value`` with ``items`` behind it; absent gives a list."""
    if isinstance(value, Joined):
        return value.append(items)
    return Joined(value, items)


def items_of(value: Value, limit: int) -> Sequence[Value]:
    """The items of a list, each as a value."""
    if isinstance(value, Joined) and value._base is None:
        return tuple(value._tail)
    return [capture(item, f"item [{index}]", limit) for index, item in enumerate(value.peek())]


_ATOMS = frozenset({int, float, bool, type(None), complex})


def capture(value: object, place: str, limit: int) -> Value:
    """Capture ``value`` as it is now; ``place`` names it in errors, as in ``message.rows[3]``.

    Raises ``NotCheckpointable`` for what cannot be kept and ``LimitExceeded`` for text and bytes of more than
    ``limit`` characters or bytes in all.
    """
    kind = type(value)
    if kind in _ATOMS or ((kind is str or kind is bytes) and len(value) <= limit):  # type: ignore[arg-type]
        return Shared(value)
    try:
        captured = Shared(value) if is_immutable(value) else Copied(copied(value, place))
    except RecursionError:
        raise endless(value, place) from None
    if size_of_text(captured.peek(), limit) > limit:
        raise LimitExceeded(
            "max_value_size",
            limit,
            f"{place}: a {kind.__name__} of more than {limit:,} characters or bytes; keep it outside and "
            f"pass a reference, or allow more with Limits(max_value_size=...)",
        )
    return captured


def changed_since(value: object, captured: Value) -> bool:
    """Whether ``value`` is no longer what it was when it was captured."""
    return isinstance(captured, Copied) and differs(value, captured.peek())
