"""Scopes of the state: which scope and name a handler means by a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.arguments import has_half_character
from holdfast.engine.state import Scope
from holdfast.engine.value import Captor
from holdfast.errors import InvalidArgument, StateNotSet, WrongType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.state_key import MergeRule, StateKey
from holdfast.ids import ExecutorId

if TYPE_CHECKING:
    from holdfast.runtime.step.executors import PlacedExecutor

OWN_STATE = "state"
FIELDS = "fields"
HOOKED = "hooked"
PRIVATE_SCOPES = ("", OWN_STATE, FIELDS, HOOKED)
"""The names of the scopes that an executor has to itself."""


def own_scope(placed: PlacedExecutor, name: str) -> Scope:
    """Return a private scope of an executor."""
    return Scope(placed.address, name, placed.path)


def scope_of(placed: PlacedExecutor, scope_name: str | None) -> Scope:
    """Return the shared scope with this name, or the private one of the executor."""
    if scope_name is None:
        return Scope(placed.address, "", placed.path)
    known = placed.shared_scope
    if known is not None and known.name is scope_name:
        return known
    if not scope_name or type(scope_name) is not str:
        raise InvalidArgument(
            f"scope_name={scope_name!r}: a shared scope has a name; leave it out for the private scope"
        )
    if not scope_name.isascii():
        check_text(scope_name, "scope_name")
    scope = placed.shared_scope = Scope(None, scope_name, placed.path)
    return scope


def place_of(
    placed: PlacedExecutor, key: Any, scope_name: str | None, capture: Captor
) -> tuple[Scope, str, MergeRule | None]:
    """Return the scope and name that a key stands for, and the merge that a typed key declares."""
    if isinstance(key, StateKey):
        if key.scope_name is not None and scope_name is not None and key.scope_name != scope_name:
            raise InvalidArgument(
                f"state key {key.name!r} belongs to scope {key.scope_name!r}, but was used with "
                f"scope_name={scope_name!r}; leave scope_name out"
            )
        capture.allow(key.type, f"state key {key.name!r}")
        return scope_of(placed, key.scope_name if scope_name is None else scope_name), key.name, key.merge
    if not isinstance(key, str):
        raise WrongType(f"a state key is a str or a StateKey, not a {type(key).__name__}: {key!r}")
    if not key.isascii():
        check_text(key, "state key")
    return scope_of(placed, scope_name), key, None


def state_not_set(executor_id: ExecutorId, name: str, scope: Scope) -> StateNotSet:
    """Return the error of a handler that requires a value where there is none."""
    if scope.owner is None:
        where, call = f"shared scope {scope.name!r}", f"ctx.queue_state_update({name!r}, ..., {scope.name!r})"
        hint = "in an earlier superstep"
    else:
        where, call = "its private scope", f"ctx.queue_state_update({name!r}, ...)"
        hint = "in an earlier message of this executor, or name the shared scope that is meant with scope_name=..."
    return StateNotSet(
        f"executor {executor_id!r} requires state {name!r} of {where}, but nothing is set there; set it with {call} "
        f"{hint}, or read it with ctx.read_state({name!r}, default)",
        key=name,
        scope_name=scope.name if scope.owner is None else None,
        executor_id=executor_id,
    )


def in_default_scope(key: Any, instead: str) -> Any:
    """Return a key of the default shared scope; raise for one of another, for which there is ``instead``."""
    if isinstance(key, StateKey) and key.scope_name not in (None, DEFAULT_SHARED_SCOPE):
        raise InvalidArgument(
            f"state key {key.name!r} belongs to scope {key.scope_name!r}, not to the default shared scope; "
            f"use {instead} for it"
        )
    return key


def check_text(text: str, what: str) -> None:
    """Raise for text that no storage can keep."""
    if has_half_character(text):
        raise InvalidArgument(f"{what} {text!r}: it contains half a character, which no storage can keep")
