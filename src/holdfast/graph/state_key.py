"""State keys that know their type, their scope and how concurrent writes merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, get_args, get_origin

from holdfast.errors import GraphError, WrongType
from holdfast.graph.typing.annotations import find_uncallable_signature
from holdfast.graph.typing.match import explain_misfit, matches
from holdfast.graph.typing.types import TypeForm, type_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    # The defaults of type variables are for type checkers only, so no backport is imported at run time.
    from typing import TypeVar

    T = TypeVar("T")


class Merge(StrEnum):
    """The rule by which a write to a shared key is combined with the value that is there, in graph order.

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
    """A state key with a type, accepted wherever a key is; without a type it takes any value.

    >>> raw = StateKey("raw", str, scope_name="IncidentLogs")
    >>> raw.name, raw.scope_name
    ('raw', 'IncidentLogs')
    """

    name: str
    type: type[T] = object  # type: ignore[assignment]  # whatever T is then, any value will do
    scope_name: str | None = None
    merge: MergeRule | None = None

    def __post_init__(self) -> None:
        """Accept the name of a merge for the merge."""
        if self.merge is not None:
            object.__setattr__(self, "merge", parse_merge(self.merge, f"StateKey({self.name!r})"))
            _merges[self.scope_name, self.name] = self.merge

    def check(self, value: object) -> None:
        """Raise ``WrongType`` unless ``value``, queued for this key, is of the declared type.

        What a merge function takes as an update is its own affair.
        """
        if (self.merge is None or isinstance(self.merge, Merge)) and not matches(value, self.type):
            raise self._wrong(value, self.type, "queued")

    def check_item(self, item: object) -> None:
        """Raise ``WrongType`` unless ``item``, appended to this key, is of the declared type of elements."""
        form = get_args(self.type)[0] if get_origin(self.type) is list else None
        if form is not None and not matches(item, form):
            raise self._wrong(item, form, "appended")

    def _wrong(self, value: object, form: TypeForm, how: str) -> WrongType:
        scope = f" of scope {self.scope_name!r}" if self.scope_name else ""
        return WrongType(
            f"state key {self.name!r}{scope} is declared as {type_name(self.type)}, "
            f"but a value was {how} that does not fit: {explain_misfit(value, form)}"
        )


_merges: dict[tuple[str | None, str], MergeRule | None] = {}


def find_declared_merge(scope_name: str | None, name: str) -> MergeRule | None:
    """Return the merge of the last ``StateKey`` that was made for this key with one.

    >>> key = StateKey("total", int, scope_name="Doc example", merge=Merge.ADD)
    >>> find_declared_merge("Doc example", "total")
    <Merge.ADD: 'add'>
    """
    return _merges.get((scope_name, name))


def parse_merge(merge: object, place: str) -> MergeRule:
    """Return the merge that ``merge`` stands for: a member of ``Merge``, its name, or a function."""
    if isinstance(merge, str):
        try:
            return Merge(merge)
        except ValueError:
            known = ", ".join(Merge)
            raise GraphError(f"{place}: {merge!r} is no merge; use a function or one of: {known}") from None
    if not callable(merge):
        raise GraphError(f"{place}: a merge is a Merge or a function (current, update), not {merge!r}")
    found = find_uncallable_signature(merge, 2)
    if found is not None:
        raise GraphError(
            f"{place}: a merge is called with the value that is there and the update, but its signature is {found}"
        )
    return merge
