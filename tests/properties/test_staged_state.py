"""State against the simplest model of it: dicts of plain values, changed in graph order at the barrier."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Merge, StateConflict, WrongType
from tests.support.parts import (
    EMPTY_STATE,
    Copier,
    ExecutorId,
    Scope,
    StagedState,
    State,
    capture,
    combine,
    read,
    write,
)

LIMIT = 1 << 20
CAPTURE = Copier(LIMIT)
SCOPES = ("plain", "added", "joined", None)
"""Shared scopes without a merge, with two kinds of merge, and the private scope."""
KEYS = ("x", "y")
TURNS = ("a", "b", "c")
RULES: dict[str | None, Merge] = {"added": Merge.ADD, "joined": Merge.APPEND}
ABSENT: Any = object()
REFUSED = "refused"

Place = tuple[str | None, str | None, str]
"""The owner, the scope and the key."""


class Op(NamedTuple):
    """One thing that a turn does."""

    name: str
    scope: str | None
    key: str
    value: Any = None


def ops() -> st.SearchStrategy[Op]:
    values = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), st.text("uv", max_size=2))
    where = (st.sampled_from(SCOPES), st.sampled_from(KEYS))
    return st.one_of(
        st.builds(Op, st.just("put"), *where, values),
        st.builds(Op, st.just("append"), *where, values),
        st.builds(Op, st.just("drop"), *where, st.none()),
        st.builds(Op, st.just("read"), *where, st.none()),
        st.builds(Op, st.just("keys"), *where, st.none()),
    )


Superstep = dict[str, list[Op]]
SUPERSTEPS = st.lists(
    st.dictionaries(st.sampled_from(TURNS), st.lists(ops(), max_size=5), max_size=3), max_size=5
)


# -- the model -------------------------------------------------------------------------------------


class Refused(Exception):
    """The model says that this cannot be done."""


def joined(current: Any, item: Any) -> Any:
    if current is ABSENT:
        return [item]
    if isinstance(current, list):
        return [*current, item]
    if isinstance(current, str) and isinstance(item, str):
        return current + item
    raise Refused


def merged(scope: str | None, current: Any, update: Any) -> Any:
    if current is ABSENT:
        return update
    if type(current) is not type(update) or (RULES[scope] is Merge.APPEND and isinstance(current, int)):
        raise Refused
    return current + update


@dataclass
class Mine:
    """What a turn did to one key: nothing, append, update, drop or set, and with what."""

    kind: str = "nothing"
    values: list[Any] = field(default_factory=list)

    def then(self, kind: str, value: Any) -> "Mine":
        return Mine(kind, [*self.values, value] if kind == self.kind else [value])


class Model:
    """What one turn sees: the committed values under its own writes."""

    def __init__(self, committed: dict[Place, Any], owner: str) -> None:
        self.committed, self.owner = committed, owner
        self.mine: dict[Place, Mine] = {}

    def seen(self, place: Place) -> Any:
        mine = self.mine.get(place, Mine())
        if mine.kind == "drop":
            return ABSENT
        if mine.kind == "set":
            return mine.values[-1]
        return grown(place, self.committed.get(place, ABSENT), [mine])

    def do(self, op: Op) -> Any:
        place = (self.owner if op.scope is None else None, op.scope, op.key)
        mine = self.mine.get(place, Mine())
        match op.name:
            case "read":
                return self.seen(place)
            case "keys":
                return self.keys(place)
            case "drop":
                self.mine[place] = Mine("drop" if place in self.committed else "nothing")
            case "append":
                self.mine[place] = self.appended(place, mine, op)
            case _:
                self.mine[place] = self.put(place, mine, op.value)
        return None

    def put(self, place: Place, mine: Mine, value: Any) -> Mine:
        if place[1] not in RULES:
            return Mine("set", [value])
        if mine.kind in ("nothing", "update"):
            return mine.then("update", value)
        return Mine("set", [merged(place[1], self.seen(place), value)])

    def appended(self, place: Place, mine: Mine, op: Op) -> Mine:
        current = self.seen(place)
        after = joined(current, op.value)
        if op.scope in RULES:
            if RULES[op.scope] is not Merge.APPEND:
                raise Refused
            return self.put(place, mine, op.value if isinstance(current, str) else [op.value])
        if mine.kind in ("nothing", "append"):
            return mine.then("append", op.value)
        return Mine("set", [after])

    def keys(self, place: Place) -> list[str]:
        places = {*self.committed, *self.mine}
        return sorted(
            key
            for owner, scope, key in places
            if (owner, scope) == place[:2]
            and self.mine.get((owner, scope, key), Mine()).kind != "drop"
            and ((owner, scope, key) in self.committed or self.mine[owner, scope, key].kind != "nothing")
        )


def grown(place: Place, current: Any, made: list[Mine]) -> Any:
    """A value after the appends or updates of some turns, one after the other."""
    for mine in made:
        for value in mine.values:
            current = joined(current, value) if mine.kind == "append" else merged(place[1], current, value)
    return current


def committed_after(before: dict[Place, Any], turns: list[Model]) -> dict[Place, Any]:
    """The values after the barrier; raises Refused where turns do not combine."""
    after = dict(before)
    for place in {place for model in turns for place in model.mine}:
        made = [model.mine[place] for model in turns if place in model.mine]
        made = [mine for mine in made if mine.kind != "nothing"]
        kinds = {mine.kind for mine in made}
        if len(kinds) > 1 or (kinds == {"set"} and len(made) > 1):
            raise Refused
        if kinds == {"drop"}:
            after.pop(place, None)
        elif kinds == {"set"}:
            after[place] = made[0].values[-1]
        elif kinds:
            after[place] = grown(place, before.get(place, ABSENT), made)
    return after


# -- the engine ------------------------------------------------------------------------------------


def captured(value: Any) -> Any:
    return capture(value, "value", LIMIT)


def scope_of(op: Op, owner: str) -> Scope:
    return Scope(ExecutorId(owner), "") if op.scope is None else Scope(None, op.scope)


def staged(state: State, owner: str) -> StagedState:
    return StagedState(
        state,
        ExecutorId(owner),
        lambda scope, key: RULES.get(scope.name) if scope.owner is None else None,
        CAPTURE,
    )


def do(staging: StagedState, op: Op, owner: str) -> Any:
    scope = scope_of(op, owner)
    if op.name == "read":
        found = staging.read(scope, op.key)
        return ABSENT if found is None else found.load()
    if op.name == "keys":
        return staging.keys(scope)
    if op.name == "drop":
        staging.drop(scope, op.key)
    elif op.name == "append":
        staging.append(scope, op.key, captured(op.value))
    else:
        staging.put(scope, op.key, captured(op.value))
    return None


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns, or that it refuses."""
    try:
        return function(*args)
    except (Refused, WrongType, StateConflict):
        return REFUSED


