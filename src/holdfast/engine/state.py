"""The state of a run: scopes, the changes that turns stage, and the writes that these combine to."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine._fast import make_tuple
from holdfast.engine.persistent import GONE, Chain, Layered
from holdfast.engine.value import Captor, Value, append_to, items_of
from holdfast.errors import StateConflict, WrongType
from holdfast.graph.state_key import Merge, MergeRule
from holdfast.ids import ExecutorId


class Scope(NamedTuple):
    """A partition of state: shared under a name, or private to the executor that owns it."""

    owner: ExecutorId | None
    name: str
    path: str = ""
    """The nested workflow that it belongs to."""

    def __str__(self) -> str:
        if self.owner is not None:
            return f"private scope of {self.owner!r}"
        inside = f" of {self.path[:-1]!r}" if self.path else ""
        return f"shared scope {self.name!r}{inside}"


class Put(NamedTuple):
    """The key gets this value."""

    value: Value


class Append(NamedTuple):
    """The value of the key grows by these items."""

    items: Chain[Value]


class Drop(NamedTuple):
    """The key goes."""


class Update(NamedTuple):
    """These updates are merged into the value of the key, by its declared merge."""

    updates: tuple[Value, ...]
    rule: MergeRule


Write: TypeAlias = Put | Append | Drop
"""The change of a key by a superstep; a checkpoint's delta holds them."""

Change: TypeAlias = Write | Update
"""The change of a key by one turn."""

Place: TypeAlias = tuple[Scope, str]
Changes: TypeAlias = Mapping[Place, Change]
State: TypeAlias = Layered[Scope, Layered[str, Value]]

EMPTY_STATE: State = Layered()
NO_CHANGES: Changes = {}
_EMPTY_SCOPE: Layered[str, Value] = Layered()


def read(state: State, scope: Scope, key: str) -> Value | None:
    """Return the committed value of a key, or None."""
    keys = state.get(scope)
    return None if keys is None else keys.get(key)


def write(state: State, writes: Mapping[Place, Write]) -> State:
    """Return ``state`` after ``writes``; costs what is written, not what is there."""
    by_scope: dict[Scope, dict[str, Any]] = {}
    for (scope, key), change in writes.items():
        changed = by_scope.get(scope)
        if changed is None:
            changed = by_scope[scope] = {}
        if isinstance(change, Put):
            (changed[key],) = change
        elif isinstance(change, Append):
            changed[key] = append_to(read(state, scope, key), change.items)
        else:
            changed[key] = GONE
    scopes: dict[Scope, Any] = {}
    for scope, changed in by_scope.items():
        keys = state.get(scope, _EMPTY_SCOPE).change(changed)
        scopes[scope] = keys if keys.size else GONE
    return state.change(scopes)


def combine(
    state: State, turns: Sequence[tuple[ExecutorId, Changes]], capture: Captor
) -> Mapping[Place, Write]:
    """Combine the changes of all turns of a superstep, in graph order, to one write for each key.

    Raises ``StateConflict`` where two turns changed one key in ways that do not combine.
    """
    if len(turns) == 1 and not any(isinstance(change, Update) for change in turns[0][1].values()):
        return turns[0][1]  # type: ignore[return-value]  # without updates they are writes
    by_place: dict[Place, list[tuple[ExecutorId, Change]]] = {}
    for executor_id, changes in turns:
        for place, change in changes.items():
            by_place.setdefault(place, []).append((executor_id, change))
    return {place: _combine_changes(state, place, changes, capture) for place, changes in by_place.items()}


def _combine_changes(
    state: State, place: Place, changes: list[tuple[ExecutorId, Change]], capture: Captor
) -> Write:
    first = changes[0][1]
    kinds = {type(change) for _, change in changes}
    if len(changes) == 1 and not isinstance(first, Update):
        return first
    if kinds == {Append}:
        return Append(
            Chain.of([item for _, change in changes if isinstance(change, Append) for item in change.items])
        )
    if kinds == {Drop}:
        return Drop()
    rules = {change.rule for _, change in changes if isinstance(change, Update)}
    if kinds == {Update} and len(rules) == 1:
        updates = [
            (who, value) for who, change in changes if isinstance(change, Update) for value in change.updates
        ]
        current, rule = read(state, *place), rules.pop()
        if rule is Merge.APPEND and (
            items := _items_to_append(current, [value for _, value in updates], capture)
        ):
            return Append(items)
        return Put(merge_updates(current, updates, rule, place, capture))
    raise _conflict(place, changes)


