"""The events of a run.

A new event is a class here and a public name in ``holdfast/__init__.py``. ``runtime/run/lifecycle.py`` makes it, or
a module of ``runtime/step/``, ``runtime/events/emitter.py`` for a superstep that is over, or the checkpoint trail.
``event_reader`` makes it again for ``storage.watch`` if a row of ``format/event_row.py`` stores it. Tests ask for its
line in ``cli/event_text.py``, its form in tests/unit/json_forms and its row in docs/reference/events.md.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import errors
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.errors import HoldfastWarning
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import ExecutorId, RequestId, RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo

RUN_SCOPE, COMPLETION_KEY = "holdfast.run", "completion"
"""The shared scope and key under which an executor leaves the ``WorkflowCompletedEvent`` of its run."""

NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclass(slots=True, repr=False, eq=False)
class WorkflowEvent:
    """The root of all events; subclass it for events of your own (see ``WorkflowContext.add_event``).

    A ``provisional`` event is shown at once and belongs to work that may yet be done again; all others come in
    the same order each time the same run is made.

    >>> @dataclass
    ... class Progress(WorkflowEvent):
    ...     percent: int = 0
    >>> Progress(percent=40).percent
    40
    """

    run_id: RunId = field(default=RunId(""), kw_only=True, repr=False)
    superstep: int = field(default=0, kw_only=True)
    timestamp: datetime.datetime = field(default=NEVER, kw_only=True, repr=False)
    provisional: bool = field(default=False, kw_only=True, repr=False)
    event_id: str | None = field(default=None, kw_only=True, repr=False)
    """The place of a stored event in its run, for ``storage.watch(after=...)``; None for all others."""

    # Written once for all kinds of events: methods of ``dataclass`` for each took a third of ``import holdfast``.

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields(self) if one.compare)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain JSON, for ``event_from_dict``; docs/reference/json-forms.md describes it."""
        from holdfast.checkpoint.events.event_json import event_to_dict

        return event_to_dict(self)


@dataclass(slots=True, repr=False, eq=False)
class WorkflowStartedEvent(WorkflowEvent):
    """A run begins.

    >>> WorkflowStartedEvent(workflow_name="Triage").workflow_name
    'Triage'
    """

    workflow_name: str = ""
    node_count: int | None = None
    """The number of agents of a team; None for other workflows, and in a process that has not built it."""
    layer_count: int | None = None
    """The number of layers of a team."""


@dataclass(slots=True, repr=False, eq=False)
class WorkflowStatusEvent(WorkflowEvent):
    """The status of the run changed.

    >>> WorkflowStatusEvent(RunStatus.RUNNING).status
    <RunStatus.RUNNING: 'running'>
    """

    status: RunStatus
    waiting_for: tuple[WaitingFor, ...] = ()
    """For a run that is WAITING: ``"answers"``, ``"time"`` (a sleep) or ``"messages"`` (of fan-ins); else empty."""
    by: str | None = None
    """The person or program that changed it, as ``by=`` said; only stored events have it."""


@dataclass(slots=True, repr=False, eq=False)
class WorkflowOutputEvent(WorkflowEvent):
    """The workflow gave out a value.

    >>> WorkflowOutputEvent("done", ExecutorId("report")).data
    'done'
    """

    data: Any
    executor_id: ExecutorId
    replayed: bool = False
    """True if it was given out before: a finished run that is resumed gives its outputs again."""
    intermediate: bool = False
    """True if it is only shown, and no output of the workflow (``WorkflowBuilder.with_intermediate_output_from``)."""


@dataclass(slots=True, repr=False, eq=False)
class OutputDeltaEvent(WorkflowEvent):
    """A handler shows a part of an output that is still being made (see ``WorkflowContext.stream``).

    It is provisional: never stored, never shown again, and no output. The deltas of a turn whose attempt fails count
    for nothing; those of the next one begin anew, with another ``attempt``.

    >>> OutputDeltaEvent(ExecutorId("write"), "Once upon").data
    'Once upon'
    """

    executor_id: ExecutorId
    data: Any
    attempt: int = 1


@dataclass(slots=True, repr=False, eq=False)
class WorkflowCompletedEvent(WorkflowEvent):
    """The run is complete; ``data`` is the last output, None if there was none.

    >>> WorkflowCompletedEvent("done").data
    'done'
    """

    data: Any = None
    duration: float | None = None
    """The seconds since the last input of a team of agents, with the time in which it waited; None for others."""
    succeeded: int | None = None
    """The number of times that an agent of the team did its work; each round of a loop counts."""
    failed: int | None = None
    skipped: int | None = None
    success: bool | None = None
    """True if the team has an answer."""


@dataclass(slots=True, repr=False, eq=False)
class WorkflowErrorEvent(WorkflowEvent):
    """The run failed.

    >>> WorkflowErrorEvent(ValueError("no")).error
    ValueError('no')
    """

    error: BaseException


@dataclass(slots=True, repr=False, eq=False)
class WorkflowWarningEvent(WorkflowEvent):
    """Something that is probably not meant; ``executor_id`` says where, if it is at one executor.

    >>> from holdfast import UnroutedMessage
    >>> WorkflowWarningEvent(UnroutedMessage("nobody takes it")).message
    'nobody takes it'
    """

    warning: HoldfastWarning
    executor_id: ExecutorId | None = None

    @property
    def message(self) -> str:
        """The text of the warning."""
        return str(self.warning)


