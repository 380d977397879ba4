"""The executors of a run: the instances that serve it, and who may use an instance at a time."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Mapping
from typing import Any

from holdfast.engine.copies import differs
from holdfast.engine.router import brief
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.state import Scope
from holdfast.errors import ExecutorFailed, ExecutorShared, HoldfastError, UnkeptField
from holdfast.graph.executor import Executor
from holdfast.graph.graph import ExecutorLocation, Graph, path_of
from holdfast.graph.state_key import MergeRule
from holdfast.graph.typing.match import show_value
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.step.fields import LEASE, FieldWatch, Noted, copy_fields, fields_of, restore_fields
from holdfast.runtime.step.state_scope import PRIVATE_SCOPES


class PlacedExecutor:
    """An executor at its address in the graph, with the instance that serves it there."""

    __slots__ = (
        *("address", "graph", "instance", "last", "path", "spec"),
        *("shared_scope", "to_reset", "to_restore", "watch"),
    )

    def __init__(self, address: ExecutorId, located: ExecutorLocation, instance: Executor) -> None:
        self.address = address
        self.graph, self.path, self.spec = located
        self.instance = instance
        self.shared_scope: Scope | None = None
        """The shared scope that it used last, and most often uses again."""
        self.to_reset = False
        """True if ``reset`` of the instance has to be called before its next turn."""
        self.to_restore = False
        """True if the instance has to get its kept fields before its next turn."""
        self.last = not self.graph.outgoing[self.spec.id]
        """True if no edge leads away from it."""
        # Most executors have no field but their id; they are watched once they have one.
        fields = self.spec.watched and len(instance.__dict__) > 1
        self.watch = FieldWatch(instance, address) if fields else None

    def unkept_changes(self, noted: Noted | None) -> Iterable[UnkeptField]:
        """Return a warning for each field that changed since it was noted and that no checkpoint keeps."""
        if self.watch is None:
            if len(self.instance.__dict__) == 1:
                return ()
            self.watch = FieldWatch(self.instance, self.address)
        elif noted is not None and not self.watch.changed_since(noted):
            return ()
        return self.watch.warnings_since(noted)

    def merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """Return the merge declared for a key; private scopes have one writer and need none."""
        return self.graph.merge_for(scope.name, key) if scope.owner is None else None


class RunExecutors:
    """The executors of one run, by their addresses.

    ``shared`` executors serve all runs. ``resumed`` is the snapshot from which a run goes on, None for a new run.
    """

    def __init__(
        self,
        graph: Graph,
        run_id: RunId,
        shared: Mapping[ExecutorId, PlacedExecutor],
        resumed: Snapshot | None,
    ) -> None:
        self._graph = graph
        self._run_id = run_id
        self._resumed = resumed
        self._executors = dict(shared)
        self._holders: dict[str, Holder] = {}
        self._activity = Activity()
        self._restore_when_placed: set[ExecutorId] = set()
        """Executors that are not placed yet, and whose last turn was taken from the journal."""
        self._nested: dict[str, list[ExecutorId]] = {}
        if resumed is not None:
            reclaim_instances(graph, run_id)
        try:
            self._place_all(shared)
        except BaseException:
            self.let_go()
            raise

    def find(self, address: ExecutorId) -> PlacedExecutor:
        """Return the executor with this address; one in a nested workflow is created with its first turn."""
        return self._executors.get(address) or self._place(address, self._graph.locate(address))

    def _place_all(self, shared: Mapping[ExecutorId, PlacedExecutor]) -> None:
        for spec in self._graph.executors.values():
            if spec.nested is not None:
                check_nested_free(spec.nested, spec.id)
            elif spec.id not in shared:
                try:
                    self._place(spec.id, self._graph.locations[spec.id])
                except HoldfastError:
                    raise
                except Exception as error:
                    raise ExecutorFailed(
                        f"executor {spec.id!r} could not be created for run {self._run_id}: {show_value(error, 1_000)}",
                        executor_id=spec.id,
                        run_id=self._run_id,
                    ) from error

    def _place(self, address: ExecutorId, located: ExecutorLocation) -> PlacedExecutor:
        instance = located.spec.create()
        used_before = False
        if located.spec.shared_instance is not None and not instance.shareable:
            holder = self._holders.setdefault(
                located.path, Holder(self._run_id, located.path, self._activity)
            )
            used_before = lease_instance(instance, address, holder)
        placed = self._executors[address] = PlacedExecutor(address, located, instance)
        placed.to_reset = used_before
        kept = self._resumed is not None and keeps_something(self._resumed, address)
        placed.to_restore = kept or address in self._restore_when_placed
        if located.path:
            self._nested.setdefault(located.path, []).append(address)
        return placed

    def to_restore(self, but: Container[ExecutorId]) -> list[PlacedExecutor]:
        """Return the executors that need their kept fields before the run goes on, except some."""
        return [p for p in self._executors.values() if p.to_restore and p.address not in but]

    def restore_before_next_turn(self, address: ExecutorId, snapshot: Snapshot) -> None:
        """Give an executor its kept fields before its next turn: its last one was taken from the journal."""
        if not keeps_something(snapshot, address):
            return
        placed = self._executors.get(address)
        if placed is not None:
            placed.to_restore = True
        else:
            self._restore_when_placed.add(address)

    def forget(self, finished: Iterable[str]) -> None:
        """Let go of the executors of nested workflows that came to their end."""
        for path in finished:
            if path in self._holders:
                self._holders.pop(path).free = True
            for address in self._nested.pop(path, ()):
                del self._executors[address]
            self._restore_when_placed = {
                address for address in self._restore_when_placed if path_of(address) != path
            }

    def set_busy(self, busy: bool) -> None:
        """Say whether the run moves: while it does, nobody else may reset its instances."""
        self._activity.busy = busy

    def let_go(self) -> None:
        """Let other runs use the instances: this one is over."""
        for holder in self._holders.values():
            holder.free = True

    def keep(self) -> None:
        """Keep the instances though the run is over: a handler still uses one."""
        for holder in self._holders.values():
            holder.free = False


def keeps_something(snapshot: Snapshot, address: ExecutorId) -> bool:
    """Return True if an executor has anything in its private scopes."""
    path = path_of(address)
    return any(Scope(address, name, path) in snapshot.state for name in PRIVATE_SCOPES)


# Leases of instances that are given to a workflow and cannot serve several runs at a time.


class Activity:
    """Says whether a run moves now, in this process."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False


