"""Executors as one run holds them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from holdfast.engine.copying import copied, differs
from holdfast.engine.routing import brief
from holdfast.engine.state import Scope
from holdfast.errors import ExecutorShared, NotCheckpointable, UnkeptField
from holdfast.graph.executor import Executor
from holdfast.graph.graph import Graph, Located
from holdfast.graph.state_key import MergeRule
from holdfast.ids import ExecutorId, RunId

_LEASE = "_holdfast_lease"


class Placed:
    """An executor of a run: where it stands and the instance that serves it there."""

    __slots__ = (
        "_warned",
        "address",
        "graph",
        "hooked",
        "instance",
        "keeps",
        "last",
        "path",
        "spec",
        "watched",
    )

    def __init__(self, address: ExecutorId, located: Located, instance: Executor) -> None:
        self.address = address
        self.graph, self.path, self.spec = located
        self.instance = instance
        self.last = not self.graph.outgoing[self.spec.id]
        self.hooked = type(instance).on_checkpointing is not Executor.on_checkpointing
        self.watched = not instance.shareable and not self.hooked
        self.keeps = self.hooked or self.watched or bool(instance.checkpointed)
        self._warned: set[str] | None = None

    def merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """The merge declared for a key; private scopes have one writer and need none."""
        return self.graph.merge_for(scope.name, key) if scope.owner is None else None

    def fields(self) -> dict[str, tuple[Any, int]]:
        """The fields as they are now, with the lengths of those that have one: cheap enough for every turn."""
        return {name: (value, _length(value)) for name, value in fields_of(self.instance)}

    def unkept_changes(self, before: dict[str, tuple[Any, int]]) -> Iterator[UnkeptField]:
        """A warning for each field that changed since and that no checkpoint keeps, once for each field."""
        cls = type(self.instance)
        for name, value in fields_of(self.instance):
            if name in cls.checkpointed or name in cls.transient or name in (self._warned or ()):
                continue
            was = before.get(name)
            if was is None or was[0] is not value or was[1] != _length(value):
                self._warned = {name, *(self._warned or ())}
                yield UnkeptField(
                    f"executor {self.address!r} changed its field {name!r}, which no checkpoint keeps: name it in "
                    f"'checkpointed = (\"{name}\",)', save it in on_checkpointing, or, if it can be made anew, name "
                    f"it in 'transient'"
                )

    def copy_of_fields(self) -> dict[str, Any]:
        """Copies of the fields, to put them back before another attempt; what cannot be copied stays as it is."""
        return {name: _copied_or_same(value) for name, value in fields_of(self.instance)}

    def put_back(self, fields: dict[str, Any]) -> None:
        """Make the fields what they were."""
        for name, _ in list(fields_of(self.instance)):
            if name not in fields:
                delattr(self.instance, name)
        for name, value in fields.items():
            setattr(self.instance, name, _copied_or_same(value))


def fields_of(instance: Executor) -> list[tuple[str, Any]]:
    """The fields that an executor has besides its id."""
    fields = vars(instance)
    if len(fields) == 1:  # the id alone, as most have
        return []
    return [(name, value) for name, value in fields.items() if name not in ("id", _LEASE)]


def _length(value: object) -> int:
    return len(value) if isinstance(value, list | dict | set | bytearray) else -1


def _copied_or_same(value: object) -> Any:
    try:
        return copied(value, "field")
    except NotCheckpointable:
        return value


class Holder:
    """Who holds an executor instance: one run, at one path. It lets go when it is dropped or ``free`` is set."""

    __slots__ = ("__weakref__", "free", "path", "run_id")

    def __init__(self, run_id: RunId, path: str) -> None:
        self.run_id = run_id
        self.path = path
        self.free = False


class _Lease:
    """What an executor instance remembers: its fields when the workflow was built, and who holds it."""

    __slots__ = ("baseline", "holder", "used")

    def __init__(self, baseline: dict[str, Any]) -> None:
        self.baseline = baseline
        self.holder: weakref.ref[Holder] | None = None
        self.used = False


def remember(graph: Graph) -> dict[ExecutorId, Placed]:
    """Remember the fields of the executor instances in a graph as they are when it is built.

    Returns the executors that may serve all runs: they need not be placed for each.
    """
    shared: dict[ExecutorId, Placed] = {}
    for spec in graph.executors.values():
        instance = spec.shared_instance
        if instance is not None and instance.shareable:
            shared[spec.id] = Placed(spec.id, Located(graph, "", spec), instance)
        elif instance is not None and _LEASE not in vars(instance):
            baseline = {name: _copied_or_same(value) for name, value in fields_of(instance)}
            vars(instance)[_LEASE] = _Lease(baseline)
    return shared


def take(instance: Executor, address: ExecutorId, holder: Holder) -> bool:
    """Let ``holder`` hold an instance; whether ``reset`` must be awaited first.

    Raises ``ExecutorShared`` if another run holds it, or has left changed fields behind in it.
    """
    lease: _Lease = vars(instance)[_LEASE]
    other = lease.holder() if lease.holder is not None else None
    if other is not None and other is not holder and not other.free:
        raise ExecutorShared(
            f"executor {address!r} is an instance of {type(instance).__name__} that run {other.run_id} uses now; for "
            f"runs side by side put the class or {type(instance).__name__}.bind(...) in the edges, or say "
            f"'shareable = True' if it keeps nothing between messages"
        )
    resets = lease.used and hasattr(instance, "reset")
    if lease.used and not resets:
        _check_unchanged(instance, lease.baseline)
    lease.holder, lease.used = weakref.ref(holder), True
    return resets


def _check_unchanged(instance: Executor, baseline: dict[str, Any]) -> None:
    now = dict(fields_of(instance))
    for name in (*baseline, *now):
        if name not in now or name not in baseline or differs(baseline[name], now[name]):
            was, became = (_shown(fields, name) for fields in (baseline, now))
            cls = type(instance).__name__
            raise ExecutorShared(
                f"{cls}.{name}: {was} -> {became}: this instance still has fields of an earlier run; put the class "
                f"or {cls}.bind(...) in the edges, or define 'async def reset(self)'"
            )


def _shown(fields: dict[str, Any], name: str) -> str:
    return brief(fields[name]).rpartition(" (")[0] if name in fields else "absent"
