"""The executors of one run: created, leased, restored, and let go."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from holdfast.engine.snapshot import Snapshot
from holdfast.engine.state import Scope
from holdfast.errors import ExecutorFailed, HoldfastError
from holdfast.graph.graph import ExecutorLocation, Graph, path_of
from holdfast.graph.typing.match import show_value
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.step.leases import Activity, Holder, check_free, regain, take
from holdfast.runtime.step.placed import Placed
from holdfast.runtime.step.state_scope import PRIVATE_SCOPES


class Cast:
    """The executors of one run, by their addresses.

    ``shared`` ones serve all runs. ``resumed`` is the snapshot with which a run goes on, None for a new one.
    """

    def __init__(
        self, graph: Graph, run_id: RunId, shared: Mapping[ExecutorId, Placed], resumed: Snapshot | None
    ) -> None:
        self._graph = graph
        self._run_id = run_id
        self._resumed = resumed
        self._executors = dict(shared)
        self._holders: dict[str, Holder] = {}
        self._activity = Activity()
        self._as_after: set[ExecutorId] = set()
        """Those that are not here yet and have to be as they were after a turn that they did not run again."""
        self._nested: dict[str, list[ExecutorId]] = {}
        if resumed is not None:
            regain(graph, run_id)
        try:
            self._place_all(shared)
        except BaseException:
            self.let_go()
            raise

    def placed(self, address: ExecutorId) -> Placed:
        """The executor with this address; one in a nested workflow is created with its first turn."""
        return self._executors.get(address) or self._place(address, self._graph.locate(address))

    def _place_all(self, shared: Mapping[ExecutorId, Placed]) -> None:
        for spec in self._graph.executors.values():
            if spec.nested is not None:
                check_free(spec.nested, spec.id)
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

    def _place(self, address: ExecutorId, located: ExecutorLocation) -> Placed:
        instance = located.spec.create()
        used_before = False
        if located.spec.shared_instance is not None and not instance.shareable:
            holder = self._holders.setdefault(
                located.path, Holder(self._run_id, located.path, self._activity)
            )
            used_before = take(instance, address, holder)
        placed = self._executors[address] = Placed(address, located, instance)
        placed.to_reset = used_before
        kept = self._resumed is not None and keeps_something(self._resumed, address)
        placed.to_restore = kept or address in self._as_after
        if located.path:
            self._nested.setdefault(located.path, []).append(address)
        return placed

    def to_restore(self, but: Container[ExecutorId]) -> list[Placed]:
        """Those that have to be as they were before the run goes on, but for some."""
        return [p for p in self._executors.values() if p.to_restore and p.address not in but]

    def be_as_after(self, address: ExecutorId, snapshot: Snapshot) -> None:
        """Before its next turn, let an executor be as it was after one that it did not run again."""
        if not keeps_something(snapshot, address):
            return
        placed = self._executors.get(address)
        if placed is not None:
            placed.to_restore = True
        else:
            self._as_after.add(address)

    def forget(self, finished: Iterable[str]) -> None:
        """Let go of the executors of nested workflows that came to their end."""
        for path in finished:
            if path in self._holders:
                self._holders.pop(path).free = True
            for address in self._nested.pop(path, ()):
                del self._executors[address]
            self._as_after = {address for address in self._as_after if path_of(address) != path}

    def at_work(self, busy: bool) -> None:
        """Say whether the run moves: while it does, nobody else may reset its instances."""
        self._activity.busy = busy

    def let_go(self) -> None:
        """The run is over: its executor instances may serve another."""
        for holder in self._holders.values():
            holder.free = True

    def keep(self) -> None:
        """A handler goes on though the run is over: it keeps the instances."""
        for holder in self._holders.values():
            holder.free = False


def keeps_something(snapshot: Snapshot, address: ExecutorId) -> bool:
    """Whether an executor has anything in its private scopes."""
    path = path_of(address)
    return any(Scope(address, name, path) in snapshot.state for name in PRIVATE_SCOPES)