def plain(state: State) -> dict[Place, Any]:
    return {
        (scope.owner, None if scope.owner else scope.name, key): value.load()
        for scope, keys in state.items()
        for key, value in keys.items()
    }


# -- properties ------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(SUPERSTEPS)
def test_state_is_what_the_model_says(supersteps: list[Superstep]) -> None:
    state, model = EMPTY_STATE, dict[Place, Any]()
    for superstep in supersteps:
        before = plain(state)
        turns = [(name, superstep[name]) for name in TURNS if name in superstep]
        stagings, models = [], []
        for owner, todo in turns:
            staging, mine = staged(state, owner), Model(model, owner)
            for op in todo:
                expected = outcome(mine.do, op)
                assert outcome(do, staging, op, owner) == expected
                if expected == REFUSED:
                    return  # the turn fails, and with it the run
            stagings.append((ExecutorId(owner), staging.changes))
            models.append(mine)
        assert plain(state) == before, "nothing is to be seen before the barrier"
        after = outcome(committed_after, model, models)
        writes = outcome(combine, state, stagings, CAPTURE)
        assert (writes == REFUSED) == (after == REFUSED)
        if after == REFUSED:
            return
        state = write(state, writes)
        model = after
        assert plain(state) == model
        assert all(len(keys) > 0 for keys in state.values()), "a scope without keys is not kept"
        for (owner, scope, key), value in model.items():
            found = read(state, Scope(ExecutorId(owner), "") if owner else Scope(None, scope or ""), key)
            assert found is not None
            assert found.load() == value


@given(st.lists(ops(), max_size=8))
def test_combining_is_pure(todo: list[Op]) -> None:
    staging = staged(EMPTY_STATE, "a")
    for op in todo:
        if outcome(do, staging, op, "a") == REFUSED:
            return
    changes = dict(staging.changes)
    made = [(ExecutorId("a"), staging.changes)]
    first, again = (outcome(combine, EMPTY_STATE, made, CAPTURE) for _ in range(2))
    assert first == again
    assert staging.changes == changes
    assert plain(EMPTY_STATE) == {}
