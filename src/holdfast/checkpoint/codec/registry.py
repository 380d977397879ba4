"""The classes that may be read from stored data, by the names that they have there."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, overload

from holdfast.checkpoint.codec.declared_types import classes_in, declared_forms, field_forms, is_foundation
from holdfast.errors import GraphError, InvalidArgument
from holdfast.graph.typing.types import MARK, TypeForm, find_mark, marks_of_others

__all__ = ["Mark", "TypeRegistry", "checkpointable", "declared_forms", "mark_of", "marks_of_others"]

C = TypeVar("C", bound=type)
V = TypeVar("V")
Upgrade = Callable[[int, dict[str, Any]], dict[str, Any]]


class Mark(NamedTuple):
    """The settings that ``@checkpointable`` gives a class."""

    name: str
    version: int = 1
    upgrade: Upgrade | None = None
    exclude: tuple[str, ...] = ()
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


# The classes that were decorated, newest first in line for their name.
_decorated: dict[str, weakref.ref[type]] = {}


@overload
def checkpointable(cls: C, /) -> C: ...
@overload
def checkpointable(
    *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None, exclude: Iterable[str] = ()
) -> Callable[[C], C]: ...
@overload
def checkpointable(
    cls: type[V], /, *, encode: Callable[[V], Any], decode: Callable[[Any], V], name: str | None = None
) -> type[V]: ...
@overload
def checkpointable(
    *, encode: Callable[[Any], Any], decode: Callable[[Any], Any], name: str | None = None
) -> Callable[[C], C]: ...
def checkpointable(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
    exclude: Iterable[str] = (),
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """Let instances of a class be kept in checkpoints without being declared in a workflow; put it outermost.

    ``name`` is its name in stored data, by default its qualified name: give the old name to a class that was
    renamed. Raise ``version`` when its fields change so that old data does not fit; ``upgrade(version, fields)``
    makes the fields of today out of those that such a version stored. Fields in ``exclude`` are not stored, and come
    back as their defaults, also in classes that are derived.

    A class of a library is declared by a call, with two functions: ``encode(instance)`` returns something that can be
    stored, and ``decode`` makes an equal instance of it. The class itself is not changed.

    >>> from dataclasses import dataclass
    >>> from holdfast.checkpoint.codec import Codec
    >>> def to_cents(version: int, fields: dict) -> dict:
    ...     return {"cents": fields["euros"] * 100}
    >>> @checkpointable(name="Price", version=2, upgrade=to_cents, exclude=("quote",))
    ... @dataclass
    ... class Amount:
    ...     cents: int
    ...     quote: object = None
    >>> codec = Codec()
    >>> codec.decode(codec.encode(Amount(250, quote=print)))
    Amount(cents=250, quote=None)
    >>> from ipaddress import IPv4Address
    >>> _ = checkpointable(IPv4Address, encode=str, decode=IPv4Address)
    >>> codec.decode(codec.encode([IPv4Address("10.0.0.7")]))
    [IPv4Address('10.0.0.7')]
    """

    def mark(marked: Any) -> Any:
        if not isinstance(marked, type):
            raise InvalidArgument(f"@checkpointable is for classes, not for {marked!r}")
        names = exclude if isinstance(exclude, str) or not isinstance(exclude, Iterable) else tuple(exclude)
        given = Mark(marked.__qualname__ if name is None else name, version, upgrade, names, encode, decode)  # type: ignore[arg-type]
        _check_mark(given, marked)
        if encode is not None:
            marks_of_others[marked] = given
        else:
            _set_mark(marked, given)
        _decorated[given.name] = weakref.ref(marked)
        return marked

    return mark if cls is None else mark(cls)


def _set_mark(cls: type, mark: Mark) -> None:
    """Put the mark on a class, unless its instances could not be stored with it."""
    before = vars(cls).get(MARK)
    try:
        setattr(cls, MARK, mark)
    except TypeError:  # a class that is written in C
        raise InvalidArgument(
            f"@checkpointable of {cls.__qualname__}: it is a class that cannot be changed, so tell how its instances "
            f"are stored: checkpointable({cls.__name__}, encode=..., decode=...)"
        ) from None
    if mark.exclude:
        from holdfast.checkpoint.codec.shapes import complain_about_excluded  # which imports this module

        if complaint := complain_about_excluded(cls):
            setattr(cls, MARK, before) if before is not None else delattr(cls, MARK)
            raise InvalidArgument(f"@checkpointable of {cls.__qualname__}: {complaint}")
    marks_of_others.pop(cls, None)


def _check_mark(mark: Mark, cls: type) -> None:
    place = f"@checkpointable of {cls.__qualname__}"
    if type(mark.name) is not str or not mark.name:
        raise InvalidArgument(f"{place}: name must be a text that is not empty, not {mark.name!r}")
    if type(mark.version) is not int or mark.version < 1:
        raise InvalidArgument(f"{place}: version must be a whole number of at least 1, not {mark.version!r}")
    if mark.upgrade is not None and not callable(mark.upgrade):
        raise InvalidArgument(f"{place}: upgrade must be a function (version, fields), not {mark.upgrade!r}")
    if type(mark.exclude) is not tuple or not all(type(field) is str for field in mark.exclude):
        raise InvalidArgument(
            f"{place}: exclude must be names of fields, like exclude=('raw',), not {mark.exclude!r}"
        )
    if mark.encode is None and mark.decode is None:
        return
    if not callable(mark.encode) or not callable(mark.decode):
        raise InvalidArgument(
            f"{place}: encode and decode must both be functions, not {mark.encode!r} and {mark.decode!r}"
        )
    if mark.version != 1 or mark.upgrade is not None or mark.exclude:
        raise InvalidArgument(
            f"{place}: with encode and decode there is no version, upgrade or exclude; let encode write what decode "
            f"needs to tell old data from new"
        )
    from holdfast.checkpoint.codec.writer import is_storable_as_it_is  # which imports this module

    if is_storable_as_it_is(cls):
        raise InvalidArgument(
            f"{place}: every {cls.__name__} is stored as it is, so encode would never be called; remove the call"
        )


def mark_of(cls: type) -> Mark | None:
    """Return the settings of ``@checkpointable`` for this very class, not for its bases."""
    found: Mark | None = find_mark(cls)
    return found


def excluded_fields(cls: type) -> frozenset[str]:
    """Return the fields of a class that are not stored, by its own settings and by those of its bases."""
    marks = [mark_of(base) for base in cls.__mro__]
    return frozenset(name for mark in marks if mark is not None for name in mark.exclude)


def _decorated_as(name: str) -> type | None:
    found = _decorated.get(name)
    return None if found is None else found()


class TypeRegistry:
    """The allowed classes by wire name.

    Allowed are declared classes, those that can be reached from them through fields, those that are derived from these,
    and ``@checkpointable`` ones.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Author:
    ...     name: str
    >>> @dataclass
    ... class Report:
    ...     authors: list[Author]
    >>> types = TypeRegistry([("executor 'write'", Report | None)])
    >>> types.name_of(Author), types.class_of("Report") is Report, types.name_of(TypeRegistry)
    ('Author', True, None)
    """

    def __init__(self, declared: Iterable[tuple[str, TypeForm]] = ()) -> None:
        self._classes: dict[str, type] = {}
        self._places: dict[type, str] = {}
        self._derived: dict[str, type] = {}
        self._seen: set[TypeForm] = set()
        for where, form in declared:
            self.declare(form, where)

    def declare(self, form: TypeForm, where: str) -> None:
        """Allow the classes in a form and those that can be reached through their fields.

        ``where`` names the declaring executor, for the error about two classes of one name.
        """
        try:
            if form in self._seen:
                return
        except TypeError:  # what cannot be hashed is walked each time
            self._walk(form, where)
        else:
            self._walk(form, where)
            self._seen.add(form)

    def _walk(self, form: TypeForm, where: str) -> None:
        waiting = [form]
        while waiting:
            part = waiting.pop()
            for cls in classes_in(part):
                if cls not in self._places and (part is form or not self._has_twin(cls)):
                    self._add(cls, where)
                    waiting += field_forms(cls)

    def _has_twin(self, cls: type) -> bool:
        """Return True if a class of the same definition is declared: hints may lead to a wrong local class."""
        other = self._classes.get(_name(cls))
        return other is not None and same_source(other, cls)

    def _add(self, cls: type, where: str) -> None:
        name = _name(cls)
        other = self._classes.setdefault(name, cls)
        if other is not cls:
            raise GraphError(
                f"{where}: {_full_name(cls)} and {_full_name(other)}, declared by {self._places[other]}, are two "
                f"classes with one name in stored data, {name!r}; give one of them another: "
                f"@checkpointable(name=...)"
            )
        self._places[cls] = where

    def name_of(self, cls: type) -> str | None:
        """Return the wire name of a class, None if it is not allowed."""
        if cls in self._places or mark_of(cls) is not None:
            return _name(cls)
        if any(base in self._places or mark_of(base) for base in cls.__mro__[1:] if not is_foundation(base)):
            name = _name(cls)
            if same_source(self._derived.setdefault(name, cls), cls):
                self._derived[name] = cls
            return name
        return None

    def class_of(self, name: str) -> type | None:
        """Return the allowed class with this wire name; a declared one before a decorated one before a derived one."""
        found = self._classes.get(name) or _decorated_as(name) or self._derived.get(name)
        if found is None:
            found = next((cls for cls in self._all_derived() if _name(cls) == name), None)
            if found is not None:
                self._derived[name] = found
        return found

    def twin_of(self, cls: type) -> type | None:
        """Return another class with the same name in stored data; None if there is none."""
        name = _name(cls)
        found = self.class_of(name)
        if found is not None and not same_source(found, cls):
            return found
        if cls in self._places or mark_of(cls) is not None:
            return None  # they go first
        return next((o for o in self._all_derived() if _name(o) == name and not same_source(o, cls)), None)

    def _all_derived(self) -> Iterator[type]:
        """Give the classes derived from allowed ones, the newest of each base first."""
        decorated = [cls for ref in _decorated.values() if (cls := ref()) is not None]
        waiting = [cls for cls in (*self._places, *decorated) if not is_foundation(cls)]
        seen: set[type] = set()
        while waiting:
            derived: list[type] = type.__subclasses__(waiting.pop())
            for cls in reversed(derived):
                if cls not in seen:
                    seen.add(cls)
                    waiting.append(cls)
                    yield cls


def _name(cls: type) -> str:
    mark = mark_of(cls)
    return cls.__qualname__ if mark is None else mark.name


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def same_source(one: type, other: type) -> bool:
    """Return True if two classes come from one definition, as if a module is reloaded, or both imported and run."""
    return one is other or (one.__qualname__, _file(one)) == (other.__qualname__, _file(other))


def _file(cls: type) -> str:
    """Return the file of a class; its module has another name if it is run than if it is imported."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