class Holder:
    """One run, at one path, as the holder of executor instances. It lets go when it is dropped or ``free`` is set."""

    __slots__ = ("__weakref__", "activity", "free", "path", "run_id")

    def __init__(self, run_id: RunId, path: str, activity: Activity) -> None:
        self.run_id = run_id
        self.path = path
        self.free = False
        self.activity = activity


class _Lease:
    """Belongs to an executor instance: its fields when the workflow was built, and its holder."""

    __slots__ = ("baseline", "holder", "last_run", "used")

    def __init__(self, baseline: dict[str, Any]) -> None:
        self.last_run: RunId | None = None
        self.baseline = baseline
        self.holder: weakref.ref[Holder] | None = None
        self.used = False


def register_instances(graph: Graph) -> dict[ExecutorId, PlacedExecutor]:
    """Remember the fields of the executor instances in a graph as they are when it is built.

    Returns the executors that may serve all runs: they need not be placed for each.
    """
    shared: dict[ExecutorId, PlacedExecutor] = {}
    for spec in graph.executors.values():
        instance = spec.shared_instance
        if instance is not None and instance.shareable:
            shared[spec.id] = PlacedExecutor(spec.id, graph.locations[spec.id], instance)
        elif instance is not None and LEASE not in vars(instance):
            baseline = copy_fields(instance)
            vars(instance)[LEASE] = _Lease(baseline)
    return shared


def lease_instance(instance: Executor, address: ExecutorId, holder: Holder) -> bool:
    """Let ``holder`` hold an instance; return True if ``reset`` must be awaited before its first turn.

    Raises ``ExecutorShared`` if another run holds it, or has left changed fields behind in it.
    """
    lease: _Lease = vars(instance)[LEASE]
    _check_free(instance, address, lease, holder)
    resets = lease.used and hasattr(instance, "reset")
    lease.last_run = holder.run_id
    lease.holder, lease.used = weakref.ref(holder), True
    return resets


def check_nested_free(graph: Graph, host: ExecutorId) -> None:
    """Raise ``ExecutorShared`` if an instance in a nested graph cannot serve now.

    Nested workflows take their instances when they are started, but a run should not get that far in vain.
    """
    for spec in graph.executors.values():
        address = ExecutorId(f"{host}/{spec.id}")
        if spec.nested is not None:
            check_nested_free(spec.nested, address)
        elif spec.shared_instance is not None and not spec.shareable:
            _check_free(spec.shared_instance, address, vars(spec.shared_instance)[LEASE], None)


def reclaim_instances(graph: Graph, run_id: RunId) -> None:
    """Give the instances that a resumed run used last their first fields, and free them for it.

    An instance in which a handler works, of a run that moves or was left behind, stays as it is.
    """
    for spec in graph.executors.values():
        if spec.nested is not None:
            reclaim_instances(spec.nested, run_id)
        elif spec.shared_instance is not None and not spec.shareable:
            lease: _Lease = vars(spec.shared_instance)[LEASE]
            holder = lease.holder() if lease.holder is not None else None
            if lease.last_run == run_id and not (holder is not None and holder.activity.busy):
                restore_fields(spec.shared_instance, lease.baseline)
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
        if name not in now or name not in baseline or _has_changed(baseline[name], now[name]):
            was, became = (_describe_field(fields, name) for fields in (baseline, now))
            cls = type(instance).__name__
            raise ExecutorShared(
                f"{cls}.{name}: {was} -> {became}: this instance still has fields of an earlier run; put the class "
                f"or {cls}.bind(...) in the edges, or define 'async def reset(self)'"
            )


def _has_changed(was: object, now: object) -> bool:
    # A value that could not be copied is the same object, if it is the same at all.
    return was is not now and differs(was, now, unsure=not hasattr(now, "__dict__"))


def _describe_field(fields: dict[str, Any], name: str) -> str:
    return brief(fields[name]).rpartition(" (")[0] if name in fields else "absent"
