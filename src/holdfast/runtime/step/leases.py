"""Which run holds which executor instance."""

from __future__ import annotations

import weakref
from typing import Any

from holdfast.engine.copies import differs
from holdfast.engine.router import brief
from holdfast.errors import ExecutorShared
from holdfast.graph.executor import Executor
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.step.fields import LEASE, copy_of_fields, fields_of, put_back
from holdfast.runtime.step.placed import Placed


class Activity:
    """Whether a run moves now, in this process."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


class Holder:
    """Who holds an executor instance: one run, at one path. It lets go when it is dropped or ``free`` is set."""

    __slots__ = ("__weakref__", "activity", "free", "path", "run_id")

    def __init__(self, run_id: RunId, path: str, activity: Activity) -> None:
        self.run_id = run_id
        self.path = path
        self.free = False
        self.activity = activity


class _Lease:
    """What an executor instance remembers: its fields when the workflow was built, and who holds it."""

    __slots__ = ("baseline", "holder", "last_run", "used")

    def __init__(self, baseline: dict[str, Any]) -> None:
        self.last_run: RunId | None = None
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
            shared[spec.id] = Placed(spec.id, graph.locations[spec.id], instance)
        elif instance is not None and LEASE not in vars(instance):
            baseline = copy_of_fields(instance)
            vars(instance)[LEASE] = _Lease(baseline)
    return shared


def take(instance: Executor, address: ExecutorId, holder: Holder) -> bool:
    """Let ``holder`` hold an instance; whether ``reset`` must be awaited before its first turn.

    Raises ``ExecutorShared`` if another run holds it, or has left changed fields behind in it.
    """
    lease: _Lease = vars(instance)[LEASE]
    _check_free(instance, address, lease, holder)
    resets = lease.used and hasattr(instance, "reset")
    lease.last_run = holder.run_id
    lease.holder, lease.used = weakref.ref(holder), True
    return resets


def check_free(graph: Graph, host: ExecutorId) -> None:
    """Raise ``ExecutorShared`` if an instance in a nested graph cannot serve now.

    Nested workflows take their instances when they are started, but a run should not get that far in vain.
    """
    for spec in graph.executors.values():
        address = ExecutorId(f"{host}/{spec.id}")
        if spec.nested is not None:
            check_free(spec.nested, address)
        elif spec.shared_instance is not None and not spec.shareable:
            _check_free(spec.shared_instance, address, vars(spec.shared_instance)[LEASE], None)


def regain(graph: Graph, run_id: RunId) -> None:
    """A run is resumed: let the instances that it used last be as when the workflow was built, and free for it.

    An instance in which a handler works, of a run that moves or was left behind, stays as it is.
    """
    for spec in graph.executors.values():
        if spec.nested is not None:
            regain(spec.nested, run_id)
        elif spec.shared_instance is not None and not spec.shareable:
            lease: _Lease = vars(spec.shared_instance)[LEASE]
            holder = lease.holder() if lease.holder is not None else None
            if lease.last_run == run_id and not (holder is not None and holder.activity.busy):
                put_back(spec.shared_instance, lease.baseline)
                lease.holder, lease.used = None, False


def _check_free(instance: Executor, address: ExecutorId, lease: _Lease, holder: Holder | None) -> None:
    other = lease.holder() if lease.holder is not None else None
    cls = type(instance).__name__
    if other is not None and other is not holder and not other.free:
        same_run = holder is not None and other.run_id == holder.run_id
        by = f"run {other.run_id} uses now"
        if same_run:
            by = f"{other.path[:-1]!r} uses now in the same run" if other.path else "the same run uses now"
        raise ExecutorShared(
            f"executor {address!r} is an instance of {cls} that {by}; for runs side by side put the class or "
            f"{cls}.bind(...) in the edges, or say 'shareable = True' if it keeps nothing between messages"
        )
    if lease.used and not hasattr(instance, "reset"):
        _check_unchanged(instance, lease.baseline)


def _check_unchanged(instance: Executor, baseline: dict[str, Any]) -> None:
    now = fields_of(instance)
    for name in (*baseline, *now):
        if name not in now or name not in baseline or _changed(baseline[name], now[name]):
            was, became = (_shown(fields, name) for fields in (baseline, now))
            cls = type(instance).__name__
            raise ExecutorShared(
                f"{cls}.{name}: {was} -> {became}: this instance still has fields of an earlier run; put the class "
                f"or {cls}.bind(...) in the edges, or define 'async def reset(self)'"
            )


def _changed(was: object, now: object) -> bool:
    # What could not be copied is the same object, if it is the same at all.
    return was is not now and differs(was, now, unsure=not hasattr(now, "__dict__"))


def _shown(fields: dict[str, Any], name: str) -> str:
    return brief(fields[name]).rpartition(" (")[0] if name in fields else "absent"
