"""The context that handlers are given: stages what a turn does until the superstep is applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast.engine.limits import Limits
from holdfast.engine.message import Output, Sent
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.staging import Staging
from holdfast.engine.state import Scope
from holdfast.engine.superstep import Outcome
from holdfast.engine.value import Copied, Value, capture, changed_since
from holdfast.errors import ChangedAfterCapture, GraphError, InvalidArgument, WrongType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE, WorkflowContext
from holdfast.graph.graph import Graph
from holdfast.graph.state_key import MergeRule, StateKey
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.events import WorkflowEvent, WorkflowWarningEvent

_OWN_STATE = "state"


class Surroundings:
    """What the turns of one run have in common."""

    __slots__ = ("emit", "graph", "limits", "run_id")

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        run_id: RunId,
        emit: Callable[[Sequence[WorkflowEvent]], None],
    ) -> None:
        self.graph = graph
        self.limits = limits
        self.run_id = run_id
        self.emit = emit

    def merge_for(self, scope: Scope, key: str) -> MergeRule | None:
        """The merge declared for a key; private scopes have one writer and need none."""
        return self.graph.merge_for(scope.name, key) if scope.owner is None else None


class TurnContext(WorkflowContext[Any, Any]):
    """The context of one turn."""

    def __init__(self, around: Surroundings, executor_id: ExecutorId, snapshot: Snapshot) -> None:
        self._around = around
        self._executor_id = executor_id
        self._snapshot = snapshot
        self._messages: list[Sent] = []
        self._outputs: list[Output] = []
        # By identity: of a value that is changed and taken again, the last taking counts.
        self._captured: dict[int, tuple[str, object, Value]] = {}
        self._staged: Staging | None = None
        self.events: list[WorkflowEvent] = []

    # What the runtime asks of it.

    def returned(self, value: object) -> None:
        """Take what a handler returned: a message, or an output of an executor without outgoing edges."""
        if self._around.graph.outgoing[self._executor_id]:
            self._messages.append(Sent(self._capture(value, "message")))
        else:
            self._yielded(self._capture(value, "output"))

    def outcome(self) -> Outcome:
        """What the turn produced."""
        for what, value, captured in self._captured.values():
            if changed_since(value, captured):
                self.events.append(WorkflowWarningEvent(self._changed(what, value), self._executor_id))
        changes = self._staged.changes if self._staged is not None else {}
        return Outcome(self._executor_id, self._messages, changes, self._outputs)

    def _changed(self, what: str, value: object) -> ChangedAfterCapture:
        return ChangedAfterCapture(
            f"executor {self._executor_id!r} changed a {type(value).__name__} after the call that took it ({what}); "
            f"others see it as it was at that call: make the change before, or send or queue it again"
        )

    def _capture(self, value: object, place: str) -> Value:
        captured = capture(value, place, self._around.limits.max_value_size)
        if type(captured) is Copied:
            self._captured[id(value)] = (place, value, captured)
        return captured

    def _yielded(self, value: Value) -> None:
        output_from = self._around.graph.output_from
        if output_from is None or self._executor_id in output_from:
            self._outputs.append(Output(self._executor_id, value))

    @property
    def _staging(self) -> Staging:
        if self._staged is None:
            around = self._around
            self._staged = Staging(
                self._snapshot.state, self._executor_id, around.merge_for, around.limits.max_value_size
            )
        return self._staged

    # What handlers ask of it; the contract is in ``WorkflowContext``.

    @property
    def run_id(self) -> RunId:
        return self._around.run_id

    @property
    def executor_id(self) -> ExecutorId:
        return self._executor_id

    @property
    def superstep(self) -> int:
        return self._snapshot.superstep + 1

    async def send_message(self, value: Any, target_id: str | None = None) -> None:
        target = None if target_id is None else self._target(target_id)
        self._messages.append(Sent(self._capture(value, "message"), target))

    def _target(self, target_id: str) -> ExecutorId:
        graph = self._around.graph
        reachable = [target for edge in graph.outgoing[self._executor_id] for target in edge.targets]
        target = ExecutorId(target_id)
        if target in reachable:
            return target
        missing = "no edge leads there" if target in graph.executors else "there is no such executor"
        listed = ", ".join(repr(str(known)) for known in dict.fromkeys(reachable)) or "none"
        raise GraphError(
            f"executor {self._executor_id!r} sent a message to {target_id!r}, but {missing}; "
            f"from {self._executor_id!r} edges lead to: {listed}"
        )

    async def yield_output(self, value: Any) -> None:
        self._yielded(self._capture(value, "output"))

    async def read_state(self, key: Any, default: Any = None, scope_name: str | None = None) -> Any:
        scope, name, _ = self._place(key, scope_name)
        return _loaded(self._staging.read(scope, name), default)

    async def queue_state_update(self, key: Any, value: Any, scope_name: str | None = None) -> None:
        scope, name, rule = self._place(key, scope_name)
        if isinstance(key, StateKey):
            key.check(value)
        self._staging.put(scope, name, self._capture(value, f"state {name!r}"), rule)

    async def read_state_keys(self, scope_name: str | None = None) -> list[str]:
        return self._staging.keys(self._scope(scope_name))

    async def clear_state(
        self, key: str | StateKey[Any] | None = None, scope_name: str | None = None
    ) -> None:
        if key is None:
            scope = self._scope(scope_name)
            for name in self._staging.keys(scope):
                self._staging.drop(scope, name)
        else:
            scope, name, _ = self._place(key, scope_name)
            self._staging.drop(scope, name)

    async def append_state(self, key: str | StateKey[Any], item: Any, scope_name: str | None = None) -> None:
        scope, name, rule = self._place(key, scope_name)
        if isinstance(key, StateKey):
            key.check_item(item)
        self._staging.append(scope, name, self._capture(item, f"state {name!r}"), rule)

    async def get_state(self) -> Any:
        return _loaded(self._staging.read(Scope(self._executor_id, _OWN_STATE), _OWN_STATE), None)

    async def set_state(self, value: Any) -> None:
        self._staging.put(Scope(self._executor_id, _OWN_STATE), _OWN_STATE, self._capture(value, "state"))

    async def get_shared_state(self, key: str | StateKey[Any], default: Any = None) -> Any:
        return await self.read_state(_in_default_scope(key, "read_state"), default, DEFAULT_SHARED_SCOPE)

    async def set_shared_state(self, key: str | StateKey[Any], value: Any) -> None:
        await self.queue_state_update(
            _in_default_scope(key, "queue_state_update"), value, DEFAULT_SHARED_SCOPE
        )

    async def add_event(self, event: Any) -> None:
        if not isinstance(event, WorkflowEvent):
            raise WrongType(
                f"executor {self._executor_id!r} added a {type(event).__name__} as an event; "
                f"derive your event from WorkflowEvent"
            )
        if event.provisional:
            self._around.emit([event])
        else:
            self.events.append(event)

    def _scope(self, scope_name: str | None) -> Scope:
        if scope_name is None:
            return Scope(self._executor_id, "")
        if not scope_name or type(scope_name) is not str:
            raise InvalidArgument(
                f"scope_name={scope_name!r}: a shared scope has a name; leave it out for the private scope"
            )
        return Scope(None, scope_name)

    def _place(self, key: Any, scope_name: str | None) -> tuple[Scope, str, MergeRule | None]:
        """The scope and name that a key stands for, and the merge that a typed key declares."""
        if isinstance(key, StateKey):
            if key.scope_name is not None and scope_name is not None and key.scope_name != scope_name:
                raise InvalidArgument(
                    f"state key {key.name!r} belongs to scope {key.scope_name!r}, but was used with "
                    f"scope_name={scope_name!r}; leave scope_name out"
                )
            return self._scope(key.scope_name if scope_name is None else scope_name), key.name, key.merge
        if not isinstance(key, str):
            _refuse_key(key)
        return self._scope(scope_name), key, None


def _in_default_scope(key: Any, instead: str) -> Any:
    if isinstance(key, StateKey) and key.scope_name not in (None, DEFAULT_SHARED_SCOPE):
        raise InvalidArgument(
            f"state key {key.name!r} belongs to scope {key.scope_name!r}, not to the default shared scope; "
            f"use {instead} for it"
        )
    return key


def _refuse_key(key: object) -> NoReturn:
    raise WrongType(f"a state key is a str or a StateKey, not a {type(key).__name__}: {key!r}")


def _loaded(value: Value | None, default: Any) -> Any:
    return default if value is None else value.load()
