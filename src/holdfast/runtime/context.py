"""The context that handlers are given: stages what a turn does until the superstep is applied."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from holdfast.engine.limits import Limits
from holdfast.engine.message import Output, Request, Sent
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.staging import Staging
from holdfast.engine.state import NO_CHANGES, Scope
from holdfast.engine.superstep import Outcome
from holdfast.engine.value import Captor, NotAtHand, Value
from holdfast.errors import (
    ChangedAfterCapture,
    GraphError,
    InvalidArgument,
    NotCheckpointable,
    TurnOver,
    WrongType,
)
from holdfast.graph.context import DEFAULT_SHARED_SCOPE, PassOn, WorkflowContext
from holdfast.graph.expired import RequestExpired
from holdfast.graph.state_key import MergeRule, StateKey
from holdfast.graph.types import TypeForm, type_name
from holdfast.ids import ExecutorId, RequestId, RunId, complaint_about_id
from holdfast.runtime.environment import Environment
from holdfast.runtime.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.runtime.journal import Journal, is_sleep, sleep_name
from holdfast.runtime.placed import Placed
from holdfast.runtime.threads import called
from holdfast.runtime.times import expiry_of, in_microseconds

if TYPE_CHECKING:
    import datetime

    from holdfast.graph.context import TimeSpan

_OWN_STATE = "state"
_FIELDS = "fields"
_HOOKED = "hooked"
PRIVATE_SCOPES = ("", _OWN_STATE, _FIELDS, _HOOKED)
"""The names of the scopes that an executor has to itself."""


class Surroundings(NamedTuple):
    """What the turns of one run have in common."""

    limits: Limits
    capture: Captor
    run_id: RunId
    emit: Callable[[Sequence[WorkflowEvent]], None]
    journal: Journal
    durable: bool = False
    """Whether events are stored."""
    begun: Callable[[ExecutorId], tuple[str, str]] = lambda address: ("", address)
    """The id of the checkpoint at which the superstep under way began, and what an executor was called there.

    The id is empty where nothing is stored.
    """
    environment: Environment = Environment()


class Asleep(BaseException):
    """Ends the call of a handler that sleeps; it is called again when the time is over."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until = until


