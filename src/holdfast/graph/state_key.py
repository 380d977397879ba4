"""State keys that know their type, their scope and how concurrent writes merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.errors import WrongType
from holdfast.graph.matching import matches
from holdfast.graph.types import type_name

T = TypeVar("T")


class Merge(StrEnum):
    """How a write to a shared key is combined with the value that is there, in graph order.

    A key with a declared merge takes *updates*: what a handler queues is merged into the committed value,
    whether one turn of the superstep writes or ten. Where no value is committed the first update is the value.
    A function ``merge(current, update) -> value`` may stand wherever a ``Merge`` may.

    >>> Merge("append") is Merge.APPEND
    True
    """

    LAST_WRITE = "last_write"
    """The last write in graph order replaces the value."""
    APPEND = "append"
    """The update is a list, str or bytes; it is put behind the value."""
    ADD = "add"
    """``current + update``."""
    UNION = "union"
    """``current | update``: sets and dicts."""


MergeRule: TypeAlias = Merge | Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class StateKey(Generic[T]):
    """A state key with a type, accepted wherever a key is.

    >>> raw = StateKey("raw", str, scope_name="IncidentLogs")
    >>> raw.name, raw.scope_name
    ('raw', 'IncidentLogs')
    """

    name: str
    type: type[T]
    scope_name: str | None = None
    merge: MergeRule | None = None

    def __post_init__(self) -> None:
        """Accept the name of a merge for the merge."""
        if isinstance(self.merge, str):
            object.__setattr__(self, "merge", Merge(self.merge))

    def check(self, value: object) -> None:
        """Raise ``WrongType`` unless ``value`` is of the declared type."""
        if not matches(value, self.type):
            scope = f" of scope {self.scope_name!r}" if self.scope_name else ""
            raise WrongType(
                f"state key {self.name!r}{scope} is declared as {type_name(self.type)}, "
                f"but a {type(value).__name__} was queued"
            )
