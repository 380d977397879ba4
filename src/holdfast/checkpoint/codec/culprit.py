"""Finding the innermost part of a value that cannot be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.checkpoint.codec import failures
from holdfast.checkpoint.codec.refused import Refused, TooDeep
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.shapes import kind_of, shape_of

_FOLLOWED = 500  # how deep it is looked for


def culprit(
    value: Any, place: str, types: TypeRegistry, pack: Callable[[Any], None]
) -> tuple[str, str | None]:
    """The path of the innermost part that ``pack`` refuses, and why it does; None where it is only too deep."""
    around: list[Any] = []
    while len(around) < _FOLLOWED:
        around.append(value)
        for path, part in _told(value, place, types):
            if any(part is outer for outer in around):
                return path, f"{type(part).__name__} contains itself; send its parts without the loop"
            if _refusal(part, pack) is not None:
                value, place = part, path
                break
        else:
            return place, str(_refusal(value, pack) or "") or None
    return place, None


def _told(value: Any, place: str, types: TypeRegistry) -> list[tuple[str, Any]]:
    try:
        return list(parts_of(value, place, types))
    except Exception:  # it cannot be taken apart: then it is the culprit itself
        return []


def _refusal(value: Any, pack: Callable[[Any], None]) -> Exception | None:
    try:
        pack(value)
    except RecursionError:
        return TooDeep()
    except Refused as refused:
        return refused
    return None


def parts_of(value: Any, place: str, types: TypeRegistry) -> Iterator[tuple[str, Any]]:
    """The parts of a value with their paths; none of what cannot be taken apart."""
    kind = type(value)
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{place} key {_short(key)}", key
            yield f"{place}[{_short(key)}]", part
    elif kind in (list, tuple) or kind.__name__ == "deque":
        yield from ((f"{place}[{index}]", part) for index, part in enumerate(value))
    elif kind in (set, frozenset):
        yield from ((f"{place}{{{_short(part)}}}", part) for part in value)
    elif failures.STANDARD.get(kind.__name__) is kind:
        yield from ((place + path, part) for path, part in failures.error_parts(value))
    elif kind.__name__ in ("datetime", "time"):
        yield f"{place}.tzinfo", value.tzinfo
    elif (name := types.name_of(kind)) is not None and kind_of(kind) is not None:
        yield from ((place + path, part) for path, part in shape_of(kind, name).parts(value))


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # of the user's __repr__
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
