"""Copies of values; also their sizes, their differences and their attributes."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeAlias

from holdfast.errors import NotCheckpointable
from holdfast.graph.typing.types import find_mark

_ATOMS = frozenset(
    {
        *(int, float, bool, str, bytes, complex, range, type(None), type(Ellipsis), type(NotImplemented)),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    }
)
# By name, so that nobody pays for the import of a module that is not used.
_ATOMS_BY_NAME = frozenset(
    {("decimal", "Decimal"), ("uuid", "UUID"), ("fractions", "Fraction"), ("zoneinfo", "ZoneInfo")}
)
# So many parts of a value are compared to find out if it changed: enough for messages, bounded for giants.
_COMPARED_PARTS = 10_000


def is_immutable(value: object) -> bool:
    """Return True if no part of ``value`` can be changed, so that it may be shared."""
    kind: Any = type(value)
    if kind in _ATOMS or (kind.__module__, kind.__qualname__) in _ATOMS_BY_NAME or isinstance(value, Enum):
        return True
    if getattr(value, "__dict__", None) and isinstance(value, tuple):
        return False
    if kind is frozenset or (isinstance(value, tuple) and (kind is tuple or _is_kept_whole(kind))):
        return all(is_immutable(part) for part in value)  # type: ignore[attr-defined]
    if _is_frozen(kind):
        return all(map(is_immutable, _attributes(value).values()))
    return False


def size_in_bytes(text: str | bytes | bytearray, enough: int) -> int:
    """Return the number of bytes of a text in UTF-8; its length if that is more than ``enough`` already."""
    if not isinstance(text, str) or text.isascii() or len(text) > enough:
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def is_larger(value: object, limit: int) -> bool:
    """Return True if ``value`` has more than ``limit`` bytes of text, in UTF-8, and elements."""
    # Most have few even if each character took four bytes; only of the others they are counted.
    return _size(value, limit, _most_bytes) > limit and _size(value, limit, size_in_bytes) > limit


def _most_bytes(text: str | bytes | bytearray, enough: int) -> int:
    return 4 * len(text) if isinstance(text, str) and not text.isascii() else len(text)


def _size(value: object, enough: int, measure: Callable[[Any, int], int]) -> int:
    """Count the sizes of texts and the elements in ``value``, until there are more than ``enough``."""
    size = 0
    waiting = [value]
    while waiting and size <= enough:
        part = waiting.pop()
        if isinstance(part, str | bytes | bytearray):
            size += measure(part, enough)
        elif type(part) in _ATOMS:
            continue
        elif isinstance(part, list | tuple | set | frozenset | dict):
            size += len(part)
            waiting += part
            if isinstance(part, dict):
                waiting += part.values()
        elif not isinstance(part, type):
            waiting += _attributes(part).values()
    return size


def deep_copy(value: object, place: str) -> Any:
    """Return a deep copy that shares nothing that can be changed; a part that stands twice is copied twice.

    Raises ``NotCheckpointable`` with the path of the part that cannot be copied.
    """
    try:
        return _copy(value)
    except RecursionError:
        raise nesting_error(value, place) from None
    except Exception as error:
        path, culprit = _culprit(value, place)
        raise NotCheckpointable(
            f"{path}: {type(culprit).__name__} is not checkpointable; "
            f"send plain data, and open such things where they are used"
        ) from error


def nesting_error(value: object, place: str) -> NotCheckpointable:
    """Return the error for a value that contains itself or is nested too deeply."""
    return NotCheckpointable(f"{place}: {type(value).__name__} contains itself or is nested too deeply")


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return [_copy(part) for part in value]
    if kind is dict:
        return {_copy(key): _copy(part) for key, part in value.items()}
    if kind is tuple or kind is set or kind is frozenset:
        return kind([_copy(part) for part in value])
    if _is_record(kind):
        twin = object.__new__(kind)
        slots = slots_of(kind)
        for name, part in _dict_of(value).items():
            twin.__dict__[name] = _copy(part)
        for name, part in read_slots(slots, value).items():
            slots[name].__set__(twin, _copy(part))
        return twin
    if isinstance(value, BaseException):
        return _copy_error(value)
    return copy.deepcopy(value)


# -- many copies of one value ----------------------------------------------------------------------

Maker: TypeAlias = Callable[[], Any]
"""Makes a copy of one value each time it is called."""
_PlacedMakers: TypeAlias = "list[tuple[Any, Maker]]"
"""Makers of parts, with the index, key or name of each."""

# Native decoding of lists and dicts with fewer bytes each is faster than copying them one by one here; of instances of
# classes it is as slow as that of so many bytes. Both measured, with some room.
_BYTES_A_CONTAINER = 64
_BYTES_AN_INSTANCE = 512


class ListMaker:
    """Makes copies of a list that share its immutable items; one for a longer list costs what is behind."""

    __slots__ = ("_items", "_length", "_makers", "_parts")

    def __init__(self, items: list[Any], makers: _PlacedMakers) -> None:
        """Take over ``items`` and ``makers``: they belong to this maker and those that are extended from it."""
        self._items = items
        self._length = len(items)
        self._makers = makers
        self._parts = len(makers)

    def __call__(self) -> list[Any]:
        twin = self._items[: self._length]
        makers = self._makers
        for index, make in makers if len(makers) == self._parts else makers[: self._parts]:
            twin[index] = make()
        return twin

    def extend(self, items: list[Any], is_record: Callable[[Any], bool]) -> ListMaker | None:
        """Return a maker of the list with ``items`` behind it; None if one of them has no maker."""
        try:
            makers = _MakerFinder(is_record).find_makers(enumerate(items, self._length))
        except (_NoMaker, RecursionError):
            return None
        if len(self._items) > self._length:  # another list went on from here
            return ListMaker([*self._items[: self._length], *items], [*self._makers[: self._parts], *makers])
        self._items += items
        self._makers += makers
        return ListMaker(self._items, self._makers)


def maker_of(
    value: object, is_record: Callable[[Any], bool] | None = None, size: int | None = None
) -> Maker | None:
    """Find a maker of copies of ``value``, which must not change any more; None where parts are of rare kinds.

    Copies share what is immutable. ``is_record`` tells the classes whose instances are their attributes and nothing
    else: without it, dataclasses. ``size`` is that of the encoding, where a copy can also be had by decoding that: None
    is the answer where that is faster.

    >>> make = maker_of({"role": "user", "tags": ["a"]})
    >>> one, other = make(), make()
    >>> one["tags"].append("b")
    >>> one, other
    ({'role': 'user', 'tags': ['a', 'b']}, {'role': 'user', 'tags': ['a']})
    """
    making = _MakerFinder(is_record or _is_record)
    try:
        if type(value) is list:
            make: Maker | None = ListMaker(value.copy(), making.find_makers(enumerate(value)))
        else:
            make = making.maker(value)
    except (_NoMaker, RecursionError):
        return None
    saved = making.instances * _BYTES_AN_INSTANCE
    if size is not None and size + saved < making.containers * _BYTES_A_CONTAINER:
        return None
    return make or (lambda: value)


class _NoMaker(Exception):
    """A part is of a kind that makers cannot copy."""


class _MakerFinder:
    """Finds makers of values, and counts what they have to copy."""

    def __init__(self, is_record: Callable[[Any], bool]) -> None:
        self._is_record = is_record
        self.containers = 0
        self.instances = 0

    def find_makers(self, parts: Iterable[tuple[Any, Any]]) -> _PlacedMakers:
        """Return makers of those parts that are not shared."""
        return [(place, make) for place, part in parts if (make := self.maker(part)) is not None]

    def maker(self, value: Any) -> Maker | None:
        """Return a maker of ``value``; None if it is immutable."""
        if is_immutable(value):
            return None
        kind = type(value)
        if kind is not dict and kind is not list and self._is_record(kind):
            return self._instance_maker(value)
        self.containers += 1
        if kind is list:
            return _fill(value.copy, self.find_makers(enumerate(value)))
        if kind is dict and all(map(is_immutable, value)):
            return _fill(value.copy, self.find_makers(value.items()))
        if kind is bytearray or (kind is set and all(map(is_immutable, value))):
            return value.copy  # type: ignore[no-any-return]
        if kind is tuple:
            items = _fill(list(value).copy, self.find_makers(enumerate(value)))
            return lambda: tuple(items())
        raise _NoMaker

    def _instance_maker(self, value: Any) -> Maker:
        self.instances += 1
        new = partial(object.__new__, type(value))
        held = _dict_of(value)
        copy = _fill(held.copy, self.find_makers(held.items())) if held else None
        slots = slots_of(type(value))
        in_slots = read_slots(slots, value)
        copy_slots = _fill(in_slots.copy, self.find_makers(in_slots.items())) if in_slots else None

        def make() -> Any:
            twin = new()
            if copy is not None:
                object.__setattr__(twin, "__dict__", copy())
            if copy_slots is not None:
                for name, part in copy_slots().items():
                    slots[name].__set__(twin, part)
            return twin

        return make


def _fill(copy: Maker, makers: _PlacedMakers) -> Maker:
    """Return a maker of a shallow copy in which these places are filled with copies of their own."""
    if not makers:
        return copy

    def make() -> Any:
        twin = copy()
        for place, part in makers:
            twin[place] = part()
        return twin

    return make


# -- errors, classes, attributes -------------------------------------------------------------------


def _copy_error(error: BaseException) -> BaseException:
    """Copy an exception as data: its arguments and attributes, without its cause and traceback."""
    if type(error).__module__ == "builtins":
        return copy.deepcopy(error)
    # Not through its constructor, which may make something else of the arguments.
    twin = type(error).__new__(type(error), *error.args)
    twin.args = _copy(error.args)
    vars(twin).update(_copy(vars(error)))
    return twin


def _record(kind: Any) -> bool:
    """Return True if a class is a dataclass that holds nothing but attributes: not also a list or an exception."""
    return (
        hasattr(kind, "__dataclass_fields__")
        and not hasattr(kind, "__deepcopy__")
        and solid_base(kind) is object
    )


def _frozen(kind: Any) -> bool:
    """Return True if a class is a frozen dataclass whose instances cache nothing, either."""
    return (
        _record(kind)
        and kind.__dataclass_params__.frozen
        and not _has_excluded_fields(kind)
        and not any(
            isinstance(held, cached_property) for base in kind.__mro__ for held in vars(base).values()
        )
    )


def _kept_whole(kind: Any) -> bool:
    """Return True if a class is a named tuple of which every field is stored."""
    return hasattr(kind, "_fields") and not _has_excluded_fields(kind)


def _has_excluded_fields(kind: Any) -> bool:
    """Return True if ``@checkpointable`` excludes fields, which no reader may see: so instances are not shared."""
    return any(getattr(find_mark(base), "exclude", ()) for base in kind.__mro__)


_is_record: Callable[[Any], bool] = lru_cache(maxsize=1024)(_record)
_is_kept_whole: Callable[[Any], bool] = lru_cache(maxsize=1024)(_kept_whole)
_is_frozen: Callable[[Any], bool] = lru_cache(maxsize=1024)(_frozen)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes that Python code defines have it, and some of those in C


def solid_base(cls: type) -> type:
    """Return the class in C that gives instances their content: ``object`` if they hold only attributes."""
    for base in cls.__mro__:
        made_by = base.__new__
        if not base.__flags__ & _HEAP_TYPE or (
            isinstance(made_by, BuiltinFunctionType) and made_by.__self__ is base
        ):
            return base
    raise AssertionError("object is a base of everything")


def _slots(cls: type) -> dict[str, Any]:
    """Return the descriptors of the slots of a class and its bases, by name."""
    return {
        name: found
        for base in reversed(cls.__mro__)
        if base.__flags__ & _HEAP_TYPE
        for name, found in vars(base).items()
        if isinstance(found, MemberDescriptorType)
    }


slots_of: Callable[[Any], dict[str, Any]] = lru_cache(maxsize=1024)(_slots)


def read_slots(slots: dict[str, Any], value: Any) -> dict[str, Any]:
    """Read the slots of an instance; those that are not set are left out."""
    held = {}
    for name, slot in slots.items():
        try:
            held[name] = slot.__get__(value)
        except AttributeError:
            continue
    return held


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes that an instance holds, in ``__dict__`` and in slots."""
    return {**_dict_of(value), **read_slots(slots_of(type(value)), value)}