class TurnContext(WorkflowContext[Any, Any]):
    """The context of one turn."""

    # Most turns have none of these, so they are made when the first comes.
    _outputs: list[Output] | None = None
    _requests: dict[RequestId, Request] | None = None
    _captured: dict[int, tuple[str, object, Value]] | None = None
    _staged: Staging | None = None
    _scopes: dict[str, Scope] | None = None
    """The shared scopes that the turn used so far."""
    events: list[WorkflowEvent] | tuple[()] = ()
    """What is shown when the turn is over."""
    _over = False
    _names: set[str] | None = None
    asleep: Asleep | None = None
    """Why the turn is not over though its handler came to an end."""
    _sleeps = 0
    message_number = 0
    """Which message of the turn is handled, from 1."""

    def __init__(self, around: Surroundings, placed: Placed, snapshot: Snapshot, attempt: int) -> None:
        self._around = around
        self._placed = placed
        self._snapshot = snapshot
        self._attempt = attempt
        self._messages: list[Sent] = []

    # What the runtime asks of it.

    def returned(self, value: object) -> None:
        """Take what a handler returned: a message, or an output of an executor without outgoing edges."""
        if isinstance(value, PassOn):
            value = value.value
        if self._placed.last:
            self._yielded(self._capture(value, "output"))
        else:
            self._messages.append(Sent(self._capture(value, "message")))

    def keep_field(self, name: str, value: object) -> None:
        """Keep a field of the executor, if it is not what is kept already."""
        scope = Scope(self._placed.address, _FIELDS, self._placed.path)
        kept = self._staging.read(scope, name)
        capture = self._around.capture
        if kept is None or capture.differs(value, kept):
            self._staging.put(scope, name, capture(value, f"field {name!r}"))

    def note_hook(self) -> None:
        """Note that the executor keeps things by itself, wherever it puts them: it is to be restored, too."""
        scope = Scope(self._placed.address, _HOOKED, self._placed.path)
        if self._staging.read(scope, _HOOKED) is None:
            self._staging.put(scope, _HOOKED, self._around.capture(True, "hook"))

    async def kept_fields(self) -> list[str]:
        """The names of the fields that are kept."""
        return self._staging.keys(Scope(self._placed.address, _FIELDS, self._placed.path))

    async def kept_field(self, name: str) -> Any:
        """A field as it is kept."""
        return await self._read(Scope(self._placed.address, _FIELDS, self._placed.path), name, None)

    def close_restored(self) -> None:
        """The executor was restored from what it read; it was not its turn to do anything."""
        done = self._messages or self._outputs or self._requests or (self._staged and self._staged.changes)
        self._over = True
        if done:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} sent or wrote something; it may only read: "
                f"what it does is not part of any superstep"
            )

    def outcome(self) -> Outcome:
        """What the turn produced; from now on the context can no longer be used."""
        self._over = True
        if self._captured is not None:
            for what, value, captured in self._captured.values():
                if self._around.capture.changed(value, captured):
                    self.tell(WorkflowWarningEvent(self._changed(what, value), self._placed.address))
        changes = self._staged.changes if self._staged is not None else NO_CHANGES
        return Outcome(
            self._placed.address,
            self._messages,
            changes,
            self._outputs or (),
            tuple(self._requests.values()) if self._requests else (),
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
        """The attempt failed: nothing more is taken from it."""
        self._over = True

    def _check_open(self) -> None:
        if self._over:
            raise TurnOver(
                f"the context of executor {self.executor_id!r} was used after its turn in superstep {self.superstep}; "
                f"await in the handler whatever uses it"
            )

    def _capture(self, value: object, place: str) -> Value:
        if self._over:
            self._check_open()
        captured = self._around.capture(value, place)
        if captured.mutable:
            # By identity: of a value that is changed and taken again, the last taking counts.
            self._captured = self._captured or {}
            self._captured[id(value)] = (place, value, captured)
        return captured

    def _yielded(self, value: Value) -> None:
        placed = self._placed
        output_from = placed.graph.output_from
        if output_from is None or placed.spec.id in output_from:
            self._outputs = self._outputs or []
            self._outputs.append(Output(placed.address, value))

    @property
    def _staging(self) -> Staging:
        if self._over:
            self._check_open()
        if self._staged is None:
            placed = self._placed
            self._staged = Staging(
                self._snapshot.state, placed.address, placed.merge_for, self._around.capture
            )
        return self._staged

    # What handlers ask of it; the contract is in ``WorkflowContext``.

    @property
    def run_id(self) -> RunId:
        return self._around.run_id

    @property
    def executor_id(self) -> ExecutorId:
        return self._placed.address

    @property
    def superstep(self) -> int:
        return self._snapshot.superstep + 1

    @property
    def attempt(self) -> int:
        return self._attempt or 1

    @property
    def idempotency_key(self) -> str:
        from hashlib import blake2b  # here because few turns ever ask

        start, address = self._around.begun(self._placed.address)
        start = start or f"{self._around.run_id}/{self.superstep}"
        text = "\0".join((start, address, str(self.message_number)))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    async def once(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        kept_as = self._name_of_effect(name)
        if not callable(function):
            raise WrongType(
                f"executor {self.executor_id!r}: once({name!r}, ...) takes a function and its arguments, not a "
                f"{type(function).__name__}"
            )
        journal, address, superstep = self._around.journal, self._placed.address, self.superstep
        kept = journal.result(superstep, address, kept_as)
        if kept is None:
            await journal.ready()
            try:
                result = await called(function, args, kwargs)
            except BaseException:
                self._effects().discard(kept_as)  # nothing of it is kept: the handler may try again
                raise
            self._check_open()  # what outlives its turn must not be noted as part of another
            kept = self._captured_result(name, result)
            await journal.keep(superstep, address, kept_as, kept)
        else:  # an attempt before may have been cut while this was on its way
            await journal.settled()
        while True:
            try:
                return kept.load()
            except NotAtHand as absent:
                await absent.fetch()

    async def sleep(self, delay: TimeSpan | None = None, *, until: datetime.datetime | None = None) -> None:
        self._check_open()
        if (delay is None) == (until is None):
            raise InvalidArgument(
                "sleep takes a time span, as in sleep(3600), or a time, as in sleep(until=time)"
            )
        if not self._attempt:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} sleeps; it may only read"
            )
        around, address, superstep = self._around, self._placed.address, self.superstep
        name = sleep_name(self.message_number, self._sleeps)
        self._sleeps += 1
        kept = around.journal.result(superstep, address, name)
        if kept is None:
            wakes = _end_of_sleep(delay, until, around.environment.now())
            await around.journal.keep(superstep, address, name, around.capture(wakes, "sleep"))
        else:
            await around.journal.settled()
            wakes = kept.load()
        if in_microseconds(around.environment.now()) >= wakes:
            return
        if around.durable:
            self.asleep = Asleep(wakes)
            self._over = True
            raise self.asleep
        await wait_until(wakes, around.environment)

    def _captured_result(self, name: str, result: object) -> Value:
        try:
            return self._around.capture(result, f"result of once({name!r})")
        except NotCheckpointable as error:
            raise NotCheckpointable(
                f"{error}. The effect has happened, and will happen again when the turn is run again: let its function "
                f"return plain data, or declare the type with @checkpointable"
            ) from error

    def _effects(self) -> set[str]:
        self._names = self._names if self._names is not None else set()
        return self._names

    def _name_of_effect(self, name: str) -> str:
        """What an effect is noted as; used twice for one message, the second would silently not happen."""
        self._check_open()
        if callable(name):
            raise InvalidArgument("the name of an effect comes first: once('pay', pay, ...)")
        if type(name) is not str or not name or is_sleep(name):
            raise InvalidArgument(f"once({name!r}, ...): the name of an effect is a str that is not empty")
        if not self._attempt:
            raise GraphError(
                f"on_checkpoint_restored of executor {self.executor_id!r} used once({name!r}, ...); it may only read"
            )
        _check_text(name, "name of once")
        # A turn may handle several messages, each of which has effects of its own.
        kept_as = name if self.message_number <= 1 else f"{name}\x1f{self.message_number}"
        if kept_as in self._effects():
            raise InvalidArgument(
                f"executor {self.executor_id!r} used once({name!r}, ...) twice for one message in superstep "
                f"{self.superstep}; give each effect a name of its own, say with a number: once('{name} 2', ...)"
            )
        self._effects().add(kept_as)
        return kept_as

    async def send_message(self, value: Any, target_id: str | None = None) -> None:
        captured = self._capture(value, "message")
        self._messages.append(Sent(captured, None if target_id is None else self._target(target_id)))

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
        address, spec = self._placed.address, self._placed.spec
        if isinstance(response_type, str):
            raise InvalidArgument(f"response_type={response_type!r}: must be a type, not the name of one")
        if spec.answerer(data, response_type) is None:
            raise GraphError(
                f"executor {address!r} asks with a {type(data).__name__} for a {type_name(response_type)}, but has no "
                f"handler for the response; add: @response_handler async def answered(self, request: "
                f"{type(data).__name__}, response: {type_name(response_type)}, ctx: WorkflowContext)"
            )
        expiry = None if expires is None else expiry_of(expires, self._around.environment.now(), "expires")
        if expiry is not None and spec.answerer(data, RequestExpired) is None:
            raise GraphError(
                f"executor {address!r} asks with a {type(data).__name__} and expires={expires!r}, but has no handler "
                f"for what happens then; add: @response_handler async def expired(self, request: "
                f"{type(data).__name__}, expired: RequestExpired, ctx: WorkflowContext)"
            )
        given = (
            request_id
            if request_id is not None
            else f"{address}.{self.superstep}.{len(self._requests or ()) + 1}"
        )
        if request_id is not None and (complaint := complaint_about_id(request_id)):
            raise InvalidArgument(f"request id {request_id!r} {complaint}")
        key = RequestId(given)
        self._requests = self._requests if self._requests is not None else {}
        if key in self._requests or key in self._snapshot.requests:
            raise InvalidArgument(
                f"executor {address!r} asked twice with the request id {given!r}; "
                f"give each its own, or leave request_id out"
            )
        self._requests[key] = Request(key, address, self._capture(data, "request"), response_type, expiry)
        return key

    async def yield_output(self, value: Any) -> None:
        self._yielded(self._capture(value, "output"))

    async def read_state(self, key: Any, default: Any = None, scope_name: str | None = None) -> Any:
        scope, name, _ = self._place(key, scope_name)
        return await self._read(scope, name, default)

    async def _read(self, scope: Scope, name: str, default: Any) -> Any:
        try:
            value = self._staging.read(scope, name)
            return default if value is None else value.load()
        except NotAtHand as absent:
            await absent.fetch()
            return await self._read(scope, name, default)

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
        scope = Scope(self._placed.address, _OWN_STATE, self._placed.path)
        return await self._read(scope, _OWN_STATE, None)

    async def set_state(self, value: Any) -> None:
        scope = Scope(self._placed.address, _OWN_STATE, self._placed.path)
        self._staging.put(scope, _OWN_STATE, self._capture(value, "state"))

    async def get_shared_state(self, key: Any, default: Any = None) -> Any:
        return await self.read_state(_in_default_scope(key, "read_state"), default, DEFAULT_SHARED_SCOPE)

    async def set_shared_state(self, key: Any, value: Any) -> None:
        await self.queue_state_update(
            _in_default_scope(key, "queue_state_update"), value, DEFAULT_SHARED_SCOPE
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
            self._around.emit([event])
            return
        if self._around.durable:
            self._around.capture(event, "event")  # fails here if it cannot be stored
            event = copy.deepcopy(event)  # what is stored is what it was now, whatever is done to it later
        self.tell(event)

    def _scope(self, scope_name: str | None) -> Scope:
        if scope_name is None:
            return Scope(self._placed.address, "", self._placed.path)
        if self._scopes is not None and type(scope_name) is str and scope_name in self._scopes:
            return self._scopes[scope_name]
        if not scope_name or type(scope_name) is not str:
            raise InvalidArgument(
                f"scope_name={scope_name!r}: a shared scope has a name; leave it out for the private scope"
            )
        if not scope_name.isascii():
            _check_text(scope_name, "scope_name")
        self._scopes = self._scopes if self._scopes is not None else {}
        scope = self._scopes[scope_name] = Scope(None, scope_name, self._placed.path)
        return scope

    def _place(self, key: Any, scope_name: str | None) -> tuple[Scope, str, MergeRule | None]:
        """The scope and name that a key stands for, and the merge that a typed key declares."""
        if isinstance(key, StateKey):
            if key.scope_name is not None and scope_name is not None and key.scope_name != scope_name:
                raise InvalidArgument(
                    f"state key {key.name!r} belongs to scope {key.scope_name!r}, but was used with "
                    f"scope_name={scope_name!r}; leave scope_name out"
                )
            self._around.capture.allow(key.type, f"state key {key.name!r}")
            return self._scope(key.scope_name if scope_name is None else scope_name), key.name, key.merge
        if not isinstance(key, str):
            _refuse_key(key)
        if not key.isascii():
            _check_text(key, "state key")
        return self._scope(scope_name), key, None


def _end_of_sleep(delay: object, until: object, now: datetime.datetime) -> int:
    """When a sleep is over, of which either is given."""
    from datetime import datetime

    if isinstance(delay, datetime):
        raise WrongType(f"delay={delay!r}: must be seconds or a timedelta; for a time say sleep(until=...)")
    if until is not None and not isinstance(until, datetime):
        raise WrongType(f"until={until!r}: must be a datetime; for a time span say sleep(...)")
    return expiry_of(delay, now, "delay").at if until is None else expiry_of(until, now, "until").at


async def wait_until(wakes: int, environment: Environment) -> None:
    """Wait in place."""
    while (left := wakes - in_microseconds(environment.now())) > 0:
        woken = asyncio.Event()
        timer = environment.later(left / 1_000_000, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()


def _in_default_scope(key: Any, instead: str) -> Any:
    if isinstance(key, StateKey) and key.scope_name not in (None, DEFAULT_SHARED_SCOPE):
        raise InvalidArgument(
            f"state key {key.name!r} belongs to scope {key.scope_name!r}, not to the default shared scope; "
            f"use {instead} for it"
        )
    return key


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} {text!r}: it contains half a character, which no storage can keep"
        ) from None


def _refuse_key(key: object) -> NoReturn:
    raise WrongType(f"a state key is a str or a StateKey, not a {type(key).__name__}: {key!r}")
