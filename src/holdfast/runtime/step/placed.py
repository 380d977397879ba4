"""An executor as one run holds it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.state import Scope
from holdfast.errors import UnkeptField
from holdfast.graph.executor import Executor
from holdfast.graph.graph import ExecutorLocation
from holdfast.graph.state_key import MergeRule
from holdfast.ids import ExecutorId
from holdfast.runtime.step.fields import FieldWatch, Noted


class Placed:
    """An executor of a run: where it stands and the instance that serves it there."""

    __slots__ = (
        *("address", "graph", "instance", "last", "path", "spec"),
        *("shared_scope", "to_reset", "to_restore", "watch"),
    )

    def __init__(self, address: ExecutorId, located: ExecutorLocation, instance: Executor) -> None:
        self.address = address
        self.graph, self.path, self.spec = located
        self.instance = instance
        self.shared_scope: Scope | None = None
        """The shared scope that it used last, as it will most often do again."""
        self.to_reset = False
        self.to_restore = False
        self.last = not self.graph.outgoing[self.spec.id]
        # Most executors have no field but their id; they are watched once they have one.
        fields = self.spec.watched and len(instance.__dict__) > 1
        self.watch = FieldWatch(instance, address) if fields else None

    def unkept_changes(self, noted: Noted | None) -> Iterable[UnkeptField]:
        """A warning for each field that changed since it was noted and that no checkpoint keeps."""
        if self.watch is None:
            if len(self.instance.__dict__) == 1:
                return ()
            self.watch = FieldWatch(self.instance, self.address)
        elif noted is not None and not self.watch.changed_since(noted):
            return ()
        return self.watch.warnings_since(noted)

    def merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """The merge declared for a key; private scopes have one writer and need none."""
        return self.graph.merge_for(scope.name, key) if scope.owner is None else None