def warning_of(kind: str, text: str) -> HoldfastWarning:
    """Return a stored warning; one of a class that this version does not have is a plain ``HoldfastWarning``.

    >>> warning_of("DeadLetter", "nobody takes it"), warning_of("Later", "what it was")
    (DeadLetter('nobody takes it'), HoldfastWarning('what it was'))
    """
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, HoldfastWarning):
        return found(text)
    return HoldfastWarning(text)


@dataclass(slots=True, repr=False, eq=False)
class SuperStepStartedEvent(WorkflowEvent):
    """A superstep begins.

    >>> SuperStepStartedEvent(superstep=1).step_number
    1
    """

    checkpoint: CheckpointInfo | None = None
    """The checkpoint at the start; None where nothing is stored."""

    @property
    def step_number(self) -> int:
        """Another name for ``superstep``."""
        return self.superstep

    @property
    def start_info(self) -> SuperStepStartedEvent:
        """This event, for code that looks for ``event.start_info.checkpoint``."""
        return self


@dataclass(slots=True, repr=False, eq=False)
class SuperStepCompletedEvent(WorkflowEvent):
    """A superstep ended: its messages are on their way, its writes are there for all to see.

    >>> SuperStepCompletedEvent(superstep=1).has_pending_messages
    False
    """

    has_pending_messages: bool = False
    has_pending_requests: bool = False
    state_updated: bool = False
    checkpoint: CheckpointInfo | None = None
    """The checkpoint at the end; None where nothing is stored."""

    @property
    def step_number(self) -> int:
        """Another name for ``superstep``."""
        return self.superstep

    @property
    def completion_info(self) -> SuperStepCompletedEvent:
        """This event, for code that looks for ``event.completion_info.checkpoint``."""
        return self


@dataclass(slots=True, repr=False, eq=False)
class CheckpointSavedEvent(WorkflowEvent):
    """A checkpoint became durable.

    >>> CheckpointSavedEvent.__name__
    'CheckpointSavedEvent'
    """

    checkpoint: CheckpointInfo


@dataclass(slots=True, repr=False, eq=False)
class ExecutorInvokedEvent(WorkflowEvent):
    """An executor has its turn.

    >>> ExecutorInvokedEvent(ExecutorId("triage")).executor_id
    'triage'
    """

    executor_id: ExecutorId
    message_count: int = 1


@dataclass(slots=True, repr=False, eq=False)
class ExecutorCompletedEvent(WorkflowEvent):
    """An executor finished its turn.

    >>> ExecutorCompletedEvent(ExecutorId("triage")).executor_id
    'triage'
    """

    executor_id: ExecutorId
    replayed: bool = False
    """True if it finished before the run was resumed, and did not run again."""


@dataclass(slots=True, repr=False, eq=False)
class ExecutorFailedEvent(WorkflowEvent):
    """An executor raised; provisional if there is another attempt.

    >>> ExecutorFailedEvent(ExecutorId("triage"), ValueError("no")).error
    ValueError('no')
    """

    executor_id: ExecutorId
    error: BaseException
    attempt: int = 1


class Response(NamedTuple):
    """An answer to a request, made by ``PendingRequest.create_response``.

    >>> Response(RequestId("ask.1.1"), True).data
    True
    """

    request_id: RequestId
    data: Any


class PendingRequest(NamedTuple):
    """A question that waits for its answer.

    >>> PendingRequest(RequestId("ask.1.1"), "Deploy?", bool, ExecutorId("ask")).create_response(True)
    Response(request_id='ask.1.1', data=True)
    """

    request_id: RequestId
    data: Any
    response_type: TypeForm
    executor_id: ExecutorId
    expires: datetime.datetime | None = None
    """The time at which it expires; None if it waits for ever."""

    @property
    def response_schema(self) -> dict[str, Any]:
        """The JSON Schema of the answer; one without a JSON form has a schema that says no more than its title."""
        from holdfast.graph.typing.schema import json_schema

        return json_schema(self.response_type)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain JSON; docs/reference/json-forms.md describes it."""
        from holdfast.checkpoint.events.event_json import request_to_dict

        return request_to_dict(self)

    def create_response(self, data: Any) -> Response:
        """Return an answer to this request, for ``Run.send_response``."""
        return Response(self.request_id, data)


@dataclass(slots=True, repr=False, eq=False)
class RequestInfoEvent(WorkflowEvent):
    """An executor asks the outside.

    >>> event = RequestInfoEvent(PendingRequest(RequestId("ask.1.1"), "Deploy?", bool, ExecutorId("ask")))
    >>> event.request_id, event.data
    ('ask.1.1', 'Deploy?')
    """

    request: PendingRequest

    @property
    def request_id(self) -> RequestId:
        """The id that the answer must name."""
        return self.request.request_id

    @property
    def data(self) -> Any:
        """The data of the request."""
        return self.request.data

    @property
    def response_type(self) -> TypeForm:
        """The type of the answer."""
        return self.request.response_type

    @property
    def executor_id(self) -> ExecutorId:
        """The executor that asks."""
        return self.request.executor_id
