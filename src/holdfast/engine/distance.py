"""What several supersteps changed together: from one snapshot to a later one of the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from holdfast.engine.persistent import Chain
from holdfast.engine.snapshot import Delta, Snapshot
from holdfast.engine.state import Append, Drop, Place, Put, State, Write
from holdfast.engine.value import Joined, Value

K = TypeVar("K")
V = TypeVar("V")


def distance(before: Snapshot, after: Snapshot) -> Delta:
    """One delta for all supersteps between two snapshots, between which no request was answered.

    ``advance`` makes the later snapshot of it, but for the numbers of supersteps: with the same values, which are
    compared by identity, and in the same order. What came and went in between is in neither.
    """
    return Delta(
        after.deliveries,
        _writes(before.state, after.state),
        {
            **_gone(before.buffers, after.buffers),
            **{key: after.buffers[key] for key in _set(before.buffers, after.buffers)},
        },
        tuple(islice(after.outputs, len(before.outputs), None)),
        tuple(after.requests[key] for key in _set(before.requests, after.requests)),
        {
            **_gone(before.instances, after.instances),
            **{host: after.instances[host] for host in _set(before.instances, after.instances, _equal)},
        },
        tuple(scope for scope in before.state if scope not in after.state),
        _gone(before.rounds, after.rounds),
    )


def _writes(before: State, after: State) -> dict[Place, Write]:
    writes: dict[Place, Write] = {}
    for scope in _set(before, after):
        held: Mapping[str, Value] = before.get(scope, {})
        keys = after[scope]
        writes.update({(scope, key): Drop() for key in held if key not in keys})
        writes.update({(scope, key): _write(held.get(key), keys[key]) for key in _set(held, keys)})
    return writes


def _write(held: Value | None, value: Value) -> Write:
    """What was appended, where a value only grew: what is stored already need not be stored again."""
    if isinstance(value, Joined):
        base, tail = value.parts()
        if base is not None and base is held:
            return Append(tail)
        if isinstance(held, Joined):
            old_base, old_tail = held.parts()
            known = len(old_tail)
            if base is old_base and known and _begins_with(tail, old_tail):
                return Append(Chain.of(tuple(islice(tail, known, None))))
    return Put(value)


def _begins_with(longer: Chain[Value], shorter: Chain[Value]) -> bool:
    """Whether one chain grew from another: items are never exchanged, so that the last one tells."""
    return next(islice(longer, len(shorter) - 1, None), None) is shorter.last


def _same(one: object, other: object) -> bool:
    return one is other


def _equal(one: object, other: object) -> bool:
    return one == other


def _gone(before: Mapping[K, Any], after: Mapping[K, Any]) -> dict[K, None]:
    return {key: None for key in before if key not in after}


def _set(
    before: Mapping[K, V], after: Mapping[K, V], same: Callable[[object, object], bool] = _same
) -> Iterator[K]:
    """The keys that have to be set, in order: whatever is set comes behind what is left alone."""
    known = iter(before)
    keys = iter(after)
    for key in keys:
        if key in before and same(before[key], after[key]) and key in known:  # goes on to that key
            continue
        yield key
        yield from keys
