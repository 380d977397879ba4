"""The dispatch of messages: finds the handler of an executor for a message, by type."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, Never, TypeVar

from holdfast.graph.typing.match import is_instance, matches
from holdfast.graph.typing.types import (
    TypeForm,
    args_of,
    atoms_of,
    class_of,
    is_anything,
    is_typed_dict,
    members,
    origin_of,
    render_form,
    sees_elements,
    type_name,
)

H = TypeVar("H")

_REMEMBERED = 1024  # types one Dispatch remembers, so that classes made on the fly do not pile up
_UNKNOWN: Any = object()


class Dispatch(Generic[H]):
    """Finds the handler for a value among those of one executor; built once, asked for every message.

    Handlers for one class come first (most specific by MRO, then ABCs and Protocols as declared), then
    union members by the same rule, then `object` and `Any`. Literals are asked by value. Elements are
    looked at only where several handlers share an origin; if none of them fits, the search goes on.
    ABCs must be registered before the first message of a type: the answer for it is remembered.

    >>> routes = Dispatch([(int, "number"), (int | str, "scalar"), (object, "rest")])
    >>> [routes.find(value) for value in (1, True, "x", 1.5)]
    ['number', 'number', 'scalar', 'rest']
    """

    __slots__ = ("_by_type", "_by_value", "_contested", "_entries", "_levels", "_rest")

    def __init__(self, entries: Sequence[tuple[TypeForm, H]]) -> None:
        """Index the entries, in declared order; TypeError for a form that no value can be told by."""
        self._entries = tuple(entries)
        self._levels: tuple[dict[type, list[tuple[TypeForm, H]]], ...] = ({}, {})  # one class; union member
        self._rest = [handler for form, handler in entries if is_anything(form)]
        self._by_type: dict[type, H | None] = {}
        self._by_value: set[type] = set()  # classes whose values must be looked at
        owners: dict[type, set[int]] = {}
        for index, (form, handler) in enumerate(entries):
            for atom, cls in _claims(form):
                self._levels[_level(form)].setdefault(cls, []).append((atom, handler))
                if origin_of(atom) is Literal:
                    self._by_value.add(cls)
                else:
                    owners.setdefault(cls, set()).add(index)
        inner = {cls for form, _ in entries for atom, cls in _claims(form) if _has_inside(atom)}
        self._contested = {cls for cls in inner if len(owners[cls]) > 1}  # by several handlers
        self._by_value |= self._contested

    def find(self, value: object) -> H | None:
        """Return the handler for a value, or None; one dict lookup where the type alone decides.

        >>> Dispatch([(list[int], "ints"), (list[str], "words")]).find(["a"])
        'words'
        """
        found: H | None = self._by_type.get(type(value), _UNKNOWN)
        return self._search(value) if found is _UNKNOWN else found

    def duplicates(self) -> list[tuple[TypeForm, H, H]]:
        """Return each type that two handlers claim at the same level, with the handler that wins and the other.

        >>> Dispatch([(int | str, "a"), (str | None, "b"), (str, "c")]).duplicates()
        [(<class 'str'>, 'a', 'b')]
        """
        first: dict[tuple[int, str], tuple[int, H]] = {}
        found: list[tuple[TypeForm, H, H]] = []
        for index, (form, handler) in enumerate(self._entries):
            for atom, _ in [(object, object)] if is_anything(form) else _claims(form):
                owner, winner = first.setdefault(
                    (_level(form), render_form(atom, exact=True)), (index, handler)
                )
                if owner != index:
                    found.append((atom, winner, handler))
        return found

    def _search(self, value: object) -> H | None:
        """Find the handler level by level; remember it if every value of this type has the same."""
        kind = type(value)
        lasting = value.__class__ is kind  # a proxy stands for values of several classes
        found: H | None = self._rest[0] if self._rest else None
        for cls, claims in self._candidates(kind):
            if cls not in kind.__mro__:
                lasting = lasting and _type_decides(cls)
                if not is_instance(value, cls):
                    continue
            lasting = lasting and cls not in self._by_value
            claim = _best(value, claims, cls in self._contested)
            if claim is not None:
                found = claim[1]
                break
        if lasting:
            if len(self._by_type) >= _REMEMBERED:
                self._by_type.clear()
            self._by_type[kind] = found
        return found

    def _candidates(self, kind: type) -> Iterator[tuple[type, list[tuple[TypeForm, H]]]]:
        """Yield the claimed classes in the order they are asked; those outside the MRO may not apply."""
        for level in self._levels:
            yield from ((cls, level[cls]) for cls in kind.__mro__ if cls in level)
            yield from ((cls, claims) for cls, claims in level.items() if cls not in kind.__mro__)


def _level(form: TypeForm) -> int:
    """Return the level a form is asked at: 0 for one class, 1 for a union, 2 for anything."""
    return 2 if is_anything(form) else int(len(members(form)) > 1)


def _claims(form: TypeForm) -> list[tuple[TypeForm, type]]:
    """Return the atoms that a handler takes by their class, with the class; a handler for anything has none."""
    claims: list[tuple[TypeForm, type]] = []
    for atom in () if is_anything(form) else atoms_of(form):
        cls = class_of(atom)
        if cls is not None:
            claims.append((atom, cls))
        elif atom is not Never:
            raise TypeError(f"messages cannot be routed by {type_name(atom)!r}: it names no class or literal")
    return claims


def _has_inside(atom: TypeForm) -> bool:
    """Return True if looking into a value can tell this atom from another of the same class."""
    origin = origin_of(atom)
    return is_typed_dict(origin) or (
        args_of(atom) is not None and origin is not Literal and sees_elements(origin)
    )


def _type_decides(cls: type) -> bool:
    """Return True if isinstance looks at the type of a value only; for a Protocol it looks at the value."""
    return type(cls).__instancecheck__ in (type.__instancecheck__, ABCMeta.__instancecheck__)


def _best(value: Any, claims: list[tuple[TypeForm, H]], contested: bool) -> tuple[TypeForm, H] | None:
    """Choose among claims to one class: literals, nearest TypedDict, parametrised, bare; then as declared."""

    def takes(form: TypeForm) -> bool:
        return matches(value, form) if contested or origin_of(form) is Literal else True

    def rank(claim: tuple[TypeForm, H]) -> tuple[int, int]:
        form = claim[0]
        origin: Any = origin_of(form)
        if origin is Literal:
            return 0, 0
        if is_typed_dict(origin):
            return 1, len(value.keys() ^ (origin.__required_keys__ | origin.__optional_keys__))
        return (3 if args_of(form) is None else 2), 0

    return min((claim for claim in claims if takes(claim[0])), key=rank, default=None)