def _dict_of(value: Any) -> dict[str, Any]:
    """Return the ``__dict__`` of an instance, an empty one if its class has no place for it."""
    return value.__dict__ if type(value).__dictoffset__ else {}


def _children(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of ``value`` with their paths."""
    if isinstance(value, dict):
        yield from ((f"{place}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{place}{{...}}", part) for part in value)
    elif not isinstance(value, type | ModuleType):
        yield from ((f"{place}.{name}", part) for name, part in _attributes(value).items())


def _culprit(value: object, place: str) -> tuple[str, object]:
    """Find the innermost part of ``value`` that cannot be copied."""
    for path, part in _children(value, place):
        try:
            _copy(part)
        except Exception:
            return _culprit(part, path)
    return place, value


def differs(one: object, other: object, *, unsure: bool = False) -> bool:
    """Return True if two values differ in type or content; ``unsure`` if that cannot be found out.

    Unlike ``==`` it tells 1 from True and 1.0, takes NaN for equal to itself, and looks into plain objects. After ten
    thousand equal parts, or at parts that cannot be compared, it cannot tell.
    """
    waiting = [(one, other)]
    doubt = False
    for _ in range(_COMPARED_PARTS):
        if not waiting:
            return unsure and doubt
        left, right = waiting.pop()
        if left is right:
            continue
        if type(left) is not type(right):
            return True
        pairs = _pair_parts(left, right)
        if pairs is None:
            return True
        if pairs is _UNDECIDED:
            doubt = True
        waiting += reversed(pairs)
    return unsure


# The result of _pair_parts for values that cannot be compared.
_UNDECIDED: list[tuple[Any, Any]] = []


def _pair_parts(left: Any, right: Any) -> list[tuple[Any, Any]] | None:
    """Pair the parts of two values of one type that must be equal; None if the values differ already."""
    kind = type(left)
    if kind is list or kind is tuple:
        return list(zip(left, right, strict=True)) if len(left) == len(right) else None
    if kind is dict:
        try:
            if list(left) != list(right):
                return None
            return [(part, right[key]) for key, part in left.items()]
        except Exception:  # of keys that cannot be compared
            return _UNDECIDED
    if hasattr(kind, "__dataclass_fields__") or (_is_plain(kind) and hasattr(left, "__dict__")):
        mine, theirs = _attributes(left), _attributes(right)
        return _pair_parts(mine, theirs)
    if _is_plain(kind):
        return _UNDECIDED
    try:
        same = left == right or (left != left and right != right)
        return [] if _is_true(same) else None
    except Exception:  # whatever a foreign comparison raises
        return _UNDECIDED


def _is_plain(kind: Any) -> bool:
    """Return True if instances are equal only to themselves."""
    return kind.__eq__ is object.__eq__


def _is_true(same: Any) -> bool:
    try:
        return bool(same)
    except ValueError:  # arrays compare element by element
        return bool(same.all())
