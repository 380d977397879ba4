"""What one turn has read, written and not yet committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.engine._fast import made
from holdfast.engine.persistent import Chain
from holdfast.engine.state import (
    Append,
    Change,
    Drop,
    Place,
    Put,
    Scope,
    State,
    Update,
    merged,
    read,
    rule_name,
)
from holdfast.engine.value import Captor, Value, append_to
from holdfast.errors import StateConflict, WrongType
from holdfast.graph.state_key import Merge, MergeRule
from holdfast.ids import ExecutorId

MergeFor: TypeAlias = Callable[[Scope, str], MergeRule | None]


class Staging:
    """The changes that one turn stages over the committed state: it reads its own writes, others do not."""

    __slots__ = ("_capture", "_committed", "_merge_for", "_owner", "changes")

    def __init__(
        self, committed: State, owner: ExecutorId, merge_for: MergeFor | None, capture: Captor
    ) -> None:
        """``merge_for`` tells the declared merge of a key; None if there are none."""
        self._committed = committed
        self._owner = owner
        self._merge_for = merge_for
        self._capture = capture
        self.changes: dict[tuple[Scope, str], Change] = {}

    def read(self, scope: Scope, key: str) -> Value | None:
        """The value as this turn sees it, or None."""
        change = self.changes.get((scope, key))
        if change is None:
            return read(self._committed, scope, key)
        match change:
            case Put():
                return change.value
            case Append():
                return append_to(read(self._committed, scope, key), change.items)
            case Update():
                current = read(self._committed, scope, key)
                updates = [(self._owner, value) for value in change.updates]
                return merged(current, updates, change.rule, (scope, key), self._capture)
            case Drop():
                return None

    def put(self, scope: Scope, key: str, value: Value, rule: MergeRule | None = None) -> None:
        """Set the key, or merge ``value`` into it where a merge is declared."""
        place = (scope, key)
        if rule is None and self._merge_for is not None:
            rule = self._merge_for(scope, key)
        if rule is None:
            self.changes[place] = made(Put, (value,))
            return
        staged = self.changes.get(place)
        if isinstance(staged, Update):
            self.changes[place] = Update((*staged.updates, value), rule)
        elif staged is None:
            self.changes[place] = Update((value,), rule)
        else:
            current = self.read(scope, key)
            self.changes[place] = Put(merged(current, [(self._owner, value)], rule, place, self._capture))

    def append(self, scope: Scope, key: str, item: Value, rule: MergeRule | None = None) -> None:
        """Put ``item`` behind the value."""
        place = (scope, key)
        staged = self.changes.get(place)
        # While a turn only appends, the committed value stays as it is and need not be looked at again.
        current = read(self._committed, scope, key) if isinstance(staged, Append) else self.read(scope, key)
        _check_appendable(scope, key, list if current is None else current.type, item)
        items = Chain.of((item,))
        if rule is None and self._merge_for is not None:
            rule = self._merge_for(scope, key)
        if rule is not None:
            self._append_update(place, items if current is None or current.type is list else None, item, rule)
        elif isinstance(staged, Append):
            self.changes[place] = Append(staged.items.extend((item,)))
        else:
            self.changes[place] = Append(items) if staged is None else Put(append_to(current, items))

    def _append_update(self, place: Place, items: Chain[Value] | None, item: Value, rule: MergeRule) -> None:
        """Append to a key with a declared merge: as an update, which only the merge that appends understands."""
        scope, key = place
        if rule is not Merge.APPEND:
            raise StateConflict(
                f"append_state: key {key!r} of {scope} has the merge {rule_name(rule)}; "
                f"queue an update for it with queue_state_update, or declare Merge.APPEND",
                scope_name=scope.name,
                key=key,
                executor_ids=(self._owner,),
            )
        self.put(scope, key, item if items is None else append_to(None, items), rule)

    def drop(self, scope: Scope, key: str) -> None:
        """Remove the key."""
        if read(self._committed, scope, key) is None:
            self.changes.pop((scope, key), None)
        else:
            self.changes[(scope, key)] = Drop()

    def keys(self, scope: Scope) -> list[str]:
        """The keys that this turn sees in the scope, sorted."""
        keys = set(self._committed.get(scope) or ())
        for (changed, key), change in self.changes.items():
            if changed == scope:
                (keys.discard if isinstance(change, Drop) else keys.add)(key)
        return sorted(keys)


def _check_appendable(scope: Scope, key: str, kind: type, item: Value) -> None:
    if kind is list or (kind in (str, bytes) and item.type is kind):
        return
    raise WrongType(
        f"append_state: key {key!r} of {scope} holds a {kind.__name__}, to which a {item.type.__name__} cannot be "
        f"appended; items are appended to a list, str to str, bytes to bytes"
    )
