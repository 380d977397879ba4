"""The context that handlers are given: stages what a turn does until the superstep is applied."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.checkpoint.events.events import OutputDeltaEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.engine._fast import make_tuple
from holdfast.engine.answers import check_answer
from holdfast.engine.message import Expiry, Output, Request, Sent
from holdfast.engine.snapshot import NO_RESPONSES, Snapshot
from holdfast.engine.state import NO_CHANGES, Scope, StagedState
from holdfast.engine.superstep import Outcome
from holdfast.engine.value import Captor, Copier, NotAtHand, Value
from holdfast.errors import ChangedAfterCapture, GraphError, InvalidArgument, TurnOver, WrongType
from holdfast.graph.context import (
    DEFAULT_SHARED_SCOPE,
    PassOn,
    RequestExpired,
    SubWorkflowRequest,
    WorkflowContext,
)
from holdfast.graph.graph import path_of
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.types import TypeForm, type_name
from holdfast.ids import ExecutorId, RequestId, RunId, complaint_about_id
from holdfast.runtime.config import NO_RUN_CONTEXT, RunContext
from holdfast.runtime.events.event_log import pause
from holdfast.runtime.step.effects import Asleep, Effects
from holdfast.runtime.step.executors import PlacedExecutor
from holdfast.runtime.step.shared_objects import RunView
from holdfast.runtime.step.state_scope import (
    FIELDS,
    HOOKED,
    OWN_STATE,
    in_default_scope,
    own_scope,
    place_of,
    scope_of,
    state_not_set,
)
from holdfast.runtime.times import expiry_of

if TYPE_CHECKING:
    import datetime

    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.engine.limits import Limits
    from holdfast.graph.context import TimeSpan
    from holdfast.runtime.config import WorkflowDefinition
    from holdfast.runtime.durable.journal import Journal
    from holdfast.runtime.durable.recorder import RunLineage
    from holdfast.runtime.environment import Environment
    from holdfast.runtime.step.shared_objects import SharedObjects
    from holdfast.runtime.step.turn import FinishedTurn


T = TypeVar("T")


class TurnServices(NamedTuple):
    """Everything that the turns of one run share."""

    workflow: WorkflowDefinition
    run_id: RunId
    capture: Captor
    emit: Callable[[Sequence[WorkflowEvent]], None]
    journal: Journal
    shared_objects: SharedObjects
    begun: Callable[[ExecutorId], tuple[str, str]] = lambda address: ("", address)
    """Gives the checkpoint at which the superstep under way began, and the name that an executor had there.

    The checkpoint is empty where nothing is stored.
    """
    note_turn: Callable[[FinishedTurn], None] | None = None
    """Notes in the journal each of several turns as soon as it is over; None where nothing is stored."""
    run_context: RunContext = NO_RUN_CONTEXT
    """The values that the caller gave to the run."""
    lineage: Callable[[], RunLineage] | None = None
    """Gives the descent of the run; None where nothing is stored."""

    @property
    def durable(self) -> bool:
        """True if the run is stored."""
        return self.note_turn is not None

    @property
    def limits(self) -> Limits:
        """The limits of the workflow."""
        return self.workflow.config.limits

    @property
    def environment(self) -> Environment:
        """The clock, chance and timers."""
        return self.workflow.environment


def check_answerable(placed: PlacedExecutor, data: object, response_type: TypeForm) -> None:
    """Raise unless the executor has a handler for the answer."""
    if isinstance(response_type, str):
        raise InvalidArgument(f"response_type={response_type!r}: must be a type, not the name of one")
    if placed.spec.answerer(data, response_type) is None:
        raise GraphError(
            f"executor {placed.address!r} asks with a {type(data).__name__} for a {type_name(response_type)}, but has "
            f"no handler for the response; add: @response_handler async def answered(self, request: "
            f"{type(data).__name__}, response: {type_name(response_type)}, ctx: WorkflowContext)"
        )


def find_expiry(
    placed: PlacedExecutor, data: object, expires: Any, now: Callable[[], datetime.datetime]
) -> Expiry | None:
    """Return when a request expires, if it does; raise unless the executor has a handler for that."""
    if expires is None:
        return None
    expiry = expiry_of(expires, now(), "expires")
    if placed.spec.answerer(data, RequestExpired) is None:
        raise GraphError(
            f"executor {placed.address!r} asks with a {type(data).__name__} and expires={expires!r}, but has no "
            f"handler for what happens then; add: @response_handler async def expired(self, request: "
            f"{type(data).__name__}, expired: RequestExpired, ctx: WorkflowContext)"
        )
    return expiry


def check_request_id(request_id: str) -> None:
    """Raise for an id that a user gave and that no request can have."""
    if complaint := complaint_about_id(request_id):
        raise InvalidArgument(f"request id {request_id!r} {complaint}")


_NOTHING = object()
"""Stands for the value of a key that is not set."""


class TurnContext(WorkflowContext[Any, Any]):
    """The context of one turn."""

    # Most turns have none of these, so they are made when the first comes.
    _outputs: list[Output] | None = None
    _requests: dict[RequestId, Request] | None = None
    _responses: dict[RequestId, Value] | None = None
    _captured: dict[int, tuple[str, object, Value]] | None = None
    _staged: StagedState | None = None
    events: list[WorkflowEvent] | tuple[()] = ()
    """Events that are shown when the turn is over."""
    _over = False
    _effects: Effects | None = None
    asleep: Asleep | None = None
    """The sleep for which the handler came to an end though the turn is not over."""
    message_number = 0
    """The number of the message that is handled, from 1."""
    source: ExecutorId | None = None
    """The executor that sent the message that is handled, if one executor did."""

    def __init__(self, run: TurnServices, placed: PlacedExecutor, snapshot: Snapshot, attempt: int) -> None:
        self._run = run
        self._placed = placed
        self._snapshot = snapshot
        self._attempt = attempt
        self._messages: list[Sent] = []

    # For the runtime.

    def returned(self, value: object) -> None:
        """Take the result of a handler: a message, or an output if no edge leads away from the executor."""
        if isinstance(value, PassOn):
            value = value.value
        if self._placed.last:
            self._yielded(self._capture(value, "output"))
        else:
            self._messages.append(make_tuple(Sent, (self._capture(value, "message"), None)))

    def keep_field(self, name: str, value: object) -> None:
        """Keep a field of the executor, unless the same value is kept already."""
        scope = own_scope(self._placed, FIELDS)
        kept = self._staging().read(scope, name)
        capture = self._run.capture
        if kept is None or capture.differs(value, kept):
            self._staging().put(scope, name, capture(value, f"field {name!r}"))

    def note_hook(self) -> None:
        """Note that the executor keeps values by itself, so that its hook is called when it is restored."""
        scope = own_scope(self._placed, HOOKED)
        if self._staging().read(scope, HOOKED) is None:
            self._staging().put(scope, HOOKED, self._run.capture(True, "hook"))

    async def kept_fields(self) -> list[str]:
        """Return the names of the fields that are kept."""
        return self._staging().keys(own_scope(self._placed, FIELDS))

    async def kept_field(self, name: str) -> Any:
        """Return the kept value of a field."""
        return await self._read(own_scope(self._placed, FIELDS), name, None)

    def close_restored(self) -> None:
        """End the restore of an executor; raise if it did anything but read."""
        asked = self._requests or self._responses
        done = self._messages or self._outputs or asked or (self._staged and self._staged.changes)
        self._over = True
        if done:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} sent or wrote something; it may only read: "
                f"what it does is not part of any superstep"
            )

    def outcome(self) -> Outcome:
        """Return the outcome of the turn; from now on the context can no longer be used."""
        self._over = True
        if self._captured is not None:
            for what, value, captured in self._captured.values():
                if self._run.capture.changed(value, captured):
                    self.tell(WorkflowWarningEvent(self._changed(what, value), self._placed.address))
        changes = self._staged.changes if self._staged is not None else NO_CHANGES
        requests = tuple(self._requests.values()) if self._requests else ()
        responses = self._responses or NO_RESPONSES
        return make_tuple(
            Outcome, (self._placed.address, self._messages, changes, self._outputs or (), requests, responses)
        )

    def tell(self, event: WorkflowEvent) -> None:
        """Add an event that is shown when the turn is over."""
        self.events = self.events or []
        self.events.append(event)

    def _changed(self, what: str, value: object) -> ChangedAfterCapture:
        return ChangedAfterCapture(
            f"executor {self.executor_id!r} changed a {type(value).__name__} after the call that took it ({what}); "
            f"others see it as it was at that call: make the change before, or send or queue it again"
        )

    def close(self) -> None:
        """Take nothing more from an attempt that failed."""
        self._over = True

    async def share(self, make: Callable[[RunView], Awaitable[T]]) -> T:
        """Return the object that ``make`` made for all turns of the run."""
        return await self._run.shared_objects.get(make, RunView(self._snapshot.state, self._run.journal))

    def now(self) -> datetime.datetime:
        """Return the time by the clock of the run."""
        return self._run.environment.now()

    def add_to_run(self, key: StateKey[Any], value: object) -> None:
        """Queue a value for a shared scope of the run itself, also from a nested workflow, whose own scopes end."""
        scope, name, rule = place_of(self._placed, key, None, self._run.capture)
        self._staging().put(scope._replace(path=""), name, self._capture(value, f"state {name!r}"), rule)

    def append_to_run(self, key: str, item: object, scope_name: str) -> None:
        """Append an item to a list in a shared scope of the run itself, also from a nested workflow."""
        scope = scope_of(self._placed, scope_name)._replace(path="")
        self._staging().append(scope, key, self._capture(item, f"state {key!r}"))

    async def read_of_run(self, key: StateKey[T], default: T) -> T:
        """Read a value from a shared scope of the run itself, also in a nested workflow."""
        scope, name, _ = place_of(self._placed, key, None, self._run.capture)
        found: T = await self._read(scope._replace(path=""), name, default)
        return found

    async def start_is_durable(self) -> None:
        """Wait until the start of this turn is durable; raise ``RunTaken`` if another process drives the run."""
        await self._run.journal.ready()

    @property
    def lineage(self) -> RunLineage | None:
        """The descent of the run; None where nothing is stored."""
        return None if self._run.lineage is None else self._run.lineage()

    @property
    def storage(self) -> CheckpointStorage | None:
        """The storage that has the run, if one has."""
        return self._run.workflow.config.storage if self._run.durable else None

    def _check_open(self) -> None:
        if self._over:
            raise TurnOver(
                f"the context of executor {self.executor_id!r} was used after its turn in superstep {self.superstep}; "
                f"await in the handler whatever uses it"
            )

    def _capture(self, value: object, place: str) -> Value:
        if self._over:
            self._check_open()
        # By its name, because calling an object takes twice as long as calling its method.
        captured = self._run.capture.__call__(value, place)
        if captured.mutable:
            # By identity: of a value that is changed and taken again, the last taking counts.
            self._captured = self._captured or {}
            self._captured[id(value)] = (place, value, captured)
        return captured

    def _yielded(self, value: Value) -> None:
        placed = self._placed
        graph, local = placed.graph, placed.spec.id
        if graph.output_from is None or local in graph.output_from or local in graph.intermediate_from:
            self._outputs = self._outputs or []
            self._outputs.append(Output(placed.address, value))

    def _staging(self) -> StagedState:
        if self._over:
            self._check_open()
        if self._staged is None:
            placed = self._placed
            self._staged = StagedState(
                self._snapshot.state,
                placed.address,
                placed.merge_for if placed.graph.merges else None,
                self._run.capture,
            )
        return self._staged

    # For handlers; the contract is in ``WorkflowContext``.

    @property
    def run_id(self) -> RunId:
        return self._run.run_id

    @property
    def executor_id(self) -> ExecutorId:
        return self._placed.address

    @property
    def source_executor_id(self) -> ExecutorId | None:
        return self.source

    @property
    def superstep(self) -> int:
        return self._snapshot.superstep + 1

    @property
    def attempt(self) -> int:
        return self._attempt or 1

    @property
    def idempotency_key(self) -> str:
        from hashlib import blake2b  # here because few turns ever ask

        start, address = self._run.begun(self._placed.address)
        start = start or f"{self._run.run_id}/{self.superstep}"
        text = "\0".join((start, address, str(self.message_number)))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def run_context(self) -> Mapping[str, Any]:
        return self._run.run_context

    async def once(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        effects = self._effects_of_turn(f"used once({name!r}, ...)")
        return await effects.once(name, function, args, kwargs, self.message_number, self._check_open)

    async def sleep(self, delay: TimeSpan | None = None, *, until: datetime.datetime | None = None) -> None:
        effects = self._effects_of_turn("sleeps")
        try:
            await effects.sleep(delay, until, self.message_number)
        except Asleep as asleep:
            self.asleep = asleep
            self._over = True
            raise

    def _effects_of_turn(self, did: str) -> Effects:
        self._check_open()
        if not self._attempt:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} {did}; it may only read"
            )
        if self._effects is None:
            self._effects = Effects(self._run, self._placed.address, self.superstep)
        return self._effects

    async def send_message(self, value: Any, target_id: str | None = None) -> None:
        captured = self._capture(value, "message")
        target = None if target_id is None else self._target(target_id)
        self._messages.append(make_tuple(Sent, (captured, target)))

    def _target(self, target_id: str) -> ExecutorId:
        graph, local = self._placed.graph, self._placed.spec.id
        reachable = [target for edge in graph.outgoing[local] for target in edge.targets]
        target = ExecutorId(target_id)
        if target in reachable:
            return target
        missing = "no edge leads there" if target in graph.executors else "there is no such executor"
        listed = ", ".join(repr(str(known)) for known in dict.fromkeys(reachable)) or "none"
        raise GraphError(
            f"executor {self.executor_id!r} sent a message to {target_id!r}, but {missing}; "
            f"from {local!r} edges lead to: {listed}"
        )

    async def request_info(
        self,
        data: Any,
        response_type: TypeForm,
        request_id: str | None = None,
        expires: TimeSpan | datetime.datetime | None = None,
    ) -> RequestId:
        placed = self._placed
        check_answerable(placed, data, response_type)
        expiry = find_expiry(placed, data, expires, self._run.environment.now)
        self._requests = self._requests if self._requests is not None else {}
        if request_id is not None:
            check_request_id(request_id)
        else:
            request_id = f"{placed.address}.{self.superstep}.{len(self._requests) + 1}"
        key = RequestId(request_id)
        if key in self._requests or key in self._snapshot.requests:
            raise InvalidArgument(
                f"executor {placed.address!r} asked twice with the request id {request_id!r}; "
                f"give each its own, or leave request_id out"
            )
        self._requests[key] = Request(
            key, placed.address, self._capture(data, "request"), response_type, expiry
        )
        return key

    async def respond_to(self, request: SubWorkflowRequest, value: Any) -> None:
        self._check_open()
        if not isinstance(request, SubWorkflowRequest):
            raise WrongType(
                f"executor {self.executor_id!r}: respond_to takes a SubWorkflowRequest and the answer, not a "
                f"{type(request).__name__}"
            )
        path = path_of(request.executor_id)
        if path == self._placed.path or not path.startswith(self._placed.path):
            raise InvalidArgument(
                f"executor {self.executor_id!r} cannot answer request {request.request_id!r} of "
                f"{request.executor_id!r}: that is in no workflow which is nested beside it; answer it where it "
                f"arrives as a SubWorkflowRequest"
            )
        answered = self._responses or {}
        answer = check_answer(self._snapshot, request.request_id, value, self._run.capture, answered)
        self._responses = {**answered, RequestId(request.request_id): answer}

    async def yield_output(self, value: Any) -> None:
        self._yielded(self._capture(value, "output"))

    async def stream(self, delta: Any) -> None:
        self._check_open()
        if not self._attempt:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} streams; it may only read"
            )
        shown = Copier(self._run.limits.max_value_size)(delta, "delta").load()
        self._run.emit([OutputDeltaEvent(self._placed.address, shown, self._attempt, provisional=True)])
        await pause()  # so that watchers get it now, though the handler may wait for nothing

    async def read_state(self, key: Any, default: Any = None, scope_name: str | None = None) -> Any:
        scope, name, _ = place_of(self._placed, key, scope_name, self._run.capture)
        return await self._read(scope, name, default)

    async def require_state(self, key: Any, scope_name: str | None = None) -> Any:
        scope, name, _ = place_of(self._placed, key, scope_name, self._run.capture)
        value = await self._read(scope, name, _NOTHING)
        if value is _NOTHING:
            raise state_not_set(self.executor_id, name, scope)
        return value

    async def _read(self, scope: Scope, name: str, default: Any) -> Any:
        try:
            value = self._staging().read(scope, name)
            return default if value is None else value.load()
        except NotAtHand as absent:
            await absent.fetch()
            return await self._read(scope, name, default)

    async def queue_state_update(self, key: Any, value: Any, scope_name: str | None = None) -> None:
        scope, name, rule = place_of(self._placed, key, scope_name, self._run.capture)
        if isinstance(key, StateKey):
            key.check(value)
        self._staging().put(scope, name, self._capture(value, f"state {name!r}"), rule)

    async def read_state_keys(self, scope_name: str | None = None) -> list[str]:
        return self._staging().keys(scope_of(self._placed, scope_name))

    async def clear_state(
        self, key: str | StateKey[Any] | None = None, scope_name: str | None = None
    ) -> None:
        if key is None:
            scope = scope_of(self._placed, scope_name)
            for name in self._staging().keys(scope):
                self._staging().drop(scope, name)
        else:
            scope, name, _ = place_of(self._placed, key, scope_name, self._run.capture)
            self._staging().drop(scope, name)

    async def append_state(self, key: str | StateKey[Any], item: Any, scope_name: str | None = None) -> None:
        scope, name, rule = place_of(self._placed, key, scope_name, self._run.capture)
        if isinstance(key, StateKey):
            key.check_item(item)
        self._staging().append(scope, name, self._capture(item, f"state {name!r}"), rule)

    async def get_state(self) -> Any:
        scope = own_scope(self._placed, OWN_STATE)
        return await self._read(scope, OWN_STATE, None)

    async def set_state(self, value: Any) -> None:
        scope = own_scope(self._placed, OWN_STATE)
        self._staging().put(scope, OWN_STATE, self._capture(value, "state"))

    async def get_shared_state(self, key: Any, default: Any = None) -> Any:
        return await self.read_state(in_default_scope(key, "read_state"), default, DEFAULT_SHARED_SCOPE)

    async def set_shared_state(self, key: Any, value: Any) -> None:
        await self.queue_state_update(
            in_default_scope(key, "queue_state_update"), value, DEFAULT_SHARED_SCOPE
        )

    async def add_event(self, event: Any) -> None:
        if not isinstance(event, WorkflowEvent):
            raise WrongType(
                f"executor {self.executor_id!r} added a {type(event).__name__} as an event; "
                f"derive your event from WorkflowEvent"
            )
        self._check_open()
        event = copy.copy(event)  # it is stamped, and the user's may be added again
        if event.provisional:
            self._run.emit([event])
            return
        if self._run.durable:
            self._run.capture(event, "event")  # fails here if it cannot be stored
            event = copy.deepcopy(event)  # what is stored is what it was now, whatever is done to it later
        self.tell(event)
