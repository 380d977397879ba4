"""Events and requests as plain JSON, and back.

The forms are described in docs/reference/json-forms.md and held by files in tests/unit/json_forms. A new field of an
event is written as it is if JSON has it, else under ``$type``; one that needs another form has a line in ``_FORMS``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from holdfast.checkpoint.checkpoint_info import info_from_dict, json_field
from holdfast.checkpoint.codec.plain import TEXT, TYPE, PlainValue, plain_value, value_of_plain
from holdfast.checkpoint.events import events
from holdfast.checkpoint.events.events import NEVER, PendingRequest, WorkflowEvent, warning_of
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastWarning, InvalidArgument
from holdfast.graph.typing.match import show_value
from holdfast.graph.typing.schema import DescribedType
from holdfast.graph.typing.types import type_name
from holdfast.ids import ExecutorId, RequestId

_COMMON = tuple(one.name for one in fields(WorkflowEvent))
_OWN = frozenset(
    cls for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, WorkflowEvent)
)
_BY_NAME = {cls.__name__: cls for cls in _OWN}


@dataclass(slots=True, repr=False, eq=False)
class PlainEvent(WorkflowEvent):
    """An event of a user's class that ``event_from_dict`` read: the name of the class, and its fields.

    >>> PlainEvent("Progress", {"percent": 40}).fields
    {'percent': 40}
    """

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


def event_to_dict(event: WorkflowEvent) -> dict[str, Any]:
    """Return an event as plain JSON."""
    head = {"event": type(event).__name__, **{name: _form(event, name) for name in _COMMON}}
    if isinstance(event, PlainEvent):
        return {**head, "event": event.name, "fields": plain_value(event.fields)}
    own = [one.name for one in fields(event) if one.name not in _COMMON]
    if type(event) in _OWN:
        return {**head, **{name: _form(event, name) for name in own}}
    further = [name for name in getattr(event, "__dict__", ()) if name not in own and name not in _COMMON]
    return {**head, "fields": plain_value({name: getattr(event, name) for name in (*own, *further)})}


def event_from_dict(data: Any) -> WorkflowEvent:
    """Return the event that ``event.to_dict()`` wrote, here or in another process.

    Values of classes come back as dicts with the name of their class under ``$type``, exceptions among them, and
    events of users' classes as ``PlainEvent``. What ``to_dict`` gives for them is the same again.

    >>> from holdfast import WorkflowOutputEvent
    >>> event = event_from_dict(WorkflowOutputEvent((1, 2), "report", superstep=3).to_dict())
    >>> event.data, event.executor_id, event.superstep
    ((1, 2), 'report', 3)
    >>> event_from_dict({"event": "Later"})
    Traceback (most recent call last):
    ...
    holdfast.errors.InvalidArgument: event_from_dict: there is no event 'Later' in this version; ...
    """
    name = data.get("event") if isinstance(data, dict) else None
    if not isinstance(name, str):
        raise InvalidArgument(
            f"event_from_dict takes what event.to_dict() gave, a dict with 'event', not {show_value(data, 80)}"
        )
    if "fields" not in data and name not in _BY_NAME:
        raise InvalidArgument(
            f"event_from_dict: there is no event {name!r} in this version; it has {', '.join(sorted(_BY_NAME))}, "
            f"and those of users have 'fields'"
        )
    try:
        common = {one: _read(one, data[one]) for one in _COMMON if one in data or one != "event_id"}
        if "fields" in data:
            return PlainEvent(name, value_of_plain(data["fields"]), **common)
        return _BY_NAME[name](**_own_fields(_BY_NAME[name], data), **common)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"event_from_dict: {show_value(data, 80)} is no {name} that event.to_dict() gave: {error!r}"
        ) from error


def event_of_plain(label: str, value: Any) -> WorkflowEvent:
    """Return a stored event of a class that is unknown here, or whose values are, from its plain form."""
    parts = value if isinstance(value, dict) else {"value": value}
    own = {
        name.removeprefix("$"): value_of_plain(part)
        for name, part in parts.items()
        if name not in (*_COMMON, TYPE, "$version")
    }
    cls = _BY_NAME.get(label)
    return PlainEvent(label.rpartition("<locals>.")[2], own) if cls is None else cls(**own)


def _own_fields(cls: type[WorkflowEvent], data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of an event; one that an earlier version did not write has its default."""
    return {
        one.name: _read(one.name, data[one.name])
        for one in fields(cls)
        if one.name not in _COMMON
        and (one.name in data or (one.default is MISSING and one.default_factory is MISSING))
    }


def request_to_dict(request: PendingRequest) -> dict[str, Any]:
    """Return a request as plain JSON."""
    return {
        "request_id": str(request.request_id),
        "executor_id": str(request.executor_id),
        "data": plain_value(request.data),
        "response_type": type_name(request.response_type),
        "response_schema": request.response_schema,
        "expires": json_field(request.expires),
    }


def _request_from_dict(data: Mapping[str, Any]) -> PendingRequest:
    return PendingRequest(
        RequestId(data["request_id"]),
        value_of_plain(data["data"]),
        DescribedType(data["response_type"], data["response_schema"]),
        ExecutorId(data["executor_id"]),
        None if data["expires"] is None else datetime.datetime.fromisoformat(data["expires"]),
    )


# -- the forms of fields ---------------------------------------------------------------------------


def _form(event: WorkflowEvent, name: str) -> Any:
    value = getattr(event, name)
    write = _FORMS[name][0] if name in _FORMS else plain_value
    return None if value is None else write(value)


def _read(name: str, data: Any) -> Any:
    read = _FORMS[name][1] if name in _FORMS else value_of_plain
    return read(data) if data is not None or name == "timestamp" else None


def _time_text(time: datetime.datetime) -> str | None:
    return None if time == NEVER else time.isoformat()


def _time(text: str | None) -> datetime.datetime:
    return NEVER if text is None else datetime.datetime.fromisoformat(text)


def _error_form(error: BaseException | PlainValue) -> PlainValue:
    """Return an exception as plain JSON, with its message."""
    return error if isinstance(error, PlainValue) else PlainValue({**plain_value(error), TEXT: str(error)})


def _warning(data: Mapping[str, str]) -> HoldfastWarning:
    return warning_of(data["kind"], data["text"])


_FORMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "timestamp": (_time_text, _time),
    "status": (str, RunStatus),
    "waiting_for": (json_field, lambda data: tuple(map(str, data))),
    "error": (_error_form, PlainValue),
    "warning": (lambda warning: {"kind": type(warning).__name__, "text": str(warning)}, _warning),
    "checkpoint": (lambda info: info.to_dict(), info_from_dict),
    "request": (request_to_dict, _request_from_dict),
}
