"""Edits of a checkpoint with which a fork begins: other state, messages, requests and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias

from holdfast.checkpoint.checkpoint_info import Cause, Phase
from holdfast.checkpoint.values import Encoder
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft, EditDraft
from holdfast.engine.answers import check_answer, convert_answer, find_request
from holdfast.engine.message import Delivery, Request, offered_request
from holdfast.engine.persistent import Layered
from holdfast.engine.router import brief, route_input
from holdfast.engine.snapshot import Snapshot, deliver_answers, take_input
from holdfast.engine.state import Place, Put, Scope, write
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import find_target
from holdfast.engine.value import Value
from holdfast.errors import InvalidArgument, WrongType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.conversion import Unconvertible, convert
from holdfast.graph.typing.types import TypeForm, type_name
from holdfast.ids import RequestId
from holdfast.runtime.config import WorkflowDefinition
from holdfast.runtime.durable.checkpoint_drafts import draft_answers
from holdfast.runtime.durable.resume_point import status_there
from holdfast.runtime.step.state_scope import check_text

EditKey: TypeAlias = "tuple[str, str] | str | StateKey[Any]"


class _Drop:
    """Stands in edits for the value of something that goes."""

    def __repr__(self) -> str:
        return "ForkEdits.DROP"


_DROP: Final = _Drop()


@dataclass(frozen=True)
class ForkEdits:
    """Edits of a checkpoint for ``workflow.fork(checkpoint, edits=...)``; all are made, or none if one is wrong.

    Messages and data of requests are checked against the types that their executors take; plain data of a request is
    brought to such a type, and an answer to the type that the request asks for.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> storage = InMemoryCheckpointStorage()
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(storage).build()
    >>> async def main():
    ...     run = await workflow.start(21)
    ...     await run.wait_for_completion()
    ...     fork = await workflow.fork(run.checkpoints[0], edits=ForkEdits(messages={0: 4}))
    ...     return (await fork.wait_for_completion()).outputs
    >>> asyncio.run(main())
    [8]
    """

    DROP: ClassVar[Any] = _DROP
    """In place of a value it drops that message or request."""

    state: Mapping[Any, Any] = field(default_factory=dict)
    """Values of shared state: by ``(scope_name, key)``, a ``StateKey``, or a key of the default shared scope."""
    messages: Mapping[int, Any] = field(default_factory=dict)
    """Other values of messages on their way, or ``DROP``, by their places in ``checkpoint.messages``."""
    send: Sequence[tuple[str, Any]] = ()
    """Further messages: ids of executors with the values for them."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    """Other data of pending requests, or ``DROP``, by request id."""
    responses: Mapping[str, Any] = field(default_factory=dict)
    """Answers to pending requests, by request id."""

    @classmethod
    def of(cls, edits: Any) -> ForkEdits:
        """Return edits that are given as such, or as a dict of state; raise ``WrongType`` for anything else."""
        if isinstance(edits, Mapping):
            return cls(edits)
        if not isinstance(edits, ForkEdits):
            raise WrongType(
                f"edits are a dict like {{('scope', 'key'): value}}, or ForkEdits(...), not a {type(edits).__name__}"
            )
        for one in fields(edits):
            given = getattr(edits, one.name)
            expected = Mapping if one.name != "send" else Sequence
            if not isinstance(given, expected) or isinstance(given, str | bytes):
                raise WrongType(f"ForkEdits({one.name}=...) takes {_SHAPES[one.name]}, not {given!r:.100}")
        return edits


_SHAPES = {
    "state": "a dict like {('scope', 'key'): value}",
    "messages": "a dict like {0: value}, by place in 'checkpoint.messages'",
    "send": "a list like [('executor_id', value)]",
    "requests": "a dict like {'request_id': data}",
    "responses": "a dict like {'request_id': answer}",
}


class ForkEditor:
    """Makes the checkpoints with which an edited fork of a workflow begins."""

    def __init__(self, workflow: WorkflowDefinition, encoder: Encoder, by: str | None) -> None:
        self._workflow = workflow
        self._graph = workflow.graph
        self._encoder = encoder
        self._by = by

    def draft(
        self, edits: ForkEdits, last: CheckpointDraft, snapshot: Snapshot
    ) -> tuple[list[CheckpointDraft], Snapshot]:
        """Return the checkpoints behind the ``last`` one that edit a run, and the run after them."""
        before, drafts = snapshot, list[CheckpointDraft]()
        if edits.state or edits.messages or edits.requests:
            edit = EditDraft(
                {_place(key): Put(self._state(key, value)) for key, value in edits.state.items()},
                self._deliveries(edits, snapshot) if edits.messages else None,
                self._requests(edits, snapshot),
            )
            snapshot = _edited(snapshot, edit)
            status = status_there(snapshot)
            drafts.append(
                CheckpointDraft(last.phase, last.superstep, Cause.EDIT, status, since_input=0, edits=edit)
            )
        superstep = snapshot.superstep + 1
        for entry in edits.send:
            further = route_input(self._graph, snapshot, *self._sent(entry))
            # A run that comes to rest only by the edits keeps its outputs.
            further = further._replace(renews=further.renews and not before.deliveries)
            snapshot = take_input(snapshot, further)
            drafts.append(
                CheckpointDraft(Phase.START, superstep, Cause.MESSAGE, RunStatus.RUNNING, further=further)
            )
        if edits.responses:
            answers = {RequestId(known): self._answer(snapshot, known, edits) for known in edits.responses}
            drafts.append(
                draft_answers(snapshot, answers, {} if self._by is None else dict.fromkeys(answers, self._by))
            )
            snapshot = deliver_answers(snapshot, answers)
        return drafts, snapshot

    def _state(self, key: EditKey, value: Any) -> Value:
        if isinstance(key, StateKey):
            self._encoder.allow(key.type, f"state key {key.name!r}")
            key.check(value)
        return self._encoder(value, f"edit of {key!r}")

    # Messages.

    def _deliveries(self, edits: ForkEdits, snapshot: Snapshot) -> tuple[Delivery, ...]:
        deliveries: dict[int, Delivery] = dict(enumerate(snapshot.deliveries))
        for place, value in edits.messages.items():
            if type(place) is not int or place not in deliveries:
                known = f"0 to {len(deliveries) - 1}" if deliveries else "none"
                raise InvalidArgument(
                    f"edits: there is no message {place!r} at this checkpoint; 'checkpoint.messages' has {known}, and "
                    f"ForkEdits(send=[...]) sends further ones"
                )
            deliveries[place] = self._message(place, deliveries[place], value)
        return tuple(
            delivery for place, delivery in deliveries.items() if edits.messages.get(place) is not _DROP
        )

    def _message(self, place: int, delivery: Delivery, value: Any) -> Delivery:
        """Return a message with another value; that of one which is to be dropped stays."""
        if (offered := offered_request(delivery)) is not None:
            raise InvalidArgument(
                f"edits: message {place} offers request {offered.request_id!r} to executor {delivery.target!r} and "
                f"cannot be edited; fork from a checkpoint at which it is not offered"
            )
        if value is _DROP:
            return delivery
        place_name = f"message {place} to executor {delivery.target!r}"
        if delivery.request is not None:
            return delivery._replace(value=convert_answer(delivery.request, value, self._encoder))
        self._check_taken(place_name, delivery, value)
        return delivery._replace(value=self._encoder(value, f"edit of {place_name}"))

    def _check_taken(self, place_name: str, delivery: Delivery, value: Any) -> None:
        spec = self._graph.locate(delivery.target).spec
        if spec.dispatch.find(value) is None:
            takes = " or ".join(type_name(form) for form in spec.accepts)
            raise WrongType(
                f"edits: {place_name} must be {takes}, not {brief(value)}; give it such a value, drop it with "
                f"ForkEdits.DROP, or send one to another executor with ForkEdits(send=...)"
            )

    def _sent(self, entry: Any) -> tuple[Any, Value]:
        match entry:
            case (str() as target_id, value):
                target = find_target(self._graph, self._workflow.name, value, target_id)
                return target, self._encoder(value, f"message to {target!r}")
        raise WrongType(f"ForkEdits(send=...) takes {_SHAPES['send']}; {entry!r:.100} is no such pair")

    # Requests.

    def _requests(self, edits: ForkEdits, snapshot: Snapshot) -> dict[RequestId, Value | None]:
        found: dict[RequestId, Value | None] = {}
        for request_id, data in edits.requests.items():
            request = find_request(snapshot, request_id)
            _check_not_offered(snapshot, request_id)
            found[request.request_id] = None if data is _DROP else self._data(request, data)
        return found

    def _data(self, request: Request, data: Any) -> Value:
        spec = self._graph.locate(request.executor_id).spec
        forms = [one.signature.request for one in spec.answerers]
        for given in (data, *_as_forms(data, forms)):
            if spec.answerer(given, request.response_type) is not None:
                return self._encoder(given, f"edit of request {request.request_id!r}")
        takes = " or ".join(dict.fromkeys(map(type_name, forms)) or ["nothing"])
        raise WrongType(
            f"edits: the data of request {request.request_id!r} of executor {request.executor_id!r} must be "
            f"{takes}, which its response handlers take, not {brief(data)}; give such data, or drop the request "
            f"with ForkEdits.DROP"
        )

    def _answer(self, snapshot: Snapshot, request_id: str, edits: ForkEdits) -> Value:
        if edits.requests.get(request_id) is _DROP:
            raise InvalidArgument(f"edits: request {request_id!r} is both dropped and answered; choose one")
        _check_not_offered(snapshot, request_id)
        return check_answer(snapshot, request_id, edits.responses[request_id], self._encoder)


def _as_forms(data: Any, forms: Sequence[TypeForm]) -> Iterator[Any]:
    """Yield plain data as values of the types that it can be made of."""
    for form in forms:
        with suppress(Unconvertible):
            yield convert(data, form, "request")


def _check_not_offered(snapshot: Snapshot, request_id: str) -> None:
    for delivery in snapshot.deliveries:
        offered = offered_request(delivery)
        if offered is not None and offered.request_id == request_id:
            raise InvalidArgument(
                f"edits: request {request_id!r} is offered to executor {delivery.target!r} here, which may answer it; "
                f"fork from a checkpoint at which it is not"
            )


def _edited(snapshot: Snapshot, edit: EditDraft) -> Snapshot:
    requests = {
        known: request if data is request.data else request._replace(data=data)
        for known, request in snapshot.requests.items()
        if (data := edit.requests.get(known, request.data)) is not None
    }
    return snapshot._replace(
        state=write(snapshot.state, edit.writes),
        deliveries=snapshot.deliveries if edit.deliveries is None else edit.deliveries,
        requests=Layered(requests) if edit.requests else snapshot.requests,
    )


def _place(key: EditKey) -> Place:
    """Return the key of shared state that an edit names."""
    match key:
        case StateKey():
            scope_name, name = key.scope_name or DEFAULT_SHARED_SCOPE, key.name
        case str():
            scope_name, name = DEFAULT_SHARED_SCOPE, key
        case (str() as scope_name, str() as name) if scope_name:
            pass
        case _:
            raise InvalidArgument(
                f"edits: {key!r} names no state; write {{('scope', 'key'): value}}, or {{'key': value}} for the "
                f"default shared scope"
            )
    check_text(scope_name, "edits: scope")
    check_text(name, "edits: state key")
    return Scope(None, scope_name), name