def _items_to_append(current: Value | None, updates: list[Value], capture: Captor) -> Chain[Value] | None:
    """Return the items that updates append, if they can be appended without reading the whole value."""
    kind = updates[0].type if current is None else current.type
    if any(update.type is not kind for update in updates):
        return None
    if kind is list:
        return Chain.of([item for update in updates for item in items_of(update, capture)])
    return Chain.of(updates) if current is not None and kind in (str, bytes) else None


def _conflict(place: Place, changes: list[tuple[ExecutorId, Change]]) -> StateConflict:
    scope, key = place
    (first, one), (second, other) = next(
        pair for pair in combinations(changes, 2) if not _can_combine(pair[0][1], pair[1][1])
    )
    return StateConflict(
        f"{first!r} {_name_change(one)} and {second!r} {_name_change(other)} key {key!r} of {scope} in one superstep; "
        f"let one of them write it, use append_state in both, or declare for all writers how writes combine: "
        f"with_state_merge({scope.name!r}, {key!r}, Merge.LAST_WRITE)",
        scope_name=scope.name,
        key=key,
        executor_ids=(first, second),
    )


def _can_combine(one: Change, other: Change) -> bool:
    if isinstance(one, Update) and isinstance(other, Update):
        return one.rule == other.rule
    return type(one) is type(other) and not isinstance(one, Put)


def _name_change(change: Change) -> str:
    match change:
        case Put():
            return "set"
        case Append():
            return "appended to"
        case Drop():
            return "cleared"
        case Update():
            return f"updated (merge {rule_name(change.rule)})"


def rule_name(rule: MergeRule) -> str:
    """Return the name of a merge for messages."""
    return str(rule) if isinstance(rule, Merge) else getattr(rule, "__name__", repr(rule))


def merge_updates(
    current: Value | None,
    updates: Iterable[tuple[ExecutorId, Value]],
    rule: MergeRule,
    place: Place,
    capture: Captor,
) -> Value:
    """Merge ``updates`` into ``current`` one after the other; without a current value the first update is it."""
    function = _RULES[rule] if isinstance(rule, Merge) else rule
    result: Any = None if current is None else current.load()
    absent = current is None
    scope, key = place
    for executor_id, update in updates:
        if absent:
            result, absent = update.load(), False
            continue
        try:
            result = function(result, update.load())
        except Exception as error:
            raise StateConflict(
                f"key {key!r} of {scope}: its merge {rule_name(rule)} cannot combine "
                f"a {type(result).__name__} with the {type(update.peek()).__name__} that {executor_id!r} queued: "
                f"{error!r}; queue a value that the merge takes, or declare another merge",
                scope_name=scope.name,
                key=key,
                executor_ids=(executor_id,),
            ) from error
    return capture(result, f"merged state {key!r}")


def _keep_update(current: Any, update: Any) -> Any:
    return update


_RULES: dict[Merge, Callable[[Any, Any], Any]] = {
    Merge.LAST_WRITE: _keep_update,
    Merge.APPEND: operator.concat,
    Merge.ADD: operator.add,
    Merge.UNION: operator.or_,
}


MergeFor: TypeAlias = Callable[[Scope, str], MergeRule | None]


class StagedState:
    """The changes that one turn stages over the committed state: it reads its own writes, others do not."""

    __slots__ = ("_capture", "_committed", "_merge_for", "_owner", "changes")

    def __init__(
        self, committed: State, owner: ExecutorId, merge_for: MergeFor | None, capture: Captor
    ) -> None:
        """Stage changes of ``owner``; ``merge_for`` returns the declared merge of a key."""
        self._committed = committed
        self._owner = owner
        self._merge_for = merge_for
        self._capture = capture
        self.changes: dict[tuple[Scope, str], Change] = {}

    def read(self, scope: Scope, key: str) -> Value | None:
        """Return the value as this turn sees it, or None."""
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
                return merge_updates(current, updates, change.rule, (scope, key), self._capture)
            case Drop():
                return None

    def put(self, scope: Scope, key: str, value: Value, rule: MergeRule | None = None) -> None:
        """Set the key, or merge ``value`` into it where a merge is declared."""
        place = (scope, key)
        if rule is None and self._merge_for is not None:
            rule = self._merge_for(scope, key)
        if rule is None:
            self.changes[place] = make_tuple(Put, (value,))
            return
        staged = self.changes.get(place)
        if isinstance(staged, Update):
            self.changes[place] = Update((*staged.updates, value), rule)
        elif staged is None:
            self.changes[place] = Update((value,), rule)
        else:
            current = self.read(scope, key)
            self.changes[place] = Put(
                merge_updates(current, [(self._owner, value)], rule, place, self._capture)
            )

    def append(self, scope: Scope, key: str, item: Value, rule: MergeRule | None = None) -> None:
        """Append ``item`` to the value."""
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
        """Return the keys that this turn sees in the scope, sorted."""
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
