"""``FakeContext``: the context of a handler that is tested alone, without a workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.builder import spec_of_placeable
from holdfast.checkpoint.events.events import OutputDeltaEvent, PendingRequest, WorkflowEvent
from holdfast.engine.answers import check_answer
from holdfast.engine.message import Request
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.state import EMPTY_STATE, Place, Put, Scope, State, combine, write
from holdfast.engine.value import Copier
from holdfast.errors import GraphError, InvalidArgument, UnknownRequest
from holdfast.graph.context import PassOn, RequestExpired, SubWorkflowRequest
from holdfast.graph.executor import Executor, Recipe
from holdfast.graph.graph import Graph
from holdfast.graph.state_key import StateKey
from holdfast.ids import ExecutorId, RequestId, RunId
from holdfast.runtime.config import RunConfig, RunContext, WorkflowDefinition
from holdfast.runtime.durable.journal import Journal
from holdfast.runtime.environment import current
from holdfast.runtime.events.notices import show_request
from holdfast.runtime.step.context import TurnContext, TurnServices
from holdfast.runtime.step.effects import end_of_sleep
from holdfast.runtime.step.executors import PlacedExecutor
from holdfast.runtime.step.shared_objects import SharedObjects
from holdfast.runtime.step.state_scope import place_of
from holdfast.runtime.step.turn import call_handler, find_handler

if TYPE_CHECKING:
    import datetime

    from holdfast.graph.context import TimeSpan

FakeState: TypeAlias = Mapping[Any, Any]
"""State by key: ``"key"`` is private to the executor, ``("scope", "key")`` is shared, a ``StateKey`` is either."""

_RUN_ID = RunId("fake-run")


class FakeContext(TurnContext):
    """The context of one executor that is tested alone; records what its handlers do.

    It takes an executor as edges do: a class, a recipe, an instance or a decorated function. Hand it to a handler, or
    let ``handle`` find the handler for a message. Values are captured as in a run. ``sleep`` takes no time, a message
    may be sent to any ``target_id``, and retries and timeouts are left out.

    >>> import asyncio
    >>> from holdfast import Executor, WorkflowContext, handler
    >>> from holdfast.testing import FakeContext
    >>> class Triage(Executor):
    ...     @handler
    ...     async def triage(self, log_id: str, ctx: WorkflowContext[str]) -> str:
    ...         await ctx.queue_state_update("last", log_id)
    ...         return await ctx.require_state(log_id, scope_name="Logs")
    >>> ctx = FakeContext(Triage, state={("Logs", "log 1"): "error"})
    >>> asyncio.run(ctx.handle("log 1"))
    'error'
    >>> ctx.written
    {'last': 'log 1'}
    """

    def __init__(
        self,
        executor: type[Executor] | Recipe | Executor,
        *,
        state: FakeState | None = None,
        source: str | None = None,
        run_context: Mapping[str, Any] | None = None,
        superstep: int = 1,
        attempt: int = 1,
    ) -> None:
        """Begin a turn; ``state`` is what the superstep before left, ``source`` the executor that sent the message."""
        placed = _place(executor)
        capture = Copier(RunConfig().limits.max_value_size)
        workflow = WorkflowDefinition(placed.graph, "Fake", RunConfig(), current(), {})
        services = TurnServices(
            workflow,
            _RUN_ID,
            capture,
            self._emit,
            Journal(),
            SharedObjects(),
            run_context=RunContext(run_context),
        )
        super().__init__(services, placed, Snapshot(superstep - 1, state=EMPTY_STATE), attempt)
        self._snapshot = Snapshot(superstep - 1, state=write(EMPTY_STATE, self._given(state or {})))
        self.source = None if source is None else ExecutorId(source)
        self._recorded: list[WorkflowEvent] = []
        self._slept: list[TimeSpan | datetime.datetime] = []

    def _given(self, state: FakeState) -> dict[Place, Put]:
        given: dict[Place, Put] = {}
        for key, value in state.items():
            name, scope_name = (key[1], key[0]) if isinstance(key, tuple) and len(key) == 2 else (key, None)
            scope, name, _ = place_of(self._placed, name, scope_name, self._run.capture)
            if isinstance(key, StateKey):
                key.check(value)
            given[scope, name] = Put(self._run.capture(value, f"state {name!r}"))
        return given

    # Let the executor work.

    @property
    def executor(self) -> Executor:
        """The executor that is tested."""
        return self._placed.instance

    async def handle(self, message: Any) -> Any:
        """Let the handler for such a message handle it, and return what it returned.

        In a run that would be sent along the edges, or be an output where there are none. Raises what it raised.
        """
        self._check_open()
        captured = self._run.capture(message, "message")
        self.message_number += 1
        loaded = captured.load()
        handler = find_handler(self._placed, loaded, None)
        return _unwrap(await call_handler(self.executor, handler, loaded, None, self))

    async def answer(self, request: str | PendingRequest, response: Any) -> Any:
        """Answer a request that was asked here: let its response handler work, and return what that returned.

        The response is brought to the type that was asked for, as in a run. A ``RequestExpired`` is taken as it is.
        """
        self._check_open()
        asked = self._pending(request if isinstance(request, str) else request.request_id)
        snapshot = self._snapshot._replace(requests=self._snapshot.requests.change({asked.request_id: asked}))
        if isinstance(response, RequestExpired) and asked.expiry is not None:
            value = self._run.capture(response, "response")
        else:
            value = check_answer(snapshot, asked.request_id, response, self._run.capture)
        assert self._requests is not None
        del self._requests[asked.request_id]
        self.message_number += 1
        self.source = None
        loaded = value.load()
        handler = find_handler(self._placed, loaded, asked)
        return _unwrap(await call_handler(self.executor, handler, loaded, asked, self))

    def _pending(self, request_id: str) -> Request:
        asked = self._requests or {}
        if request_id not in asked:
            known = ", ".join(map(repr, map(str, asked))) or "none"
            raise UnknownRequest(
                f"no request {request_id!r} was asked with this context; pending are: {known}"
            )
        return asked[RequestId(request_id)]

    # Look at what it did.

    @property
    def sent(self) -> list[Any]:
        """The values that were sent with ``send_message``, in order."""
        return [sent.value.load() for sent in self._messages]

    def sent_to(self, target_id: str) -> list[Any]:
        """Return the values that were sent to one ``target_id``, in order."""
        return [sent.value.load() for sent in self._messages if sent.target == target_id]

    @property
    def outputs(self) -> list[Any]:
        """The values that were yielded, in order."""
        return [output.value.load() for output in self._outputs or ()]

    @property
    def requests(self) -> list[PendingRequest]:
        """The requests that were asked and not answered yet."""
        return [show_request(request) for request in (self._requests or {}).values()]

    @property
    def responses(self) -> dict[str, Any]:
        """The answers that were given with ``respond_to``, by request id."""
        return {str(known): value.load() for known, value in (self._responses or {}).items()}

    @property
    def state(self) -> dict[Any, Any]:
        """The state as the next superstep would see it: ``{"key": ..., ("scope", "key"): ...}``."""
        after = self._state_after()
        return {
            _shown(scope, key): after[scope][key].load()
            for scope in after
            if _public(scope)
            for key in after[scope]
        }

    @property
    def written(self) -> dict[Any, Any]:
        """The keys of the state that were set or appended to, with their values; a cleared one is in neither."""
        after, changes = self._state_after(), self._staged.changes if self._staged is not None else {}
        return {
            _shown(scope, key): after[scope][key].load()
            for scope, key in changes
            if _public(scope) and scope in after and key in after[scope]
        }

    @property
    def deltas(self) -> list[Any]:
        """The values that were streamed, in order."""
        return [event.data for event in self._recorded if isinstance(event, OutputDeltaEvent)]

    @property
    def added_events(self) -> list[WorkflowEvent]:
        """The events that were added with ``add_event``, in order."""
        return [event for event in self._recorded if not isinstance(event, OutputDeltaEvent)]

    @property
    def slept(self) -> list[TimeSpan | datetime.datetime]:
        """The time spans and times that ``sleep`` was called with."""
        return list(self._slept)

    def _state_after(self) -> State:
        before = self._snapshot.state
        if self._staged is None or not self._staged.changes:
            return before
        turns = [(self._placed.address, self._staged.changes)]
        return write(before, combine(before, turns, self._run.capture))

    # What differs from a run.

    async def sleep(self, delay: TimeSpan | None = None, *, until: datetime.datetime | None = None) -> None:
        """Note the sleep, and go on at once."""
        self._check_open()
        given = delay if until is None else until
        if given is None or (delay is not None and until is not None):
            raise InvalidArgument(
                "sleep takes a time span, as in sleep(3600), or a time, as in sleep(until=time)"
            )
        end_of_sleep(delay, until, self._run.environment.now())  # raises for what is neither
        self._slept.append(given)

    async def respond_to(self, request: SubWorkflowRequest, value: Any) -> None:
        """Take an answer to any request that a test made; it is brought to the type that this asks for."""
        asked = RequestId(request.request_id)
        capture, asker = self._run.capture, ExecutorId(request.executor_id)
        pending = Request(asked, asker, capture(request.data, "request"), request.response_type)
        known = Snapshot(requests=self._snapshot.requests.change({asked: pending}))
        answered = self._responses or {}
        self._responses = {**answered, asked: check_answer(known, asked, value, capture, answered)}

    def tell(self, event: WorkflowEvent) -> None:
        """Record an event."""
        self._recorded.append(event)

    def _emit(self, events: Sequence[WorkflowEvent]) -> None:
        self._recorded += events

    def _target(self, target_id: str) -> ExecutorId:
        return ExecutorId(target_id)


def _place(executor: type[Executor] | Recipe | Executor) -> PlacedExecutor:
    spec = spec_of_placeable(executor)
    if spec.nested is not None:
        raise GraphError(
            f"executor {spec.id!r} nests a workflow and has no handler of its own; test its executors, or run the "
            f"workflow"
        )
    graph = Graph(spec.id, {spec.id: spec}, ())
    return PlacedExecutor(spec.id, graph.locations[spec.id], spec.create())


def _unwrap(result: Any) -> Any:
    return result.value if isinstance(result, PassOn) else result


def _public(scope: Scope) -> bool:
    """Return True for the scopes that handlers name: shared ones, and the private one with keys."""
    return scope.owner is None or not scope.name


def _shown(scope: Scope, key: str) -> str | tuple[str, str]:
    return key if scope.owner is not None else (scope.name, key)
